"""Find out from the kernel's nftables tables whether a connection is allowed, without reading the policies."""
