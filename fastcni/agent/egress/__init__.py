"""Egress addresses: pods by selector leave the cluster from an address that one node holds at a time."""
