"""Read the links of running pods, on the host and inside of their namespaces, for the checks of the data path."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fastcni.kernel import netns, wire
from fastcni.kernel.rtnl import Link
from fastcni.kit.links import checks, find
from fastcni.kit.networks.network import RUNS_NETWORKS
from fastcni.node.attachments.attachment import RUNNING, Inventory, NodeAttachment
from fastcni.node.attachments.inventory import Seen
from fastcni.spec import address
from fastcni.spec import result as results

BRIDGES = ("bridge", "flannel")         # CNI types whose pods are connected to ports of a bridge
NO_ADDRESSES = ("dhcp", "loopback")     # plugins whose addresses change after ADD, or whose addresses need no routes
PAUSE_S = 0.3                           # seconds before the second reading; a usual DEL takes less time
NAMED = ("/run/netns/", "/var/run/netns/")


@dataclass(frozen=True, slots=True)
class PodLink:
    """A running pod's interface, with the result of its ADD.

    host: the host end of the pod's veth pair, or None. bridge: the name of the bridge to which ADD added the host end,
    or "". link: the interface in the pod, None if it does not exist. lacks: shell commands that add the addresses and
    routes that the pod lacks.
    """

    attachment: NodeAttachment
    host: Link | None
    bridge: str
    link: Link | None
    lacks: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.attachment.container_id[:12]}/{self.attachment.ifname}"

    def inside(self, command: str) -> str:
        """Return a command of ip(8) that runs in the pod's namespace."""
        return in_namespace(self.attachment.netns, command)


def in_namespace(path: str, command: str) -> str:
    """Return a command of ip(8) that runs in the namespace at `path`."""
    for directory in NAMED:
        if path.startswith(directory):
            return f"ip -n {path.removeprefix(directory)} {command}"
    return f"nsenter --net={path} ip {command}"


def read_all(seen: Seen, inventory: Inventory, unseen: list[str]) -> list[PodLink]:
    """Return the links of all running pods that have a result in the cache. If the namespaces of pods cannot be
    entered, add a text to `unseen`.

    A pod that lacks addresses or routes is read again after PAUSE_S: a DEL may be running, which removes the cached
    result last.
    """
    by_name = {link.name: link for link in seen.facts.links.values()}
    pods = with_interface(it for it in inventory.attachments
                          if it.state == RUNNING and it.result and it.netns)
    counts = Counter(it.container_id for it in pods)
    refused: list[str] = []
    home = netns.open_own()

    def read_some(some: Iterable[NodeAttachment]) -> Iterator[PodLink]:
        for it in some:
            try:
                yield read(it, by_name, home, several=counts[it.container_id] > 1)
            except (FileNotFoundError, netns.NotNamespace):
                continue                        # the pod has just ended
            except (OSError, ValueError) as e:
                refused.append(f"{it.name}: {e}")

    try:
        found = list(read_some(pods))
        doubtful = [it.attachment for it in found if it.link is None or it.lacks]
        if doubtful:
            time.sleep(PAUSE_S)
            found = [it for it in found if it.link and not it.lacks]
            found += read_some(it for it in doubtful if it.cached and os.path.exists(it.cached.path))
    finally:
        os.close(home)
    if refused:
        unseen.append(f"links of {len(refused)} running pods: {refused[0]}")
    return found


def with_interface(attachments: Iterable[NodeAttachment]) -> list[NodeAttachment]:
    """Return one attachment for each interface. The attachment of multus and the attachment of a network that multus
    added have the same interface. Prefer the network's attachment: its configuration names the plugin that made the
    interface, and its result has the routes that the pod's annotation chose."""
    found: dict[tuple[str, str], NodeAttachment] = {}
    for it in sorted(attachments, key=lambda it: set(RUNS_NETWORKS).isdisjoint(it.plugins)):
        found[it.container_id, it.ifname] = it
    return list(found.values())


def read(attachment: NodeAttachment, by_name: dict[str, Link], home: int, *, several: bool) -> PodLink:
    """Return the link of one pod. several: whether the pod has further attachments. Raises OSError, ValueError."""
    fd = netns.open_path(attachment.netns)
    try:
        with netns.inside(fd, home):
            sock = wire.open_socket()
    finally:
        os.close(fd)
    with sock:
        link = find.link(sock, attachment.ifname)
        lacks = tuple(commands(attachment, sock, link, several)) if link else ()
    hosts = [by_name[name] for name in attachment.links if name in by_name and by_name[name].kind == "veth"]
    return PodLink(attachment, hosts[0] if len(hosts) == 1 else None, bridge_of(attachment), link, lacks)


def bridge_of(attachment: NodeAttachment) -> str:
    """Return the name of the pod's bridge, which is the first interface on the host in the result of ADD; "" without a
    bridge."""
    on_host = results.host_interfaces(attachment.result)
    if not on_host or on_host[0] in attachment.links or not set(BRIDGES).intersection(attachment.plugins):
        return ""
    return on_host[0]


def commands(attachment: NodeAttachment, sock: wire.Socket, link: Link, several: bool) -> Iterator[str]:
    """If the pod lacks addresses or routes of the ADD's result, yield the commands that add them. several: whether the
    pod has further attachments. In that case one default route is enough for all attachments, and a command adds a
    default route in the order of ADD, by `prepend`."""
    if not link.up:
        yield in_namespace(attachment.netns, f"link set {attachment.ifname} up")
    if set(NO_ADDRESSES).intersection(attachment.plugins):
        return
    result = dict(attachment.result)
    gateways = {len(address.read_ip(ip["gateway"])): ip["gateway"] for ip in result.get("ips", ()) if ip.get("gateway")}
    for kind, entry, _ in checks.differences(sock, link, result, strict=True):
        if kind == checks.ADDRESS:
            yield in_namespace(attachment.netns, f"address replace {entry['address']} dev {attachment.ifname}")
            continue
        packed, prefix = address.read_cidr(entry["address" if kind == checks.SUBNET else "dst"])
        to = f"{address.ip_text(address.network(packed, prefix))}/{prefix}"
        gateway = entry.get("gw") or (gateways.get(len(packed), "") if kind == checks.ROUTE else "")
        via = f" via {gateway}" if gateway else ""
        table = f" table {entry['table']}" if kind == checks.ROUTE and entry.get("table") else ""
        verb = "prepend" if several and not prefix else "replace"
        yield in_namespace(attachment.netns, f"route {verb} {to}{via} dev {attachment.ifname}{table}")
