"""Functions for Linux: netlink, network namespaces, sysctls, processes. Knows nothing of CNI."""
