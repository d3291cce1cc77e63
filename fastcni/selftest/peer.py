"""Find the addresses of the other node of `fastcni selftest --peer`, including its addresses in its pods' subnet.

The other node's kernel answers the self-test's echo requests. No process listens on that node for the self-test, so
attackers get no new open port.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from fastcni.agent import peer_list
from fastcni.kernel.sockets.name_lookup import Lookups
from fastcni.spec import errors
from fastcni.spec.errors import CniError

RESOLVER_S = 5.0


@dataclass(frozen=True, slots=True)
class Peer:
    """The other node. node: {4 or 6: its addresses}. pods: {4 or 6: its addresses in the subnet of its pods}: the
    subnet's network address, which a tunnel's link has, and the subnet's first address, which the bridge has."""

    node: dict[int, list[str]] = field(default_factory=dict)
    pods: dict[int, list[str]] = field(default_factory=dict)


def find(text: str, directory: str) -> Peer:
    """Return the node whose address or name is `text`. directory: the directory of the agent's files. Raises CniError
    for a name that neither the agent's list nor the resolver knows."""
    try:
        known = peer_list.read(directory)
    except (OSError, ValueError) as e:
        raise CniError(errors.IO_FAILURE, f"read {directory}/{peer_list.NAME}: {e}") from None
    for entry in known:
        if text == entry["name"] or text in entry["addresses"]:
            return Peer(by_family(entry["addresses"]), inside(entry["subnets"]))
    try:
        return Peer(by_family(Lookups().addresses(text, 0, RESOLVER_S)))
    except OSError as e:
        names = ", ".join(str(entry["name"]) for entry in known) or "no node"
        raise CniError(errors.INVALID_ENVIRONMENT, f"no node {text} is known: {e.strerror}",
                       f"the agent's list in {directory} has {names}") from None


def by_family(addresses: list[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for text in dict.fromkeys(addresses):
        found.setdefault(ip_address(text).version, []).append(text)
    return found


def inside(subnets: list[str]) -> dict[int, list[str]]:
    return {network.version: [str(network[0]), str(network[1])] for network in map(ip_network, subnets)}
