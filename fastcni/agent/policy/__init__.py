"""NetworkPolicy (networking.k8s.io/v1) of this node's pods, in the kernel alone, by nftables."""
