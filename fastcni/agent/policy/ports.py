"""The port of a pod's attachment: the host's end of its link, and the addresses from which the pod may send.

The kernel's rules for ports are in port_rules.py; each port has elements in their sets, which elements() returns. A
port of a bridge is in the sets of the table `bridge fastcni-policy`, any other link (ptp) in those of `inet
fastcni-policy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fastcni._netlink import Batch
from fastcni.kernel import nft, rtnl, wire
from fastcni.kernel.nft_elements import concat, ifname, service
from fastcni.kernel.uapi import ETH_P_IP, ETH_P_IPV6, IFNAMSIZ
from fastcni.kit.links import find
from fastcni.spec import address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


    Element = tuple[str, bytes]                 # (set, key)

ETHER_TYPES = {4: ETH_P_IP.to_bytes(2, "big"), 16: ETH_P_IPV6.to_bytes(2, "big")}      # by length of an address
VERSIONS = {4: "4", 16: "6"}                    # in names, by length of an address


class Names(NamedTuple):
    """The sets of one kind of ports. `own` and `more` are two sets each, whose names end with 4 and 6.

    ports: all. own: port . address. more: port . prefix. routers: may send router advertisements. shut: policies
    restrict the pod's ingress. tunnels, protocols: UDP ports and IP protocols of the node's tunnels, see tunnels.py.
    """

    ports: str
    own: str
    more: str
    routers: str
    shut: str
    tunnels: str
    protocols: str

    def by_length(self, name: str) -> dict[int, str]:
        """{length of an address: the name of its set}."""
        return {length: f"{name}{version}" for length, version in VERSIONS.items()}

    def sets(self) -> dict[str, str]:
        """{set: kind}."""
        return {self.ports: "port", self.routers: "port", self.shut: "port", self.tunnels: "service",
                self.protocols: "protocol",
                **dict.fromkeys(self.by_length(self.own).values(), "own"),
                **dict.fromkeys(self.by_length(self.more).values(), "box")}


BRIDGED = Names("ports", "own", "more", "routers", "shut", "tunnel-ports", "tunnel-protocols")      # of a bridge
ROUTED = Names("links", "from", "more-from", "link-routers", "shut-links", "link-tunnel-ports", "link-tunnel-protocols")
MACS, TYPES, DHCP_PORTS = "macs", "types", "dhcp"
MUTE = "mute"                   # policies restrict the egress of the port's pod
SENDERS, RECEIVERS = {4: "senders4", 16: "senders6"}, {4: "receivers4", 16: "receivers6"}
LINK_SENDERS = {4: "link-senders4", 16: "link-senders6"}
ON_BRIDGES = {**BRIDGED.sets(), **dict.fromkeys(BRIDGED.by_length(BRIDGED.own).values(), "frame"), MACS: "mac",
              TYPES: "type", DHCP_PORTS: "port", MUTE: "port", **dict.fromkeys(SENDERS.values(), "sender"),
              **dict.fromkeys(RECEIVERS.values(), "indexed")}         # in the table of bridges
STATIONS = {4: "stations4", 16: "stations6"}    # MAC . address of held pods of bridges
POD_MACS, SHUT_MACS, DHCP4 = "pod-macs", "shut-macs", "dhcp4"       # of the same; of those with restricted ingress
# {set: kind of its keys}. "port": the name of a link; "own": link . address; "frame": link . MAC . address; "box": both
# ends of a range of "own"; "station": MAC . address; "service", "protocol": their numbers; "sender": index of a link .
# MAC and ethertype . address; "indexed": index of a link . address
SETS = {**ON_BRIDGES, **ROUTED.sets(), **dict.fromkeys(LINK_SENDERS.values(), "indexed"),
        **dict.fromkeys(STATIONS.values(), "station"), POD_MACS: "ether", SHUT_MACS: "ether", DHCP4: "address"}
# For these no ADD waits: the traffic is dropped still.
LATER = {*STATIONS.values(), *SENDERS.values(), *RECEIVERS.values(), *LINK_SENDERS.values(), POD_MACS, SHUT_MACS, DHCP4,
         MUTE}


class Unclear(Exception):
    """A request names no port, or several. The text lists the named links."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A further address of a pod: packed, with a prefix length. mac: a further MAC, b"" without a further MAC."""

    packed: bytes
    prefix: int
    mac: bytes = b""

    @property
    def single(self) -> bool:
        return self.prefix == 8 * len(self.packed)


@dataclass(frozen=True, slots=True)
class Port:
    """name: of the link on the host. bridged: it is a port of a bridge. mac: the pod's.

    pairs: further addresses. types: further ethertypes. router: it may send router advertisements. dhcp: its addresses
    come from DHCP.
    """

    name: str
    bridged: bool
    mac: bytes
    pairs: tuple[Pair, ...] = ()
    types: tuple[int, ...] = ()
    router: bool = False
    dhcp: bool = False

    @property
    def further(self) -> tuple[bytes, ...]:
        """The single addresses among the pairs: policies treat them as the pod's own."""
        return tuple(pair.packed for pair in self.pairs if pair.single)


def elements(port: Port, addresses: tuple[bytes, ...], *, shut: bool, mute: bool, index: int = 0) -> Iterator[Element]:
    """Yield the elements of a port. shut, mute: policies restrict its pod's ingress, its egress. index: of its link, 0
    if not known; the kernel then compares names, which takes longer. A port without addresses is closed: another pod
    has them, or they are not known."""
    key, link = ifname(port.name), index.to_bytes(4, nft.ORDER)
    names = BRIDGED if port.bridged else ROUTED
    yield names.ports, key
    if not addresses:
        yield names.shut, key
        if port.bridged:
            yield SHUT_MACS, port.mac
        return
    macs = dict.fromkeys((port.mac, *(pair.mac for pair in port.pairs if pair.mac)))
    single = (*addresses, *port.further)
    for packed in dict.fromkeys((*single, *map(address.link_local, macs))):
        for mac in macs if port.bridged else ():
            yield f"{names.own}{VERSIONS[len(packed)]}", concat(key, mac, packed)
            yield STATIONS[len(packed)], concat(mac, packed)
            if index:
                yield SENDERS[len(packed)], concat(link, mac + ETHER_TYPES[len(packed)], packed)
        if index:
            yield (RECEIVERS if port.bridged else LINK_SENDERS)[len(packed)], concat(link, packed)
        if not port.bridged:
            yield f"{names.own}{VERSIONS[len(packed)]}", concat(key, packed)
    if not mute:                    # a prefix has no policies of its own
        for pair in port.pairs:
            if not pair.single:
                yield f"{names.more}{VERSIONS[len(pair.packed)]}", box(key, pair)
    if mute and port.bridged:
        yield MUTE, key
    if port.router:
        yield names.routers, key
    if shut:
        yield names.shut, key
        if port.bridged:
            yield from ((SHUT_MACS, mac) for mac in macs)
    if port.dhcp:
        yield from ((DHCP4, packed) for packed in addresses if len(packed) == 4)
    if port.bridged:
        yield from ((POD_MACS, mac) for mac in macs)
        yield from ((MACS, concat(key, mac)) for mac in macs)
        yield from ((TYPES, concat(key, service(number))) for number in port.types)
        if port.dhcp:
            yield DHCP_PORTS, key


def box(key: bytes, pair: Pair) -> bytes:
    """The first and the last key of a range: link . address."""
    first = address.network(pair.packed, pair.prefix)
    return concat(key, first) + concat(key, address.broadcast(pair.packed, pair.prefix))


# -- requests and files ------------------------------------------------------------------------------------------------

class Finder:
    """Finds the ports that requests are about. Bridges that it finds learn only from frames that the rules see.

    Made in a thread that is in the node's namespace. The kernel is asked for a bridge once: an ADD waits for it.
    """

    def __init__(self) -> None:
        self.sock = wire.open_socket()
        self.bridges: dict[str, int] = {}       # index, by name

    def close(self) -> None:
        self.sock.close()

    def find(self, request: Mapping[str, Any]) -> Port | None:
        """Return the port, None if an earlier plugin has asked, which does not tell. Raises Unclear, OSError, and what
        read() raises."""
        if "links" not in request:
            return None
        links = [find.link(self.sock, name) for name in request["links"]
                 if name not in self.bridges and len(name.encode()) < IFNAMSIZ]
        veths = [link for link in links if link and link.kind == "veth"]
        if len(veths) != 1:
            raise Unclear(f"prevResult has to name one veth on the host, the pod's port; found {len(veths)} among "
                          f"{', '.join(request['links'])}")
        return read({**request["port"], "name": veths[0].name, "bridged": self._is_bridge(veths[0].master)})

    def _is_bridge(self, index: int) -> bool:
        if not index or index in self.bridges.values():
            return bool(index)
        master = find.link(self.sock, index=index)
        if master is None or master.kind != "bridge":
            return False
        wire.exchange(self.sock, rtnl.learn_no_link_local(Batch(), index))
        self.bridges[master.name] = index
        return True


def read(document: Mapping[str, Any]) -> Port:
    """Raises ValueError, TypeError, KeyError, AttributeError."""
    pairs = [Pair(*address.read_cidr(each["address"]), bytes.fromhex(each.get("mac", "")))
             for each in document.get("pairs", ())]
    mac = bytes.fromhex(document["mac"])
    if len(mac) != 6 or any(len(pair.mac) not in (0, 6) for pair in pairs):
        raise ValueError("a MAC has six bytes")
    return Port(str(document["name"]), bool(document["bridged"]), mac, tuple(pairs),
                tuple(map(int, document.get("types", ()))), bool(document.get("router")), bool(document.get("dhcp")))


def written(port: Port) -> dict[str, Any]:
    """The document of a port, which read() reads."""
    return {"name": port.name, "bridged": port.bridged, "mac": port.mac.hex(), "types": list(port.types),
            "router": port.router, "dhcp": port.dhcp,
            "pairs": [{"address": address.cidr_text(pair.packed, pair.prefix), "mac": pair.mac.hex()}
                      for pair in port.pairs]}
