"""Links, addresses and routes: requests are added to a Batch, replies are read into small records (rtnetlink(7)).

Nothing here sends: what goes out together is decided, and seen, where a step is written.
"""

import sys

from fastcni._netlink import attributes, u32
from fastcni._rtnetlink import Link, ifaddrmsg, ifinfomsg, read_link, rtmsg  # noqa: F401 - others import Link from here
from fastcni.kernel import uapi
from fastcni.kernel.uapi import NLM_F_ACK, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL

ORDER = sys.byteorder
CREATE = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
ANY_LINK = ifinfomsg()


def first_link(replies):
    """The Link of the first RTM_NEWLINK among replies, or None."""
    for kind, payload in replies:
        if kind == uapi.RTM_NEWLINK:
            return read_link(payload)
    return None


def read_index(payload):
    """The index of the link that an RTM_*LINK or RTM_*ADDR payload is about."""
    return u32(payload[4:8])


def is_of_link(payload):
    """Whether an RTM_*LINK payload is about the link itself. A bridge announces its ports as AF_BRIDGE: it announces
    that a port has left before the kernel announces that the link is gone."""
    return payload[0] == uapi.AF_UNSPEC


def get_link(batch, *, name=None, index=0, what=None):
    """Ask for one link by name or index; counters, the bulk of the answer, are left out."""
    batch.begin(uapi.RTM_GETLINK, NLM_F_ACK, ifinfomsg(index), what or f'look up "{name or index}"')
    if name:
        short = len(name.encode()) < uapi.IFNAMSIZ
        batch.text(uapi.IFLA_IFNAME if short else uapi.IFLA_ALT_IFNAME, name)
    return batch.u32(uapi.IFLA_EXT_MASK, uapi.RTEXT_FILTER_SKIP_STATS)


def get_nsid(batch, fd):
    """Ask for the number by which the socket's network namespace knows that of the descriptor `fd`."""
    return batch.begin(uapi.RTM_GETNSID, NLM_F_ACK, bytes(4), "look up a namespace's number").u32(uapi.NETNSA_FD, fd)


def read_nsid(payload):
    """The number; -1 where the namespace does not know the other."""
    return int.from_bytes(attributes(payload, 4)[uapi.NETNSA_NSID], ORDER, signed=True)


def new_veth(batch, host, peer, netns_fd, *, host_mac, peer_mac, mtu=0, master=0, what=None):
    """A veth pair in one request, answered by an echo of the host end whose IFLA_LINK is the peer's index.
    Without netns_fd both ends are in one namespace.

    The host end comes up at once; the peer cannot (veth_open: ENOTCONN while its peer is down).

    Each end has one queue each way. Unasked the kernel makes one for each possible processor, and takes all but one out
    of use again: that waits for an RCU grace period at both ends, under RTNL, the longer the busier they are.

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


def put_end(batch, name, mac, mtu):
    """What both ends of a veth pair say of themselves."""
    batch.text(uapi.IFLA_IFNAME, name).raw(uapi.IFLA_ADDRESS, mac)
    if mtu > 0:
        batch.u32(uapi.IFLA_MTU, mtu)
    batch.u32(uapi.IFLA_NUM_TX_QUEUES, 1).u32(uapi.IFLA_NUM_RX_QUEUES, 1)


def new_bridge(batch, name, *, address=None, mtu=0, vlan_filtering=False, what=None):
    """A bridge, not yet up. Without an address of its own it has that of a port, and changes with its ports."""
    batch.begin(uapi.RTM_NEWLINK, CREATE | NLM_F_ECHO, ifinfomsg(), what or f"create bridge {name}")
    batch.text(uapi.IFLA_IFNAME, name)
    if address:
        batch.raw(uapi.IFLA_ADDRESS, address)
    if mtu > 0:
        batch.u32(uapi.IFLA_MTU, mtu)
    batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_KIND, "bridge")
    if vlan_filtering:
        batch.nest(uapi.IFLA_INFO_DATA).u8(uapi.IFLA_BR_VLAN_FILTERING, 1).end()
    return batch.end()


def new_link(batch, name, kind, netns_fd, *, parent=0, mtu=0, address=None, data=(), what=None):
    """A link of `kind` in the namespace netns_fd, not yet up; `parent` (an index) is in the socket's own namespace,
    where nothing may be called `name` either. `data` are attributes of the kind: (number, bytes).

    ifinfomsg
    IFLA_IFNAME, IFLA_NET_NS_FD, IFLA_LINK parent, IFLA_MTU, IFLA_ADDRESS
    IFLA_LINKINFO
        IFLA_INFO_KIND
        IFLA_INFO_DATA: data
    """
    batch.begin(uapi.RTM_NEWLINK, CREATE, ifinfomsg(), what or f"create {kind} {name}")
    batch.text(uapi.IFLA_IFNAME, name).u32(uapi.IFLA_NET_NS_FD, netns_fd)
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


def new_ifb(batch, name, *, address, mtu, what=None):
    """An ifb, up: what is redirected to it goes through its queue. That is a qdisc's business, so it has no other."""
    batch.begin(uapi.RTM_NEWLINK, CREATE | NLM_F_ECHO, ifinfomsg(0, uapi.IFF_UP, uapi.IFF_UP),
                what or f"create ifb {name}")
    batch.text(uapi.IFLA_IFNAME, name).raw(uapi.IFLA_ADDRESS, address).u32(uapi.IFLA_MTU, mtu)
    batch.u32(uapi.IFLA_TXQLEN, 0)
    return batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_KIND, "ifb").end()


def ask_for_kind(batch, kind):
    """Ask for a link of `kind` that there cannot be, one of no queues: EINVAL where the kernel has the kind,
    EOPNOTSUPP where not even a module has it."""
    batch.begin(uapi.RTM_NEWLINK, CREATE, ifinfomsg(), f"make a link of kind {kind}")
    batch.text(uapi.IFLA_IFNAME, f"no-{kind[:12]}").u32(uapi.IFLA_NUM_TX_QUEUES, 0)
    return batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_KIND, kind).end()


def set_link(batch, index, *, up=None, promisc=None, allmulti=None, address=None, mtu=0, txqlen=None, master=None,
             name=None, what=None):
    """Change flags (None: leave alone), MAC, MTU, txqlen, master (an index, 0 for none) and name of a link; a name only
    while it is down."""
    flags = change = 0
    for bit, wanted in ((uapi.IFF_UP, up), (uapi.IFF_PROMISC, promisc), (uapi.IFF_ALLMULTI, allmulti)):
        flags |= bit if wanted else 0
        change |= bit if wanted is not None else 0
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


def move_link(batch, index, netns_fd, name, alias, *, what=None):
    """Move a link into another namespace, where it is down, called `name`, with `alias` ("": with none).

    The kernel (do_setlink) moves it under its old name, if that is free there, and renames it then. So where `name` is
    taken, the link either has not moved at all, or it has and is called as before.
    """
    batch.begin(uapi.RTM_NEWLINK, NLM_F_ACK, ifinfomsg(index), what or f"move link {index}")
    batch.u32(uapi.IFLA_NET_NS_FD, netns_fd).text(uapi.IFLA_IFNAME, name)
    return batch.raw(uapi.IFLA_IFALIAS, alias.encode("utf-8", "surrogateescape"))


def set_bridge_port(batch, name, *, hairpin, isolated, what=None):
    """Flags of a bridge port, by name, so that it can follow the port's creation in one batch."""
    batch.begin(uapi.RTM_NEWLINK, NLM_F_ACK, ifinfomsg(), what or f"set bridge port {name}")
    batch.text(uapi.IFLA_IFNAME, name)
    batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_SLAVE_KIND, "bridge").nest(uapi.IFLA_INFO_SLAVE_DATA)
    batch.u8(uapi.IFLA_BRPORT_MODE, hairpin).u8(uapi.IFLA_BRPORT_ISOLATED, isolated)
    return batch.end().end()


def set_port_vlans(batch, index, ranges, *, flags=0, delete=False, what=None):
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


def del_link(batch, *, name=None, index=0, what=None):
    batch.begin(uapi.RTM_DELLINK, NLM_F_ACK, ifinfomsg(index), what or f'delete "{name or index}"')
    return batch.text(uapi.IFLA_IFNAME, name) if name else batch


def set_arp_notify(batch, index, *, what=None):
    """Have the kernel send gratuitous ARP when the link comes up: net.ipv4.conf.<link>.arp_notify, without a file."""
    return set_ipv4_conf(batch, index, uapi.IPV4_DEVCONF_ARP_NOTIFY, what=what or f"set arp_notify of link {index}")


def set_ipv4_conf(batch, index, number, *, what):
    """Switch on one of net.ipv4.conf.<link>, `number` being an IPV4_DEVCONF_*.

    IFLA_AF_SPEC
        AF_INET
            IFLA_INET_CONF: number 1
    """
    batch.begin(uapi.RTM_NEWLINK, NLM_F_ACK, ifinfomsg(index), what)
    batch.nest(uapi.IFLA_AF_SPEC).nest(uapi.AF_INET).nest(uapi.IFLA_INET_CONF)
    return batch.u32(number, 1).end().end().end()


def read_ipv4_conf(payload, number):
    """The value of one of net.ipv4.conf.<link> in an RTM_NEWLINK payload, 0 where there is no IPv4 on the link."""
    found = attributes(attributes(payload, 16).get(uapi.IFLA_AF_SPEC, b""))
    found = attributes(found.get(uapi.AF_INET, b""))
    return u32(found.get(uapi.IFLA_INET_CONF, b"")[4 * number - 4:4 * number])


def set_alias(batch, index, alias, *, what=None):
    """Give a link a text for people, of up to 255 bytes; the kernel takes none while it makes the link."""
    batch.begin(uapi.RTM_NEWLINK, NLM_F_ACK, ifinfomsg(index), what or f"set the alias of link {index}")
    return batch.raw(uapi.IFLA_IFALIAS, alias.encode())         # a NUL would count


def set_group(batch, index, group, *, what=None):
    """Put a link into a group of links (ip-link(8))."""
    batch.begin(uapi.RTM_NEWLINK, NLM_F_ACK, ifinfomsg(index), what or f"put link {index} into group {group}")
    return batch.u32(uapi.IFLA_GROUP, group)


def del_group(batch, group, *, what=None):
    """Delete every link of a group. ENODEV when it has none."""
    batch.begin(uapi.RTM_DELLINK, NLM_F_ACK, ANY_LINK, what or f"delete the links of group {group}")
    return batch.u32(uapi.IFLA_GROUP, group)


def family_of(packed):
    return uapi.AF_INET if len(packed) == 4 else uapi.AF_INET6


def new_address(batch, index, packed, prefix, *, broadcast=None, nodad=False, what=None):
    """An address with the same local and peer form, as the kernel's own tools send it. With nodad one of IPv6 can be
    used at once; a link without detection settles its addresses in a work queue, some moments later."""
    batch.begin(uapi.RTM_NEWADDR, CREATE, ifaddrmsg(family_of(packed), prefix, index,
                                                    flags=uapi.IFA_F_NODAD if nodad else 0), what)
    batch.raw(uapi.IFA_LOCAL, packed).raw(uapi.IFA_ADDRESS, packed)
    return batch.raw(uapi.IFA_BROADCAST, broadcast) if broadcast else batch


def del_address(batch, index, packed, prefix, *, what=None):
    batch.begin(uapi.RTM_DELADDR, NLM_F_ACK, ifaddrmsg(family_of(packed), prefix, index), what)
    return batch.raw(uapi.IFA_LOCAL, packed)


class Address:
    """What we need of an RTM_NEWADDR: index, packed, prefix, scope, flags."""

    __slots__ = ("index", "packed", "prefix", "scope", "flags")


def read_address(payload):
    """An RTM_NEWADDR payload as an Address. Raises ValueError for a message cut short."""
    if len(payload) < 8:
        raise ValueError(f"ifaddrmsg of {len(payload)} bytes")
    found = attributes(payload, 8)
    address = Address()
    address.prefix, address.scope = payload[1], payload[3]
    address.index = u32(payload[4:8])
    address.packed = found.get(uapi.IFA_LOCAL) or found.get(uapi.IFA_ADDRESS, b"")
    address.flags = u32(found[uapi.IFA_FLAGS]) if uapi.IFA_FLAGS in found else payload[2]
    return address


def route(batch, dst, prefix, *, index, gateway=None, source=None, metric=0, table=uapi.RT_TABLE_MAIN,
          scope=uapi.RT_SCOPE_UNIVERSE, mtu=0, advmss=0, append=False, delete=False, what=None):
    """Add (NLM_F_CREATE alone, as the reference plugins; append: behind others to the same prefix) or delete a unicast
    route of protocol boot. `metric` is its priority; `mtu` and `advmss`, in bytes, are its metrics RTAX_MTU and
    RTAX_ADVMSS (ip-route(8))."""
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


def get_route(batch, packed, what):
    """Ask how the kernel would send to an address; read_way() reads the answer."""
    batch.begin(uapi.RTM_GETROUTE, NLM_F_ACK, rtmsg(family_of(packed), 8 * len(packed)), what)
    return batch.raw(uapi.RTA_DST, packed)


def read_way(payload):
    """The answer to get_route() as (RTN_*, index of the link). Raises ValueError for a message cut short."""
    return payload[7], u32(attributes(payload, 12).get(uapi.RTA_OIF, b""))


class Route:
    """What we need of an RTM_NEWROUTE: dst (b"" for default), prefix, gateway and source (or b""), index, table,
    protocol, scope, kind (RTN_*)."""

    __slots__ = ("dst", "prefix", "gateway", "source", "index", "table", "protocol", "scope", "kind")


def read_route(payload):
    """An RTM_NEWROUTE payload as a Route, None for a cached one. Raises ValueError for a message cut short."""
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
