"""What options of several commands mean.

    settings    a network and a namespace: from options, else from cnitool's environment variables, else defaults
    node        where to look for this node's attachments
    addresses   where to listen, and a collector of traces
    logging     where a daemon logs, and what
    server      a server that is asked, and cannot be
    completion  names that the shell completes
"""
