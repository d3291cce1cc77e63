"""Define Path, the data that the hops of `fastcni why` examine: the two ends, and the results of one real packet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from fastcni.kernel import sysctl, wire
from fastcni.kernel.rtnl import Link
from fastcni.kit.links import find
from fastcni.spec import address as addresses
from fastcni.why import packet_path
from fastcni.why.ends import BRIDGE, ITSELF, NODE, OUTSIDE, POD, End, Switch
from fastcni.why.inject import Injected
from fastcni.why.legacy import Counters
from fastcni.why.packet_path import Tracked, Way
from fastcni.why.probe import Probe
from fastcni.why.report import Redirect
from fastcni.why.spy import ACCEPTED, FILTERED, LEFT, SENT, START, Spy

PROTOCOLS = {"tcp": 6, "udp": 17}


@dataclass
class Path:
    """One connection.

    source, target: its ends; target is the end to which the packet goes after DNAT. asked, asked_port: the address and
    port to which the source sends. port: the target's port. protocol: "tcp" or "udp". node: a route socket of the node.
    flow: the node's conntrack entry, or None. before, after: counters of legacy iptables before and after the packet.
    redirect: what the datapath ebpf does with packets between the two pods; None if an end is no pod of the datapath.
    flowtable: whether the agent's flowtable has the links of both pods.
    """

    source: End
    target: End
    asked: bytes
    asked_port: int
    port: int
    protocol: str
    node: wire.Socket
    probe: Probe | Injected | None = None
    spy: Spy | None = None
    flow: Tracked | None = None
    before: Counters = field(default_factory=dict)
    after: Counters = field(default_factory=dict)
    redirect: Redirect | None = None
    flowtable: bool = False

    @property
    def progress(self) -> int:
        """Return how far the packet, or its answer, came, see spy.py. If the target is the node, a packet that passed
        the node's input chains is ACCEPTED."""
        found = self.spy.progress if self.spy else START
        return ACCEPTED if found == FILTERED and self.target.kind == NODE and self.source.kind != NODE else found

    @property
    def number(self) -> int:
        """Return the protocol's number, IPPROTO_*."""
        return PROTOCOLS[self.protocol]

    @property
    def v6(self) -> bool:
        return len(self.asked) == 16

    @property
    def translated(self) -> bool:
        return (self.asked, self.asked_port) != (self.target.packed, self.port)

    @cached_property
    def sent_from(self) -> bytes:
        """Return the source's address: the address that the kernel chose, otherwise the address that ADD gave."""
        if self.probe and self.probe.source:
            return addresses.read_ip(self.probe.source)
        return self.source.packed

    @property
    def asked_text(self) -> str:
        return addresses.ip_text(self.asked)

    @property
    def seen_as(self) -> bytes:
        """Return the source address that the target sees. If the node's conntrack has an entry of the connection, this
        is the address after masquerade."""
        return self.flow.seen_as if self.flow and self.flow.seen_as else self.sent_from

    @cached_property
    def pod_way(self) -> Way:
        """Return the route to the asked address in the source's namespace."""
        return packet_path.way(self.source.sock, self.asked)

    @property
    def next_hop(self) -> bytes:
        """Return the address whose MAC the source pod needs: the gateway, or the asked address."""
        return self.pod_way.gateway or self.asked

    @cached_property
    def to_node(self) -> bool:
        """Return whether the source pod's next hop is an address of this node."""
        return packet_path.way(self.node, self.next_hop).kind == packet_path.RTN_LOCAL

    @property
    def switch(self) -> Switch | None:
        """Return the Switch of the source pod, if the packet passes only the Switch. None: this node routes the
        packet."""
        source = self.source
        if source.kind != POD or source.link is None or self.target.kind == ITSELF or self.translated:
            return None
        way = self.pod_way
        if way.errno or way.index != source.link.index or self.to_node:
            return None
        switch = source.switch
        # The pod sends to its gateway, but the node's bridge lacks the gateway's address
        lost = way.gateway and source.has_gateway and switch and switch.kind == BRIDGE
        return None if lost else switch

    @property
    def left(self) -> int:
        """Return the progress at which a packet can no longer be seen on this node."""
        return LEFT if self.switch is None or self.switch.kind == BRIDGE else SENT

    @property
    def direct(self) -> bool:
        """Return whether the source sends to the target's MAC itself: without a gateway, and over one Switch."""
        return self.switch is not None and not self.pod_way.gateway and self.switch == self.target.switch

    @property
    def arrives_by(self) -> Link | None:
        """Return the node's link by which the packet reaches the node's IP layer: the bridge, the host's end of the
        veth, or a link that the node has in the pod's layer-2 network. None: no such link is known, or the node itself
        sends the packet."""
        if self.source.kind == POD:
            if self.source.switch is None or self.source.switch.kind == BRIDGE:
                return self.source.bridge or self.source.host
            return next((link for link in find.all_links(self.node) if any(
                it.packed == self.next_hop for it in find.addresses(self.node, link.index))), None)
        if self.source.kind == OUTSIDE:
            way = packet_path.way(self.node, self.source.packed)
            return find.link(self.node, index=way.index) if way.index else None
        return None

    @cached_property
    def node_way(self) -> Way:
        """Return the node's route for the packet, after DNAT."""
        link = self.arrives_by
        if self.source.kind == NODE or link is None:
            return packet_path.way(self.node, self.target.packed)
        return packet_path.way(self.node, self.target.packed, source=self.sent_from, iif=link.index)

    def leaves_by(self) -> Link | None:
        """Return the link by which the node's route to the target leads; None without a route."""
        way = packet_path.way(self.node, self.target.packed)
        return find.link(self.node, index=way.index) if way.index else None

    def devices(self) -> Iterator[str]:
        """Yield the names of the node's links on the path: the host ends of veth links, and the uplink."""
        if self.target.kind == ITSELF:
            return
        links = [self.source.host if self.source.kind == POD else self.arrives_by if self.source.kind == OUTSIDE
                 else None, self.target.host if self.target.kind == POD else self.leaves_by()]
        yield from dict.fromkeys(link.name for link in links if link is not None and link.name != "lo")


def setting(name: str) -> str:
    """Return the value of a sysctl in the calling thread's namespace; "" if the kernel does not have the sysctl."""
    return sysctl.read(name) if sysctl.exists(name) else ""
