"""Find faults of the node that an ADD would repair silently: a bridge that is down, a missing gateway address, or
forwarding that is off.

The self-test looks for these faults before its first ADD: they cut off running pods until the next ADD.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from fastcni.kernel import sysctl, wire
from fastcni.kit.bridge import bridges
from fastcni.kit.links import find
from fastcni.node.attachments.namespaces import addresses
from fastcni.node.ranges import ranges_of
from fastcni.runtime import CNI, NetworkList
from fastcni.runtime.parse import flattened
from fastcni.runtime.records import PluginConf
from fastcni.selftest.check import Check, Failed
from fastcni.spec.address import ip_text

FORWARDING = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}
ROUTED = ("bridge", "ptp", "flannel")       # plugins that switch forwarding on


def checks(cni: CNI, net: NetworkList, mode: str) -> Iterator[Check]:
    """Yield the results of the checks of `net`, if its bridge exists or pods are attached to it."""
    plugins = [plugin for plugin in flattened(net.plugins) if plugin.type in ROUTED]
    attached = [it for it in cni.attachments() if it.network == net.name]
    with wire.open_socket() as sock:
        for plugin in plugins:
            link = find.link(sock, bridge_of(plugin)) if plugin.type == "bridge" else None
            if link is None and not attached:
                continue
            if link is not None:
                yield check("bridge", net, mode, partial(require_up, link.name, link.up))
                if has_gateway(plugin):
                    there = set(addresses(sock, link.index))
                    yield check("gateway-address", net, mode, partial(require_gateways, net, link.name, there))
            if plugin.type != "bridge" or has_gateway(plugin):
                yield check("forwarding", net, mode, partial(require_forwarding, net))


def check(name: str, net: NetworkList, mode: str, function: Callable[[], str | None]) -> Check:
    """Call the function of the check `name`, and return the Check. The function returns None if the check has passed,
    or the reason why it does not apply. The function raises Failed or OSError if the check has failed."""
    started = time.perf_counter()
    fault: Failed | None = None
    left_out = None
    try:
        left_out = function()
    except Failed as e:
        fault = e
    except OSError as e:
        fault = Failed("this node", str(e))
    ms = round((time.perf_counter() - started) * 1e3, 2)
    if fault is None:
        return Check(name, net.name, mode, True, ms, what=left_out or "")
    return Check(name, net.name, mode, False, ms, fault.hop, str(fault), fault.command)


def missing_bridges(net: NetworkList) -> list[str]:
    """Return the names of the network's bridges that do not exist. An ADD makes these bridges, and DEL leaves them."""
    with wire.open_socket() as sock:
        return [name for plugin in flattened(net.plugins) if plugin.type == "bridge"
                and find.link(sock, name := bridge_of(plugin)) is None]


def delete_bridges(names: Iterable[str]) -> None:
    """Delete the bridges `names`, which ADDs of the self-test have made. A bridge that has another pod stays."""
    with wire.open_socket() as sock:
        for name in names:
            bridges.delete_unused(sock, name)


def bridge_of(plugin: PluginConf) -> str:
    return str(plugin.values.get("bridge") or "cni0")


def has_gateway(plugin: PluginConf) -> bool:
    """Return whether the bridge has the gateway's address, so that the node forwards for its pods."""
    return any(plugin.values.get(key) for key in ("isGateway", "isDefaultGateway"))


def require_up(bridge: str, up: bool) -> None:
    if not up:
        raise Failed(f"bridge {bridge}", f"the bridge {bridge} is down: its pods reach nothing",
                     f"ip link set {bridge} up")


def require_gateways(net: NetworkList, bridge: str, there: set[str]) -> None:
    """Raise Failed if the bridge lacks a gateway's address. there: the bridge's addresses as text. The function checks
    only the gateways of host-local's ranges."""
    for it in ranges_of([net]):
        gateway = ip_text(it.range.gateway)
        if gateway not in there:
            raise Failed(f"bridge {bridge}", f"the bridge {bridge} lacks the gateway's address {gateway}: its pods "
                         "reach nothing beyond the bridge",
                         f"ip address add {gateway}/{it.range.prefix} dev {bridge}")


def require_forwarding(net: NetworkList) -> None:
    families = {4 if len(it.range.gateway) == 4 else 6 for it in ranges_of([net])} or {4}
    for family in sorted(families):
        name = FORWARDING[family]
        if sysctl.exists(name) and sysctl.read(name) == "0":
            raise Failed("the node's forwarding", f"{name} is 0: pods reach nothing outside of this node",
                         f"sysctl -w {name}=1")
