"""List the node's tunnels, whose packets pods may not send, as elements of the sets of ports.py.

The sender of a tunnel packet chooses the source address of the inner packet, and no port's rules check that address. So
the rules of port_rules.py drop tunnel packets from pods. WireGuard and IPsec authenticate packets, so their links are
not listed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni._netlink import attributes
from fastcni.agent.policy.ports import BRIDGED, ROUTED
from fastcni.kernel import filters, uapi, wire
from fastcni.kernel.nft_elements import protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.agent.policy.ports import Element
    from fastcni.kernel.rtnl import Link

IPPROTO_IPIP, IPPROTO_IPV6, IPPROTO_GRE, IPPROTO_MPLS = 4, 41, 47, 137          # linux/in.h
UDP_PORTS = {"vxlan": uapi.IFLA_VXLAN_PORT, "geneve": uapi.IFLA_GENEVE_PORT, "bareudp": uapi.IFLA_BAREUDP_PORT}
PROTOCOLS = {"ipip": (IPPROTO_IPIP, IPPROTO_MPLS),
             **dict.fromkeys(("sit", "ip6tnl"), (IPPROTO_IPIP, IPPROTO_IPV6, IPPROTO_MPLS)),
             **dict.fromkeys(("gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ip6erspan"), (IPPROTO_GRE,))}


def watch() -> wire.Socket:
    """Return a socket that receives the kernel's notifications about tunnel links. After such a notification, call
    elements(), because tunnels may have changed. Raises OSError."""
    sock = wire.open_socket(groups=(uapi.RTNLGRP_LINK,))
    filters.attach(sock, filters.link_kinds((*UDP_PORTS, *PROTOCOLS)))
    sock.setblocking(False)
    return sock


def elements(links: Iterable[Link]) -> set[Element]:
    """Return the set elements for the tunnels in `links` that are up; a link that is down receives no packets."""
    found: set[Element] = set()
    for link in links:
        if link.up and link.kind in UDP_PORTS:
            port = attributes(link.data)[UDP_PORTS[link.kind]]
            found.update((names.tunnels, port) for names in (BRIDGED, ROUTED))
        elif link.up:
            found.update((names.protocols, protocol(number)) for number in PROTOCOLS.get(link.kind, ())
                         for names in (BRIDGED, ROUTED))
    return found
