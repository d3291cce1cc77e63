"""The node agent: give the node a subnet, connect the node to other nodes, and restore the kernel's state.

    run              the agent, from its start to its end: join the network, then serve events
    thread           runs the agent in `fastcni serve --agent`
    contract         a node's record, the network's configuration, and the contracts of registries and backends
    registries       store the nodes' records in etcd, in Kubernetes or in a file
    backends         the ways to reach other nodes: vxlan, host-gw, ipip, wireguard
    bgp              announces subnets and blocks by BIRD or FRR
    egress           egress addresses: a fixed source address for packets that leave the cluster
    policy           network policies
    conf             reads the network's configuration
    underlay         chooses the link through which the node reaches other nodes
    subnets          chooses free subnets, and finds invalid subnets of other nodes
    network          computes the wanted links, routes and masquerading from the records of all nodes
    keeper           keeps the kernel's state equal to the wanted state, and restores entries that were removed
    links            makes, repairs and removes the agent's links
    tables           reads and writes neighbours, FDB entries and routes
    wireguard_peers  reads and writes the peers of wireguard links
    masquerade       the nftables table of flannel's masquerading rules
    nft_table        the base class of the tables of policies and egress addresses, and notifications about tables
    batches          splits many netlink requests into several messages
    files            writes subnet.env and the conflist
    peer_list        writes peers.json, the list of nodes for `fastcni selftest --peer`
    tries            repeats a failed action after pauses that grow
    metrics          metrics for Prometheus
"""
