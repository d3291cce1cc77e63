"""Read from the kernel's tables what they decide about a connection, without reading the policies."""
