"""Whose an address is: two sets in a table, one a family. Backends whose own rules carry no mark have notes, sets that
no rule looks at.

    table inet fastcni {
        set iptables-forward4 { type ipv4_addr; elements = { 10.22.0.5 comment "8e48...-0b65..., net: a, if: eth0" } }
        set iptables-forward6 { type ipv6_addr }
    }

The note comes before what it is about and goes behind it. So DEL finds what is ours without being told, GC knows whose
it is, and a DEL that comes late takes nothing from the pod that has the address now.
"""

from fastcni.kernel import nft
from fastcni.kit.call import names
from fastcni.kit.firewall import elements
from fastcni.kit.firewall.table import COMMENT, FAMILIES, FAMILY, TABLE
from fastcni.spec import address as addresses


class Addresses(elements.Store):
    """Packed addresses, in the sets <name>4 and <name>6, or that of the family that the table can be of."""

    __slots__ = ("of_length",)

    def __init__(self, family, table, name, lengths=(4, 16), chains=()):
        self.of_length = {length: f"{name}{'4' if length == 4 else '6'}" for length in lengths}
        super().__init__(family, table, [*self.of_length.values()], dict(chains), lambda batch, _: self.fill(batch))

    def fill(self, batch):
        """Adds the sets. Their numbers in this transaction are the lengths."""
        for length, name in self.of_length.items():
            nft.add_set(batch, self.family, self.table, name, key_type=FAMILIES[length].key_type, key_size=length,
                        set_id=length)
        return batch

    def items(self, ips):
        """The elements of those addresses that the table can be of."""
        return [(self.of_length[len(packed)], packed, None) for packed in ips if len(packed) in self.of_length]


class Notes(Addresses):
    """The notes of one backend."""

    __slots__ = ()

    def __init__(self, name, chains=()):
        super().__init__(FAMILY, TABLE, name, chains=chains)

    def fill(self, batch):
        return super().fill(nft.add_table(batch, FAMILY, TABLE, COMMENT))

    def to_take_back(self, req, ips):
        """(addresses, [(set, address)] that are noted): what DEL takes back, of the attachment, and those of the `ips`
        that are noted as nobody's, for the reference plugins make no notes."""
        if not self.used(req):
            return list(ips), []
        mark, items = names.hashes(req.name, req.container_id, req.ifname), self.items(ips)
        present = self.present(req, items)
        others = {key for _, key, comment in present if not comment.startswith(mark)}
        ours = self.ours(req, items, present)
        return [*dict.fromkeys((*(key for _, key in ours), *(packed for packed in ips if packed not in others)))], ours


def release(req, backend, found):
    """For GC: report the addresses, [(set, key, comment)], that a backend no longer lets through."""
    for _, packed, comment in found:
        req.release(f"address {addresses.ip_text(packed)} in {backend}", comment.partition(", ")[2])
