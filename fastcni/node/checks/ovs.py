"""Check the bridges and ports of Open vSwitch."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from fastcni.clients.ovsdb import DEFAULT_ADDRESS
from fastcni.kit.call import files
from fastcni.kit.networks.network import RUNS_NETWORKS
from fastcni.kit.ovs import cache, ovs_conf
from fastcni.kit.ovs.lost import Names
from fastcni.kit.ovs.ovs_conf import OVN_BRIDGE
from fastcni.node.attachments.address_dirs import sections
from fastcni.node.attachments.attachment import RUNNING, NodeAttachment
from fastcni.node.checks.findings import ERROR, Finding, Node, plural, some
from fastcni.node.checks.pods import PAUSE_S
from fastcni.spec import result as results
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

KIND = "ovs"


def ports(node: Node) -> Iterator[Finding]:
    """ovs-vswitchd answers; its database has the bridges of running pods, and their ports with the VLANs of ADD."""
    by_address: dict[str, dict[str, list[NodeAttachment]]] = defaultdict(lambda: defaultdict(list))
    for it in node.inventory.attachments:
        if it.state == RUNNING and is_on_ovs(it) and host_of(it):
            address, bridge = place_of(it, next(sections(it.config, KIND), {}))
            by_address[address][bridge].append(it)
    for address, by_bridge in by_address.items():
        known = Names(address, answers=True)
        if known.error:
            node.unseen.append(f"ports of Open vSwitch: {known.error}")
            continue
        if known.trouble:
            yield Finding(ERROR, known.trouble, "no new pod gets a port; a bridge of the userspace datapath carries no "
                          "packet", restart(address))
        lost = {bridge: found for bridge, pods in by_bridge.items() if (found := [
            it for it in pods if not known.has(host_of(it), bridge)])}
        if lost:
            time.sleep(PAUSE_S)         # a DEL may run, which first deletes the port and last the cached result
        for bridge, pods in lost.items():
            found = [it for it in pods if it.cached and os.path.exists(it.cached.path)]
            names = some(it.name for it in found)
            if found and bridge not in known.bridges:
                yield Finding(ERROR, f"Open vSwitch has no bridge {bridge} of {plural(len(found), 'running pod')} "
                              f"({names})", "its pods reach nothing",
                              f"ovs-vsctl --db={address} add-br {bridge} && fastcni restore")
            elif found:
                yield Finding(ERROR, f"the bridge {bridge} of Open vSwitch has no port of "
                              f"{plural(len(found), 'running pod')} ({names})", "no packet reaches the pod",
                              "fastcni restore")
        moved = [it for bridge, pods in by_bridge.items() for it in pods
                 if known.has(host_of(it), bridge) and not has_vlans(known, it, bridge, address, node.unseen)]
        if moved:
            yield Finding(ERROR, f"the ports of {plural(len(moved), 'running pod')} ({some(it.name for it in moved)}) "
                          "in Open vSwitch have other VLANs than their network has",
                          "the pod reaches pods of another VLAN, and not those of its own", "fastcni restore")


def is_on_ovs(attachment: NodeAttachment) -> bool:
    """Return whether the plugin ovs made the interface. False for multus, which only runs the network that has ovs."""
    return KIND in attachment.plugins and set(RUNS_NETWORKS).isdisjoint(attachment.plugins)


def has_vlans(known: Names, attachment: NodeAttachment, bridge: str, address: str, unseen: list[str]) -> bool:
    """Return whether the pod's port has the VLANs that ADD gives it. Return True also if these VLANs are unknown."""
    keys = next(sections(attachment.config, KIND), None)
    if keys is None:
        return True
    try:
        conf = ovs_conf.with_file(ovs_conf.read_keys(Section(keys)), ovs_conf.read_keys)
        return known.has_vlans(host_of(attachment), conf, known.vlan_of(conf, bridge, address))
    except CniError as e:
        text = f"VLANs of ports of the bridge {bridge} of Open vSwitch: {e}"
        unseen += [text] * (text not in unseen)
        return True


def is_usual(address: str) -> bool:
    """Return whether `address` is the database of the service openvswitch-switch of Debian and Red Hat."""
    usual, path = (os.path.realpath(it.removeprefix("unix:")) for it in (DEFAULT_ADDRESS, address))
    return path == usual


def restart(address: str) -> str:
    """Return the command that restarts the ovs-vswitchd of a database, or a sentence that asks for the restart."""
    if is_usual(address):
        return "systemctl restart openvswitch-switch"
    return f"restart the ovs-vswitchd that was started with {address}"


def place_of(attachment: NodeAttachment, keys: Mapping[str, Any]) -> tuple[str, str]:
    """Return (address of the database, bridge), from the pod's file, in which ADD recorded both, otherwise from the
    configuration."""
    path = cache.path(str(keys.get("dataDir") or cache.DIRECTORY), attachment.container_id, attachment.ifname)
    kept = cache.parsed(files.read(path), "Netconf") or {}
    address = cache.address_in(kept) or str(keys.get("socket_file") or "") or DEFAULT_ADDRESS
    return address, str(kept.get("bridge") or keys.get("bridge") or OVN_BRIDGE)


def host_of(attachment: NodeAttachment) -> str:
    """Return the name of the pod's port in the result of ADD; "" if the result has no port."""
    return next(iter(results.host_interfaces(attachment.result)), "")
