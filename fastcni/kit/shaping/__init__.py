"""Shape a pod's traffic with qdiscs and an ifb device."""
