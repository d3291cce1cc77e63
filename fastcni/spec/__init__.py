"""The CNI spec as values: configuration, results, versions, errors and JSON. Knows nothing of Linux."""
