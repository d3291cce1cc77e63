"""Record which attachment owns an address, in a set of nftables for each address family.

Backends whose rules do not show the owner keep these records in sets that no rule uses:

    table inet fastcni {
        set iptables-forward4 { type ipv4_addr; elements = { 10.22.0.5 comment "8e48...-0b65..., net: a, if: eth0" } }
        set iptables-forward6 { type ipv6_addr }
    }

ADD writes the record before the rule, and DEL deletes the record after the rule. So DEL finds the addresses without
prevResult, GC knows the attachment, and a late DEL does not remove the rules of the address's next pod.
"""

from __future__ import annotations

from fastcni.kernel import nft, nft_elements
from fastcni.kernel.wire import NetlinkError
from fastcni.kit.firewall import elements
from fastcni.kit.firewall.table import COMMENT, FAMILY, LENGTHS, SUFFIXES, TABLE
from fastcni.spec import address as addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fastcni._netlink import Batch
    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.elements import Found, Item


class Addresses(elements.Store):
    """Two sets of packed addresses, <name>4 and <name>6. A table of family ip or ip6 has only one of these sets."""

    __slots__ = ("of_length",)

    def __init__(self, family: int, table: str, name: str, lengths: Sequence[int] = LENGTHS,
                 chains: dict[str, int] | None = None) -> None:
        self.of_length = {length: name + SUFFIXES[length] for length in lengths}
        super().__init__(family, table, [*self.of_length.values()], chains or {}, lambda batch, _: self.fill(batch))

    def fill(self, batch: Batch) -> Batch:
        """Add the sets. In this transaction a set's number is the length of its addresses."""
        for length, name in self.of_length.items():
            nft_elements.add_set(batch, self.family, self.table, name, (nft_elements.ADDRESS_TYPES[length],),
                                 set_id=length)
        return batch

    def items(self, ips: Iterable[bytes]) -> list[Item]:
        """Return the elements of the addresses whose family has a set."""
        return [(self.of_length[len(packed)], packed, None) for packed in ips if len(packed) in self.of_length]


class OwnAddresses(Addresses):
    """Addresses in fastcni's own table."""

    __slots__ = ()

    def __init__(self, name: str, chains: dict[str, int] | None = None) -> None:
        super().__init__(FAMILY, TABLE, name, chains=chains)

    def fill(self, batch: Batch) -> Batch:
        return super().fill(nft.add_table(batch, FAMILY, TABLE, COMMENT))

    def knows(self, req: Request, ips: Sequence[bytes]) -> bool:
        """Return whether the attachment has a record of one of the addresses."""
        items = self.items(ips)
        return self.used(req) and len(self.missing(req, items)) < len(items)


class OwnerRecords(OwnAddresses):
    """The owner records of a backend. The backend's rules work without the records."""

    __slots__ = ()

    def add(self, req: Request, items: Sequence[Item], taken: Callable[[list[Found]], object] | None = None,
            mark: str | None = None) -> None:
        """Add records, see Store.add(). A kernel without nftables' family inet keeps no records. On such a kernel, DEL
        removes the addresses of prevResult, and GC removes nothing."""
        try:
            super().add(req, items, taken, mark)
        except NetlinkError as e:
            if e.errno not in nft.NO_FAMILY:
                raise

    def to_delete(self, req: Request, ips: Sequence[bytes]) -> tuple[list[bytes], list[tuple[str, bytes]]]:
        """Return (the addresses that DEL has to remove, their records as [(set, address)]).

        These are the addresses with a record of the attachment, and the addresses in `ips` without any record, because
        the reference plugins write no records.
        """
        if not self.used(req):
            return list(ips), []
        mark, items = req.hashes, self.items(ips)
        present = self.present(req, items)
        others = {key for _, key, comment in present if not comment.startswith(mark)}
        owned = self.owned(req, items, present)
        found = dict.fromkeys((*(key for _, key in owned), *(packed for packed in ips if packed not in others)))
        return [*found], owned


def release(req: Request, backend: str, found: Iterable[Found]) -> None:
    """For GC: report released addresses by req.release(). found: [(set, key, comment)] of their records."""
    for _, packed, comment in found:
        req.release(f"address {addresses.ip_text(packed)} in {backend}", comment.partition(", ")[2])
