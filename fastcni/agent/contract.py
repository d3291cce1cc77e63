"""Define the contracts of the agent's parts: the network's configuration, a node's record, registries, backends.

    Registry    where the nodes' records are: etcd in flannel's layout, Kubernetes' Node objects, or a file. A node
                takes its subnets in the registry, publishes how it can be reached, and reads the records of other nodes
    Backend     vxlan, host-gw, wireguard, ipip: which links, addresses, routes and neighbours a node needs to reach the
                others. A backend only computes a State
    State       the kernel state that a backend needs. `agent/keeper.py` makes it so, and restores what another program
                removes

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
    """Another node has this node's subnet, or the registry no longer has this node's record. Join again."""


class NoSubnetLeft(Exception):
    """The network has no free subnet."""


@dataclass(frozen=True, slots=True)
class Family:
    """One family's part of the network: the whole network, and which subnets of it a node may take."""

    network: Prefix
    length: int                     # of a node's subnet
    first: Prefix                   # the lowest and the highest subnet that a node may take
    last: Prefix


@dataclass(frozen=True, slots=True)
class NetworkConf:
    """The network's configuration. `families` has 4, 6 or both; `backend` is the object `Backend`, with its `Type`."""

    families: Mapping[int, Family]
    backend: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """A node's record in the registry. Each mapping has the keys 4 and 6, for the families that the node has.

    `data` is what the backend publishes: for vxlan {"VNI": 1, "VtepMAC": "0a:..."}, for wireguard {"PublicKey": "..."}.
    """

    name: str                       # the registry's key of the record; not published
    subnets: Mapping[int, Prefix]
    public: Mapping[int, Address]   # the addresses at which other nodes reach it
    backend: str
    data: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


class Registry(Protocol):
    """The store of the nodes' records. Methods raise Away (clients/away.py) if the store cannot be reached. One thread
    calls watch(), another thread the other methods.

    publishes   whether join() publishes a node's `data` to the other nodes. If not, backends derive `data` from the
                node's address
    """

    publishes: bool

    def conf(self) -> NetworkConf:
        """Read the network's configuration. Raises ConfigurationError."""
        ...

    def join(self, conf: NetworkConf, me: Node) -> Node:
        """Take subnets for this node and publish its record, or take over the record that has its public address.

        me.subnets: the node's previous subnets (from subnet.env), which are taken again if they are free. Return the
        record with the subnets. Raises NoSubnetLeft, and SubnetLost after a lost race."""
        ...

    def watch(self, changed: Callable[[Collection[Node]], object], stop: Callable[[], bool]) -> None:
        """Call changed(all nodes) immediately and after each change, until stop() returns true. If the registry is
        unavailable, watch() waits with growing pauses, and lists again."""
        ...

    def keep(self, me: Node) -> float:
        """Renew the record, or write it again if it is missing and no other node has its subnet. Return the seconds
        until the next call. Raises SubnetLost."""
        ...

    def leave(self, me: Node) -> None:
        """Remove the record, when the node leaves the network."""
        ...

    def ready(self, me: Node) -> None:
        """Report that the node's network works (Kubernetes: the condition NetworkUnavailable becomes False)."""
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
    """The kernel state that a backend needs for these nodes. For each node the neighbour is written first, then the FDB
    entry, then the route, so that the kernel never resolves an address through the tunnel. Removal is in the reverse
    order."""

    links: tuple[Link, ...] = ()
    neighbours: frozenset[Neighbour] = frozenset()
    stations: frozenset[Station] = frozenset()
    routes: frozenset[Route] = frozenset()
    peers: frozenset[WireguardPeer] = frozenset()
    skipped: Mapping[str, str] = field(default_factory=dict)    # {node that cannot be reached: why}


@dataclass(frozen=True, slots=True)
class Underlay:
    """The link through which this node reaches the others."""

    name: str
    index: int
    mtu: int
    addresses: Mapping[int, Address]            # the node's own address of each family, the source of tunnel packets
    public: Mapping[int, Address]               # the published address; may be that of a router
    prefixes: Mapping[int, Prefix]              # the link's networks, in which nodes are neighbours


class Backend(Protocol):
    """A way to connect nodes; see backends.open_backend()."""

    name: str                       # flannel's BackendType

    def data(self) -> Mapping[int, Mapping[str, Any]]:
        """Return the data that the node publishes, by family. Keys and MACs are made once and kept in the agent's
        directory, so that they stay the same after a restart."""
        ...

    def mtu(self) -> int:
        """Return the MTU for pods."""
        ...

    def state(self, me: Node, others: Collection[Node]) -> State:
        """Return the kernel state for these nodes. Nodes of another backend are in State.skipped with the reason."""
        ...
