"""Limit the rate of a pod's traffic with qdiscs and an ifb device.

    limits          reads the keys
    host_end        finds the host end of the pod's veth pair
    qdiscs          limits the packets that a link sends
    ifbs            the ifb device, which limits the packets that a pod sends
    shaping_checks  CHECK's comparisons
"""
