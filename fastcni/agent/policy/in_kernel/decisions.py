"""Find the kernel's decision about the first packet of a connection: read the nftables tables, and follow the packet
through their chains. This module does not read the policies; `fastcni policy test` compares the kernel's decision with
the decision of the policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastcni.agent.policy import port_rules
from fastcni.agent.policy.http.redirect import BASE_CHAINS as TO_PROXY
from fastcni.agent.policy.in_kernel import nft_read, nft_walk
from fastcni.agent.policy.objects import EGRESS, INGRESS
from fastcni.agent.policy.ports import BRIDGED, ETHER_TYPES, MACS, ROUTED
from fastcni.agent.policy.rules import EGRESS_CHAIN, FORWARD_CHAIN, INGRESS_CHAIN, TO_NODE_CHAIN
from fastcni.agent.policy.ruleset import FAMILY, TABLE
from fastcni.kernel import nft, nft_rules, uapi, wire
from fastcni.kernel.uapi import IFNAMSIZ
from fastcni.spec import address as addresses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.agent.policy.evaluate import Connection
    from fastcni.agent.policy.in_kernel.nft_read import Table
    from fastcni.agent.policy.in_kernel.nft_walk import Outcome

DIRECTIONS = {EGRESS: INGRESS_CHAIN, INGRESS: EGRESS_CHAIN}     # {direction: the chain of the other direction}
# {base chain: direction}. Only the rules of an older agent, which has no chain `forward`, have the last two as base
# chains.
OF_CHAINS = {TO_NODE_CHAIN: EGRESS, EGRESS_CHAIN: EGRESS, INGRESS_CHAIN: INGRESS}
OF_PORTS = {(nft.NFPROTO_BRIDGE, port_rules.ADDRESSES): EGRESS, (FAMILY, port_rules.SOURCE): EGRESS,
            (nft.NFPROTO_BRIDGE, port_rules.ARRIVING): INGRESS}
HOOKS = tuple((FAMILY, hook) for hook in (nft.NF_INET_PRE_ROUTING, nft.NF_INET_LOCAL_IN, nft.NF_INET_FORWARD,
                                          nft.NF_INET_POST_ROUTING))
FORWARDED = (nft.NF_INET_FORWARD, nft.NF_INET_POST_ROUTING)     # hooks that packets to the node itself do not pass
IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP = 6, 17, 132
ETH_ALEN = 6
SOURCE_PORT = 0                 # no connection has this port, so no element of a set of dropped answers matches it
NEW, NO_MARK = (1 << 3).to_bytes(4, nft.ORDER), bytes(4)       # NF_CT_STATE_BIT(IP_CT_NEW)
NFT_CT_MARK = 3
NO_INDEXES = {nft_rules.NFT_META_IIF: bytes(4), nft_rules.NFT_META_OIF: bytes(4)}  # no link: the names decide


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a connection's source and destination in a table (link names, b"" if the table has none), and the
    MACs of the pods at the source and the destination."""

    source: bytes = b""
    destination: bytes = b""
    mac: bytes = b""
    to_mac: bytes = b""

    @classmethod
    def of(cls, table: Table, connection: Connection) -> Ports:
        names = BRIDGED if table.family == nft.NFPROTO_BRIDGE else ROUTED
        own = table.sets.get(names.by_length(names.own)[len(connection.source)])
        source, destination = (next((key[:IFNAMSIZ] for key in own.elements if key.endswith(packed)), b"")
                               if own else b"" for packed in (connection.source, connection.destination))
        macs = {key[:IFNAMSIZ]: key[IFNAMSIZ:][:ETH_ALEN] for key in (table.sets[MACS].elements if MACS in table.sets
                                                                      else ())}
        return cls(source, destination, macs.get(source, b""), macs.get(destination, b""))


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a base chain on the packet. allowed: None if the chain has a part that this module does not know.
    text: the rule or chain policy that decides."""

    allowed: bool | None
    text: str


NO_PORTS = Ports()


def read() -> list[Table]:
    """Read all tables whose names begin with "fastcni-policy". Raises OSError; errno is EPERM if the process may not
    read nftables."""
    with wire.open_socket(uapi.NETLINK_NETFILTER) as sock:
        return nft_read.read_tables(sock, lambda family, name: name.startswith(TABLE))


def decide(tables: Iterable[Table], connection: Connection, bypass: str = "", to_node: bool = False) -> dict[str,
                                                                                                             Decision]:
    """Return {name: decision} for each base chain, as if all other base chains accepted the packet. The base chain
    `forward` of the policies has two decisions: one as if the chain `ingress` accepted the packet, and one as if the
    chain `egress` let the packet go on to `ingress`.

    bypass: why no chain of the family inet sees the packet; "" if these chains see it. to_node: whether a pod sends the
    packet to its own node. A connection through the HTTP proxy counts as allowed: the chains of TO_PROXY use the same
    maps, and the proxy decides on the connection's requests.

    Names: always "Egress" and "Ingress"; any other base chain has its table and name, "inet fastcni-policy-guard
    forward". If a chain that checks a pod's port drops the packet, its decision replaces the direction's decision.
    """
    found, at_ports = dict[str, Decision](), dict[str, Decision]()
    for table in tables:
        own, ports = (table.family, table.name) == (FAMILY, TABLE), Ports.of(table, connection)
        packet = first_packet(connection, ports)
        passed = Decision(True, bypass) if bypass and table.family == FAMILY else None
        for name, chain in table.chains.items():
            if chain.hook is None or (own and name in TO_PROXY) or (
                    table.family == FAMILY and passes_by(chain.hook, to_node)):
                continue
            direction = OF_PORTS.get((table.family, name)) if table.name == TABLE else None
            if own and name == FORWARD_CHAIN:
                for decides, other in DIRECTIONS.items():
                    found[decides] = passed or follow(table.without_rules(other), name, packet)
                if not found[INGRESS].allowed and (both := follow(table, name, packet)).allowed:
                    found[INGRESS] = both           # a rule of the chain `egress` accepts: the packet skips `ingress`
            elif direction is None:
                found[(OF_CHAINS.get(name) if own else None) or f"{table} {name}"] = (
                    passed or follow(table, name, packet))
            elif own or all((ports.source, ports.destination)):         # bridges forward from port to port
                at_ports[direction] = passed or follow(table, name, packet)
        if own:
            for direction in () if to_node else DIRECTIONS:
                found.setdefault(direction, Decision(True, f"table {table} has no chain {FORWARD_CHAIN} with a hook"))
    absent = "no policy restricts what pods send to this node" if to_node else (
        f"there is no table {nft.FAMILIES[FAMILY]} {TABLE}")
    for direction in DIRECTIONS:
        found.setdefault(direction, Decision(True, absent))
    return found | {direction: one for direction, one in at_ports.items()
                    if not one.allowed and found[direction].allowed}


def passes_by(hook: int, to_node: bool) -> bool:
    """Return whether the packet does not pass `hook`, a hook of the family inet."""
    return hook == nft.NF_INET_LOCAL_OUT or (hook in FORWARDED if to_node else hook == nft.NF_INET_LOCAL_IN)


def follow(table: Table, name: str, packet: nft_walk.Packet) -> Decision:
    """Return the decision of the base chain `name` of the table on the packet."""
    if (table.family, table.chains[name].hook) not in HOOKS and (table.family, name) not in OF_PORTS:
        return Decision(None, f"chain {name} of table {table} has a hook that this command does not know")
    try:
        outcome = nft_walk.walk(table, name, packet)
    except nft_walk.Unknown as e:
        return Decision(None, f"chain {name} of table {table} has a part that this command does not know: {e}")
    return Decision(outcome.code == nft.NF_ACCEPT, text(table, name, outcome))


def text(table: Table, base: str, outcome: Outcome) -> str:
    """Return the text of a Decision: which rule, map or chain policy has decided. base: the name of the base chain."""
    where = f"chain {outcome.chain}"
    if outcome.chain != base:
        where += f", to which chain {base} leads,"
    if outcome.code != nft.NF_ACCEPT:
        return f"denied by {outcome.comment}" if outcome.comment else f"{where} drops the packet"
    if outcome.comment:
        return f"allowed by {outcome.comment}"
    for name, key in reversed(outcome.missed):
        if len(key) in ETHER_TYPES:
            return f"map {name} of table {table} does not have {addresses.ip_text(key)}"
    return f"no rule of {where.rstrip(',')} of table {table} drops the packet"


def first_packet(connection: Connection, ports: Ports = NO_PORTS) -> nft_walk.Packet:
    """Return the first packet of a connection, with its headers and links, for nft_walk."""
    length = len(connection.source)
    header, transport = network_header(connection), transport_header(connection)
    meta = {nft_rules.NFT_META_NFPROTO: bytes((nft_rules.NFPROTOS[length],)),
            nft_rules.NFT_META_L4PROTO: bytes((connection.protocol,)),
            nft_rules.NFT_META_PROTOCOL: ETHER_TYPES[length], nft_rules.NFT_META_MARK: NO_MARK,
            nft_rules.NFT_META_IIFKIND: port_rules.VETH, **NO_INDEXES,
            nft_rules.NFT_META_IIFNAME: ports.source.ljust(IFNAMSIZ, b"\0"),
            nft_rules.NFT_META_OIFNAME: ports.destination.ljust(IFNAMSIZ, b"\0")}
    macs = b"".join(mac.ljust(ETH_ALEN, b"\0") for mac in (ports.to_mac, ports.mac))
    return nft_walk.Packet(meta, {nft_rules.NFT_PAYLOAD_LL_HEADER: macs + ETHER_TYPES[length],
                                  nft_rules.NFT_PAYLOAD_NETWORK_HEADER: header + transport,
                                  nft_rules.NFT_PAYLOAD_TRANSPORT_HEADER: transport},
                           {nft_rules.NFT_CT_STATE: NEW, nft_rules.NFT_CT_STATUS: bytes(4), NFT_CT_MARK: NO_MARK})


def network_header(connection: Connection) -> bytes:
    """Return the packet's header of IPv4 (RFC 791, checksum 0) or IPv6 (RFC 8200)."""
    if len(connection.source) == 4:
        return bytes((0x45, 0, 0, 40, 0, 0, 0, 0, 63, connection.protocol, 0,
                      0)) + connection.source + connection.destination
    return bytes((0x60, 0, 0, 0, 0, 20, connection.protocol, 63)) + connection.source + connection.destination


def transport_header(connection: Connection) -> bytes:
    """Return the packet's transport header: a TCP SYN, a UDP header, an SCTP INIT, or for other protocols an ICMP echo
    request."""
    ports = SOURCE_PORT.to_bytes(2, "big") + connection.port.to_bytes(2, "big")
    return {IPPROTO_TCP: ports + bytes(8) + bytes((0x50, 0x02)) + bytes(6), IPPROTO_UDP: ports + bytes((0, 8, 0, 0)),
            IPPROTO_SCTP: ports + bytes(8) + bytes((1, 0, 0, 20)) + bytes(16)}.get(
                connection.protocol, bytes((8 if len(connection.source) == 4 else 128,)) + bytes(7))

