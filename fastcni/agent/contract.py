"""What the parts of the agent agree on: the network's configuration, a node's record, registries, backends.

    Registry    where the nodes' records are: etcd in flannel's layout, Kubernetes' Node objects, or a file. A node
                takes its subnets there, publishes how it can be reached, and learns of the others
    Backend     vxlan, host-gw, wireguard, ipip: which links, addresses, routes and neighbours a node needs to reach the
                others. A backend computes, and changes nothing
    State       what a backend wants of the kernel. `agent/keeper.py` writes the difference to what is there, and
                restores what another program removes

Configuration and records are flannel's (its Documentation/configuration.md and reservations.md), so that fastcni's
agent and flanneld can run in one cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

    Address = IPv4Address | IPv6Address
    Prefix = IPv4Network | IPv6Network

FAMILIES = (4, 6)


class ConfigurationError(ValueError):
    """The network's configuration, or the agent's options, cannot be used. The text says which key and why."""


class SubnetLost(Exception):
    """Another node has this node's subnet, or the registry has no record of it any more. Join again."""


class NoSubnetLeft(Exception):
    """The network has no free subnet."""


@dataclass(frozen=True, slots=True)
class Family:
    """One family's part of the network: the whole network, and which subnets of it a node may take."""

    network: Prefix
    length: int                     # of a node's subnet
    first: Prefix                   # lowest and highest subnet that may be taken
    last: Prefix


@dataclass(frozen=True, slots=True)
class NetworkConf:
    """The network's configuration. `families` has 4, 6 or both; `backend` is the object `Backend`, with its `Type`."""

    families: Mapping[int, Family]
    backend: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """A node's record in the registry. Each mapping is by family, 4 or 6, and has those that the node has.

    `data` is what the backend publishes: for vxlan {"VNI": 1, "VtepMAC": "0a:..."}, for wireguard {"PublicKey": "..."}.
    """

    name: str                       # the registry's key of it; not part of what is published
    subnets: Mapping[int, Prefix]
    public: Mapping[int, Address]   # the addresses at which other nodes reach it
    backend: str
    data: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


class Registry(Protocol):
    """Where the nodes' records are. Methods raise Away (clients/away.py) if it cannot be reached.
    One thread calls watch(), another one the others.

    publishes   whether join() publishes a node's `data` to the others. If not, backends derive it from its address
    """

    publishes: bool

    def conf(self) -> NetworkConf:
        """Read the network's configuration. Raises ConfigurationError."""
        ...

    def join(self, conf: NetworkConf, me: Node) -> Node:
        """Take subnets for this node and publish its record, or take over the record that has its public address.

        `me.subnets` are those that the node had before (of the former subnet.env): they are taken again if they are
        free. Return the record with the subnets. Raises NoSubnetLeft, and SubnetLost after a lost race."""
        ...

    def watch(self, changed: Callable[[Collection[Node]], object], stop: Callable[[], bool]) -> None:
        """Call changed(all nodes) at once and after each change, until stop() is true. The registry being away does not
        end it: it waits, with growing pauses, and lists again."""
        ...

    def keep(self, me: Node) -> float:
        """Renew the record, or write it again if it is gone and nobody has its subnet. Return the seconds until the
        next call. Raises SubnetLost."""
        ...

    def leave(self, me: Node) -> None:
        """Remove the record, for a node that is taken out of the network."""
        ...

    def ready(self, me: Node) -> None:
        """Tell that the node's network works (Kubernetes: the condition NetworkUnavailable becomes False)."""
        ...

    def close(self) -> None: ...


# -- what a backend wants of the kernel --------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Link:
    """A link that the agent owns. `settings` are the kind's own, by the names of ip-link(8): id, local, dev, ..."""

    name: str
    kind: str                       # vxlan, wireguard or ipip
    mtu: int
    mac: str = ""                   # "" for kinds without one
    settings: Mapping[str, Any] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()             # with prefix length: 10.244.3.0/32
    sysctls: Mapping[str, str] = field(default_factory=dict)       # below net/


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A permanent neighbour: the MAC of an address, on one link."""

    link: str
    address: Address
    mac: str


@dataclass(frozen=True, slots=True)
class Station:
    """A forwarding entry (FDB) of a vxlan link: frames for `mac` are sent to the node at `remote`."""

    link: str
    mac: str
    remote: Address


@dataclass(frozen=True, slots=True)
class Route:
    """A route to another node's subnet. Without `gateway` the destination is on the link."""

    link: str
    destination: Prefix
    gateway: Address | None = None
    onlink: bool = False
    source: Address | None = None


@dataclass(frozen=True, slots=True)
class WireguardPeer:
    """A peer of a wireguard link. Keys are 32 bytes; preshared_key may be b"", keepalive_s 0."""

    link: str
    public_key: bytes
    endpoint: Address
    port: int
    allowed: tuple[Prefix, ...]
    preshared_key: bytes
    keepalive_s: int


@dataclass(frozen=True, slots=True)
class State:
    """What a backend wants of the kernel for these nodes. For each node the neighbour is written first, then the FDB
    entry, then the route, so that the kernel never looks for an address through the tunnel; removal is the reverse."""

    links: tuple[Link, ...] = ()
    neighbours: frozenset[Neighbour] = frozenset()
    stations: frozenset[Station] = frozenset()
    routes: frozenset[Route] = frozenset()
    peers: frozenset[WireguardPeer] = frozenset()
    skipped: Mapping[str, str] = field(default_factory=dict)    # nodes that cannot be reached: name, and why


@dataclass(frozen=True, slots=True)
class Underlay:
    """The link through which this node reaches the others."""

    name: str
    index: int
    mtu: int
    addresses: Mapping[int, Address]            # the node's own address of each family: packets are sent from it
    public: Mapping[int, Address]               # the one that other nodes are told; it may be that of a router
    prefixes: Mapping[int, Prefix]              # the networks on it: nodes there are neighbours


class Backend(Protocol):
    """One way to join nodes; see backends.open_backend()."""

    name: str                       # flannel's BackendType

    def data(self) -> Mapping[int, Mapping[str, Any]]:
        """Return what the node publishes, by family. Keys and MACs are made once and kept in the agent's folder, so
        that a restarted node has the same."""
        ...

    def mtu(self) -> int:
        """Return the MTU for pods."""
        ...

    def state(self, me: Node, others: Collection[Node]) -> State:
        """Return what the kernel should have. Nodes of another backend are in State.skipped, and why."""
        ...
