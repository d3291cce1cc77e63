"""A model of a node: links, addresses, routes, nftables elements and sysctls of a host and one pod.

As much of the kernel as the plugins can tell from the real one: what exists is refused, what is missing is refused,
an end of a veth pair does not live without the other, a transaction happens as a whole or not at all.
"""

from __future__ import annotations

import copy
import struct
import sys
from collections.abc import Sequence
from errno import EADDRNOTAVAIL, EEXIST, EINVAL, EIO, ENODEV, ENOENT, ESRCH
from typing import Any

from fastcni._netlink import attribute_list, attributes, messages
from fastcni.kernel import nft, nft_elements, nft_rules, uapi
from fastcni.testing.fake_sockets import NLM_F_ACK, NLM_F_DUMP, NLM_F_ECHO, Socket, ack, done, message

Replies = list[tuple[int, bytes]]       # (message type, payload)
HOST, POD = "host", "pod"
CREATE = 0x400
# NLM_F_DUMP is NLM_F_REPLACE | NLM_F_EXCL where something is made.
GETS = (uapi.RTM_GETLINK, uapi.RTM_GETADDR, uapi.RTM_GETROUTE, nft.NFT_MSG_GETCHAIN, nft.NFT_MSG_GETRULE,
        nft.NFT_MSG_GETSETELEM)


class Refused(Exception):
    def __init__(self, errno: int) -> None:
        self.errno = errno


def attr(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def u32(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)


def number(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder)


def text(data: bytes) -> str:
    return data.rstrip(b"\0").decode()


class Link:
    def __init__(self, index: int, name: str, kind: str, address: bytes = b"\2\0\0\0\0\x99") -> None:
        self.index, self.name, self.kind, self.address = index, name, kind, address
        self.mtu, self.flags, self.master, self.promiscuity = 1500, 0, 0, 0
        self.parent, self.data = 0, b""         # IFLA_LINK and IFLA_INFO_DATA of a link that is made on another
        self.peer: tuple[str, Link] | None = None       # with the name of its namespace

    def facts(self) -> tuple[Any, ...]:
        return self.name, self.kind, self.address, self.mtu, self.flags, self.master, self.promiscuity


def encoded_route(family: int, index: int, dst: bytes, prefix: int, gateway: bytes) -> bytes:
    """An rtmsg of the main table; protocol 2 is the kernel's, scope 0 universe, kind 1 unicast (linux/rtnetlink.h)."""
    data = bytes((family, prefix, 0, 0, uapi.RT_TABLE_MAIN, 2, 0, 1)) + bytes(4) + attr(uapi.RTA_OIF, u32(index))
    data += attr(uapi.RTA_DST, dst) if prefix else b""
    return data + (attr(uapi.RTA_GATEWAY, gateway) if gateway else b"")


class NodeSocket(Socket):
    def __init__(self, node: Node, namespace: str, protocol: int, groups: Sequence[int]) -> None:
        super().__init__()
        self.node, self.namespace, self.protocol, self.groups = node, namespace, protocol, groups

    def send(self, data: bytes) -> int:
        self.node.receive(self, data)
        return len(data)


class Node:
    """What was sent is in `batches`: one (namespace, [type of message]) for each send().

    `refuse` is the number of the request, counted from 0 over the Node's life, that is answered with EIO; `asked` is
    how many there were.
    """

    def __init__(self, refuse: int = -1) -> None:
        self.refuse, self.asked = refuse, 0
        self.batches: list[tuple[str, list[int]]] = []
        self.sockets: list[NodeSocket] = []
        self.here, self.next_index = HOST, 10
        self.namespaces: dict[int, str] = {}
        lo = Link(1, "lo", "", bytes(6))
        lo.flags = uapi.IFF_LOOPBACK
        self.links = {HOST: {1: copy.copy(lo)}, POD: {1: lo}}
        self.addresses: list[Any] = []
        self.routes: list[Any] = []
        self.sysctls: dict[tuple[str, str], str] = {}
        self.firewall: dict[str, Any] = {"tables": set(), "chains": {}, "sets": {}}

    def facts(self, *, shared: bool = False) -> list[Any]:
        """All state, to compare; without what ADD leaves for the next pod on purpose, unless `shared`."""
        links = {(namespace, *link.facts()) for namespace in self.links for link in self.links[namespace].values()}
        elements = {(*where, key) for where, found in self.firewall["sets"].items() for key in found}
        found = [links, sorted(self.addresses), sorted(self.routes), elements]
        return [*found, self.sysctls, self.firewall] if shared else found

    def link(self, name: str, namespace: str = HOST) -> Link | None:
        return next((link for link in self.links[namespace].values() if link.name == name), None)

    def add_link(self, name: str, kind: str, namespace: str = HOST, **facts: Any) -> Link:
        link = Link(self.next_index, name, kind)
        self.next_index += 1
        vars(link).update(facts)
        self.links[namespace][link.index] = link
        return link

    def socket(self, protocol: int = uapi.NETLINK_ROUTE, groups: Sequence[int] = ()) -> NodeSocket:
        self.sockets.append(NodeSocket(self, self.here, protocol, groups))
        return self.sockets[-1]

    # -- receiving ---------------------------------------------------------------------------------------

    def receive(self, sock: NodeSocket, data: bytes) -> None:
        found = messages(data)
        self.batches.append((sock.namespace, [kind for kind, *_ in found]))
        before, failed = copy.deepcopy(self.firewall), False
        for kind, flags, sequence, _, payload in found:
            if sock.protocol == uapi.NETLINK_NETFILTER and kind in (nft.NFNL_MSG_BATCH_BEGIN, nft.NFNL_MSG_BATCH_END):
                continue                        # elsewhere these are RTM_NEWLINK and RTM_DELLINK
            position, self.asked = self.asked, self.asked + 1
            try:
                if position == self.refuse:
                    raise Refused(EIO)
                replies = self.serve(sock, kind, flags, payload)
            except Refused as e:
                sock.queue.append(ack(sequence, e.errno))
                failed = True
                continue
            sock.queue += [message(reply, 0, sequence, body) for reply, body in replies or ()]
            if kind in GETS and flags & NLM_F_DUMP == NLM_F_DUMP:
                sock.queue.append(done(sequence))
            elif flags & NLM_F_ACK:
                sock.queue.append(ack(sequence))
        if failed and sock.protocol == uapi.NETLINK_NETFILTER:
            self.firewall = before

    def serve(self, sock: NodeSocket, kind: int, flags: int, payload: bytes) -> Replies:
        where = sock.namespace
        if sock.protocol == uapi.NETLINK_NETFILTER:
            return self.serve_nft(kind, flags, payload)
        if kind == uapi.RTM_NEWLINK:
            return self.new_link(where, flags, payload)
        if kind == uapi.RTM_DELLINK:
            return self.remove(where, self.named(where, payload))
        if kind == uapi.RTM_GETLINK:
            return self.get_link(where, flags, payload)
        if kind in (uapi.RTM_NEWADDR, uapi.RTM_DELADDR):
            self.change_address(where, kind, payload)
            return []
        if kind == uapi.RTM_GETADDR:
            return [(uapi.RTM_NEWADDR, struct.pack("=BBBBI", 2 if len(packed) == 4 else 10, prefix, 0, 0, index)
                     + attr(uapi.IFA_ADDRESS, packed) + attr(uapi.IFA_LOCAL, packed))
                    for namespace, index, packed, prefix in self.addresses
                    if namespace == where and len(packed) == (4 if payload[0] == 2 else 16)]
        if kind in (uapi.RTM_NEWROUTE, uapi.RTM_DELROUTE):
            self.change_route(where, kind, payload)
            return []
        if kind == uapi.RTM_GETROUTE:
            return [(uapi.RTM_NEWROUTE, encoded_route(payload[0], *route)) for namespace, *route in self.routes
                    if namespace == where and len(route[1]) == (4 if payload[0] == 2 else 16)]
        if kind == uapi.RTM_GETRULE:
            return []                           # no plugin of this model makes routing rules
        raise AssertionError(f"the model has no request of type {kind}")

    # -- links -------------------------------------------------------------------------------------------

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
        if flags & CREATE:
            name, kind = text(found[uapi.IFLA_IFNAME]), text(info[uapi.IFLA_INFO_KIND])
            if number(found.get(uapi.IFLA_NUM_TX_QUEUES, b"\1")) == 0:
                raise Refused(EINVAL)
            if uapi.IFLA_NET_NS_FD in found:
                where = self.namespaces[number(found[uapi.IFLA_NET_NS_FD])]
            if self.link(name, where):
                raise Refused(EEXIST)
            peer = attributes(info[uapi.IFLA_INFO_DATA]).get(uapi.VETH_INFO_PEER) if kind == "veth" else None
            link = self.make(where, found, kind, peer)
        else:
            link = self.named(where, payload)
            link.address = found.get(uapi.IFLA_ADDRESS, link.address)
            if number(payload[4:8]) and uapi.IFLA_IFNAME in found:
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
            self.addresses = [item for item in self.addresses if item[:2] != (namespace, one.index)]
            self.routes = [item for item in self.routes if item[:2] != (namespace, one.index)]
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
        data += attr(uapi.IFLA_PROMISCUITY, u32(link.promiscuity))
        if link.master:
            data += attr(uapi.IFLA_MASTER, u32(link.master))
        if peer or link.parent:
            data += attr(uapi.IFLA_LINK, u32(peer.index if peer else link.parent))
        if far != where or link.parent:
            data += attr(uapi.IFLA_LINK_NETNSID, u32(0))
        if link.kind:
            info = attr(uapi.IFLA_INFO_KIND, link.kind.encode() + b"\0")
            info += attr(uapi.IFLA_INFO_DATA, link.data) if link.data else b""
            if link.master in self.links[where]:        # a port of a bridge, without hairpin and isolation
                port = attr(uapi.IFLA_BRPORT_MODE, b"\0") + attr(uapi.IFLA_BRPORT_ISOLATED, b"\0")
                info += attr(uapi.IFLA_INFO_SLAVE_KIND, b"bridge\0") + attr(uapi.IFLA_INFO_SLAVE_DATA, port)
            data += attr(uapi.IFLA_LINKINFO | 0x8000, info)
        return data

    def announce(self, where: str, kind: int, link: Link) -> None:
        for sock in self.sockets:
            if sock.namespace == where and uapi.RTNLGRP_LINK in sock.groups and not sock.closed:
                sock.queue.append(message(kind, 0, 0, self.encoded(where, link)))

    # -- addresses and routes ----------------------------------------------------------------------------

    def change_address(self, where: str, kind: int, payload: bytes) -> None:
        index, packed, prefix = number(payload[4:8]), attributes(payload, 8)[uapi.IFA_LOCAL], payload[1]
        item, network = (where, index, packed, prefix), int.from_bytes(packed, "big") >> 8 * len(packed) - prefix
        route = (where, index, (network << 8 * len(packed) - prefix).to_bytes(len(packed), "big"), prefix, b"")
        if index not in self.links[where]:
            raise Refused(ENODEV)
        if kind == uapi.RTM_NEWADDR:
            if item in self.addresses:
                raise Refused(EEXIST)
            self.addresses.append(item)
            if prefix < 8 * len(packed):
                self.routes.append(route)
            return
        if item not in self.addresses:
            raise Refused(EADDRNOTAVAIL)
        self.addresses.remove(item)
        self.routes = [one for one in self.routes if one != route]

    def change_route(self, where: str, kind: int, payload: bytes) -> None:
        found = attributes(payload, 12)
        index, size = number(found[uapi.RTA_OIF]), 4 if payload[0] == 2 else 16
        item = (where, index, found.get(uapi.RTA_DST, bytes(size)), payload[1], found.get(uapi.RTA_GATEWAY, b""))
        if index not in self.links[where]:
            raise Refused(ENODEV)
        if kind == uapi.RTM_NEWROUTE:
            if item in self.routes:
                raise Refused(EEXIST)
            self.routes.append(item)
        elif item in self.routes:
            self.routes.remove(item)
        else:
            raise Refused(ESRCH)

    # -- nftables ----------------------------------------------------------------------------------------

    def serve_nft(self, kind: int, flags: int, payload: bytes) -> Replies:
        family, found = payload[0], attributes(payload, 4)
        table = (family, text(found.get(1, b"")))
        new = kind in (nft.NFT_MSG_NEWTABLE, nft.NFT_MSG_NEWCHAIN, nft.NFT_MSG_NEWSET)
        if kind == nft.NFT_MSG_NEWTABLE:
            self.firewall["tables"].add(table)
            return []
        if kind == nft.NFT_MSG_GETCHAIN and flags & NLM_F_DUMP == NLM_F_DUMP:
            return [(nft.NFT_MSG_NEWCHAIN, self.encoded_chain(*chain))
                    for chain in self.firewall["chains"] if chain[0] == family]
        if kind == nft.NFT_MSG_GETRULE:
            return []                           # the reference plugins' rules, which this node never had
        if table not in self.firewall["tables"]:
            raise Refused(ENOENT)
        if kind == nft.NFT_MSG_GETTABLE:
            return []
        if kind in (nft.NFT_MSG_NEWSET, nft.NFT_MSG_NEWSETELEM, nft.NFT_MSG_GETSETELEM, nft.NFT_MSG_DELSETELEM):
            return self.serve_set(kind, flags, (*table, text(found[2])), found)
        chain = (*table, text(found[nft.NFTA_CHAIN_NAME if kind in (
            nft.NFT_MSG_NEWCHAIN, nft.NFT_MSG_GETCHAIN, nft.NFT_MSG_DELCHAIN) else nft_rules.NFTA_RULE_CHAIN]))
        if not new and chain not in self.firewall["chains"]:
            raise Refused(ENOENT)
        if kind == nft.NFT_MSG_NEWCHAIN:
            self.firewall["chains"].setdefault(chain, 0)
        elif kind == nft.NFT_MSG_NEWRULE:
            self.firewall["chains"][chain] += 1
        elif kind == nft.NFT_MSG_DELRULE:
            self.firewall["chains"][chain] = 0
        elif kind == nft.NFT_MSG_DELCHAIN:
            del self.firewall["chains"][chain]
        elif kind == nft.NFT_MSG_GETCHAIN:
            return [(nft.NFT_MSG_NEWCHAIN, self.encoded_chain(*chain))]
        else:
            raise AssertionError(f"the model has no nftables request of type {kind}")
        return []

    def encoded_chain(self, family: int, table: str, name: str) -> bytes:
        uses = self.firewall["chains"][family, table, name] + sum(
            chain == name for where, found in self.firewall["sets"].items() if where[:2] == (family, table)
            for _, chain in found.values())
        return (bytes((family, 0, 0, 0)) + attr(nft.NFTA_CHAIN_TABLE, table.encode() + b"\0")
                + attr(nft.NFTA_CHAIN_NAME, name.encode() + b"\0") + attr(nft.NFTA_CHAIN_USE, uses.to_bytes(4, "big")))

    def serve_set(self, kind: int, flags: int, where: tuple[int, str, str], found: dict[int, bytes]) -> Replies:
        if kind == nft.NFT_MSG_NEWSET:
            self.firewall["sets"].setdefault(where, {})
            return []
        if where not in self.firewall["sets"]:
            raise Refused(ENOENT)
        elements, replies = self.firewall["sets"][where], []
        if kind == nft.NFT_MSG_GETSETELEM and flags & NLM_F_DUMP == NLM_F_DUMP:
            return [(nft.NFT_MSG_NEWSETELEM, self.encoded_element(where, key)) for key in elements]
        for _, item in attribute_list(found[nft_elements.NFTA_SET_ELEM_LIST_ELEMENTS]):
            fields = attributes(item)
            key = attributes(fields[nft_elements.NFTA_SET_ELEM_KEY])[nft.NFTA_DATA_VALUE]
            data = attributes(fields.get(nft_elements.NFTA_SET_ELEM_DATA, b""))
            verdict = attributes(data.get(nft.NFTA_DATA_VERDICT, b""))
            chain = text(verdict.get(nft.NFTA_VERDICT_CHAIN, b""))
            if kind == nft.NFT_MSG_NEWSETELEM:
                if chain and (*where[:2], chain) not in self.firewall["chains"]:
                    raise Refused(ENOENT)
                if key in elements:
                    raise Refused(EEXIST)
                elements[key] = (fields.get(nft_elements.NFTA_SET_ELEM_USERDATA, b""), chain)
            elif key not in elements:
                raise Refused(ENOENT)
            elif kind == nft.NFT_MSG_DELSETELEM:
                del elements[key]
            else:
                replies.append((nft.NFT_MSG_NEWSETELEM, self.encoded_element(where, key)))
        return replies

    def encoded_element(self, where: tuple[int, str, str], key: bytes) -> bytes:
        comment, _ = self.firewall["sets"][where][key]
        item = (attr(nft_elements.NFTA_SET_ELEM_KEY, attr(nft.NFTA_DATA_VALUE, key))
                + attr(nft_elements.NFTA_SET_ELEM_USERDATA, comment))
        names = (attr(nft_elements.NFTA_SET_ELEM_LIST_TABLE, where[1].encode() + b"\0")
                 + attr(nft_elements.NFTA_SET_ELEM_LIST_SET, where[2].encode() + b"\0"))
        return (bytes((where[0], 0, 0, 0)) + names
                + attr(nft_elements.NFTA_SET_ELEM_LIST_ELEMENTS, attr(nft.NFTA_LIST_ELEM, item)))
