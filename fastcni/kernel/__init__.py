"""Linux as verbs: netlink, network namespaces, sysctls, processes. Knows nothing of CNI."""
