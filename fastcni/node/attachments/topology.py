"""Build the topology of a node for the status page: its bridges and other parent links, and the pods on each.

    {"node": "worker-3", "links": [{"name": "eth0", "kind": "", "up": true, "mtu": 1500, "addresses": ["192.0.2.10"]}],
     "parents": [{"name": "cni0", "kind": "bridge", "up": true, "mtu": 1500, "addresses": ["10.22.0.1"]}],
     "attachments": [{"parent": "cni0", "containerID": "8e4f2a1b3c4d", "network": "mynet", ...}],
     "omitted": 0, "unseen": ["nftables: Operation not permitted"], "tookMs": 12.5}

links: links of the host that have an address and lead to no pod. parents: bridges, also of Open vSwitch; the masters of
macvlan, ipvlan and vlan; a parent of kind "routed" for pods to which the node has routes; a parent of kind "none" for
pods whose parent is unknown. up is null if the link does not exist. attachments: as in `fastcni list --json`, without
"seen". omitted: number of attachments beyond MAX_ATTACHMENTS. unseen: texts about what could not be read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fastcni.kernel import wire
from fastcni.kernel.rtnl import Link
from fastcni.kit.ovs.ovs_conf import OVN_BRIDGE
from fastcni.node import confs
from fastcni.node.attachments import documents
from fastcni.node.attachments.attachment import NodeAttachment
from fastcni.node.attachments.caches import plugins_in
from fastcni.node.attachments.inventory import Places, look
from fastcni.node.attachments.merge import merge
from fastcni.node.attachments.namespaces import addresses
from fastcni.runtime.records import LO_IFNAME

MAX_ATTACHMENTS = 2000          # limit of the attachments in one document
BRIDGE, OVS, ROUTED, NONE = "bridge", "ovs", "routed", "none"       # kinds of parents, in addition to kinds of links
ROUTES, UNKNOWN = "routes", "not known"                  # names of the parents that are no links
ON_A_LINK = ("macvlan", "ipvlan", "vlan")       # plugins whose key "master" names a link of the host


@dataclass(frozen=True, slots=True)
class Parent:
    """A parent of pods. name: the name of a link of the host; for ROUTED and NONE the text that the page shows. kind:
    the parent link's kind, the plugin's type, ROUTED or NONE."""

    name: str
    kind: str


def document(places: Places) -> dict[str, Any]:
    """Return the document of this module, without entering pods' namespaces or running a program."""
    started = time.perf_counter()
    seen = look(replace(places, quick=True))
    inventory = merge(seen.facts)
    configured = {net.name: {"plugins": [plugin.values for plugin in net.plugins]}
                  for net in confs.networks(seen.files)}
    links = seen.facts.links
    by_name = {link.name: link for link in links.values()}
    attachments = [it for it in inventory.attachments if it.ifname != LO_IFNAME]
    shown = attachments[:MAX_ATTACHMENTS]
    parents = [parent_of(it, links, by_name, configured) for it in shown]
    found = list(dict.fromkeys(parents))
    addressed = dict(addresses_of([by_name[it.name] for it in found if it.name in by_name]))
    leads = {name for it in inventory.attachments for name in it.links} | {it.name for it in found} | {"lo"}
    rest = [link for link in links.values() if link.name not in leads and link.kind != "veth"]
    own = [(link, ips) for link, ips in ((by_name[name], ips) for name, ips in addresses_of(rest)) if ips]
    return {
        "node": os.uname().nodename,
        "links": [link_row(link.name, link.kind, link, ips) for link, ips in own],
        "parents": [link_row(it.name, it.kind, by_name.get(it.name), addressed.get(it.name, [])) for it in found],
        "attachments": [attachment(it, parent) for it, parent in zip(shown, parents, strict=True)],
        "omitted": len(attachments) - len(shown), "unseen": list(inventory.unseen),
        "tookMs": round((time.perf_counter() - started) * 1e3, 1)}


def attachment(attachment: NodeAttachment, parent: Parent) -> dict[str, Any]:
    found = documents.attachment(attachment)
    del found["seen"]
    return {"parent": parent.name, **found, "ports": [str(port) for port in attachment.ports]}


def link_row(name: str, kind: str, link: Link | None, ips: list[str]) -> dict[str, Any]:
    return {"name": name, "kind": kind, "up": link.up if link else None, "mtu": link.mtu if link else None,
            "addresses": ips}


def addresses_of(links: list[Link]) -> Iterator[tuple[str, list[str]]]:
    """Yield (name, global addresses) of each of these links that still exists."""
    with wire.open_socket() as sock:
        for link in links:
            try:
                yield link.name, list(addresses(sock, link.index))
            except OSError:             # the link was just deleted
                continue


def parent_of(attachment: NodeAttachment, links: Mapping[int, Link], by_name: Mapping[str, Link],
              configured: Mapping[str, Any]) -> Parent:
    """Return the parent of an attachment: the master of its links in the kernel, otherwise the parent that its
    configuration names. For an ovs attachment, always return the bridge in the configuration, because the kernel does
    not show this bridge."""
    config = attachment.config or configured.get(attachment.network, {})
    for plugin in plugins_in(config):
        if plugin.get("type") == OVS:               # the kernel's master is the datapath, not this bridge
            return Parent(str(plugin.get("bridge") or OVN_BRIDGE), OVS)
    own = [by_name[name] for name in attachment.links if name in by_name and by_name[name].kind != "ifb"]
    for link in own:
        if master := links.get(link.master):
            return Parent(master.name, master.kind or BRIDGE)
    if own:
        return Parent(ROUTES, ROUTED)
    for plugin in plugins_in(config):
        kind = plugin.get("type")
        if kind == BRIDGE:
            return Parent(str(plugin.get("bridge") or "cni0"), BRIDGE)
        if kind in ON_A_LINK:
            return Parent(str(plugin.get("master") or "link of the default route"), str(kind))
        if kind == "ptp":
            return Parent(ROUTES, ROUTED)
    return Parent(UNKNOWN, NONE)
