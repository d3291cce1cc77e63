"""Show and repair cluster-wide addresses for operators.

    site                the store that this node's configurations name
    state               this node's blocks, from its own files
    survey              nodes, blocks and holders in a store
    repair              release an address, forget a node
    whereabouts         the addresses that whereabouts has given
    import_whereabouts  imports these addresses
    documents           all of it as plain JSON values
"""
