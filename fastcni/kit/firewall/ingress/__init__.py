"""ingressPolicy of the plugin firewall: its backends."""
