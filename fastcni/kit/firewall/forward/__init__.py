"""Accept forwarded traffic of pods. keys.py reads the keys of the plugin firewall; each backend has a module."""
