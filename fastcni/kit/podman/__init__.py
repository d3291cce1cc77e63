"""Convert podman's networks and containers, which arrive by netavark's plugin protocol, to CNI for
plugins/netavark.py."""
