"""Read and write the data of the CNI spec: configurations, results, versions, errors and JSON. Knows nothing of
Linux."""
