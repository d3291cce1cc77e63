"""Cluster-wide IPAM: a node claims blocks of an address space in a store, and gives addresses out of these blocks.

    conf        reads the keys
    flat_file   whereabouts' file of default keys
    requested   the pod's identity and its requested addresses
    grid        divides ranges into blocks
    allocate    ADD: gives addresses of this node's blocks, without the store
    claims      ADD: claims blocks in the store, and repeats a claim while the store is busy
    ip_claims   ADD: claims single addresses in the store
    release     DEL, GC, CHECK, STATUS, rollback
    full        the error for a full range
    upkeep      maintenance by the server: claims ahead, returns idle blocks
    node_state  this node's files: its blocks, and the addresses of its pods
    released    when addresses were released
    hold        the pause in claims after a restore of the store
    contract    the methods of a store, and its records
    states      the states of nodes and blocks in a store
    stores      the stores: etcd, Kubernetes, a local file
"""
