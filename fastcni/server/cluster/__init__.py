"""Maintain cluster-wide addresses between requests: one thread for all address spaces.

    upkeep      the thread, and the address spaces that requests of this node have used
    configured  the networks with cluster-wide addresses in the node's configurations
    space       one address space, and its work that is due
    blocks      compares the space's blocks in the store with the local state
    local       the space's state in this node's files
    ip_claims   addresses of the space that have a claim of their own
    reconcile   addresses of the space whose pods no longer exist
    pods        answers which pods no longer exist
    member      this node in one store
    lost        the other nodes of the store that send no heartbeat
    watch       the watch of the store
    times       when the work is due
"""
