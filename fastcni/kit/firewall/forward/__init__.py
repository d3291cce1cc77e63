"""Accept forwarded traffic of pods.

    keys               reads the keys of the plugin firewall, and chooses the backends
    firewalld          backend: sources of a firewalld zone
    iptables           backend: the reference plugin's chains
    iptables_chain     reads the chain CNI-FORWARD without a program
    nftables           backend: sets of pods, and the administrator's chain
    nftables_policies  accepts pods in chains of other programs that drop by policy
"""
