"""Masquerade traffic of pods, for the key ipMasq.

    keys      the option of bridge and ptp: reads the keys, chooses the backend and calls it
    iptables  backend: the reference plugins' chains
    nftables  backend: elements in a map of fastcni's own table
"""
