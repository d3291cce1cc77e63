"""Port mappings: the keys of the plugin portmap, and a module for each backend."""
