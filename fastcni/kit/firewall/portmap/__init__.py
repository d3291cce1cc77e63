"""Map ports of the host to pods.

    keys            reads the keys of the plugin portmap, and chooses the backend
    iptables        backend: the reference plugin's chains
    nftables        backend: elements in maps of fastcni's own table
    nftables_rules  the rules that use these maps
"""
