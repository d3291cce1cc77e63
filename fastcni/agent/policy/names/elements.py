"""Write the addresses of domain names to the kernel's sets. Each element is a pair: a pod's address . an address in an
answer to this pod. The element has a timeout; a second set keeps the pair without a timeout (set_told())."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.policy.names.addresses import DOMAIN_SETS, set_told
from fastcni.agent.policy.ruleset import FAMILY, TABLE, Transaction, halves
from fastcni.kernel import nft, nft_elements, wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fastcni.kernel.wire import Socket

    Resolved = dict[str, dict[bytes, dict[bytes, float]]]           # see State.resolved
    Elements = Mapping[str, Sequence[tuple[bytes, int]]]            # {set: [(pair, milliseconds)]}


def read_resolved(sock: Socket) -> Resolved:
    """Read State.resolved from the table that a previous agent has left in the kernel. Raises OSError."""
    found: Resolved = {}
    now, there = monotonic(), read_sets(sock)
    for name in filter(lambda name: name.startswith(DOMAIN_SETS), there):
        pairs = found.setdefault(name, {})
        for key, _ in read_elements(sock, set_told(name)) if set_told(name) in there else ():
            pod, told = halves(key)
            pairs.setdefault(pod, {})[told] = 0.0
        for key, left_ms in read_elements(sock, name):
            pod, told = halves(key)
            pairs.setdefault(pod, {})[told] = now + left_ms / 1000
    return found


def read_elements(sock: Socket, name: str) -> Iterator[tuple[bytes, int]]:
    """Yield (pair, milliseconds left) for each element of a set; 0 ms for an element without a timeout. Raises OSError.
    """
    for _, payload in wire.dump(sock, nft.NFT_MSG_GETSETELEM, nft.nfgenmsg(FAMILY), f"list set {name}",
                                nft_elements.elements_of(TABLE, name)):
        yield from nft_elements.read_timed(payload)


def read_sets(sock: Socket) -> list[str]:
    """Return the names of the sets in the policies' table; [] if the table does not exist. Raises OSError."""
    replies = wire.dump_existing(sock, nft.NFT_MSG_GETSET, nft.nfgenmsg(FAMILY), f"list the sets of {TABLE}",
                                 lambda batch: batch.text(nft_elements.NFTA_SET_TABLE, TABLE))
    return [nft_elements.read_set_name(payload) for _, payload in replies or ()]


def change(sock: Socket, added: Elements, removed: Elements) -> None:
    """Add and remove elements; an existing element gets the new timeout. When this function returns, the rules accept
    new connections to the added addresses. Raises OSError.

    If an element is added again, the kernel does not renew its timeout. The kernel also rejects the deletion of an
    element that has just expired. So one transaction adds, deletes and adds each element.
    """
    requests = Transaction()
    for name, elements in (*removed.items(), *added.items()):
        requests.add_parts(nft_elements.add_timed, FAMILY, TABLE, name, elements)
        requests.add_parts(nft_elements.del_elements, FAMILY, TABLE, name, (key for key, _ in elements))
        requests.add_parts(nft_elements.add_elements, FAMILY, TABLE, set_told(name),
                           ((key, None) for key, _ in elements), exclusive=False)
    for name, elements in added.items():
        requests.add_parts(nft_elements.add_timed, FAMILY, TABLE, name, elements)
    for name, elements in removed.items():
        requests.add_parts(nft_elements.del_elements, FAMILY, TABLE, set_told(name), (key for key, _ in elements))
    requests.commit(sock)
