"""The node agent: gives the node a subnet, joins it to the others, and keeps the kernel's state so."""
