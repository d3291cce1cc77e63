"""Add requests about links, addresses and routes to a Batch, and read replies into small records (rtnetlink(7)).

This module does not send: its callers decide which requests go out together.
"""

from __future__ import annotations

import sys

from fastcni._netlink import attributes, u32
from fastcni._rtnetlink import Link, ifaddrmsg, ifinfomsg, read_link, rtmsg
from fastcni.kernel import uapi
from fastcni.kernel.uapi import NLM_F_ACK, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastcni._netlink import Batch

    Replies = list[tuple[int, bytes]]

ORDER = sys.byteorder
CREATE = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
ANY_LINK = ifinfomsg()


def first_link(replies: Replies) -> Link | None:
    """Return the Link of the first RTM_NEWLINK among replies, or None."""
    for kind, payload in replies:
        if kind == uapi.RTM_NEWLINK:
            return read_link(payload)
    return None


def read_index(payload: bytes) -> int:
    """Return the index of the link in an RTM_*LINK or RTM_*ADDR payload."""
    return u32(payload[4:8])


def is_of_link(payload: bytes) -> bool:
    """Return whether an RTM_*LINK payload is about the link itself. A bridge also sends RTM_*LINK about its ports, with
    the family AF_BRIDGE. If a port's link is deleted, the bridge's RTM_DELLINK comes before the link's own."""
    return payload[0] == uapi.AF_UNSPEC


def get_link(batch: Batch, *, name: str | None = None, index: int = 0) -> Batch:
    """Ask for one link by name or index. The answer has no counters, which would be its largest part."""
    batch.begin(uapi.RTM_GETLINK, uapi.NLM_F_REQUEST, ifinfomsg(index), f'look up "{name or index}"')
    if name:
        short = len(name.encode()) < uapi.IFNAMSIZ
        batch.text(uapi.IFLA_IFNAME if short else uapi.IFLA_ALT_IFNAME, name)
    return batch.u32(uapi.IFLA_EXT_MASK, uapi.RTEXT_FILTER_SKIP_STATS)


def read_counters(payload: bytes, count: int) -> list[int]:
    """Return the first `count` counters of struct rtnl_link_stats64 in an RTM_NEWLINK payload, [] for a payload without
    counters."""
    data = attributes(payload, len(ANY_LINK)).get(uapi.IFLA_STATS64, b"")[:8 * count]
    return [int.from_bytes(data[at:at + 8], ORDER) for at in range(0, len(data), 8)]


def get_nsid(batch: Batch, fd: int) -> Batch:
    """Ask for the nsid that the namespace of the descriptor `fd` has in the socket's network namespace."""
    return batch.begin(uapi.RTM_GETNSID, NLM_F_ACK, bytes(4), "look up a namespace's number").u32(uapi.NETNSA_FD, fd)


def read_nsid(payload: bytes) -> int:
    """Return the nsid in an answer to get_nsid(); -1 if the namespace has no nsid."""
    return int.from_bytes(attributes(payload, 4)[uapi.NETNSA_NSID], ORDER, signed=True)


def new_veth(batch: Batch, host: str, peer: str, netns_fd: int | None, *, host_mac: bytes, peer_mac: bytes,
             mtu: int = 0, master: int = 0, what: str | None = None) -> Batch:
    """Make a veth pair by one request. The kernel answers with an echo of the host end, whose IFLA_LINK is the peer's
    index. Without netns_fd both ends are in one namespace.

    The request sets the host end up; the peer cannot be set up by the same request (veth_open: ENOTCONN while its peer
    is down).

    Each end has one queue in each direction. By default the kernel makes a queue for each possible processor, and then
    disables all but one. To disable queues, the kernel waits for an RCU grace period at each end while it holds the
    RTNL lock. The wait is longer on busy processors.

    ifinfomsg
    IFLA_IFNAME host, IFLA_ADDRESS, IFLA_MTU, IFLA_NUM_TX_QUEUES 1, IFLA_NUM_RX_QUEUES 1, IFLA_MASTER
    IFLA_LINKINFO
        IFLA_INFO_KIND "veth"
        IFLA_INFO_DATA
            VETH_INFO_PEER: ifinfomsg, IFLA_IFNAME peer, IFLA_ADDRESS, IFLA_MTU, IFLA_NUM_*_QUEUES 1, IFLA_NET_NS_FD
    """
    batch.begin(uapi.RTM_NEWLINK, CREATE | NLM_F_ECHO, ifinfomsg(0, uapi.IFF_UP, uapi.IFF_UP),
                what or f"create veth {host}")
    put_end(batch, host, host_mac, mtu)
    if master:
        batch.u32(uapi.IFLA_MASTER, master)
    batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_KIND, "veth").nest(uapi.IFLA_INFO_DATA)
    put_end(batch.nest(uapi.VETH_INFO_PEER).header(ANY_LINK), peer, peer_mac, mtu)
    if netns_fd is not None:
        batch.u32(uapi.IFLA_NET_NS_FD, netns_fd)
    return batch.end().end().end()


def put_end(batch: Batch, name: str, mac: bytes, mtu: int) -> None:
    """Add the attributes that both ends of a veth pair have."""
    batch.text(uapi.IFLA_IFNAME, name).raw(uapi.IFLA_ADDRESS, mac)
    if mtu > 0:
        batch.u32(uapi.IFLA_MTU, mtu)
    batch.u32(uapi.IFLA_NUM_TX_QUEUES, 1).u32(uapi.IFLA_NUM_RX_QUEUES, 1)


def new_bridge(batch: Batch, name: str, *, address: bytes | None = None, mtu: int = 0, vlan_filtering: bool = False,
               snooping: bool = True, what: str | None = None) -> Batch:
    """Make a bridge that is down. Without `address` the bridge takes the MAC of a port, which changes with the ports.

    Without `snooping` the bridge ignores IGMP and MLD. With snooping, the kernel restarts the timers of all ports each
    time that a port comes up."""
    batch.begin(uapi.RTM_NEWLINK, CREATE | NLM_F_ECHO, ifinfomsg(), what or f"create bridge {name}")
    batch.text(uapi.IFLA_IFNAME, name)
    if address:
        batch.raw(uapi.IFLA_ADDRESS, address)
    if mtu > 0:
        batch.u32(uapi.IFLA_MTU, mtu)
    batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_KIND, "bridge")
    if vlan_filtering:
        batch.nest(uapi.IFLA_INFO_DATA).u8(uapi.IFLA_BR_VLAN_FILTERING, 1).end()
    elif not snooping:
        batch.nest(uapi.IFLA_INFO_DATA).u8(uapi.IFLA_BR_MCAST_SNOOPING, 0).end()
    return batch.end()


def learn_no_link_local(batch: Batch, index: int, *, what: str | None = None) -> Batch:
    """Keep a bridge from learning MACs from frames to 01:80:c2:00:00:0X: ip(8)'s `no_linklocal_learn 1`.

    struct br_boolopt_multi   optval:u32  optmask:u32
    """
    batch.begin(uapi.RTM_NEWLINK, NLM_F_ACK, ifinfomsg(index), what or f"set bridge {index}")
    bit = (1 << uapi.BR_BOOLOPT_NO_LL_LEARN).to_bytes(4, ORDER)
    batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_KIND, "bridge").nest(uapi.IFLA_INFO_DATA)
    return batch.raw(uapi.IFLA_BR_MULTI_BOOLOPT, bit + bit).end().end()


def new_link(batch: Batch, name: str, kind: str, netns_fd: int | None, *, parent: int = 0, mtu: int = 0,
             address: bytes | None = None, data: Iterable[tuple[int, bytes]] = (), what: str | None = None) -> Batch:
    """Make a link of `kind` that is down, in the namespace netns_fd (None: the socket's own namespace). parent: the
    index of a link in the socket's own namespace, where no link may have the name `name` either. data: attributes of
    the kind, (number, bytes).

    ifinfomsg
    IFLA_IFNAME, IFLA_NET_NS_FD, IFLA_LINK parent, IFLA_MTU, IFLA_ADDRESS
    IFLA_LINKINFO
        IFLA_INFO_KIND
        IFLA_INFO_DATA: data
    """
    batch.begin(uapi.RTM_NEWLINK, CREATE, ifinfomsg(), what or f"create {kind} {name}")
    batch.text(uapi.IFLA_IFNAME, name)
    if netns_fd is not None:
        batch.u32(uapi.IFLA_NET_NS_FD, netns_fd)
    if parent:
        batch.u32(uapi.IFLA_LINK, parent)
    if mtu > 0:
        batch.u32(uapi.IFLA_MTU, mtu)
    if address:
        batch.raw(uapi.IFLA_ADDRESS, address)
    batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_KIND, kind)
    if data:
        batch.nest(uapi.IFLA_INFO_DATA)
        for number, value in data:
            batch.raw(number, value)
        batch.end()
    return batch.end()


def new_ifb(batch: Batch, name: str, *, address: bytes, mtu: int, what: str | None = None) -> Batch:
    """Make an ifb that is up. Packets that are redirected to the ifb pass its root qdisc, so no transmit queue is
    needed: txqlen is 0."""
    batch.begin(uapi.RTM_NEWLINK, CREATE | NLM_F_ECHO, ifinfomsg(0, uapi.IFF_UP, uapi.IFF_UP),
                what or f"create ifb {name}")
    batch.text(uapi.IFLA_IFNAME, name).raw(uapi.IFLA_ADDRESS, address).u32(uapi.IFLA_MTU, mtu)
    batch.u32(uapi.IFLA_TXQLEN, 0)
    return batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_KIND, "ifb").end()


def ask_for_kind(batch: Batch, kind: str) -> Batch:
    """Ask whether the kernel supports a kind of link, by a request for an invalid link without queues. The kernel
    answers EINVAL if it supports the kind, EOPNOTSUPP if neither the kernel nor a module does."""
    batch.begin(uapi.RTM_NEWLINK, CREATE, ifinfomsg(), f"make a link of kind {kind}")
    batch.text(uapi.IFLA_IFNAME, f"no-{kind[:12]}").u32(uapi.IFLA_NUM_TX_QUEUES, 0)
    return batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_KIND, kind).end()


def set_link(batch: Batch, index: int, *, up: bool | None = None, promisc: bool | None = None,
             allmulti: bool | None = None, address: bytes | None = None, mtu: int = 0, txqlen: int | None = None,
             master: int | None = None, name: str | None = None, what: str | None = None) -> Batch:
    """Change flags, MAC, MTU, txqlen, master (an index, 0 for none) and name of a link. An argument None changes
    nothing. A name can change only while the link is down."""
    flags = (uapi.IFF_UP if up else 0) | (uapi.IFF_PROMISC if promisc else 0) | (uapi.IFF_ALLMULTI if allmulti else 0)
    change = ((0 if up is None else uapi.IFF_UP) | (0 if promisc is None else uapi.IFF_PROMISC)
              | (0 if allmulti is None else uapi.IFF_ALLMULTI))
    batch.begin(uapi.RTM_NEWLINK, NLM_F_ACK, ifinfomsg(index, flags, change), what or f"change link {index}")
    if address:
        batch.raw(uapi.IFLA_ADDRESS, address)
    if mtu:
        batch.u32(uapi.IFLA_MTU, mtu)
    if txqlen is not None:
        batch.u32(uapi.IFLA_TXQLEN, txqlen)
    if master is not None:
        batch.u32(uapi.IFLA_MASTER, master)
    return batch.text(uapi.IFLA_IFNAME, name) if name else batch


def move_link(batch: Batch, index: int, netns_fd: int, name: str, alias: str, *, what: str | None = None) -> Batch:
    """Move a link into another namespace. After the move the link is down, and has the name `name` and the alias
    `alias` ("": no alias).

    The kernel (do_setlink) first moves the link, under its old name if this name is free in the other namespace, and
    then renames the link. So if `name` is taken, the link either has not moved, or has moved and kept its old name.
    """
    batch.begin(uapi.RTM_NEWLINK, NLM_F_ACK, ifinfomsg(index), what or f"move link {index}")
    batch.u32(uapi.IFLA_NET_NS_FD, netns_fd).text(uapi.IFLA_IFNAME, name)
    return batch.raw(uapi.IFLA_IFALIAS, alias.encode("utf-8", "surrogateescape"))


def set_bridge_port(batch: Batch, name: str, flags: Mapping[int, bool], *, what: str | None = None) -> Batch:
    """Set flags of a bridge port, {IFLA_BRPORT_*: value}. The argument is the port's name, so that one batch can create
    the port and set its flags."""
    batch.begin(uapi.RTM_NEWLINK, NLM_F_ACK, ifinfomsg(), what or f"set bridge port {name}")
    batch.text(uapi.IFLA_IFNAME, name)
    batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_SLAVE_KIND, "bridge").nest(uapi.IFLA_INFO_SLAVE_DATA)
    for number, value in flags.items():
        batch.u8(number, value)
    return batch.end().end()


def read_bridge_port(payload: bytes) -> dict[int, bool]:
    """Return the flags of a bridge port in an RTM_NEWLINK payload, {IFLA_BRPORT_*: value}; {} if the link is no bridge
    port."""
    info = attributes(attributes(payload, len(ANY_LINK)).get(uapi.IFLA_LINKINFO, b""))
    if info.get(uapi.IFLA_INFO_SLAVE_KIND) != b"bridge\0":
        return {}
    return {number: value != b"\0" for number, value in attributes(info[uapi.IFLA_INFO_SLAVE_DATA]).items()
            if len(value) == 1}


def set_port_vlans(batch: Batch, index: int, ranges: Iterable[tuple[int, int]], *, flags: int = 0, delete: bool = False,
                   what: str | None = None) -> Batch:
    """Add VLANs to a bridge port or delete them; `ranges` are (first, last), `flags` BRIDGE_VLAN_INFO_*.

    struct bridge_vlan_info   flags:u16  vid:u16
    """
    kind = uapi.RTM_DELLINK if delete else uapi.RTM_SETLINK
    batch.begin(kind, NLM_F_ACK, ifinfomsg(index, family=uapi.AF_BRIDGE), what).nest(uapi.IFLA_AF_SPEC)
    for first, last in ranges:
        ends = [(flags, first)] if first == last else [(flags | uapi.BRIDGE_VLAN_INFO_RANGE_BEGIN, first),
                                                       (flags | uapi.BRIDGE_VLAN_INFO_RANGE_END, last)]
        for bits, vid in ends:
            batch.raw(uapi.IFLA_BRIDGE_VLAN_INFO, bits.to_bytes(2, ORDER) + vid.to_bytes(2, ORDER))
    return batch.end()


def del_link(batch: Batch, *, name: str | None = None, index: int = 0, what: str | None = None) -> Batch:
    batch.begin(uapi.RTM_DELLINK, NLM_F_ACK, ifinfomsg(index), what or f'delete "{name or index}"')
    return batch.text(uapi.IFLA_IFNAME, name) if name else batch


def set_ipv4_conf(batch: Batch, index: int, number: int, *, what: str) -> Batch:
    """Set one sysctl of net.ipv4.conf.<link> to 1. number: its IPV4_DEVCONF_*.

    IFLA_AF_SPEC
        AF_INET
            IFLA_INET_CONF: number 1
    """
    batch.begin(uapi.RTM_NEWLINK, NLM_F_ACK, ifinfomsg(index), what)
    batch.nest(uapi.IFLA_AF_SPEC).nest(uapi.AF_INET).nest(uapi.IFLA_INET_CONF)
    return batch.u32(number, 1).end().end().end()


def read_ipv4_conf(payload: bytes, number: int) -> int:
    """Return the value of a sysctl of net.ipv4.conf.<link> in an RTM_NEWLINK payload, 0 if the link has no IPv4."""
    found = attributes(attributes(payload, 16).get(uapi.IFLA_AF_SPEC, b""))
    found = attributes(found.get(uapi.AF_INET, b""))
    return u32(found.get(uapi.IFLA_INET_CONF, b"")[4 * number - 4:4 * number])


def set_alias(batch: Batch, index: int, alias: str, *, what: str | None = None) -> Batch:
    """Set a link's alias, a text of up to 255 bytes. The kernel accepts no alias in the request that makes the link."""
    batch.begin(uapi.RTM_NEWLINK, NLM_F_ACK, ifinfomsg(index), what or f"set the alias of link {index}")
    return batch.raw(uapi.IFLA_IFALIAS, alias.encode())     # no closing NUL: the kernel would count it as a character


def set_group(batch: Batch, index: int, group: int, *, what: str | None = None) -> Batch:
    """Put a link into a group of links (ip-link(8))."""
    batch.begin(uapi.RTM_NEWLINK, NLM_F_ACK, ifinfomsg(index), what or f"put link {index} into group {group}")
    return batch.u32(uapi.IFLA_GROUP, group)


def del_group(batch: Batch, group: int, *, what: str | None = None) -> Batch:
    """Delete every link of a group. The kernel answers ENODEV if the group has no link."""
    batch.begin(uapi.RTM_DELLINK, NLM_F_ACK, ANY_LINK, what or f"delete the links of group {group}")
    return batch.u32(uapi.IFLA_GROUP, group)


def family_of(packed: bytes) -> int:
    return uapi.AF_INET if len(packed) == 4 else uapi.AF_INET6


def new_address(batch: Batch, index: int, packed: bytes, prefix: int, *, broadcast: bytes | None = None,
                nodad: bool = False, what: str | None = None) -> Batch:
    """Add an address, as both IFA_LOCAL and IFA_ADDRESS, like ip(8). With `nodad` an IPv6 address can be used
    immediately. Without this flag a work queue of the kernel makes the address usable a little later, even if duplicate
    address detection is off."""
    batch.begin(uapi.RTM_NEWADDR, CREATE, ifaddrmsg(family_of(packed), prefix, index,
                                                    flags=uapi.IFA_F_NODAD if nodad else 0), what)
    batch.raw(uapi.IFA_LOCAL, packed).raw(uapi.IFA_ADDRESS, packed)
    return batch.raw(uapi.IFA_BROADCAST, broadcast) if broadcast else batch


def del_address(batch: Batch, index: int, packed: bytes, prefix: int, *, what: str | None = None) -> Batch:
    """Delete an address of a link. The request has IFA_ADDRESS, because otherwise Linux does not compare the prefix
    length of IPv4."""
    batch.begin(uapi.RTM_DELADDR, NLM_F_ACK, ifaddrmsg(family_of(packed), prefix, index), what)
    return batch.raw(uapi.IFA_LOCAL, packed).raw(uapi.IFA_ADDRESS, packed)


def lend_address(batch: Batch, index: int, packed: bytes, seconds: int, *, what: str | None = None) -> Batch:
    """Add an address to a link for `seconds`, or restart the lifetime of an existing address. The address adds no route
    to its network, and IPv6 does no duplicate address detection. The node does not use the address as the source of its
    own connections.

    struct ifa_cacheinfo   prefered:u32 valid:u32 cstamp:u32 tstamp:u32
    """
    batch.begin(uapi.RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | uapi.NLM_F_REPLACE,
                ifaddrmsg(family_of(packed), 8 * len(packed), index), what)
    batch.raw(uapi.IFA_LOCAL, packed).raw(uapi.IFA_ADDRESS, packed)
    batch.u32(uapi.IFA_FLAGS, uapi.IFA_F_NODAD | uapi.IFA_F_NOPREFIXROUTE)
    return batch.raw(uapi.IFA_CACHEINFO, bytes(4) + seconds.to_bytes(4, ORDER) + bytes(8))


class Address:
    """The fields of an RTM_NEWADDR that fastcni uses: index (the link's), packed, prefix, scope, flags."""

    __slots__ = ("index", "packed", "prefix", "scope", "flags")

    def __init__(self, payload: bytes) -> None:
        """Read an RTM_NEWADDR payload. Raises ValueError for a truncated message."""
        if len(payload) < 8:
            raise ValueError(f"ifaddrmsg of {len(payload)} bytes")
        found = attributes(payload, 8)
        self.prefix, self.scope, self.index = payload[1], payload[3], u32(payload[4:8])
        self.packed = found.get(uapi.IFA_LOCAL) or found.get(uapi.IFA_ADDRESS, b"")
        self.flags = u32(found[uapi.IFA_FLAGS]) if uapi.IFA_FLAGS in found else payload[2]


def route(batch: Batch, dst: bytes, prefix: int, *, index: int, gateway: bytes | None = None,
          source: bytes | None = None, metric: int = 0, table: int = uapi.RT_TABLE_MAIN,
          scope: int = uapi.RT_SCOPE_UNIVERSE, mtu: int = 0, advmss: int = 0, append: bool = False,
          delete: bool = False, what: str | None = None) -> Batch:
    """Add or delete a unicast route of protocol boot. Adding uses only NLM_F_CREATE, as in the reference plugins.
    append: add the route after other routes to the same prefix. metric: the route's priority. mtu, advmss: the route's
    metrics RTAX_MTU and RTAX_ADVMSS in bytes (ip-route(8))."""
    kind, flags = (uapi.RTM_DELROUTE, NLM_F_ACK) if delete else (uapi.RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE)
    flags |= uapi.NLM_F_APPEND if append else 0
    family = family_of(dst)
    protocol = uapi.RTPROT_KERNEL if delete else uapi.RTPROT_BOOT
    batch.begin(kind, flags, rtmsg(family, prefix, table=table, protocol=protocol, scope=scope,
                                   kind=uapi.RTN_UNICAST), what)
    if prefix:
        batch.raw(uapi.RTA_DST, dst)
    if gateway:
        batch.raw(uapi.RTA_GATEWAY, gateway)
    if source:
        batch.raw(uapi.RTA_PREFSRC, source)
    if metric:
        batch.u32(uapi.RTA_PRIORITY, metric)
    if table > 255:
        batch.u32(uapi.RTA_TABLE, table)
    if mtu or advmss:
        batch.nest(uapi.RTA_METRICS)
        if mtu:
            batch.u32(uapi.RTAX_MTU, mtu)
        if advmss:
            batch.u32(uapi.RTAX_ADVMSS, advmss)
        batch.end()
    return batch.u32(uapi.RTA_OIF, index)


def get_route(batch: Batch, packed: bytes, what: str) -> Batch:
    """Ask for the route that the kernel would use for an address; read_way() reads the answer."""
    batch.begin(uapi.RTM_GETROUTE, NLM_F_ACK, rtmsg(family_of(packed), 8 * len(packed)), what)
    return batch.raw(uapi.RTA_DST, packed)


def read_way(payload: bytes) -> tuple[int, int]:
    """Read the answer to get_route() as (RTN_*, index of the link). Raises ValueError for a truncated message."""
    return payload[7], u32(attributes(payload, 12).get(uapi.RTA_OIF, b""))


class Route:
    """The fields of an RTM_NEWROUTE that fastcni uses: dst (b"" for default), prefix, gateway and source (or b""),
    index (the link's), table, protocol, scope, kind (RTN_*)."""

    __slots__ = ("dst", "prefix", "gateway", "source", "index", "table", "protocol", "scope", "kind")
    dst: bytes
    gateway: bytes
    source: bytes
    prefix: int
    index: int
    table: int
    protocol: int
    scope: int
    kind: int


def read_route(payload: bytes) -> Route | None:
    """Read an RTM_NEWROUTE payload as a Route; None for a cached route. Raises ValueError for a truncated message."""
    if len(payload) < 12:
        raise ValueError(f"rtmsg of {len(payload)} bytes")
    if u32(payload[8:12]) & uapi.RTM_F_CLONED:
        return None
    found = attributes(payload, 12)
    route = Route()
    route.prefix, route.protocol, route.scope, route.kind = payload[1], payload[5], payload[6], payload[7]
    route.dst = found.get(uapi.RTA_DST, b"")
    route.gateway = found.get(uapi.RTA_GATEWAY, b"")
    route.source = found.get(uapi.RTA_PREFSRC, b"")
    route.index = u32(found.get(uapi.RTA_OIF, b""))
    route.table = u32(found[uapi.RTA_TABLE]) if uapi.RTA_TABLE in found else payload[4]
    return route
