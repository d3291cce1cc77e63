"""Model a node for tests: links, addresses, routes, qdiscs, nftables elements and sysctls of a host and one pod.

The model behaves like the kernel where plugins depend on it. Adding an existing object fails. Deleting a missing object
fails. After an error, an nftables transaction changes nothing. The parts of the model are fake_links.py,
fake_routing.py, fake_neighbours.py, fake_shaping.py and fake_firewall.py.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from errno import EBUSY, EIO
from typing import Any

from fastcni._netlink import messages
from fastcni.kernel import nft, uapi
from fastcni.kernel.uapi import NLM_F_ACK, NLM_F_DUMP
from fastcni.testing import fake_neighbours, fake_routing, fake_shaping
from fastcni.testing.fake_firewall import Firewall
from fastcni.testing.fake_links import Links
from fastcni.testing.fake_messages import HOST, POD, Refused, Replies, attr
from fastcni.testing.fake_sockets import Socket, ack, done, message

# In requests that create objects, the bits of NLM_F_DUMP mean NLM_F_REPLACE | NLM_F_EXCL.
GETS = (uapi.RTM_GETLINK, uapi.RTM_GETADDR, uapi.RTM_GETROUTE, uapi.RTM_GETRULE, uapi.RTM_GETTFILTER, uapi.RTM_GETNEIGH,
        nft.NFT_MSG_GETCHAIN, nft.NFT_MSG_GETRULE, nft.NFT_MSG_GETSETELEM)


class NodeSocket(Socket):
    def __init__(self, node: Node, namespace: str, protocol: int, groups: Sequence[int]) -> None:
        super().__init__()
        self.node, self.namespace, self.protocol, self.groups = node, namespace, protocol, groups

    def send(self, data: bytes) -> int:
        self.node.receive(self, data)
        return len(data)

    def getsockopt(self, level: int, name: int, size: int) -> bytes:
        """Return a value for SO_NETNS_COOKIE, the only socket option that plugins read: the cookie of the namespace."""
        return b"\xff" * size


class Node(Links):
    """The model of a node. batches: for each send(), (namespace, [types of its messages]).

    refuse: the number of the request that the node answers with EIO; the first request is 0; -1: none. asked: the
    number of requests so far. here: the namespace of the calling thread.
    """

    def __init__(self, refuse: int = -1) -> None:
        super().__init__()
        self.refuse, self.asked = refuse, 0
        self.batches: list[tuple[str, list[int]]] = []
        self.here = HOST
        self.sysctls: dict[tuple[str, str], str] = {}
        self.firewall = Firewall()

    def facts(self, *, shared: bool = False) -> dict[str, Any]:
        """Return the node's state, for comparisons. shared: include the objects that an ADD leaves for the next pod.

        "sysctls" has the pod's sysctls, without those of links, which the kernel deletes with the link.
        """
        found = {
            "links": {(name, *link.facts()) for name, links in self.links.items() for link in links.values()},
            "addresses": sorted(self.addresses), "routes": sorted(self.routes), "routing rules": sorted(self.rules),
            "qdiscs": sorted(self.shaping.items),
            "neighbours": sorted(self.neighbours.entries), "FDB": sorted(self.neighbours.fdb),
            "elements in the firewall": self.firewall.owned(),
            "sysctls": {name: value for (namespace, name), value in self.sysctls.items()
                        if namespace == POD and "/conf/" not in name and value != "0"}}
        return {**found, "all sysctls": dict(self.sysctls), **vars(self.firewall)} if shared else found

    def socket(self, protocol: int = uapi.NETLINK_ROUTE, groups: Sequence[int] = ()) -> NodeSocket:
        self.sockets.append(NodeSocket(self, self.here, protocol, groups))
        return self.sockets[-1]

    def create_tap(self, name: str) -> None:
        """Make a TAP device in the calling thread's namespace. Raises Refused."""
        self.count()
        if self.link(name, self.here):
            raise Refused(EBUSY)
        self.add_link(name, "tun", self.here, data=attr(uapi.IFLA_TUN_TYPE, bytes((uapi.IFF_TAP,))))

    def count(self) -> None:
        """Count a request. Raises Refused if the request's number is `refuse`."""
        position, self.asked = self.asked, self.asked + 1
        if position == self.refuse:
            raise Refused(EIO)

    def receive(self, sock: NodeSocket, data: bytes) -> None:
        found = messages(data)
        self.batches.append((sock.namespace, [kind for kind, *_ in found]))
        before, failed = copy.deepcopy(self.firewall), False
        for kind, flags, sequence, _, payload in found:
            if sock.protocol == uapi.NETLINK_NETFILTER and kind in (nft.NFNL_MSG_BATCH_BEGIN, nft.NFNL_MSG_BATCH_END):
                continue                        # for other protocols, these types are RTM_NEWLINK and RTM_DELLINK
            if sock.protocol == uapi.NETLINK_SOCK_DIAG:
                sock.queue.append(done(sequence))           # the list of the node's listening sockets is empty
                continue
            try:
                self.count()
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
            return self.firewall.serve(kind, flags, payload)
        if kind == uapi.RTM_NEWLINK:
            return self.new_link(where, flags, payload)
        if kind == uapi.RTM_DELLINK:
            return self.remove(where, self.named(where, payload))
        if kind == uapi.RTM_GETLINK:
            return self.get_link(where, flags, payload)
        if kind in fake_routing.MESSAGES:
            return self.serve_routing(where, kind, flags, payload)
        if kind in fake_shaping.MESSAGES:
            return self.shaping.serve(where, kind, payload)
        if kind in fake_neighbours.MESSAGES:
            return self.neighbours.serve(where, kind, flags, payload)
        raise AssertionError(f"the model has no request of type {kind}")
