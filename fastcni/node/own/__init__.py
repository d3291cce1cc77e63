"""Find and remove fastcni's own state on the node.

    state      the firewall elements, and the pods that need them
    tables     removal of tables, sets and shared rules
    files      indexes of address files, marks and backups of link attributes
    datapath   the datapath ebpf: its state, its update and its removal
    uninstall  all of `fastcni uninstall`
"""
