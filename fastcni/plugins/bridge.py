"""bridge: a veth pair whose host end is a port of a Linux bridge; with isGateway the bridge is the pods' gateway.

Code that only some pods or commands need is imported in the function that uses it, because each import costs a one-shot
ADD up to 0.1 ms.
"""

from __future__ import annotations

from fastcni.kit.bridge import bridges, gateways
from fastcni.kit.bridge import conf as bridge_conf
from fastcni.kit.call import ipam
from fastcni.kit.call.conf import ENDINGS, read_once, read_requested_mac
from fastcni.kit.call.pod import Pod, interface
from fastcni.kit.call.undo import every, steps_of
from fastcni.kit.links import configure, find, remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.bridge.conf import Conf
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

CAPABILITIES, ARGS = ("mac",), ("MAC",)


def read(req: Request) -> Conf:
    if req.command in ENDINGS:
        return read_once(req, bridge_conf.read_ending)
    conf = req.conf.once(bridge_conf.read)
    read_requested_mac(req)         # also for CHECK and STATUS, so that they reject a bad MAC
    return conf


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    port = bridges.Port(Pod(req), bridges.ensure(req.mode, conf, undo), read_requested_mac(req))
    for prepared in conf.prepared:
        prepared.prepare(req, conf, port, undo)
    bridges.add_port(req, conf, port, undo)
    for option in conf.at_port:
        option.add(req, conf, port, undo)
    if conf.layer3 and not port.result:
        gateways.add_addresses(req, conf, port, undo)
    for option in conf.while_down:
        option.add(req, conf, port, undo)
    if not conf.leave_down:
        configure.pod_link(port.pod, port.inside, port.result, ips=port.ips, ipv6=conf.ipv6,
                           dad=detection(conf, port.result), arp_notify=conf.layer3)
    for option in conf.when_up:
        option.add(req, conf, port, undo)
    result = complete(req, conf, port)
    req.mode.keep_pair(req, port.host, port.ips)
    # last, because the kernel sets the host end up on another processor at the same time
    if not conf.leave_down:
        port.wait_until_up()
    return result


def detection(conf: Conf, result: dict[str, Any]) -> bool | None:
    """Return whether the pod's link does duplicate address detection (DAD); None leaves the kernel's default. A pod
    with disableFlooding and without IPv6 addresses keeps the default: on a full bridge the sysctl takes 0.6 ms, and the
    DAD packets reach no other pod."""
    if not conf.layer3 or (conf.unflooded and not conf.enable_dad and not any(":" in ip["address"]
                                                                             for ip in result["ips"])):
        return None
    return conf.enable_dad


def complete(req: Request, conf: Conf, port: bridges.Port) -> dict[str, Any]:
    """Return the port's result with the interfaces added, and with the configuration's dns if there is one."""
    # read the bridge again: an adopted bridge may have changed to a port's MAC
    bridge = find.host_link(req.mode, conf.name) or port.bridge
    port.result["interfaces"] = [interface(bridge), interface(port.host), interface(port.inside, req.netns)]
    if port.vlan_interface:
        port.result["interfaces"].append(interface(port.vlan_interface))
    if conf.dns is not None:
        port.result["dns"] = conf.dns
    return port.result


def delete(req: Request, conf: Conf) -> None:
    # Delete the link first: no other pod may get the link's address while the link has it.
    steps = ipam.prepare_delete(req) if conf.layer3 else []
    options = conf.options()
    found, given = remove.pod_link(req, list_addresses=bool(options))
    every(*steps_of(reversed(options), "delete", req, conf, found, given), *steps)


def restore(req: Request, conf: Conf) -> None:
    """Add the pod's missing rules to the host's firewall again and, with disableFlooding, the missing entries of the
    bridge."""
    from fastcni.kit.links import checks

    every(*steps_of(conf.options(), "restore", req, conf, checks.prev_result(req)))


def check(req: Request, conf: Conf) -> None:
    from fastcni.kit.bridge import checks as bridge_checks
    from fastcni.kit.links import checks

    if conf.layer3:
        ipam.check(req)
    port = bridge_checks.port(req, conf, checks.prev_result(req))
    for look, *args in steps_of(conf.options(), "check", req, conf, port):
        look(*args)


def gc(req: Request, conf: Conf) -> None:
    every(*ipam.steps(ipam.gc, req, conf.layer3), *steps_of(conf.options(), "gc", req, conf))


def status(req: Request, conf: Conf) -> None:
    every(*ipam.steps(ipam.status, req, conf.layer3), (bridges.status, req, conf.name))
