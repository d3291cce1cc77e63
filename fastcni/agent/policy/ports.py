"""Find the port of a pod, and compute the set elements by which the kernel's rules check the port's packets.

A port is the host's end of an attachment's link, with the addresses from which the pod may send. port_rules.py has the
rules and elements() the elements of a port. A port of a bridge is in the sets of the table `bridge fastcni-policy`; a
routed link (ptp) is in the sets of `inet fastcni-policy`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

ETHER_TYPES = {4: ETH_P_IP.to_bytes(2, "big"), 16: ETH_P_IPV6.to_bytes(2, "big")}      # by address length, bytes
VERSIONS = {4: "4", 16: "6"}                    # {address length in bytes: last character of a set's name}


class Names(NamedTuple):
    """The names of the sets for one kind of ports. `own` and `more` name two sets each, which end with 4 and 6.

    ports: all ports of this kind. own: port . address. more: port . prefix. routers: ports that may send router
    advertisements. shut: ports of pods with restricted ingress. tunnels, protocols: UDP ports and IP protocols of the
    node's tunnels, see tunnels.py.
    """

    ports: str
    own: str
    more: str
    routers: str
    shut: str
    tunnels: str
    protocols: str

    def by_length(self, name: str) -> dict[int, str]:
        """Return {address length in bytes: set name} for `own` or `more`."""
        return {length: f"{name}{version}" for length, version in VERSIONS.items()}

    def sets(self) -> dict[str, str]:
        """Return {set name: kind of its keys}; SETS has the kinds."""
        return {self.ports: "port", self.routers: "port", self.shut: "port", self.tunnels: "service",
                self.protocols: "protocol",
                **dict.fromkeys(self.by_length(self.own).values(), "own"),
                **dict.fromkeys(self.by_length(self.more).values(), "box")}


BRIDGED = Names("ports", "own", "more", "routers", "shut", "tunnel-ports", "tunnel-protocols")      # ports of bridges
ROUTED = Names("links", "from", "more-from", "link-routers", "shut-links", "link-tunnel-ports", "link-tunnel-protocols")
MACS, TYPES, DHCP_PORTS = "macs", "types", "dhcp"
MUTE = "mute"                   # the set of ports of pods with restricted egress
SENDERS, RECEIVERS = {4: "senders4", 16: "senders6"}, {4: "receivers4", 16: "receivers6"}
LINK_SENDERS = {4: "link-senders4", 16: "link-senders6"}
ON_BRIDGES = {**BRIDGED.sets(), **dict.fromkeys(BRIDGED.by_length(BRIDGED.own).values(), "frame"), MACS: "mac",
              TYPES: "type", DHCP_PORTS: "port", MUTE: "port", **dict.fromkeys(SENDERS.values(), "sender"),
              **dict.fromkeys(RECEIVERS.values(), "indexed")}         # sets of the table `bridge fastcni-policy`
STATIONS = {4: "stations4", 16: "stations6"}    # MAC . address of the pods at ports of bridges
POD_MACS, SHUT_MACS, DHCP4 = "pod-macs", "shut-macs", "dhcp4"       # SHUT_MACS: of pods with restricted ingress
# {set: kind of its keys}. "port": link name; "own": link name . address; "frame": link name . MAC . address; "box": the
# first and the last "own" key of a range; "station": MAC . address; "ether": MAC; "mac": link name . MAC; "type": link
# name . ethertype; "service": port number; "protocol": IP protocol; "sender": link index . MAC and ethertype . address;
# "indexed": link index . address; "address": address
SETS = {**ON_BRIDGES, **ROUTED.sets(), **dict.fromkeys(LINK_SENDERS.values(), "indexed"),
        **dict.fromkeys(STATIONS.values(), "station"), POD_MACS: "ether", SHUT_MACS: "ether", DHCP4: "address"}
# These sets only accept packets that later rules would accept, too. In a set of fixed size, a lookup takes 60
# instructions less than in a set that grows (docs/policy-figures.md). Each set takes MAX_FAST elements; Journal.put()
# leaves out further elements, until other elements are removed. The hash tables of the six sets take 384 KiB of kernel
# memory.
FAST, MAX_FAST = {*SENDERS.values(), *RECEIVERS.values(), *LINK_SENDERS.values()}, 4096
# An ADD does not wait for elements of these sets: until commit() writes them, the maps drop a restricted pod's traffic.
LATER = {*STATIONS.values(), *FAST, POD_MACS, SHUT_MACS, DHCP4, MUTE}


class Unclear(Exception):
    """The links that a request names include no veth on the host, or several. The text lists the links."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A further address or prefix from which a pod may send. packed: the address. prefix: the prefix length in bits.
    mac: a further MAC of the pod, or b""."""

    packed: bytes
    prefix: int
    mac: bytes = b""

    @property
    def single(self) -> bool:
        return self.prefix == 8 * len(self.packed)


@dataclass(frozen=True, slots=True)
class Port:
    """The host's end of a pod's link, and what the pod may send. name: the link's name on the host. bridged: whether
    the link is a port of a bridge. mac: the pod's MAC.

    pairs: the pod's further addresses. types: further ethertypes that the pod may send. router: whether the pod may
    send router advertisements. dhcp: whether the pod's addresses come from DHCP. index, link_mac: the link's index and
    MAC, by which renames.py finds the link under another name; 0 and b"" if they are unknown.
    """

    name: str
    bridged: bool
    mac: bytes
    pairs: tuple[Pair, ...] = ()
    types: tuple[int, ...] = ()
    router: bool = False
    dhcp: bool = False
    index: int = field(default=0, compare=False)
    link_mac: bytes = field(default=b"", compare=False)

    @property
    def further(self) -> tuple[bytes, ...]:
        """The single addresses in `pairs`. Policies treat these addresses as the pod's own."""
        return tuple(pair.packed for pair in self.pairs if pair.single)


def elements(port: Port, addresses: tuple[bytes, ...], *, shut: bool, mute: bool, index: int = 0) -> Iterator[Element]:
    """Yield the elements of a port. shut: whether policies restrict the ingress of the port's pod. mute: whether
    policies restrict its egress. index: the link's index; if it is 0, unknown, the kernel compares link names, which
    takes longer. If another pod has the port's addresses, or the addresses are unknown, `addresses` is empty: the
    elements then close the port."""
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
    if not mute:                    # policies apply only to addresses, so a restricted pod may not send from prefixes
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
    """Return the first and the last key of a pair's addresses, one after the other. Each key is link name . address.
    key: the link's name."""
    first = address.network(pair.packed, pair.prefix)
    return concat(key, first) + concat(key, address.broadcast(pair.packed, pair.prefix))


# -- requests and files ------------------------------------------------------------------------------------------------

class Finder:
    """Finds the port that a request is about. If the port belongs to a bridge, the Finder sets the bridge to learn no
    MACs from link-local frames, which the rules do not see.

    Make a Finder in a thread that is in the node's namespace. The Finder asks the kernel for each bridge only once,
    because an ADD waits for the answer.
    """

    def __init__(self) -> None:
        self.sock = wire.open_socket()
        self.bridges: dict[str, int] = {}       # {name: link index}

    def close(self) -> None:
        self.sock.close()

    def find(self, request: Mapping[str, Any]) -> Port | None:
        """Return the port of a request; None for a request without "links", from an earlier version of the plugin.
        Raises Unclear, OSError, and the errors of read()."""
        if "links" not in request:
            return None
        links = [find.link(self.sock, name) for name in request["links"]
                 if name not in self.bridges and len(name.encode()) < IFNAMSIZ]
        veths = [link for link in links if link and link.kind == "veth"]
        if len(veths) != 1:
            raise Unclear(f"prevResult has to name one veth on the host, the pod's port; found {len(veths)} among "
                          f"{', '.join(request['links'])}")
        return read({**request["port"], "name": veths[0].name, "bridged": self._is_bridge(veths[0].master),
                     "index": veths[0].index, "linkMac": veths[0].address.hex()})

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
    """Return the port of a document that written() has made. Raises ValueError, TypeError, KeyError, AttributeError."""
    pairs = [Pair(*address.read_cidr(each["address"]), bytes.fromhex(each.get("mac", "")))
             for each in document.get("pairs", ())]
    mac = bytes.fromhex(document["mac"])
    if len(mac) != 6 or any(len(pair.mac) not in (0, 6) for pair in pairs):
        raise ValueError("a MAC has six bytes")
    return Port(str(document["name"]), bool(document["bridged"]), mac, tuple(pairs),
                tuple(map(int, document.get("types", ()))), bool(document.get("router")), bool(document.get("dhcp")),
                int(document.get("index", 0)), bytes.fromhex(document.get("linkMac", "")))


def written(port: Port) -> dict[str, Any]:
    """Return the JSON document of a port, for read()."""
    return {"name": port.name, "bridged": port.bridged, "mac": port.mac.hex(), "types": list(port.types),
            "router": port.router, "dhcp": port.dhcp, "index": port.index, "linkMac": port.link_mac.hex(),
            "pairs": [{"address": address.cidr_text(pair.packed, pair.prefix), "mac": pair.mac.hex()}
                      for pair in port.pairs]}
