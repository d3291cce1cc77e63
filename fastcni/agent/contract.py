"""Define the contracts of the agent's parts: the network's configuration, a node's record, registries, backends.

    Registry    the store of the nodes' records: etcd in flannel's layout, Kubernetes' Node objects, or a file. A node
                takes its subnets in the registry, publishes its address, and reads the records of other nodes
    Backend     vxlan, host-gw, wireguard or ipip. A backend computes a State and does not change the kernel
    State       the links, addresses, routes and neighbours that a node needs to reach the other nodes.
                `agent/keeper.py` writes them to the kernel, and restores entries that another program removes

The configuration and the records have flannel's format (flannel's Documentation/configuration.md and reservations.md),
so that fastcni's agent and flanneld can run in one cluster.
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


def pair(network: Prefix) -> tuple[bytes, int]:
    """Return (packed address, prefix length) of a network."""
    return network.network_address.packed, network.prefixlen


class ConfigurationError(ValueError):
    """An error in the network's configuration or the agent's options. The text names the key and the reason."""


class SubnetLost(Exception):
    """Another node has this node's subnet, or the registry no longer has this node's record. The caller joins again."""


class NoSubnetLeft(Exception):
    """The network has no free subnet."""


@dataclass(frozen=True, slots=True)
class Family:
    """The network of one address family, and the range of subnets that nodes may take."""

    network: Prefix
    length: int                     # the prefix length of a node's subnet
    first: Prefix                   # the lowest and the highest subnet that a node may take
    last: Prefix


@dataclass(frozen=True, slots=True)
class NetworkConf:
    """The network's configuration. `families` has the keys 4, 6 or both; `backend` is the JSON object `Backend`."""

    families: Mapping[int, Family]
    backend: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """A node's record in the registry. Each mapping has the keys 4 and 6, for the families that the node has.

    `data` is what the backend publishes: for vxlan {"VNI": 1, "VtepMAC": "0a:..."}, for wireguard {"PublicKey": "..."}.
    """

    name: str                       # the registry's key of the record; not published
    subnets: Mapping[int, Prefix]
    public: Mapping[int, Address]   # the addresses at which other nodes reach this node
    backend: str
    data: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


class Registry(Protocol):
    """The store of the nodes' records. Methods raise Away (clients/errors.py) if the store cannot be reached. One
    thread calls watch(), another thread the other methods.

    publishes   whether join() publishes a node's `data` to the other nodes. If false, backends derive the `data` of a
                node from its address
    """

    publishes: bool

    def conf(self) -> NetworkConf:
        """Read the network's configuration. Raises ConfigurationError."""
        ...

    def join(self, conf: NetworkConf, me: Node) -> Node:
        """Take subnets for this node and publish its record, or take over the record that has its public address.

        me.subnets: the node's previous subnets (from subnet.env); join() takes them again if they are free. Return the
        record with the subnets. Raises NoSubnetLeft, and SubnetLost if another node took the same subnet first."""
        ...

    def watch(self, changed: Callable[[Collection[Node]], object], stop: Callable[[], bool]) -> None:
        """Call changed(all nodes) immediately and after each change, until stop() returns true. If the registry is
        unavailable, watch() waits with growing pauses, and reads all records again."""
        ...

    def keep(self, me: Node) -> float:
        """Renew the record `me`. If the record is missing and no other node has its subnet, write the record again.
        Return the seconds until the next call. Raises SubnetLost."""
        ...

    def leave(self, me: Node) -> None:
        """Remove the record `me`: the node leaves the network."""
        ...

    def ready(self, me: Node) -> None:
        """Report that the node's network works. Kubernetes: set the node's condition NetworkUnavailable to False."""
        ...

    def close(self) -> None: ...


# -- the kernel state that a backend returns ---------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Link:
    """A link that the agent owns. `settings` has the options of this kind of link in ip-link(8): id, local, dev, ..."""

    name: str
    kind: str                       # vxlan, wireguard or ipip
    mtu: int
    mac: str = ""                   # "": this kind of link has no MAC
    settings: Mapping[str, Any] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()             # each with its prefix length: 10.244.3.0/32
    sysctls: Mapping[str, str] = field(default_factory=dict)       # {path below /proc/sys/net: value}


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A permanent neighbour entry: on `link`, `address` has the MAC `mac`."""

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
    """A route to another node's subnet. gateway: None if the subnet is directly on the link."""

    link: str
    destination: Prefix
    gateway: Address | None = None
    onlink: bool = False


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
    """The kernel state that connects this node to other nodes. The agent writes each node's neighbour first, then the
    FDB entry, then the route, so that the kernel never resolves an address through the tunnel. The agent removes
    entries in the reverse order."""

    links: tuple[Link, ...] = ()
    neighbours: frozenset[Neighbour] = frozenset()
    stations: frozenset[Station] = frozenset()
    routes: frozenset[Route] = frozenset()
    peers: frozenset[WireguardPeer] = frozenset()
    skipped: Mapping[str, str] = field(default_factory=dict)    # {node that cannot be reached: the reason}


@dataclass(frozen=True, slots=True)
class Underlay:
    """The link through which this node reaches the other nodes."""

    name: str
    mtu: int
    addresses: Mapping[int, Address]            # the node's own address of each family, the source of tunnel packets
    public: Mapping[int, Address]               # the published address: the node's own, or a NAT router's
    prefixes: Mapping[int, Prefix]              # the link's networks; packets to nodes in them need no router


class Backend(Protocol):
    """A method to connect the nodes, such as vxlan; backends.open_backend() returns it."""

    name: str                       # the value of flannel's key BackendType

    def data(self) -> Mapping[int, Mapping[str, Any]]:
        """Return the data that the node publishes, {family: data}. The backend makes keys and MACs once and stores them
        in the agent's directory, so that they stay the same after a restart."""
        ...

    def mtu(self) -> int:
        """Return the MTU for pods, in bytes."""
        ...

    def state(self, me: Node, others: Collection[Node]) -> State:
        """Return the kernel state that connects node `me` to the nodes `others`. State.skipped has the nodes that use
        another backend, each with the reason."""
        ...
