"""Cluster-wide IPAM: a node claims blocks of an address space in a store, and gives addresses out of these blocks."""
