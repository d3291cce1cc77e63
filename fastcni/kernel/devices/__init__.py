"""Make links of special kinds, change offloads, and read the machine's devices from /sys.

    tun        TAP devices
    vxlan      attributes of vxlan links
    wireguard  WireGuard devices
    offloads   offloads of a link
    sysfs      devices in /sys
"""
