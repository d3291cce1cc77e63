"""The node agent: gives the node a subnet, connects the node to other nodes, and restores the kernel's state."""
