"""Map ports of the host to pods: the keys of the plugin portmap, and a module for each backend."""
