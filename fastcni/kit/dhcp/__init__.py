"""What the plugin `dhcp` and its daemon share: keys of the configuration, options, the protocol between the two."""
