"""Read the addresses, the protocol and the ports of a packet from its headers or from a conntrack flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fastcni.flows.table import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP

if TYPE_CHECKING:
    from fastcni.kernel.conntrack import Flow as Connection

IPPROTO_ICMP, IPPROTO_ICMPV6 = 1, 58
NEIGHBOUR_SOLICITATION = 135    # RFC 4861; sent to ff02::1:ff00:0/104 plus the last three bytes of the target
PROTOCOLS = {IPPROTO_ICMP: "icmp", IPPROTO_TCP: "tcp", IPPROTO_UDP: "udp", IPPROTO_ICMPV6: "icmpv6",
             IPPROTO_SCTP: "sctp"}
WITH_PORTS = {IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP}
ARP_BYTES = 28                  # an ARP packet for Ethernet and IPv4 (RFC 826)
ON_LINK = (b"\xff\x02", b"\xe0\0\0")    # link-local multicast: ff02::/16, 224.0.0.0/24


class Packet(NamedTuple):
    """The addresses, protocol and ports of a packet. Addresses are packed. A port is None for a protocol without ports,
    and for later fragments.

    target: in a neighbour solicitation, the first 12 and the last three bytes of the address whose MAC is requested; a
    trace message does not contain the 13th byte. target is b"" in other packets.
    """

    protocol: str
    source: bytes
    source_port: int | None
    destination: bytes
    port: int | None
    target: bytes = b""

    @property
    def on_link(self) -> bool:
        """Return whether the destination is a link-local multicast address, as in neighbour discovery: not a flow."""
        return self.destination.startswith(ON_LINK)


def protocol_text(number: int) -> str:
    """Return the name of an IP protocol, such as "tcp", or "protocol 47" for an unknown number."""
    return PROTOCOLS.get(number, f"protocol {number}")


def read(network: bytes, transport: bytes) -> Packet | None:
    """Return the packet whose headers a trace message has; None if the packet is not IPv4, IPv6 or ARP. network: the
    network header. transport: the first bytes of the transport header; b"" in a later fragment."""
    if len(network) == ARP_BYTES:
        return Packet("arp", network[14:18], None, network[24:28], None)
    version = network[0] >> 4 if network else 0
    if version == 4 and len(network) >= 20:
        protocol, source, destination = network[9], network[12:16], network[16:20]
    elif version == 6 and len(network) >= 40:
        protocol, source, destination = network[6], network[8:24], network[24:40]
    else:
        return None
    if protocol in WITH_PORTS and len(transport) >= 4:
        return Packet(protocol_text(protocol), source, int.from_bytes(transport[:2], "big"), destination,
                      int.from_bytes(transport[2:4], "big"))
    solicits = protocol == IPPROTO_ICMPV6 and len(transport) >= 20 and transport[0] == NEIGHBOUR_SOLICITATION
    return Packet(protocol_text(protocol), source, None, destination, None,
                  transport[8:20] + destination[13:] if solicits else b"")


def of_connection(connection: Connection) -> Packet:
    """Return the first packet of a connection as the hook forward sees it: after destination NAT, before source NAT."""
    if connection.protocol in WITH_PORTS:
        return Packet(protocol_text(connection.protocol), connection.source, connection.source_port,
                      connection.replier, connection.replier_port)
    return Packet(protocol_text(connection.protocol), connection.source, None, connection.replier, None)
