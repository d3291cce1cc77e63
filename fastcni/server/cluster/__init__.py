"""What a server does for cluster-wide addresses between requests: one thread for all spaces.

    upkeep      the thread, and the spaces that requests of this node have used
    configured  the networks of configurations with cluster-wide addresses
    space       one space: what is due in it
    blocks      its blocks in the store: claimed ahead, compared, given back
    local       its local state
    singles     its addresses that are claimed by themselves
    reconcile   its addresses whose pods are gone
    pods        which pods are gone
    member      this node in one store
    lost        the other nodes of the store that show no heartbeat
    watch       the watch of the store
    times       when all this is due
"""
