"""Code that handles a CNI request: its configuration, rollback, mode, delegates and log line.

    request          Request: the variables, stdin and namespaces of a request; Reply: the answer
    mode             Mode: the steps that differ between one-shot, in-process and warm requests
    conf             keys that several plugins share: mtu, dns, the requested MAC, datapath
    option           the contract of an option of bridge or ptp
    undo             the rollback of ADD, and steps of DEL that all run
    pod              route sockets in the host's and the pod's namespace
    ipam             runs the IPAM delegate
    delegate         runs delegates
    invoke           executes a plugin, for delegate
    search           finds a plugin's executable in CNI_PATH, for invoke
    chained          reads prevResult
    deletion         deletes links, and waits for their end
    names            names and marks of an attachment, so that DEL finds what ADD made
    trunk            reads an entry of vlanTrunk or trunk
    files            small files of plugins
    request_log      the log line of a one-shot request
    server_messages  the messages of a request to the server
    deadlines        deadlines between a launcher and the server
    similar          suggests the name that a user meant
"""
