"""podman's networks as CNI: netavark's plugin protocol gives both, plugins/netavark.py runs them."""
