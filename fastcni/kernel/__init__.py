"""Call the Linux kernel: netlink, network namespaces, sysctls, processes. This package knows nothing of CNI."""
