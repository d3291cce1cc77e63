"""Code that the plugin `dhcp` and its daemon share.

    dhcp_conf   reads the keys: DHCP options to send and to request
    client      calls the daemon
    rpc         encodes and decodes calls (Go's net/rpc)
    gob         encodes and decodes values (Go's gob)
    lease_path  the path of a lease's file
"""
