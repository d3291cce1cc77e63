"""Send IPv6 neighbour solicitations to pods with disableFlooding, whose ports receive no multicast.

The bridge's own interface receives every solicitation. A rule at this interface sends a copy to the MAC that a map has
for the requested address. All bridges share the rule. Each bridge has a chain, and each IPv6 address of a pod has an
element. nft prints the table as

    table netdev fastcni {
        map solicited {
            type ifname . ipv6_addr : ether_addr
            elements = { "cni0" . fd00:22::5 comment "8e48...-0b65..., net: a, if: eth0" : 0a:58:0a:16:00:05 }
        }
        chain solicitations {
            icmpv6 type nd-neighbor-solicit @ll,0,48 set iifname . @th,64,128 map @solicited dup to iif
        }
        chain bridge-cni0 {
            type filter hook ingress device "cni0" priority filter; policy accept;
            meta protocol ip6 goto solicitations
        }
    }

@th,64,128 is the requested address, @ll,0,48 the frame's destination MAC. A pod also has an element for its link-local
address. The pod itself answers the solicitation. The host and ports with flooding receive the solicitation, too. So a
deleted pod's element does not prevent the next pod with the address from receiving solicitations.
"""

from __future__ import annotations

from errno import EAFNOSUPPORT, ENOENT, EOPNOTSUPP

from fastcni.kernel import nft, nft_elements, nft_rules, wire
from fastcni.kernel.nft_elements import TYPE_ETHERADDR, TYPE_IFNAME, TYPE_IP6ADDR, concat, ifname, read_ifname
from fastcni.kernel.uapi import ETH_P_IPV6
from fastcni.kit.firewall import elements
from fastcni.kit.firewall.spoofcheck import mac as spoofcheck
from fastcni.kit.firewall.table import NETDEV_COMMENT as COMMENT
from fastcni.kit.firewall.table import NETDEV_FAMILY as FAMILY
from fastcni.kit.firewall.table import TABLE
from fastcni.spec.address import link_local

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastcni._netlink import Batch
    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.elements import Item

CHAIN, RULES, BRIDGE = "solicitations", 1, "bridge-"
SOLICITED, SOLICITED_ID = "solicited", 1
UNKNOWN = ENOENT, EOPNOTSUPP, EAFNOSUPPORT      # the errors of a kernel without NF_TABLES_NETDEV or NFT_DUP_NETDEV


def add(req: Request, bridge: str, mac: bytes, ips: Sequence[bytes]) -> bool:
    """Add the elements and rules that send solicitations for the pod's addresses to the pod's MAC. Return whether the
    kernel supports these rules. Raises NetlinkError."""
    return _possible(req, lambda: store(bridge).add(req, items(bridge, mac, ips)))


def restore(req: Request, bridge: str, mac: bytes, ips: Sequence[bytes]) -> bool:
    """Add the missing elements and rules. Return whether this kernel supports these rules. Raises CniError,
    NetlinkError."""
    return _possible(req, lambda: store(bridge).restore(req, items(bridge, mac, ips)))


def _possible(req: Request, change: Callable[[], object]) -> bool:
    try:
        change()
    except wire.NetlinkError as e:
        if e.errno not in UNKNOWN:
            raise
        req.warn(f"disableFlooding: the bridge floods IPv6 multicast to the pod's port, because of {e}")
        return False
    return True


def items(bridge: str, mac: bytes, ips: Sequence[bytes]) -> list[Item]:
    """Return a pod's elements of the nftables sets, for its packed addresses `ips`. IPv4 addresses need no element."""
    return [(SOLICITED, concat(ifname(bridge), packed), mac)
            for packed in dict.fromkeys((*ips, link_local(mac))) if len(packed) == 16]


def delete(req: Request, bridge: str) -> bool:
    """Delete the pod's elements. Return whether the pod had elements."""
    return store().used(req) and store().delete(
        req, spoofcheck.known(req, lambda _, mac, ips: items(bridge, mac, ips)))


def missing(req: Request, bridge: str, mac: bytes, ips: Sequence[bytes]) -> bool:
    """Return whether an element or a rule is missing."""
    it = store(bridge)
    return not it.complete(req) or bool(it.missing(req, items(bridge, mac, ips)))


def gc(req: Request) -> None:
    store().gc(req)


def stores() -> list[elements.Store]:
    return [store()]


class Store(elements.Store):
    __slots__ = ()

    def complete(self, req: Request) -> bool:
        """Return whether the chains have their rules. Ask the kernel each time: it deletes a bridge's chain together
        with the bridge, without a notification that would end a cached answer."""
        return self.complete_on(req.mode.firewall)

    def keeps(self, chain: str) -> bool:
        return chain in self.chains or chain.startswith(BRIDGE)


def store(bridge: str = "") -> Store:
    chains = {CHAIN: RULES + 1, BRIDGE + bridge: 1} if bridge else {CHAIN: RULES}       # + 1: the bridge's jump
    return Store(FAMILY, TABLE, (SOLICITED,), chains, set_up, BRIDGE)


def set_up(batch: Batch, items: Sequence[Item]) -> Batch:
    """Add the map, the rule, and a chain for each existing bridge of `items`. Add no elements."""
    nft.add_table(batch, FAMILY, TABLE, COMMENT)
    nft.add_chain(batch, FAMILY, TABLE, CHAIN)
    nft_rules.flush_chain(batch, FAMILY, TABLE, CHAIN)
    nft_elements.add_set(batch, FAMILY, TABLE, SOLICITED, (TYPE_IFNAME, TYPE_IP6ADDR), set_id=SOLICITED_ID,
                         values=(TYPE_ETHERADDR,))
    nft_rules.add_rule(batch, FAMILY, TABLE, CHAIN, *nft_rules.icmpv6_type(nft_rules.NDISC_NEIGHBOUR_SOLICITATION),
                       *nft_rules.iifname_and(nft_rules.ND_TARGET), nft_rules.value_of(SOLICITED, SOLICITED_ID),
                       nft_rules.set_payload(nft_rules.ETHER_DADDR), *nft_rules.dup_to_iif())
    for chain in {it if isinstance(it, str) else BRIDGE + read_ifname(key) for _, key, it in items}:
        if wire.index_of(chain.removeprefix(BRIDGE)):
            fill(batch, chain)
    return batch


def fill(batch: Batch, chain: str) -> Batch:
    """Add a bridge's chain with its rule."""
    nft.add_base_chain(batch, FAMILY, TABLE, chain, kind="filter", hook=nft.NF_NETDEV_INGRESS,
                       priority=nft.NF_IP_PRI_FILTER, device=chain.removeprefix(BRIDGE))
    nft_rules.flush_chain(batch, FAMILY, TABLE, chain)
    return nft_rules.add_rule(batch, FAMILY, TABLE, chain, *nft_rules.ether_type(ETH_P_IPV6), nft_rules.go_to(CHAIN))
