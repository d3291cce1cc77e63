"""Accept forwarded traffic of pods: the keys of the plugin firewall, and a module for each backend."""
