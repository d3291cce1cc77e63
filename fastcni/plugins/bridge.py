"""bridge: a veth pair whose host end is a port of a Linux bridge; with isGateway the bridge is the pods' gateway.

Code that only some pods or commands need is imported where it is used: an import costs a one-shot ADD up to 0.1 ms.
"""

from __future__ import annotations

from fastcni.kit.bridge import bridges, gateways, vlans
from fastcni.kit.bridge import conf as bridge_conf
from fastcni.kit.call import ipam
from fastcni.kit.call.conf import ENDINGS, check_families, read_once, read_requested_mac
from fastcni.kit.call.pod import Pod, interface
from fastcni.kit.call.undo import every
from fastcni.kit.firewall import backends
from fastcni.kit.links import announced, configure, find, remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.bridge.conf import Conf
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.firewall.contract import Spoofcheck

CAPABILITIES, ARGS = ("mac",), ("MAC",)


def read(req: Request) -> Conf:
    if req.command in ENDINGS:
        return read_once(req, bridge_conf.read_ending)
    conf = req.conf.once(bridge_conf.read)
    read_requested_mac(req)         # for every command, so that a bad MAC is refused
    return conf


def source_checks(conf: Conf) -> list[Spoofcheck]:
    """Return the modules that check the source of the frames and packets from the pod's port."""
    asked = {"mac": conf.mac_check, "ip": conf.ip_check}
    return [backends.load("spoofcheck", name) for name, wanted in asked.items() if wanted]


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    pod = Pod(req)
    bridge = bridges.ensure(req.mode, conf, undo)
    mac, result = read_requested_mac(req), {}
    if conf.unflooded:              # the MAC is made of the address
        from fastcni.kit.bridge import unflooded

        unflooded.refuse_second(pod, req.ifname)
        result = add_addresses(req, conf, undo)
        mac = mac or unflooded.mac_of(result)
    host, inside = bridges.add_port(req, pod, bridge, conf, mac, undo)
    vlans.set_port(req, bridge, host, conf.vlans)
    if conf.layer3 and not conf.unflooded:
        result = add_addresses(req, conf, undo)
    if conf.mac_check:
        bridges.learn_from_checked_frames(req.mode, bridge)
    for source_check in source_checks(conf):
        source_check.add(req, host, inside, result, undo)       # before the pod can send anything
    if not conf.leave_down:
        configure.pod_link(pod, inside, result, ipv6=conf.ipv6, dad=detection(conf, result), arp_notify=conf.layer3)
    vlan_interface = None
    if conf.layer3:
        if conf.is_gateway:
            if conf.vlans.vlan:
                vlan_interface = vlans.ensure_interface(req.mode, bridge, conf.vlans, undo)
            gateways.add(req.mode, bridge, vlan_interface, result, conf, undo)
        conf.masquerade.add(req, result, undo)
    bridge = find.host_link(req.mode, conf.name) or bridge      # the MAC of an adopted one may follow its ports
    result["interfaces"] = [interface(bridge), interface(host), interface(inside, req.netns)]
    if vlan_interface:
        result["interfaces"].append(interface(vlan_interface))
    if conf.dns is not None:
        result["dns"] = conf.dns
    req.mode.keep_pair(req, host, result)
    if not conf.leave_down:         # last: meanwhile the kernel works at it on another processor
        announced.port_up(pod.host, host.index, bridge.index)
    if conf.unflooded:
        unflooded.add(req, bridge, host, inside.address, result, conf.isolated, undo)
    return result


def detection(conf: Conf, result: dict[str, Any]) -> bool | None:
    """Return whether the pod's link has duplicate address detection, None: as the kernel has it. With disableFlooding
    that is so without IPv6 addresses: on a full bridge the sysctl takes 0.6 ms, and its packets reach no other pod."""
    if not conf.layer3 or (conf.unflooded and not conf.enable_dad and not any(":" in ip["address"]
                                                                             for ip in result["ips"])):
        return None
    return conf.enable_dad


def add_addresses(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    """Return what IPAM gives, with what isGateway and isDefaultGateway add."""
    result = ipam.add_addresses(req, undo, interface=2)
    check_families(conf.ipv6, result)
    gateways.complete(result, conf)
    return result


def delete(req: Request, conf: Conf) -> None:
    # The link first: its address must not be given to another pod while the link still has it.
    steps = ipam.prepare_delete(req) if conf.layer3 else []
    found, given = remove.pod_link(req, list_addresses=conf.masquerade.wanted or conf.unflooded)
    if conf.unflooded:
        from fastcni.kit.bridge import unflooded

        steps.insert(0, (unflooded.delete, req, conf.name, [*found, *given, *unflooded.previous_ips(req)]))
    if conf.layer3:
        steps.append((conf.masquerade.delete, req, found, given))
    every(*steps, *((source_check.delete, req) for source_check in source_checks(conf)))


def restore(req: Request, conf: Conf) -> None:
    """Restore what is missing in the host's firewall and, with disableFlooding, on the bridge."""
    from fastcni.kit.links import checks

    previous = checks.prev_result(req)
    steps: list[Any] = [(conf.masquerade.restore, req, previous)] if conf.layer3 else []
    if conf.unflooded:
        from fastcni.kit.bridge import unflooded

        steps.append((unflooded.restore, req, conf.name, previous, conf.isolated))
    every(*steps, *((source_check.restore, req) for source_check in source_checks(conf)))


def check(req: Request, conf: Conf) -> None:
    from fastcni.kit.bridge import checks as bridge_checks
    from fastcni.kit.links import checks

    if conf.layer3:
        ipam.check(req)
    previous = checks.prev_result(req)
    pod = Pod(req)
    bridge = bridge_checks.bridge(pod, conf, previous)
    inside = checks.veth_in_pod(req, pod, previous)
    host = bridge_checks.port(pod, conf, previous, bridge, inside)
    checks.addresses_and_routes(pod, inside, previous)
    if conf.unflooded:
        from fastcni.kit.bridge import unflooded

        unflooded.check(req, bridge, host, inside, previous)
    for source_check in source_checks(conf):
        source_check.check(req, host, inside, previous)


def gc(req: Request, conf: Conf) -> None:
    steps: list[Any] = [(ipam.gc, req), (conf.masquerade.gc, req)] if conf.layer3 else []
    if conf.unflooded:
        from fastcni.kit.bridge import unflooded

        steps.append((unflooded.gc, req, conf.name))
    every(*steps, *((source_check.gc, req) for source_check in source_checks(conf)))


def status(req: Request, conf: Conf) -> None:
    steps = [(ipam.status, req)] if conf.layer3 else []
    every(*steps, (bridges.status, req, conf.name))
