"""The inventory of a node's attachments, and the faults of the node. Nothing here changes the node's network.

    attachments     which attachments exist, where each was seen, and what is known of it
    checks          the checks of `fastcni doctor`
    cluster         cluster-wide addresses: the store, its blocks and holders, repair
    activity        what a server does: figures, requests and their messages as text
    own             fastcni's own state on the node, and its removal
    served          what the server asks about its node
    confs           the files of a configuration directory
    ranges          the ranges of host-local that configurations name
    pod_policies    the network policies that hold for an address
    dhcp_leases     the leases of the dhcp daemon
    server_process  the server that listens on this node: found by its socket, and stopped
"""
