"""Allocate addresses to pods: read the ranges, keep the files of held addresses, and index them.

    host_local_conf  reads the keys of host-local
    ranges           reads and checks range sets
    resolv_conf      reads resolv.conf
    allocation       chooses an address, and releases addresses
    store            Store: the directory, lock and index of a network
    address_files    the files of held addresses, and the cursor (last_reserved_ip)
    before_reboot    releases addresses of pods from before a reboot
    cluster          addresses that are unique in a cluster

_ipam_bitmap.pyx has the index. If an index and a file differ, the file decides.
"""
