"""Check the dhcp plugin: its daemon, and the daemon's leases."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from fastcni.kit.dhcp.rpc import SOCKET_PATH
from fastcni.node import confs, dhcp_leases
from fastcni.node.checks.findings import ERROR, WARNING, Finding, Node, plural, some
from fastcni.node.server_process import listener

START = "systemctl enable --now fastcni-dhcp.service (`fastcni install --systemd --dhcp` writes it), or `dhcp daemon`"


def leases(node: Node) -> Iterator[Finding]:
    """A dhcp daemon runs where a network needs one, and each lease is of a running pod."""
    found = dhcp_leases.read()
    named = dhcp_leases.sockets(confs.values_of(node.networks))
    paths = named or [SOCKET_PATH] * bool(found.found)
    absent = [path for path in paths if not listener(path, stream=True)]
    for path in absent:
        if path in named:
            yield Finding(ERROR, f"no dhcp daemon listens at {path}, and a network here uses it", "each ADD of that "
                          f"network fails with code 11; {plural(len(found.running), 'lease')} of running pods will end",
                          START)
        elif found.running:
            yield Finding(WARNING, f"{plural(len(found.running), 'dhcp lease')} of running pods, and no daemon listens "
                          f"at {path}: {names(found.running)}",
                          "when the leases end, the DHCP servers may give the addresses to other hosts", START)
    if absent and found.over:
        yield Finding(WARNING, f"{plural(len(found.over), 'dhcp lease')} of pods that are gone: {names(found.over)}",
                      "the servers keep these addresses until the leases end",
                      f"a dhcp daemon releases these leases: {START}")
    lost = [it for it in found.running if it.ends <= time.time()]
    if lost:
        yield Finding(ERROR, f"{plural(len(lost), 'dhcp lease')} of running pods ended: {names(lost)}",
                      "these pods have no address", "the log of the dhcp daemon says why the daemon got no other lease "
                      "(events lease_lost, packet_not_sent); does the DHCP server answer?")
    if found.damaged:
        yield Finding(WARNING, f"{plural(len(found.damaged), 'damaged lease file')}: "
                      f"{some(os.path.basename(path) for path in found.damaged)}",
                      "the daemon neither renews nor releases these leases; each lease ends when its time is over",
                      f"rm {' '.join(found.damaged[:3])}")


def names(found: list[dhcp_leases.PodLease]) -> str:
    return some(f"{it.address} of {it.pod}" for it in found)
