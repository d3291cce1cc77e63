"""What other tables of nftables drop by policy: at the end of such a chain pods' traffic is let through, where the
network says "backend": "nftables". What the chain's own rules refuse stays refused.

    table inet filter {                                         (an administrator's)
        set fastcni-forwarded4 { type ipv4_addr; elements = { 10.22.0.5 comment "8e48...-0b65..., net: a, if: eth0" } }
        set fastcni-forwarded6 { type ipv6_addr }
        chain forward {
            type filter hook forward priority filter; policy drop;
            ...
            ip saddr @fastcni-forwarded4 accept comment "fastcni: from pods"
            ip daddr @fastcni-forwarded4 ct state established,related accept comment "fastcni: to pods"
            ip6 ...                                             (the same of IPv6, twice)
        }
    }

Tables of iptables are left alone: it cannot read its own any more if there is a set in them.
"""

from fastcni.kernel import nft, nft_keys, wire
from fastcni.kit.firewall.owners import Addresses
from fastcni.kit.firewall.table import FAMILIES, TABLE

SETS = "fastcni-forwarded"
LENGTHS = {nft.NFPROTO_INET: (4, 16), nft.NFPROTO_IPV4: (4,), nft.NFPROTO_IPV6: (16,)}      # by a table's family
FROM, TO = "fastcni: from pods", "fastcni: to pods"
ESTABLISHED = nft_keys.host32(nft.NF_CT_STATE_ESTABLISHED | nft.NF_CT_STATE_RELATED)


class Chain(Addresses):
    """A chain that drops by policy, and the sets that our rules in it look into."""

    __slots__ = ("name",)

    def __init__(self, family, table, name):
        self.name = name
        super().__init__(family, table, SETS, LENGTHS[family])

    def whole(self, req):
        """It has our rules."""
        def ask():
            rules = wire.dump(req.mode.firewall, nft.NFT_MSG_GETRULE, nft.nfgenmsg(self.family),
                              f"list rules of {self.table} {self.name}", nft.rules_of(self.table, self.name))
            return sum(nft.read_rule(payload)[1] in (FROM, TO) for _, payload in rules) >= 2 * len(self.sets)

        return req.mode.recall(("nftables", self.table, self.family, self.name, "ours"), ask)

    def fill(self, batch):
        super().fill(batch)
        for length, name in self.of_length.items():
            family, accept = FAMILIES[length], nft.verdict(nft.NF_ACCEPT)
            among = nft.in_set(name, length)
            nft.add_rule(batch, self.family, self.table, self.name, *family.load(family.source), among, accept,
                         comment=FROM)
            nft.add_rule(batch, self.family, self.table, self.name, *family.load(family.destination), among,
                         nft.ct(nft.NFT_CT_STATE), nft.mask(ESTABLISHED), nft.compare(bytes(4), nft.NFT_CMP_NEQ),
                         accept, comment=TO)
        return batch

    def wrong(self, req, ips):
        """For CHECK: what is not there, in words, or "" where all is."""
        if self.whole(req) and not self.missing(req, self.items(ips)):
            return ""
        return f"nftables chain {self.table} {self.name} drops by policy, and does not let the pod through"


def chains(req):
    """[Chain] of this host."""
    def ask():
        found = [nft.read_base_chain(payload) for _, payload in
                 wire.dump(req.mode.firewall, nft.NFT_MSG_GETCHAIN, nft.nfgenmsg(0), "list nftables chains")]
        return [(family, table, name) for family, table, name, kind, hook, policy in filter(None, found)
                if (kind, hook, policy) == ("filter", nft.NF_INET_FORWARD, nft.NF_DROP) and family in LENGTHS
                and table != TABLE and (family == nft.NFPROTO_INET or name != "FORWARD")]

    return [Chain(*each) for each in req.mode.recall(("nftables", ""), ask)]
