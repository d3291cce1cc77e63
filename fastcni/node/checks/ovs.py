"""Check the bridges and ports of Open vSwitch."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from fastcni.clients.ovsdb import DEFAULT_ADDRESS
from fastcni.kit.call import files
from fastcni.kit.ovs import cache
from fastcni.kit.ovs.lost import Names
from fastcni.kit.ovs.ovs_conf import OVN_BRIDGE
from fastcni.node.attachments.address_dirs import sections
from fastcni.node.attachments.records import RUNNING, NodeAttachment
from fastcni.node.checks.findings import ERROR, Finding, Node, plural, some
from fastcni.node.checks.pods import PAUSE_S
from fastcni.spec import result as results

KIND = "ovs"


def ports(node: Node) -> Iterator[Finding]:
    """The database of Open vSwitch has ovs-vswitchd, and the bridges and the ports of running pods."""
    by_address: dict[str, dict[str, list[NodeAttachment]]] = defaultdict(lambda: defaultdict(list))
    for it in node.inventory.attachments:
        if it.state == RUNNING and it.cached and KIND in it.plugins and host_of(it):
            address, bridge = place_of(it, next(sections(it.cached.config, KIND)))
            by_address[address][bridge].append(it)
    for address, by_bridge in by_address.items():
        known = Names(address)
        if known.error:
            node.unseen.append(f"ports of Open vSwitch: {known.error}")
            continue
        if known.trouble:
            yield Finding(ERROR, known.trouble, "no new pod gets a port; a bridge of the userspace datapath carries no "
                          "packet", "systemctl restart openvswitch-switch")
        lost = {bridge: found for bridge, pods in by_bridge.items() if (found := [
            it for it in pods if bridge not in known.bridges or host_of(it) not in known.ports])}
        if lost:
            time.sleep(PAUSE_S)         # a DEL may run, which removes the cached result last
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


def place_of(attachment: NodeAttachment, keys: Mapping[str, Any]) -> tuple[str, str]:
    """Return (address of the database, bridge), as ADD kept them in the pod's file, otherwise as configured."""
    path = cache.path(str(keys.get("dataDir") or cache.DIRECTORY), attachment.container_id, attachment.ifname)
    kept = cache.parsed(files.read(path), "Netconf") or {}
    address = cache.address_in(kept) or str(keys.get("socket_file") or "") or DEFAULT_ADDRESS
    return address, str(kept.get("bridge") or keys.get("bridge") or OVN_BRIDGE)


def host_of(attachment: NodeAttachment) -> str:
    """Return the name of the pod's port in the result of ADD, "" if it has none."""
    return next(iter(results.host_interfaces(attachment.cached.result)), "") if attachment.cached else ""
