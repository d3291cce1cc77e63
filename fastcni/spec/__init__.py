"""The CNI spec as values: configuration, results, versions, errors, and their JSON. Knows nothing of Linux."""
