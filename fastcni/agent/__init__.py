"""The node agent: it gives the node a subnet, connects it to the other nodes, and restores this state in the kernel."""
