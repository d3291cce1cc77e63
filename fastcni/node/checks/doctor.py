"""List the checks of this node in one table, with a function for each check, and run them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import fastcni
from fastcni.node.attachments.inventory import Places, look
from fastcni.node.attachments.merge import merge
from fastcni.node.checks import cluster, conf, datapath, dhcp, kernel, networks, ovs, path, policy, state
from fastcni.node.checks.conf import own_files
from fastcni.node.checks.findings import ERROR, Finding, Node, plural, some
from fastcni.runtime.records import LO_IFNAME
from fastcni.server import status
from fastcni.spec.errors import CniError

# {name: check}. On a healthy node, the first sentence of the check's docstring is true.
CHECKS: dict[str, Callable[[Node], Iterator[Finding]]] = {
    "netlink": kernel.netlink, "nftables": kernel.nf_tables, "modules": kernel.modules,
    "forwarding": kernel.forwarding, "bridge-nf-call": kernel.bridge_nf_call,
    "forward-policy": kernel.forward_policy, "forward-rules": kernel.forward_rules, "rp-filter": kernel.rp_filter,
    "neighbours": kernel.neighbours, "conntrack": kernel.conntrack,
    "bridge-ports": kernel.bridge_ports, "iptables": kernel.iptables_kinds,
    "conf-files": conf.conf_files, "conf-names": conf.one_file_a_name, "conf-keys": conf.keys,
    "plugin-files": conf.plugin_files, "foreign-plugins": conf.foreign_plugins,
    "server": state.server, "namespaces": state.namespaces, "ranges": state.ranges,
    "state-directories": state.state_directories,
    "stale": state.stale, "unowned": state.unowned, "address-files": state.damaged_files,
    "lost-rules": state.lost_rules, "doubled-rules": state.doubled_rules, "bridges": path.bridges,
    "host-links": path.host_links, "ovs-ports": ovs.ports, "pod-links": path.pod_links, "mtu": path.mtu,
    "host-ports": path.host_ports,
    "duplicate-addresses": networks.duplicate_addresses, "shared-networks": networks.shared_networks,
    "bridge-gateways": networks.bridge_gateways,
    "cluster-stores": networks.cluster_stores, "cluster-addresses": cluster.cluster_addresses,
    "dhcp-leases": dhcp.leases, "policy-agent": policy.agent, "datapath": datapath.datapath,
}

UNSEEN = 3                      # exit status: fastcni could not read parts of the node, so findings may be missing


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of all checks. facts: (name, text) of each property of the node. findings: errors first, one finding
    for each cause. unseen: texts about parts of the node that could not be read, and why."""

    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...]

    @property
    def status(self) -> int:
        """Return the exit status: 0 without findings, 1 after warnings, 2 after errors; UNSEEN if a part of the node
        could not be read."""
        return UNSEEN if self.unseen else max((2 if it.severity == ERROR else 1 for it in self.findings), default=0)


def node_of(places: Places, plugin_dirs: Sequence[str], socket: str) -> Node:
    """Read the node's files and kernel state, and return them as the input of the checks."""
    seen = look(places)
    return Node(places, seen, merge(seen.facts), tuple(plugin_dirs), socket)


def diagnose(node: Node) -> Diagnosis:
    """Run all checks. If a check itself fails, record the error in `unseen`, and continue with the other checks."""
    found: list[Finding] = []
    for name, check in CHECKS.items():
        try:
            found += [replace(it, check=name) for it in check(node)]
        except (OSError, CniError) as e:
            node.unseen.append(f"check {name}: {e}")
    found = grouped(found)
    found.sort(key=lambda it: it.severity != ERROR)
    return Diagnosis(tuple(facts_of(node)), tuple(found), tuple(dict.fromkeys([*node.inventory.unseen, *node.unseen])))


def grouped(found: list[Finding]) -> list[Finding]:
    """Return one finding for each cause: findings of one check with the same reason and the same command are merged."""
    causes: dict[Finding, list[str]] = {}
    for it in found:
        causes.setdefault(replace(it, what=""), []).append(it.what)
    return [replace(cause, what=some(texts, between="; ")) for cause, texts in causes.items()]


def facts_of(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the node's properties for the head of the report, as (name, text)."""
    yield "fastcni", f"{fastcni.__version__}, Python {sys.version.partition(' ')[0]}, Linux {node.release}"
    files = [file for file in node.seen.files if file.net]
    default = f"{files[0].net.name} ({os.path.basename(files[0].path)})" if files and files[0].net else "none"
    more = [net.name for net in node.networks][1:]
    yield "network", f"{default} is the default of kubelet and containerd{f'; also {some(more, 6)}' if more else ''}"
    own = [f"{directory}: {plural(len(kinds), 'file')} of fastcni" for directory, kinds in own_files(node).items()]
    yield "plugins", "; ".join(own) or f"none of fastcni in {', '.join(node.plugin_dirs)}"
    yield "server", server_text(node.socket)
    states = [it.state for it in node.inventory.attachments if it.ifname != LO_IFNAME]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    yield "pods", plural(len(states), "attachment") + (f": {counts}" if counts else "")


def server_text(path: str) -> str:
    """Return the state of the server in one line."""
    if not path or not os.path.lexists(path):
        return "none; plugins run one-shot"
    try:
        found = status.ask(path)
    except OSError as e:
        return f"{path}: {e.strerror or e}"
    if found is None:
        return f"{path}: {state.DECLINES}"
    return (f"{path}: {found['version']}, pid {found['pid']}, {found['running']} running, {found['waiting']} of "
            f"{found['queueSize']} waiting, watching {plural(found['watching'], 'namespace')}")
