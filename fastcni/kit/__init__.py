"""What plugins share: the request, the way back, links, IPAM, masquerade, checks. Plugins are functions over this."""
