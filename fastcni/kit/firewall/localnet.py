"""Let the node reach pods' mapped ports by 127.0.0.1: set route_localnet on the link that leads to the pod.

With route_localnet the kernel also accepts packets to 127.0.0.0/8 from outside (CVE-2020-8558). These rules drop such
packets:

    chain loopback {
        type filter hook prerouting priority raw; policy accept;
        iif != "lo" ip daddr 127.0.0.0/8 drop
        iif != "lo" ip saddr 127.0.0.0/8 drop
    }
"""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import nft, nft_rules, rtnl, uapi, wire
from fastcni.kit.firewall.elements import Store
from fastcni.kit.firewall.table import COMMENT, FAMILY, TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.elements import Item

CHAIN, RULES = "loopback", 2
LOOPBACK, LOOPBACK_IFINDEX = (b"\x7f\0\0\0", 8), 1


def enable(req: Request, packed: bytes) -> None:
    """Let the node send packets from 127.0.0.1 over the link that leads to a pod's address. Raises NetlinkError.

    Do nothing without a route to the address. No DEL resets the sysctl, because other pods use the same link.
    """
    sock = req.mode.route
    replies, refused = wire.attempt(sock, rtnl.get_route(Batch(), packed, "look up the way to the pod"))
    index = 0 if refused else rtnl.read_way(replies[0][1])[1]
    if not index:
        return
    (_, link), *_ = wire.exchange(sock, rtnl.get_link(Batch(), index=index))
    guard(req)
    if not rtnl.read_ipv4_conf(link, uapi.IPV4_DEVCONF_ROUTE_LOCALNET):
        wire.exchange(sock, rtnl.set_ipv4_conf(Batch(), index, uapi.IPV4_DEVCONF_ROUTE_LOCALNET,
                                               what="unable to enable route_localnet"))


def guard(req: Request) -> None:
    """Add the chain and its rules if they are incomplete."""
    store().ensure(req)


def stores() -> list[Store]:
    return [store()]


def store() -> Store:
    return Store(FAMILY, TABLE, (), {CHAIN: RULES}, set_up)


def set_up(batch: Batch, items: Sequence[Item]) -> Batch:
    nft.add_table(batch, FAMILY, TABLE, COMMENT)
    nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="filter", hook=nft.NF_INET_PRE_ROUTING,
                       priority=nft.NF_IP_PRI_RAW)
    nft_rules.flush_chain(batch, FAMILY, TABLE, CHAIN)
    for condition in (nft_rules.daddr_in(*LOOPBACK), nft_rules.saddr_in(*LOOPBACK)):
        nft_rules.add_rule(batch, FAMILY, TABLE, CHAIN, *nft_rules.iif_is_not(LOOPBACK_IFINDEX), *condition,
                           nft_rules.drop())
    return batch
