"""The addresses of simulated nodes, by their number."""

from ipaddress import ip_address, ip_network

NETWORK = ip_network("10.0.0.0/8")              # addresses of pods: a /24 for each node
FIRST = 256                                     # the subnet of simulated node 0; the real agent takes a lower subnet
UNDERLAY = ip_network("198.18.0.0/15")          # addresses of nodes: the range for network tests (RFC 2544)
AGENT = UNDERLAY[-2]                            # the address of the real agent's node


def subnet_of(number):
    return ip_network((int(NETWORK[0]) + (FIRST + number) * 256, 24))


def number_of(packed):
    """Return the number of the node whose subnet begins with this address."""
    return (int(ip_address(packed)) - int(NETWORK[0])) // 256 - FIRST


def public_of(number):
    return UNDERLAY[number + 1]


def mac_of(number):
    return f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"
