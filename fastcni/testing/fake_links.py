"""Model links for tests: deleting one end of a veth pair deletes the other end; names are unique in a namespace."""

from __future__ import annotations

import copy
import struct
from errno import EEXIST, EINVAL, ENODEV, EXFULL
from typing import TYPE_CHECKING, Any

from fastcni._netlink import attributes
from fastcni.kernel import uapi
from fastcni.kernel.uapi import NLM_F_DUMP, NLM_F_ECHO
from fastcni.testing.fake_messages import HOST, POD, Refused, Replies, attr, number, text, u32
from fastcni.testing.fake_neighbours import Neighbours
from fastcni.testing.fake_routing import Routing
from fastcni.testing.fake_shaping import Shaping
from fastcni.testing.fake_sockets import message

if TYPE_CHECKING:
    from fastcni.testing.fake_node import NodeSocket

MAX_PORTS = 1023                # the most ports that a bridge may have


class Link:
    def __init__(self, index: int, name: str, kind: str, address: bytes = b"\2\0\0\0\0\x99") -> None:
        self.index, self.name, self.kind, self.address = index, name, kind, address
        self.mtu, self.flags, self.master, self.promiscuity = 1500, 0, 0, 0
        self.txqlen, self.alias = 1000, ""
        self.parent, self.data = 0, b""         # IFLA_LINK and IFLA_INFO_DATA of a link with a parent
        self.peer: tuple[str, Link] | None = None       # a veth link's other end: (its namespace, the link)

    def facts(self) -> tuple[Any, ...]:
        return (self.name, self.kind, self.address, self.mtu, self.flags, self.master, self.promiscuity, self.txqlen,
                self.alias)


class Links(Routing):
    """The model of links. links: {namespace: {index: Link}}. namespaces: {descriptor: namespace}."""

    def __init__(self) -> None:
        super().__init__()
        self.next_index = 10
        self.namespaces: dict[int, str] = {}
        self.sockets: list[NodeSocket] = []
        lo = Link(1, "lo", "", bytes(6))
        lo.flags = uapi.IFF_LOOPBACK
        self.links = {HOST: {1: copy.copy(lo)}, POD: {1: lo}}
        self.shaping, self.neighbours = Shaping(), Neighbours()

    def link(self, name: str, namespace: str = HOST) -> Link | None:
        return next((link for link in self.links[namespace].values() if link.name == name), None)

    def add_link(self, name: str, kind: str, namespace: str = HOST, **facts: Any) -> Link:
        link = Link(self.next_index, name, kind)
        self.next_index += 1
        vars(link).update(facts)
        self.links[namespace][link.index] = link
        return link

    def ports(self, where: str, master: int) -> int:
        """Return the number of links in the namespace `where` with the master `master`, an interface index."""
        return sum(link.master == master for link in self.links[where].values()) if master else 0

    def named(self, where: str, payload: bytes) -> Link:
        index, name = number(payload[4:8]), text(attributes(payload, 16).get(uapi.IFLA_IFNAME, b""))
        link = self.links[where].get(index) if index else self.link(name, where)
        if link is None:
            raise Refused(ENODEV)
        return link

    def new_link(self, where: str, flags: int, payload: bytes) -> Replies:
        found = attributes(payload, 16)
        info = attributes(found.get(uapi.IFLA_LINKINFO, b""))
        changed, wanted = number(payload[12:16]), number(payload[8:12])
        if flags & uapi.NLM_F_CREATE:
            name, kind = text(found[uapi.IFLA_IFNAME]), text(info[uapi.IFLA_INFO_KIND])
            if number(found.get(uapi.IFLA_NUM_TX_QUEUES, b"\1")) == 0:
                raise Refused(EINVAL)
            if uapi.IFLA_NET_NS_FD in found:
                where = self.namespaces[number(found[uapi.IFLA_NET_NS_FD])]
            if self.link(name, where):
                raise Refused(EEXIST)
            if self.ports(where, number(found.get(uapi.IFLA_MASTER, b""))) >= MAX_PORTS:
                raise Refused(EXFULL)
            peer = attributes(info[uapi.IFLA_INFO_DATA]).get(uapi.VETH_INFO_PEER) if kind == "veth" else None
            link = self.make(where, found, kind, peer)
        else:
            link = self.named(where, payload)
            if uapi.IFLA_NET_NS_FD in found:
                where = self.move(where, link, found)
            self.set_facts(where, link, found)
            if number(payload[4:8]) and uapi.IFLA_IFNAME in found and text(found[uapi.IFLA_IFNAME]) != link.name:
                if self.link(text(found[uapi.IFLA_IFNAME]), where):
                    raise Refused(EEXIST)
                link.name = text(found[uapi.IFLA_IFNAME])
            if changed & uapi.IFF_PROMISC:
                link.promiscuity = int(bool(wanted & uapi.IFF_PROMISC))
        link.flags = link.flags & ~changed | wanted & changed
        self.announce(where, uapi.RTM_NEWLINK, link)
        if link.peer:
            self.announce(link.peer[0], uapi.RTM_NEWLINK, link.peer[1])
        return [(uapi.RTM_NEWLINK, self.encoded(where, link))] if flags & NLM_F_ECHO else []

    def set_facts(self, where: str, link: Link, found: dict[int, bytes]) -> None:
        link.address = found.get(uapi.IFLA_ADDRESS, link.address)
        link.mtu = number(found.get(uapi.IFLA_MTU, u32(link.mtu)))
        link.txqlen = number(found.get(uapi.IFLA_TXQLEN, u32(link.txqlen)))
        link.alias = text(found.get(uapi.IFLA_IFALIAS, link.alias.encode()))
        if uapi.IFLA_MASTER in found:
            was, link.master = self.table_of(where, link.master), number(found[uapi.IFLA_MASTER])
            if was != self.table_of(where, link.master):
                self.change_table(where, link.index, self.table_of(where, link.master))

    def table_of(self, where: str, master: int) -> int:
        """Return the routing table for links with this master: the VRF's table if the master is a VRF; otherwise the
        main table."""
        vrf = self.links[where].get(master)
        if vrf is None or vrf.kind != "vrf":
            return uapi.RT_TABLE_MAIN
        return number(attributes(vrf.data)[uapi.IFLA_VRF_TABLE])

    def move(self, where: str, link: Link, found: dict[int, bytes]) -> str:
        """Move a link from the namespace `where` into another namespace, in which it is down. Return the name of the
        new namespace. found: the attributes of the request."""
        there = self.namespaces[number(found[uapi.IFLA_NET_NS_FD])]
        if self.link(text(found[uapi.IFLA_IFNAME]), there):
            raise Refused(EEXIST)
        del self.links[where][link.index]
        self.forget(where, link.index)
        self.links[there][link.index] = link
        link.flags, link.master, link.name = link.flags & ~uapi.IFF_UP, 0, ""
        self.announce(where, uapi.RTM_DELLINK, link)
        return there

    def make(self, where: str, found: dict[int, bytes], kind: str, peer: bytes | None) -> Link:
        other = None
        if peer is not None:
            inside = attributes(peer, 16)
            there = self.namespaces[number(inside[uapi.IFLA_NET_NS_FD])]
            if self.link(text(inside[uapi.IFLA_IFNAME]), there):
                raise Refused(EEXIST)
            other = self.add_link(text(inside[uapi.IFLA_IFNAME]), kind, there, address=inside[uapi.IFLA_ADDRESS])
        link = self.add_link(text(found[uapi.IFLA_IFNAME]), kind, where)
        for one, said in ((link, found), (other, inside if other else {})):
            if one:
                one.address = said.get(uapi.IFLA_ADDRESS, one.address)
                one.mtu = number(said[uapi.IFLA_MTU]) if uapi.IFLA_MTU in said else 1500
        link.master = number(found.get(uapi.IFLA_MASTER, b""))
        link.txqlen = number(found.get(uapi.IFLA_TXQLEN, u32(link.txqlen)))
        link.parent = number(found.get(uapi.IFLA_LINK, b""))
        if kind == "bridge":
            link.data = attr(uapi.IFLA_BR_VLAN_FILTERING, b"\0")
        elif not other:
            link.data = attributes(found[uapi.IFLA_LINKINFO]).get(uapi.IFLA_INFO_DATA, b"")
        if other:
            link.peer, other.peer = (there, other), (where, link)
        return link

    def remove(self, where: str, link: Link) -> Replies:
        for namespace, one in [(where, link), *([link.peer] if link.peer else [])]:
            del self.links[namespace][one.index]
            self.forget(namespace, one.index)
            self.shaping.forget(namespace, one.index)
            self.neighbours.forget(namespace, one.index)
            self.announce(namespace, uapi.RTM_DELLINK, one)
        return []

    def get_link(self, where: str, flags: int, payload: bytes) -> Replies:
        if flags & NLM_F_DUMP == NLM_F_DUMP:
            return [(uapi.RTM_NEWLINK, self.encoded(where, link)) for link in self.links[where].values()]
        return [(uapi.RTM_NEWLINK, self.encoded(where, self.named(where, payload)))]

    def encoded(self, where: str, link: Link) -> bytes:
        far, peer = link.peer or (where, None)
        up = link.flags & uapi.IFF_UP and (peer is None or peer.flags & uapi.IFF_UP)
        data = struct.pack("=BxHiII", 0, 1, link.index, link.flags, 0)
        data += attr(uapi.IFLA_IFNAME, link.name.encode() + b"\0") + attr(uapi.IFLA_ADDRESS, link.address)
        data += attr(uapi.IFLA_MTU, u32(link.mtu)) + attr(uapi.IFLA_OPERSTATE, bytes([uapi.IF_OPER_UP if up else 2]))
        data += attr(uapi.IFLA_PROMISCUITY, u32(link.promiscuity)) + attr(uapi.IFLA_TXQLEN, u32(link.txqlen))
        data += attr(uapi.IFLA_IFALIAS, link.alias.encode() + b"\0") if link.alias else b""
        if link.master:
            data += attr(uapi.IFLA_MASTER, u32(link.master))
        if peer or link.parent:
            data += attr(uapi.IFLA_LINK, u32(peer.index if peer else link.parent))
        if far != where or link.parent:
            data += attr(uapi.IFLA_LINK_NETNSID, u32(0))
        if link.kind:
            info = attr(uapi.IFLA_INFO_KIND, link.kind.encode() + b"\0")
            info += attr(uapi.IFLA_INFO_DATA, link.data) if link.data else b""
            if link.master in self.links[where]:        # a port of a bridge; hairpin mode and isolation are off
                port = attr(uapi.IFLA_BRPORT_MODE, b"\0") + attr(uapi.IFLA_BRPORT_ISOLATED, b"\0")
                info += attr(uapi.IFLA_INFO_SLAVE_KIND, b"bridge\0") + attr(uapi.IFLA_INFO_SLAVE_DATA, port)
            data += attr(uapi.IFLA_LINKINFO | 0x8000, info)
        return data

    def announce(self, where: str, kind: int, link: Link) -> None:
        for sock in self.sockets:
            if sock.namespace == where and uapi.RTNLGRP_LINK in sock.groups and not sock.closed:
                sock.queue.append(message(kind, 0, 0, self.encoded(where, link)))
