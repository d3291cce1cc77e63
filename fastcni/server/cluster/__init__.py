"""Maintain cluster-wide addresses between requests: one thread for all address spaces.

    upkeep      the thread, and the address spaces that requests of this node have used
    configured  the networks of configurations with cluster-wide addresses
    space       one address space, and the work that is due
    blocks      its blocks in the store: claim ahead, compare, return
    local       its local state
    singles     its addresses with a claim of their own
    reconcile   its addresses whose pods no longer exist
    pods        which pods no longer exist
    member      this node in one store
    lost        the other nodes of the store that show no heartbeat
    watch       the watch of the store
    times       when the work is due
"""
