"""The addresses of simulated nodes, by their number."""

from ipaddress import ip_address, ip_network

NETWORK = ip_network("10.0.0.0/8")              # of pods: a /24 for each node
FIRST = 256                                     # subnet of the simulated node 0; the real agent takes a lower one
UNDERLAY = ip_network("198.18.0.0/15")          # of nodes, for tests of networks (RFC 2544)
AGENT = UNDERLAY[-2]                            # the node of the real agent


def subnet_of(number):
    return ip_network((int(NETWORK[0]) + (FIRST + number) * 256, 24))


def number_of(packed):
    """The node whose subnet has this address as its first one."""
    return (int(ip_address(packed)) - int(NETWORK[0])) // 256 - FIRST


def public_of(number):
    return UNDERLAY[number + 1]


def mac_of(number):
    return f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"
