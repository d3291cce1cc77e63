"""Egress addresses: selected pods leave the cluster with a fixed source address, which one node at a time holds."""
