"""Accept pods' traffic in chains of other programs that drop packets by their policy. fastcni adds accept rules at the
end of such a chain.

fastcni adds the rules if the network has "backend": "nftables". The chain's other rules come first, so they can still
drop the packets.

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

fastcni does not change tables of iptables-nft this way: iptables cannot read a table that has a set.
"""

from __future__ import annotations

from fastcni.kernel import nft, nft_rules, wire
from fastcni.kit.firewall import rulesets
from fastcni.kit.firewall.owners import Addresses
from fastcni.kit.firewall.table import TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni._netlink import Batch
    from fastcni.kit.call.request import Request

SETS = "fastcni-forwarded"
LENGTHS = {nft.NFPROTO_INET: (4, 16), nft.NFPROTO_IPV4: (4,), nft.NFPROTO_IPV6: (16,)}      # keys: a table's family
FROM, TO = "fastcni: from pods", "fastcni: to pods"


class Chain(Addresses):
    """A chain that drops by policy, and the sets that fastcni's rules in the chain use."""

    __slots__ = ("name",)

    def __init__(self, family: int, table: str, name: str) -> None:
        self.name = name
        super().__init__(family, table, SETS, LENGTHS[family])

    def complete(self, req: Request) -> bool:
        """Return whether the chain has fastcni's rules."""
        def ask() -> bool:
            rules = rulesets.rules_of(req.mode.firewall, self.family, self.table, self.name)
            return sum(nft_rules.read_rule(payload)[1] in (FROM, TO) for payload in rules) >= 2 * len(self.sets)

        return req.mode.recall(("nftables", self.table, self.family, self.name, "ours"), ask)

    def fill(self, batch: Batch) -> Batch:
        super().fill(batch)
        for length, name in self.of_length.items():
            pods, accept = nft_rules.in_set(name, length), nft_rules.accept()
            nft_rules.add_rule(batch, self.family, self.table, self.name, *nft_rules.saddr(length), pods, accept,
                               comment=FROM)
            nft_rules.add_rule(batch, self.family, self.table, self.name, *nft_rules.daddr(length), pods,
                               *nft_rules.established_or_related(), accept, comment=TO)
        return batch

    def wrong(self, req: Request, ips: list[bytes]) -> str:
        """For CHECK: return the first missing rule or element as text, or ""."""
        if self.complete(req) and not self.missing(req, self.items(ips)):
            return ""
        return f"nftables chain {self.table} {self.name} drops by policy, and does not let the pod through"


def dropping(sock: wire.Socket) -> list[tuple[int, str, str]]:
    """Return (family, table, chain) of each base chain of this host that drops forwarded packets by its policy. Leave
    out chains of fastcni and iptables."""
    found = [nft.read_base_chain(payload) for _, payload in
             wire.dump(sock, nft.NFT_MSG_GETCHAIN, nft.nfgenmsg(0), "list nftables chains")]
    return [(family, table, name) for family, table, name, kind, hook, policy in filter(None, found)
            if (kind, hook, policy) == ("filter", nft.NF_INET_FORWARD, nft.NF_DROP) and family in LENGTHS
            and table != TABLE and (family == nft.NFPROTO_INET or name != "FORWARD")]


def chains(req: Request) -> list[Chain]:
    """Return the chains of this host whose policy drops forwarded packets."""
    return [Chain(*each) for each in req.mode.recall(("nftables", ""), lambda: dropping(req.mode.firewall))]
