"""Implement the ovs plugin: pods are ports of an Open vSwitch bridge.

    ovs_conf   reads the plugin's keys, ovs-cni's file ovs.conf, and the pod's arguments
    database   connects to OVSDB, and converts errors for the runtime
    ports      adds, awaits, finds, compares and removes a pod's port
    addresses  configures the pod's addresses and MAC
    cache      reads and writes ovs-cni's cache files
    collect    removes ports whose pod no longer exists
    lost       adds the port of a running pod again if the database has lost it
"""
