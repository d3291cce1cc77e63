"""Cluster-wide addresses, as an operator sees and repairs them.

    site                the store that this node's configurations name
    state               this node's blocks, by its own files
    survey              what a store says of nodes, blocks and holders
    repair              release an address, forget a node
    whereabouts         the addresses that whereabouts has given
    import_whereabouts  takes these over
    documents           all of it as plain JSON values
"""
