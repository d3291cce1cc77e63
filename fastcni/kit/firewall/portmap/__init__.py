"""Map ports of the host to pods. keys.py reads the keys of the plugin portmap; each backend has a module."""
