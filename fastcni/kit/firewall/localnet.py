"""The node's own 127.0.0.1 reaches pods: route_localnet on the one link that leads to the pod, and never without a
guard against what else that lets in (CVE-2020-8558):

    chain loopback {
        type filter hook prerouting priority raw; policy accept;
        iif != "lo" ip daddr 127.0.0.0/8 drop
        iif != "lo" ip saddr 127.0.0.0/8 drop
    }
"""

from fastcni._netlink import Batch
from fastcni.kernel import nft, nft_keys, rtnl, uapi, wire
from fastcni.kit.firewall.elements import Store
from fastcni.kit.firewall.table import COMMENT, FAMILIES, FAMILY, TABLE

CHAIN, LOOPBACK, LOOPBACK_IFINDEX = "loopback", (b"\x7f\0\0\0", 8), 1


def enable(req, packed):
    """Packets from 127.0.0.1 may leave by the link that leads to a pod's address. Raises NetlinkError.

    Without a route there is nothing to switch on. It stays on, as the link is other pods' way, too.
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


def guard(req):
    """The chain is there with its rules."""
    store().ensure(req)


def stores():
    return [store()]


def store():
    return Store(FAMILY, TABLE, (), {CHAIN: 2}, set_up)


def set_up(batch, _):
    ipv4 = FAMILIES[4]
    nft.add_table(batch, FAMILY, TABLE, COMMENT)
    nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="filter", hook=nft.NF_INET_PRE_ROUTING,
                       priority=nft.NF_IP_PRI_RAW)
    nft.flush_chain(batch, FAMILY, TABLE, CHAIN)
    for offset in (ipv4.destination, ipv4.source):
        nft.add_rule(batch, FAMILY, TABLE, CHAIN, nft.meta(nft.NFT_META_IIF),
                     nft.compare(nft_keys.host32(LOOPBACK_IFINDEX), nft.NFT_CMP_NEQ),
                     *ipv4.within(offset, *LOOPBACK), nft.verdict(nft.NF_DROP))
    return batch
