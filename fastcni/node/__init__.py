"""Take the inventory of a node's attachments, and find faults of the node. Only the subpackage `own` changes the node's
network: it removes fastcni.

    attachments     which attachments exist, where each was seen, and its state
    checks          the checks of `fastcni doctor`, which compare the node with its configuration
    cluster         cluster-wide addresses: the store, its blocks and holders, repair
    activity        a server's activity: figures, requests and their messages as text
    own             fastcni's own state on the node, and its removal
    served          reads the node's files for the server
    confs           the files of a configuration directory
    ranges          the ranges of host-local that configurations name
    pod_policies    the network policies that apply to an address
    dhcp_leases     the leases of the dhcp daemon
    server_process  finds the server that listens on this node by its socket, and stops it
"""
