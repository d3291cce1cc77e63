"""Check this node for faults.

    doctor    all checks in one table, and the diagnosis
    findings  the input of a check, and its findings
    denied    distinguishes a missing permission from a fault of the node
    kernel    features, sysctls, tables that fill up, both kinds of iptables
    conf      configuration files and plugin files
    state     the server, and pods' addresses, rules and links
    path      the path of packets: veth pairs, bridges, MTUs, routes in pods, host ports
    pods      the links of running pods, which `path` compares with the results of ADD
    networks  addresses, subnets, bridges and stores that only one network or pod may have
    cluster   cluster-wide addresses
    ovs       the bridges and ports in the database of Open vSwitch
    dhcp      the dhcp daemon and its leases
    policy    the agent of the plugin policy
    datapath  the datapath ebpf: pins, programs, filters, free elements in its maps
    bundle    the tar.gz of a bug report
"""
