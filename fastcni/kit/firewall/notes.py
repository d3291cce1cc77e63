"""Whose an address is, for backends whose own rules carry no mark: elements of sets that no rule looks at.

    table inet fastcni {
        set iptables-forward4 { type ipv4_addr; elements = { 10.22.0.5 comment "8e48...-0b65..., net: a, if: eth0" } }
        set iptables-forward6 { type ipv6_addr }
    }

The note comes before what it is about and goes behind it. So DEL finds what is ours without being told, GC knows whose
it is, and a DEL that comes late takes nothing from the pod that has the address now.
"""

from fastcni.kernel import nft
from fastcni.kit import names
from fastcni.kit.firewall import elements
from fastcni.kit.firewall.masquerade_nft import COMMENT, FAMILIES, FAMILY, TABLE


class Notes(elements.Store):
    """The notes of one backend, in the sets <name>4 and <name>6."""

    __slots__ = ("of_length",)

    def __init__(self, name):
        self.of_length = {4: f"{name}4", 16: f"{name}6"}
        super().__init__(FAMILY, TABLE, [*self.of_length.values()], {}, self._set_up)

    def _set_up(self, batch, _):
        nft.add_table(batch, FAMILY, TABLE, COMMENT)
        return add_sets(batch, FAMILY, TABLE, self.of_length)

    def items(self, ips):
        """The elements of packed addresses."""
        return [(self.of_length[len(packed)], packed, None) for packed in ips]

    def to_take_back(self, req, ips):
        """(addresses, [(set, address)] that are noted): what DEL takes back, of the attachment, and those of the `ips`
        that are noted as nobody's, for the reference plugins make no notes."""
        if not self.used(req):
            return list(ips), []
        mark, items = names.hashes(req.name, req.container_id, req.ifname), self.items(ips)
        others = {key for _, key, comment in self.present(req, items) if not comment.startswith(mark)}
        ours = self.ours(req, items)
        return [*dict.fromkeys((*(key for _, key in ours), *(packed for packed in ips if packed not in others)))], ours


def add_sets(batch, family, table, of_length):
    """Sets of addresses, {length: name}. Their numbers in this transaction are the lengths."""
    for length, name in of_length.items():
        nft.add_set(batch, family, table, name, key_type=FAMILIES[length].key_type, key_size=length, set_id=length)
    return batch
