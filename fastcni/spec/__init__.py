"""Read and write the data of the CNI spec: configurations, results, versions, errors and JSON. This package does not
call the kernel."""
