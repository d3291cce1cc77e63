"""Addresses that are unique in a cluster: blocks of a space are claimed for a node, and addresses given from them."""
