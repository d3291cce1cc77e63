"""Format the output of the commands as text or JSON.

    output     text or JSON
    show       results and plans
    inventory  lists of attachments, and one attachment
    ipam       cluster-wide addresses
    flows      flows, a line each
    reports    the report of a command on a network
    top        a frame of `fastcni top`
    terminal   the terminal of a live view
"""
