"""Show and repair cluster-wide addresses for operators.

    site                finds the store that this node's configurations name
    state               reads this node's blocks from its own files
    survey              reads nodes, blocks and holders in a store
    repair              releases an address, forgets a node
    whereabouts         reads the addresses that whereabouts has allocated
    import_whereabouts  imports these addresses
    documents           converts the results to plain JSON values
"""
