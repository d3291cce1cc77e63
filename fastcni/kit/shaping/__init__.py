"""Limit the rate of a pod's traffic with qdiscs and an ifb device."""
