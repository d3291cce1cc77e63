"""Read from a Kubernetes cluster the addresses that whereabouts has allocated, and the existing pods."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastcni.kit.ipam.cluster.stores.kubernetes import KubernetesStore
    from fastcni.kit.ipam.cluster.stores.whereabouts_pools import Allocation, Reservation, Whereabouts

DEFAULT_SPACE = "default"
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Net = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Source:
    """The objects of a cluster. found: the objects of whereabouts. pods: {"namespace/name": its node, or ""} of all
    pods."""

    found: Whereabouts
    pods: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Given:
    """An address that whereabouts has allocated. where: the Kubernetes object that records the address."""

    space: str
    address: Address
    container: str
    ifname: str
    pod: str
    where: str


def read_source(store: KubernetesStore, namespace: str) -> Source:
    """Read whereabouts' objects and the pods. namespace: the namespace of the objects; "" for whereabouts' default.
    Raises Away."""
    from fastcni.kit.ipam.cluster.stores.whereabouts_pools import read_whereabouts

    found = read_whereabouts(store, namespace)
    pods = {f"{it['metadata']['namespace']}/{it['metadata']['name']}": it.get("spec", {}).get("nodeName", "")
            for it in store.api.list_all("/api/v1/pods")
            if it.get("status", {}).get("phase") not in ("Succeeded", "Failed")}
    return Source(found, pods)


def read_given(source: Source) -> list[Given]:
    """Return all addresses that whereabouts has allocated, each once for a pod and interface, sorted by space and
    address.

    A reservation counts also without an entry in a pool, because whereabouts can leave an address in that state (issue
    712 of whereabouts).
    """
    reserved = [given_of(it.network, it, f"OverlappingRangeIPReservation {it.name}")
                for it in source.found.reservations]
    pooled = [given_of(pool.network, it, f"IPPool {pool.name}")
              for pool in source.found.pools for it in pool.allocations]
    given = {(it.space, it.address, it.pod): it for it in reserved}
    for it in pooled:
        given.pop((it.space, it.address, it.pod), None)
    unique = {(it.space, it.address, it.pod, it.ifname): it for it in [*pooled, *given.values()]}
    return sorted(unique.values(), key=lambda it: (it.space, it.address.version, int(it.address)))


def given_of(network: str, allocation: Allocation | Reservation, where: str) -> Given:
    """Return the record of one address. where: the object that records the address."""
    return Given(network or DEFAULT_SPACE, ipaddress.ip_address(allocation.address), allocation.container,
                 allocation.ifname, allocation.pod, where)


def ranges_of(source: Source) -> dict[str, list[Net]]:
    """Return {space: the ranges of its pools}. For an address outside of these ranges, add the /16 or the /64 around
    the address."""
    found: dict[str, list[Net]] = defaultdict(list)
    for pool in source.found.pools:
        found[pool.network or DEFAULT_SPACE].append(ipaddress.ip_network(pool.range, strict=False))
    for given in read_given(source):
        if not any(given.address in net for net in found[given.space]):
            found[given.space].append(ipaddress.ip_network((given.address, 16 if given.address.version == 4 else 64),
                                                           strict=False))
    return found
