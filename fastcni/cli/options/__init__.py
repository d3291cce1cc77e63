"""Define the options that several commands share.

    settings    a network and a namespace: from options, otherwise from cnitool's environment variables, otherwise
                defaults
    node        the places of this node's attachments
    conf_dir    the directory of network configurations
    addresses   addresses to listen on, and a collector of traces
    logging     the log of a daemon
    server      the option --socket, and the error if no server answers
    completion  completion of names in the shell
"""
