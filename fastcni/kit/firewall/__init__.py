"""Change the host's firewall for pods. Plugins change the host's firewall only by this package. The agent has tables of
its own, see agent/nft_table.py and agent/policy.

Subjects:

    masquerade      ipMasq
    portmap         host ports: maps ports of the host to pods
    localnet        host ports by 127.0.0.1
    forward         the plugin firewall: accepts forwarded traffic
    ingress         the plugin firewall: ingressPolicy
    spoofcheck      macspoofchk and ipspoofchk
    solicitations   IPv6 neighbour solicitations to pods with disableFlooding
    port_mappings   reads the capability portMappings
    port_sources    rules that let a pod's port send only from the pod's addresses
    port_flows      portmap's conntrack entries: deletes UDP and SCTP flows after ADD and DEL

Backends:

    contract        the functions that the backends of each subject have
    backends        the table of backends
    table           names of fastcni's own nftables tables
    elements        Store: a set or map of fastcni's tables, whose elements belong to attachments
    transactions    writes many elements
    owners          the set that says which attachment owns an address
    rulesets        finds and deletes nftables rules, also of other programs
    doubled         replaces rules that fastcni's tables have twice
    iptables        reads and changes tables by iptables-save and iptables-restore
"""
