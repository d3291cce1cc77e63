"""Check networks against each other: addresses, subnets, bridges and stores that only one network or pod may have."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from fastcni.kernel import rtnl, wire
from fastcni.kernel.uapi import AF_INET
from fastcni.kit.links import find
from fastcni.kit.ovs.ovs_conf import OVN_BRIDGE
from fastcni.node.attachments.attachment import RUNNING, NodeAttachment
from fastcni.node.attachments.drops import ROUTED
from fastcni.node.checks.findings import ERROR, WARNING, Finding, Node, some
from fastcni.node.checks.pods import in_namespace
from fastcni.node.cluster.site import stores_of
from fastcni.node.ranges import NetworkRange, ranges_of
from fastcni.runtime.parse import flattened
from fastcni.runtime.records import LO_IFNAME, NetworkList
from fastcni.spec import address


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that has an address. bridge: the index of the bridge of its veth pair, or 0. attachment: None if no file
    and no rule of this node names the pod."""

    name: str
    netns: str
    bridge: int
    attachment: NodeAttachment | None = None

    def meets(self, other: Holder) -> bool:
        """Return whether two pods can reach each other: they are in one network, or the node routes to both, or they
        are on one bridge and the network of one pod is unknown."""
        one, two = self.attachment, other.attachment
        if self.netns == other.netns:
            return False
        if not (one and two):
            return bool(self.bridge) and self.bridge == other.bridge
        return one.network == two.network or all(set(ROUTED).intersection(it.plugins) for it in (one, two))


def duplicate_addresses(node: Node) -> Iterator[Finding]:
    """No two running pods that can reach each other share an address."""
    found: dict[str, list[Holder]] = defaultdict(list)
    links = node.seen.facts.links
    attachments = {(it.netns, it.ifname): it for it in node.inventory.attachments
                   if it.state == RUNNING and it.netns and it.ifname != LO_IFNAME}
    real = {(it.namespace, it.name): it for it in node.seen.facts.interfaces
            if it.linked or (it.namespace, it.name) in attachments}
    for key in dict.fromkeys([*attachments, *real]):
        netns, ifname = key
        it, interface = attachments.get(key), real.get(key)
        host = interface and interface.host_of(links)
        holder = Holder(it.name if it else f"{ifname} in {netns}", netns, host.master if host else 0, it)
        for ip in {*(it.addresses if it else ()), *(interface.addresses if interface else ())}:
            found[ip].append(holder)
    for ip, holders in sorted(found.items()):
        met = [it for it in holders if any(it.meets(other) for other in holders)]
        if met:
            added = [in_namespace(it.netns, f"address del {ip} dev {it.attachment.ifname}") for it in met
                     if it.attachment and it.attachment.cached and ip not in given(it.attachment)]
            yield Finding(ERROR, f"{len(met)} running pods have the address {ip}: {some(it.name for it in met)}",
                          "packets to the address reach one of these pods",
                          "; ".join(added) or "delete all but one of these pods, so that the runtime creates new pods "
                          "with other addresses")


def given(attachment: NodeAttachment) -> set[str]:
    """Return the addresses in the result of the pod's ADD."""
    return {ip["address"].partition("/")[0] for ip in attachment.result.get("ips", ())}


@dataclass(frozen=True, slots=True)
class Place:
    """The link layer of a network's pods. where: ("bridge", name, vlan), ("macvlan", master) and the like; () if each
    pod has a separate link. routed: whether the node routes to the pods."""

    network: NetworkList
    where: tuple[object, ...]
    routed: bool

    @property
    def file(self) -> str:
        return self.network.plugins[0].file


def place_of(net: NetworkList) -> Place | None:
    """Return the Place of a network by its first plugin that makes a link. None: no plugin makes a link."""
    for plugin in flattened(net.plugins):
        values = plugin.values
        if plugin.type == "bridge":
            where = plugin.type, values.get("bridge") or "cni0", values.get("vlan") or 0
            return Place(net, where, bool(values.get("isGateway") or values.get("isDefaultGateway")))
        if plugin.type == "ovs":
            segment = values.get("bridge") or OVN_BRIDGE, values.get("vlan") or 0, values.get("vxlanID")
            return Place(net, (plugin.type, *segment), False)
        if plugin.type in ("macvlan", "ipvlan", "vlan"):
            vlan = values.get("vlanId") if plugin.type == "vlan" else None
            return Place(net, (plugin.type, values.get("master"), vlan), False)
        if plugin.type == "ptp":
            return Place(net, (), True)
    return None


def shared_networks(node: Node) -> Iterator[Finding]:
    """No two networks give the same addresses, have the same subnet on two bridges, or one bridge for two subnets."""
    places = [place for net in node.networks if (place := place_of(net))]
    ranges = {place.network.name: list(ranges_of([place.network])) for place in places}
    for first, other in combinations(places, 2):
        pairs = [(a, b) for a in ranges[first.network.name] for b in ranges[other.network.name] if same_subnet(a, b)]
        names = f"networks {first.network.name} and {other.network.name}"
        one_link = bool(first.where) and first.where == other.where
        clash = next((it for it in pairs if clashes(first, other, *it)), None)
        if clash:
            yield Finding(WARNING, f"{names} share the subnet {clash[0].range.network()}", "pods of both networks get "
                          "the same addresses, or the node reaches the pods of only one network", "give the networks "
                          f"ranges that do not overlap, on bridges of their own subnets: {first.file}, {other.file}")
        elif one_link and first.where[0] == "bridge" and not pairs and (
                (first.routed and other.routed) or (ranges[first.network.name] and ranges[other.network.name])):
            yield Finding(WARNING, f"{names} have one bridge, {first.where[1]}", "pods of one network reach pods of "
                          "the other past firewalls and policies between the networks",
                          f'set another "bridge" in {other.file}, or a "vlan" in both')


def same_subnet(a: NetworkRange, b: NetworkRange) -> bool:
    """Return whether the subnets of two ranges overlap."""
    prefix = min(a.range.prefix, b.range.prefix)
    return len(a.range.subnet) == len(b.range.subnet) and (
        address.network(a.range.subnet, prefix) == address.network(b.range.subnet, prefix))


def clashes(first: Place, other: Place, a: NetworkRange, b: NetworkRange) -> bool:
    """Return whether two ranges of one subnet give the same addresses, or give addresses whose routes conflict."""
    overlap = a.range.overlaps(b.range)
    if first.routed and other.routed:
        return overlap or (bool(first.where and other.where) and first.where != other.where)
    return overlap and bool(first.where) and first.where == other.where


def bridge_gateways(node: Node) -> Iterator[Finding]:
    """The bridges of networks have no IPv4 address in place of the gateways that ADD gives them."""
    links = {link.name: link for link in node.links}
    with wire.open_socket() as sock:
        for net in node.networks:
            place = place_of(net)
            if not (place and place.routed and place.where[:1] == ("bridge",)):
                continue
            _, name, vlan = place.where
            wanted = {it.range.gateway for it in ranges_of([net]) if rtnl.family_of(it.range.gateway) == AF_INET}
            forced = any(plugin.type == "bridge" and plugin.values.get("forceAddress")
                         for plugin in flattened(net.plugins))
            if vlan or forced or not wanted or name not in links:
                continue
            there = {it.packed: it.prefix for it in find.addresses(sock, links[str(name)].index, [AF_INET])}
            if there and not wanted & there.keys():
                old = [address.cidr_text(*each) for each in there.items()]
                gateways = some(map(address.ip_text, wanted))
                yield Finding(ERROR, f"the bridge {name} has {some(old)}, and network {net.name} gives it {gateways}",
                              "ADD fails, as with the Go plugin: the subnet was changed, or the bridge is another "
                              "program's", "delete the pods of the former subnet, then "
                              f"{'; '.join(f'ip address del {each} dev {name}' for each in old)}; "
                              f"or set \"forceAddress\": true in {place.file}")


def cluster_stores(node: Node) -> Iterator[Finding]:
    """The networks of one address space have one store."""
    stores: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for it in (it for networks in stores_of(node.networks) for it in networks):
        key = os.path.normpath(it.keys.data_dir), it.keys.space
        stores[key][it.keys.store_key].append(f"{it.name}: {it.where}")
    for (_, space), found in stores.items():
        if len(found) > 1:
            yield Finding(ERROR, f"networks of the address space {space} have {len(found)} stores: "
                          f"{some(text for texts in found.values() for text in texts)}",
                          "the node keeps its state of this space for one store only, so two pods may get one address",
                          "name one store in all configurations of the space, or another space")
