"""Read and write the data of the CNI spec: configurations, results, versions, errors and JSON. This package does not
call the kernel.

    config         reads a configuration: objects with typed keys, names, CNI_ARGS
    result         reads, converts and encodes results
    version        the versions of the spec
    errors         the error codes and exceptions
    ipam           keys that all IPAM plugins share
    address        IP addresses as text and as bytes
    json           JSON as Go writes it
    cached_result  the document of the result cache
    netavark       converts netavark's plugin protocol
"""
