"""Read from the kernel's tables what they decide about a connection, with no look at the policies."""
