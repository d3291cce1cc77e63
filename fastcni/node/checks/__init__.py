"""The checks of this node for faults.

    doctor    all checks in one table, and the diagnosis
    findings  what a check looks at, and what it finds
    denied    a refused permission is no fault of the node
    kernel    features, sysctls, tables that fill up, both kinds of iptables
    conf      configuration files and plugin files
    state     the server, and what pods have: addresses, rules, links
    cluster   cluster-wide addresses
    dhcp      the dhcp daemon and its leases
    policy    the agent of the plugin policy
    bundle    the tar.gz of a bug report
"""
