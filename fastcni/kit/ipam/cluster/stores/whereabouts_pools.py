"""Read the addresses that whereabouts has given to pods: the cluster's IPPools, OverlappingRangeIPReservations and
NodeSlicePools.

Names of these objects have several parts, each with "-" for ":" and "/", joined by "-":

    IPPool                            [network-][node-]range        net1-node-7-10.0.0.0-28
    OverlappingRangeIPReservation     [network-]address             net1-fd00--5

A pool's `spec` has its range. So the rest of the pool's name is the network, the node or both; the NodeSlicePools show
whether the name contains a node. This module writes nothing.
"""

from __future__ import annotations

from fastcni.kit.ipam.cluster.contract import Record
from fastcni.spec import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.ipam.cluster.stores.kubernetes import KubernetesStore
    from fastcni.kit.ipam.cluster.stores.kubernetes_objects import Object

BASE = "/apis/whereabouts.cni.cncf.io/v1alpha1"
NAMESPACE = "kube-system"       # default, as in whereabouts, if the context names no namespace


class Allocation(Record):
    """An address of a pool. container: the pod's sandbox, possibly an earlier sandbox. pod: "namespace/name"."""

    __slots__ = ("address", "container", "pod", "ifname")
    address: str
    container: str
    pod: str
    ifname: str


class Pool(Record):
    """An IPPool. name: the object's name. range: "10.0.0.0/24". network: the key `network_name`, "" without it. node:
    the node that has this pool as its slice, "" if the pool is no slice."""

    __slots__ = ("name", "range", "network", "node", "allocations")
    name: str
    range: str
    network: str
    node: str
    allocations: list[Allocation]


class Reservation(Record):
    """An OverlappingRangeIPReservation: an address that is reserved in all pools of a network."""

    __slots__ = ("name", "network", "address", "container", "pod", "ifname")
    name: str
    network: str
    address: str
    container: str
    pod: str
    ifname: str


class Slices(Record):
    """A NodeSlicePool. name: the network's name. slices: [(node, or "" for a free slice; range)]."""

    __slots__ = ("name", "slices")
    name: str
    slices: list[tuple[str, str]]


class Whereabouts(Record):
    """The objects of whereabouts in a cluster, each list sorted by name. unreadable: a text for each object that
    fastcni cannot read."""

    __slots__ = ("pools", "reservations", "slices", "unreadable")
    pools: list[Pool]
    reservations: list[Reservation]
    slices: list[Slices]
    unreadable: list[str]


def read_whereabouts(store: KubernetesStore, namespace: str = "") -> Whereabouts:
    """Read the objects of whereabouts. namespace: their namespace; "": the namespace of the kubeconfig's context, else
    kube-system. Raises Away, also if the cluster has no whereabouts."""
    api = store.api
    base = f"{BASE}/namespaces/{namespace or api.namespace or NAMESPACE}"
    found = Whereabouts([], [], [], [])
    for it in api.list_all(f"{base}/nodeslicepools", optional=True):
        found.slices.append(to_slices(it))
    for it in api.list_all(f"{base}/ippools"):
        try:
            found.pools.append(to_pool(it, found))
        except ValueError as e:
            found.unreadable.append(f"IPPool {it['metadata']['name']}: {e}")
    known = {(pool.network, one.address) for pool in found.pools for one in pool.allocations}
    for it in api.list_all(f"{base}/overlappingrangeipreservations"):
        try:
            found.reservations.append(to_reservation(it, known))
        except ValueError as e:
            found.unreadable.append(f"OverlappingRangeIPReservation {it['metadata']['name']}: {e}")
    for records in (found.pools, found.reservations, found.slices):
        records.sort(key=lambda record: record.name)
    return found


def to_slices(document: Object) -> Slices:
    status = document.get("status") or {}
    return Slices(document["metadata"]["name"],
                  [(it.get("nodeName", ""), it.get("sliceRange", "")) for it in status.get("allocations") or []])


def to_pool(document: Object, found: Whereabouts) -> Pool:
    """Return the Pool of an IPPool. Allocations whose offset is no number are added to `unreadable`. Raises
    ValueError."""
    name, spec = document["metadata"]["name"], document.get("spec") or {}
    packed, prefix = address.read_cidr(spec.get("range", ""))
    network, node = parts_of(name, spec["range"], found.slices)
    pool = Pool(name, address.cidr_text(packed, prefix), network, node, [])
    for offset, one in sorted((spec.get("allocations") or {}).items(), key=lambda it: (len(it[0]), it[0])):
        try:
            ip = address.ip_text(address.plus(packed, int(offset)))
        except (ValueError, OverflowError):
            found.unreadable.append(f"IPPool {name}: allocation {offset!r} of {one.get('podref', '?')}")
            continue
        pool.allocations.append(Allocation(ip, *holder_of(one, "id")))
    return pool


def to_reservation(document: Object, known: set[tuple[str, str]]) -> Reservation:
    """Return the Reservation of an object. known: (network, address) of the pools' addresses. If an object's name is
    ambiguous, choose the reading whose address is known, else the reading whose network exists. Raises ValueError."""
    name, spec = document["metadata"]["name"], document.get("spec") or {}
    readings = []
    words = name.split("-")
    for i in range(len(words)):
        text = "-".join(words[i:])
        for separator in ("-", ":"):
            try:
                packed = address.read_ip(text.replace("-", separator))
            except ValueError:
                continue
            readings.append(("-".join(words[:i]), address.ip_text(packed)))
    if not readings:
        raise ValueError("its name has no address")
    networks = {network for network, _ in known}
    network, ip = min(readings, key=lambda one: (one not in known, one[0] not in networks))
    return Reservation(name, network, ip, *holder_of(spec, "containerid"))


def holder_of(fields: dict[str, Any], container: str) -> tuple[str, str, str]:
    """Return (container, pod, ifname) of an allocation's fields."""
    return fields.get(container, ""), fields.get("podref", ""), fields.get("ifname", "")


def parts_of(name: str, cidr: str, slices: list[Slices]) -> tuple[str, str]:
    """Return the (network, node) in the name of a pool. Raises ValueError."""
    end = object_name(cidr)
    if name != end and not name.endswith(f"-{end}"):
        raise ValueError(f"its name does not end with its range {cidr}")
    rest = name.removesuffix(end).removesuffix("-")
    for pool in slices:
        for node, part in pool.slices:
            if node and part == cidr and (rest == node or rest.endswith(f"-{node}")):
                return rest.removesuffix(node).removesuffix("-"), node
    return rest, ""


def object_name(cidr: str) -> str:
    """Return a range as whereabouts writes it in object names: "fd00-5---64". A name cannot end with "-", so an address
    that ends with ":" gets a 0."""
    return f"{cidr}{'0' if cidr.endswith(':') else ''}".replace(":", "-").replace("/", "-")
