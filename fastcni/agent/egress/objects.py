"""Read documents of kind EgressAddress (policy.fastcni.dev/v1alpha1), and choose the egress address of each pod.

    read_egress_address({"metadata": {"name": "billing"}, "spec": {
        "subject": {"namespaces": {"matchLabels": {"team": "billing"}}}, "addresses": ["192.0.2.50"]}})

Packets of the subject's pods leave the cluster with an egress address of their family as the source. If two documents
select a pod, the document whose name sorts first applies. If `addresses` has no address of a family, packets of that
family are routed as usual.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from hashlib import blake2b
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING

from fastcni.agent.policy.cluster_policies import read_subject
from fastcni.agent.policy.objects import PolicyError, Reader, open_document

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from fastcni.agent.policy.objects import Group

    Subjects = Mapping[bytes, "EgressAddress"]          # {a pod's address: the document that applies}

GROUP = "policy.fastcni.dev/"
API_VERSION = f"{GROUP}v1alpha1"
KIND = "EgressAddress"
MAX_ADDRESSES = 16
LIMITED_BROADCAST = IPv4Address("255.255.255.255")


@dataclass(frozen=True, slots=True)
class EgressAddress:
    """A document of kind EgressAddress. pods: the subject, in all namespaces. addresses: packed egress addresses.
    closed: the document's addresses are unreadable, so the rules drop its pods' packets to outside the cluster."""

    name: str
    pods: Group
    addresses: tuple[bytes, ...] = ()
    closed: bool = False

    def of_family(self, packed: bytes) -> tuple[bytes, ...]:
        """Return the egress addresses of the same family as the address `packed`."""
        return tuple(each for each in self.addresses if len(each) == len(packed))


def read_egress_address(document: Any) -> EgressAddress:
    """Read a document of kind EgressAddress. Raises PolicyError."""
    it, _, name, _ = open_document(KIND, document, API_VERSION)
    spec = it.part("spec") or it.wrong("is missing", "spec")
    spec.only("subject", "addresses")
    return EgressAddress(name, read_subject(spec), read_addresses(spec))


def read_addresses(spec: Reader) -> tuple[bytes, ...]:
    """Return the addresses of the key `addresses`, packed and without duplicates. Raises PolicyError."""
    texts = spec.get("addresses", list, [])
    if not 1 <= len(texts) <= MAX_ADDRESSES:
        spec.wrong(f"expected 1 to {MAX_ADDRESSES} addresses, got {len(texts)}", "addresses")
    found = []
    for text in texts:
        try:
            address = ip_address(text if isinstance(text, str) else "")
        except ValueError:
            spec.wrong(f"{reprlib.repr(text)} is no address", "addresses")
        if not may_be_source(address):
            spec.wrong(f"{address} cannot be the source of a packet that leaves a node", "addresses")
        found.append(address.packed)
    return tuple(dict.fromkeys(found))


def may_be_source(address: IPv4Address | IPv6Address) -> bool:
    """Return whether packets with this source address can leave a node. False for multicast, loopback and link-local
    addresses, 0.0.0.0/8 and 255.255.255.255 (RFC 1122, 3.2.1.3), IPv6 addresses with a zone, and reserved IPv6
    addresses such as ::ffff:192.0.2.50."""
    if address.is_multicast or address.is_unspecified or address.is_loopback or address.is_link_local:
        return False
    if isinstance(address, IPv6Address):
        return not address.is_reserved and not address.scope_id
    return address.packed[0] != 0 and address != LIMITED_BROADCAST


def closed_egress_address(document: Mapping[str, Any]) -> EgressAddress | None:
    """Return the record that replaces an unreadable document: its pods cannot leave the cluster. None if the name or
    the subject is unreadable, too."""
    try:
        it, _, name, _ = open_document(KIND, document)
        return EgressAddress(name, read_subject(it.part("spec") or Reader("", {})), closed=True)
    except PolicyError:
        return None


def preferred(pod: bytes, addresses: Collection[bytes]) -> bytes | None:
    """Return the egress address for the pod's address `pod`; None if `addresses` is empty. All nodes choose the same
    address, by rendezvous hashing. They choose another address only if this address is not in `addresses`."""
    return max(addresses, key=lambda each: blake2b(pod + each, digest_size=8).digest(), default=None)
