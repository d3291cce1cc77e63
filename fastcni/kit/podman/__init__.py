"""Convert podman's networks and containers, in the form of netavark's plugin protocol, to CNI configurations, for
plugins/netavark.py."""
