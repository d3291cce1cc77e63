"""fastcni's own state on the node, and its removal.

    state      the pods that need it, in the firewall
    tables     removal of tables, sets and shared rules
    files      indexes of address files, marks and backups of link attributes
    datapath   the datapath ebpf: what it has, its update and its removal
    uninstall  all of `fastcni uninstall`
"""
