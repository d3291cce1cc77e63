"""Enforce the key ingressPolicy of the plugin firewall. forward/keys.py reads the key and chooses the backend.

    iptables  backend: the reference plugin's chains
    nftables  backend: rules that decide which bridges may send to which bridges
"""
