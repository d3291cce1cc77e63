"""Define the records of the inventory: Sighting, an object that shows an attachment, and NodeAttachment, an
attachment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastcni.runtime.records import kubernetes_name

# Kinds of a Sighting
CACHE, ADDRESS_FILE, FILE, ELEMENT = "cache", "address file", "file", "element"
RULE, LINK, NAMESPACE, MAP, FLOWTABLE = "rule", "link", "namespace", "bpf map", "flowtable"

# States of an attachment
RUNNING = "running"         # the pod's network namespace, or another object that ends with the pod, exists
GONE = "gone"               # the pod's network namespace no longer exists
ORPHANED = "orphaned"       # only files or rules of an ADD exist, and no namespace has its addresses
UNKNOWN = "unknown"         # the files and the kernel of this node do not show whether the pod runs
STATES = (RUNNING, GONE, ORPHANED, UNKNOWN)

# Text of a MAP sighting after its address: whether the datapath ebpf redirects the pod's flows
REDIRECTED, RESTRICTED = "redirected", "not redirected, because policies restrict the pod"

FASTCNI, GO = "fastcni", "Go plugins"       # the implementation that added an attachment


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """A port of the host that leads to a pod. host_ip: the node's address; "" for every address of the node. to: the
    pod's address, or ""."""

    port: int
    protocol: str
    host_ip: str = ""
    to: str = ""
    to_port: int = 0

    def __str__(self) -> str:
        at, to = bracketed(self.host_ip), bracketed(self.to)
        return f"{at}{':' if at else ''}{self.port}/{self.protocol}" + (f" -> {to}:{self.to_port}" if to else "")


def bracketed(address: str) -> str:
    """Return the address as it is written before a port: [fd00::1], 10.1.0.5."""
    return f"[{address}]" if ":" in address else address


@dataclass(frozen=True, slots=True)
class Sighting:
    """An object on the node that belongs to an attachment, and the properties of the attachment that the object shows.

    kind: CACHE, ADDRESS_FILE and so on. place: a file's path, "nftables inet fastcni pods4", a link's name. text: the
    object's content for people, such as "10.1.0.5". network, container_id, ifname: "" if the object does not show them.
    cut: whether container_id is only the beginning of the id. hashes: names.hashes() of the attachment, or "".
    addresses: without prefix length. links: names of links of the host. since: when the object was written, in Unix
    seconds; 0.0 if unknown. author: FASTCNI or GO if only one of the implementations makes such objects. alive: whether
    the object shows that the pod runs.
    """

    kind: str
    place: str
    text: str = ""
    network: str = ""
    container_id: str = ""
    ifname: str = ""
    cut: bool = False
    hashes: str = ""
    addresses: tuple[str, ...] = ()
    ports: tuple[HostPort, ...] = ()
    links: tuple[str, ...] = ()
    since: float = 0.0
    author: str = ""
    alive: bool = False


@dataclass(frozen=True, slots=True)
class Cached:
    """The entry of a result cache for an attachment.

    config: the network list at ADD, {} if the file has none. result: in version 1.1.0, {} if it is invalid.
    capability_args: as in RuntimeConf. netns: the path of the pod's namespace, or "".
    """

    path: str
    netns: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[tuple[str, str], ...] = ()
    capability_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeAttachment:
    """An attachment that files or kernel objects of this node show.

    network, ifname: "" if no object shows them. why: the reason for `state`. netns: the path of the pod's namespace, or
    "". links: names of its links on the host. plugins: CNI types; an IPAM type follows its plugin. since: the time of
    the ADD in Unix seconds, 0.0 if unknown. author: FASTCNI, GO, or "" if unknown. cached: None without a cached
    result. dropped_by: names of the chains and rules that drop the pod's forwarded packets, such as "chain FORWARD of
    iptables-nft".
    """

    network: str
    container_id: str
    ifname: str
    state: str
    why: str
    netns: str = ""
    addresses: tuple[str, ...] = ()
    ports: tuple[HostPort, ...] = ()
    links: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    since: float = 0.0
    author: str = ""
    sightings: tuple[Sighting, ...] = ()
    cached: Cached | None = None
    dropped_by: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return CONTAINER/IFNAME, an argument of `fastcni inspect`."""
        return f"{self.container_id}/{self.ifname}" if self.ifname else self.container_id

    @property
    def pod(self) -> str:
        """Return the pod's name in Kubernetes, NAMESPACE/NAME; "" if the ADD had none."""
        return kubernetes_name(self.cached.args) if self.cached else ""

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the network list at ADD; {} if it is unknown."""
        return self.cached.config if self.cached else {}

    @property
    def result(self) -> Mapping[str, Any]:
        """Return the result of ADD in version 1.1.0; {} if it is unknown."""
        return self.cached.result if self.cached else {}

    @property
    def datapath(self) -> str:
        """Return REDIRECTED or RESTRICTED for a pod in the map of the datapath ebpf, otherwise ""."""
        found = [it.text.partition(" ")[2] for it in self.sightings if it.kind == MAP]
        return RESTRICTED if RESTRICTED in found else found[0] if found else ""

    @property
    def flowtable(self) -> bool:
        """Return whether the agent's flowtable has the pod's link."""
        return any(it.kind == FLOWTABLE for it in self.sightings)


@dataclass(frozen=True, slots=True)
class Inventory:
    """All attachments of a node. unowned: objects of CNI plugins that belong to no attachment. unseen: sentences about
    what could not be read, and why."""

    attachments: tuple[NodeAttachment, ...] = ()
    unowned: tuple[Sighting, ...] = ()
    unseen: tuple[str, ...] = ()
