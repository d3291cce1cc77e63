"""What a server does for cluster-wide addresses between requests: one thread for all spaces."""
