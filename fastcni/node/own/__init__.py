"""Find and remove the state of fastcni itself on the node.

    state      the firewall elements, and the pods that need them
    tables     removes tables, sets and shared rules
    files      finds and removes indexes of address files, and marks and backups of link attributes
    datapath   reads, updates and removes the datapath ebpf
    uninstall  does all of `fastcni uninstall`
"""
