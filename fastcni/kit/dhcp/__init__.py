"""Code that the plugin `dhcp` and its daemon share: the keys of a configuration, DHCP options, and the protocol between
plugin and daemon."""
