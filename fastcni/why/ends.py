"""Find the two ends of a connection: a pod of this node, the node itself, or an address outside of both.

ITSELF is the source pod as its own target: the packet does not leave the pod's namespace.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from fastcni.kernel import netns, wire
from fastcni.kernel.rtnl import Address, Link
from fastcni.kit.links import find
from fastcni.kit.networks.network import RUNS_NETWORKS
from fastcni.node.attachments.attachment import GONE, Inventory, NodeAttachment
from fastcni.node.attachments.caches import plugins_in
from fastcni.node.attachments.inspect import matching, similar_to
from fastcni.node.attachments.listeners import own_addresses
from fastcni.node.checks.ovs import place_of
from fastcni.selftest import namespaces
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError
from fastcni.why import packet_path

POD, NODE, OUTSIDE, ITSELF = "pod", "node", "outside", "itself"
BRIDGE, OVS, PARENT, ALONE = "bridge", "ovs", "parent", "alone"         # kinds of a Switch
ON_A_LINK = ("macvlan", "macvtap", "ipvlan", "ipvtap", "vlan")           # kinds of links that have a parent
IPV4_MULTICAST, IPV6_MULTICAST = range(224, 240), 0xff          # the first byte of multicast addresses
SHORT_ID = 12                   # characters of a container id in a sentence
HINT = "`fastcni list` shows all attachments"

Answer = TypeVar("Answer")


class Switch(NamedTuple):
    """The device that connects a pod's link to other hosts without routing. kind, name: BRIDGE and the name of a Linux
    bridge; OVS and the name of a bridge of Open vSwitch; PARENT and the node's link on which the pod's macvlan, ipvlan
    or VLAN is; ALONE and the name of a link that only this pod has."""

    kind: str
    name: str

    def __str__(self) -> str:
        return {BRIDGE: "the bridge {}", OVS: "the bridge {} of Open vSwitch"}.get(self.kind, "the link {}").format(
            self.name)


@dataclass(frozen=True)
class End:
    """One end of the connection. packed: its address; b"" for a source until the kernel has chosen the address.
    attachment: the pod's attachment; None for other ends. namespace: a descriptor; -1 for an outside address."""

    kind: str
    packed: bytes
    attachment: NodeAttachment | None = None
    namespace: int = -1

    @property
    def text(self) -> str:
        return addresses.ip_text(self.packed)

    @property
    def name(self) -> str:
        """Return the name of the end for a sentence, such as "pod 8e4f2a1b3c4d" or "this node"."""
        if self.attachment:
            return f"pod {self.attachment.container_id[:SHORT_ID]}"
        return "this node" if self.kind == NODE else self.text

    @property
    def enter(self) -> str:
        """Return the beginning of a shell command that runs in the end's namespace; "" for the node."""
        return f"nsenter --net={self.attachment.netns} " if self.attachment else ""

    @property
    def ifname(self) -> str:
        return (self.attachment.ifname if self.attachment else "") or "eth0"

    def inside(self, function: Callable[[], Answer]) -> Answer:
        """Return the result of a function that runs in the end's namespace."""
        return namespaces.call(self.namespace, function)

    @cached_property
    def sock(self) -> wire.Socket:
        """Return a route socket in the end's namespace."""
        return self.inside(wire.open_socket)

    @cached_property
    def link(self) -> Link | None:
        """Return the pod's link; None if the link does not exist."""
        return find.link(self.sock, self.ifname)

    @cached_property
    def addresses(self) -> list[Address]:
        """Return the addresses of the pod's link."""
        return find.addresses(self.sock, self.link.index) if self.link else []

    @cached_property
    def host(self) -> Link | None:
        """Return the host's end of the pod's veth link. None: the link no longer exists, or is of another kind."""
        with wire.open_socket() as sock:
            if self.link is not None and self.link.kind == "veth" and self.link.peer:
                found = find.link(sock, index=self.link.peer)
                return found if found and found.kind == "veth" else None
            names = self.attachment.links if self.attachment else ()
            return next((it for it in (find.link(sock, name) for name in names) if it and it.kind == "veth"), None)

    @cached_property
    def bridge(self) -> Link | None:
        """Return the bridge of which the host's end is a port; None if the host's end is no port of a bridge."""
        if self.host is None or not self.host.master:
            return None
        with wire.open_socket() as sock:
            found = find.link(sock, index=self.host.master)
        return found if found and found.kind == "bridge" else None

    @cached_property
    def parent(self) -> Link | None:
        """Return the node's link on which the pod's link is. None: the pod's link has no parent, or the parent is in
        the pod's namespace."""
        if self.link is None or self.link.kind not in ON_A_LINK or not self.link.peer_elsewhere:
            return None
        with wire.open_socket() as sock:
            return find.link(sock, index=self.link.peer)

    @cached_property
    def switch(self) -> Switch | None:
        """Return the Switch of the pod's link. None: the pod's link leads to the node's routes, as with ptp, or a
        plugin that this command does not know has made the link."""
        if self.kind != POD or self.attachment is None:
            return None
        if keys := self.keys(OVS):
            return Switch(OVS, place_of(self.attachment, keys)[1])
        if name := self.bridge_name() or (self.bridge.name if self.bridge else ""):
            return Switch(BRIDGE, name)
        if self.parent:
            return Switch(PARENT, self.parent.name)
        return Switch(ALONE, self.ifname) if self.link and self.link.kind != "veth" else None

    @property
    def network(self) -> str:
        """Return the name of the pod's network; "" if it is unknown."""
        return self.attachment.network if self.attachment else ""

    def plugins(self) -> Iterator[Mapping[str, Any]]:
        """Yield the configurations of the plugins that the pod's ADD ran."""
        yield from plugins_in(self.attachment.config if self.attachment else {})

    def keys(self, kind: str) -> Mapping[str, Any]:
        """Return the configuration of the plugin with CNI type `kind`; {} if the pod's ADD ran no such plugin."""
        return next((it for it in self.plugins() if it.get("type") == kind), {})

    @property
    def has_gateway(self) -> bool:
        """Return whether the node is the gateway of the pod's bridge by the configuration; True for other plugins."""
        keys = self.keys(BRIDGE)
        return not keys or bool(keys.get("isGateway") or keys.get("isDefaultGateway"))

    def result(self, key: str) -> list[dict[str, Any]]:
        """Return the entries of a list in the result of ADD. key: "ips" or "routes"."""
        found = self.attachment.result.get(key) if self.attachment else None
        return [it for it in found if isinstance(it, dict)] if isinstance(found, list) else []

    def bridge_name(self) -> str:
        """Return the name of the bridge in the configuration of the pod's ADD; "" if the configuration has no plugin
        bridge."""
        keys = self.keys(BRIDGE)
        return str(keys.get("bridge") or "cni0") if keys else ""


def with_namespaces(inventory: Inventory) -> Inventory:
    """Return the inventory with namespaces also for the networks that multus has added. Only the ADD of multus itself
    recorded the path of the namespace."""
    known = {it.container_id: it.netns for it in inventory.attachments if it.netns}
    return replace(inventory, attachments=tuple(
        replace(it, netns=it.netns or known.get(it.container_id, "")) for it in inventory.attachments))


def pods_named(inventory: Inventory, text: str) -> list[NodeAttachment]:
    """Return the attachments of the pod that `text` names: a container id, its beginning, or NAMESPACE/NAME.

    Raises CniError 4 if `text` names no pod, or several pods.
    """
    found = matching(inventory.attachments, text)
    # The container id also finds the attachments that multus has made
    if found and len({it.container_id for it in found}) == 1 and found[0].pod == text:
        found += [it for it in matching(inventory.attachments, found[0].container_id) if it not in found]
    ids = sorted({it.container_id for it in found})
    if not ids:
        raise CniError(errors.INVALID_ENVIRONMENT, f"no pod of this node is known as {text}",
                       similar_to(inventory.attachments, text) or HINT)
    if len(ids) > 1:
        raise CniError(errors.INVALID_ENVIRONMENT, f"{len(ids)} pods match {text}",
                       f"name one of the containers {', '.join(it[:SHORT_ID] for it in ids[:8])}")
    return sorted(found, key=passes_on)


def passes_on(attachment: NodeAttachment) -> bool:
    """Return whether a plugin such as multus made an attachment by running other networks. Each of these networks has
    an attachment of its own for the same interface, whose configuration names the plugin that made the interface."""
    return not set(RUNS_NETWORKS).isdisjoint(attachment.plugins)


def source_pod(inventory: Inventory, text: str, destination: bytes) -> End:
    """Return the pod as the source, with the attachment that the pod's route to the destination uses. Without such an
    attachment, use the pod's first attachment of the destination's address family."""
    found = pods_named(inventory, text)
    of_family = [it for it in found if any((":" in ip) == (len(destination) == 16) for ip in it.addresses)]
    first = end_of(of_family[0] if of_family else found[0], len(destination))
    if len(found) > 1 and first.namespace >= 0:
        index = packet_path.way(first.sock, destination).index
        link = find.link(first.sock, index=index) if index else None
        for it in found:
            if link is not None and it.ifname == link.name:
                return end_of(it, len(destination))
    return first


def end_of(attachment: NodeAttachment, length: int) -> End:
    """Return the End of a pod's attachment. length: bytes of the address, 4 or 16. The End's namespace is -1 if the
    pod's namespace no longer exists."""
    own = [addresses.read_ip(ip) for ip in attachment.addresses if (":" in ip) == (length == 16)]
    try:
        namespace = netns.open_path(attachment.netns) if attachment.netns else -1
    except OSError:
        namespace = -1
    return End(POD, own[0] if own else b"", attachment, namespace)


def end_at(inventory: Inventory, packed: bytes, network: str = "") -> End:
    """Return the End that has an address: a pod whose state is not GONE, this node, or an outside host. If pods of
    several networks have the address, prefer the pod of `network`."""
    ip = addresses.ip_text(packed)
    having = [it for it in inventory.attachments if ip in it.addresses and it.state != GONE and it.netns]
    for it in sorted(having, key=lambda it: (passes_on(it), it.network != network)):
        found = end_of(it, len(packed))
        return End(POD, packed, it, found.namespace)
    if any(own == ip for _, own in own_addresses()) or addresses.is_loopback(packed):
        return End(NODE, packed, None, netns.open_own())
    return End(OUTSIDE, packed)


def itself(source: End, packed: bytes) -> End | None:
    """Return the source pod as its own target, if the address is the pod's own or a loopback address. None: the address
    is another host's, or the pod no longer exists."""
    if source.kind != POD or source.namespace < 0:
        return None
    if not addresses.is_loopback(packed) and packet_path.way(source.sock, packed).kind != packet_path.RTN_LOCAL:
        return None
    return End(ITSELF, packed, source.attachment, os.dup(source.namespace))


def require_one_host(sock: wire.Socket, packed: bytes) -> None:
    """Check by the routes of the socket's namespace that an address belongs to one host. Raises CniError 4 if not."""
    if not any(packed):
        what = "the unspecified address"
    elif packed[0] == IPV6_MULTICAST if len(packed) == 16 else packed[0] in IPV4_MULTICAST:
        what = "the address of a multicast group"
    elif packet_path.way(sock, packed).kind == packet_path.RTN_BROADCAST:
        what = "a broadcast address"
    else:
        return
    raise CniError(errors.INVALID_ENVIRONMENT, f"{addresses.ip_text(packed)} is {what}",
                   "why follows a packet to one host: give its address")


def close(*ends: End) -> None:
    """Close the descriptors of the ends."""
    for it in ends:
        if it.namespace >= 0:
            os.close(it.namespace)
        if "sock" in it.__dict__:
            it.sock.close()
