"""Convert podman's networks and containers, in the form of netavark's plugin protocol, to CNI configurations, for
plugins/netavark.py.

    network  converts a network to a CNI network list
    create   checks and completes a new network
    record   the cache file of an attachment
"""
