"""The ovs plugin: pods as ports of an Open vSwitch bridge.

    ovs_conf   its keys, those of ovs-cni's file ovs.conf, and what one pod asks for
    database   the connection to OVSDB, with errors for the runtime
    ports      a pod's port: added, awaited, found, compared, removed
    addresses  the pod's addresses and MAC behind the port
    cache      the files in which ovs-cni keeps what it was called with
    collect    ports whose pod is gone
"""
