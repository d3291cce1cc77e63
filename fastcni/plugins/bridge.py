"""bridge: a veth pair whose host end is a port of a Linux bridge; with isGateway the bridge is the pods' gateway.

What only some pods or commands need is imported where it is used: an import costs a one-shot ADD up to 0.1 ms.
"""

from fastcni.kit.call import ipam
from fastcni.kit.call.conf import (
    ENDINGS,
    check_families,
    read_ipv6,
    read_mtu,
    read_once,
    read_own_dns,
    read_requested_mac,
)
from fastcni.kit.call.undo import every
from fastcni.kit.firewall.masquerade import Masquerade
from fastcni.kit.links import announced, bridges, configure, find, pairs, remove, vlans
from fastcni.kit.links.pod import Pod, interface
from fastcni.kit.sysctls import forwarding
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

CAPABILITIES, ARGS = ("mac",), ("MAC",)
DEFAULT_ROUTES = {4: "0.0.0.0/0", 16: "::/0"}


class Conf:
    """The keys under their own names; name is `bridge`, layer3 says that there is IPAM."""

    __slots__ = ("name", "is_gateway", "is_default_gateway", "force_address", "mtu", "hairpin", "promisc", "isolated",
                 "vlans", "enable_dad", "leave_down", "masquerade", "mac_check", "ip_check", "dns", "layer3", "ipv6")


def read(req):
    if req.command in ENDINGS:
        return read_once(req, read_ending)
    conf = req.conf.once(read_keys)
    read_requested_mac(req)         # in any case, for what is bad in it
    return conf


def read_ending(keys):
    """The Conf of DEL and GC: what says where to look."""
    conf = Conf()
    conf.masquerade = Masquerade(keys, ending=True)
    conf.ip_check = keys.flag("ipspoofchk")
    conf.mac_check = keys.flag("macspoofchk") or conf.ip_check
    conf.layer3 = bool(ipam.read_type(keys))
    return conf


def read_keys(keys):
    conf = Conf()
    conf.name = keys.text("bridge") or "cni0"
    conf.is_default_gateway = keys.flag("isDefaultGateway")
    conf.is_gateway = keys.flag("isGateway") or conf.is_default_gateway
    conf.force_address = keys.flag("forceAddress")
    conf.mtu = read_mtu(keys)
    conf.hairpin, conf.promisc = keys.flag("hairpinMode"), keys.flag("promiscMode")
    conf.isolated = keys.flag("portIsolation")
    conf.vlans = vlans.read(keys)
    conf.enable_dad = keys.flag("enabledad")
    conf.leave_down = keys.flag("disableContainerInterface")
    conf.masquerade = Masquerade(keys)
    conf.ip_check = keys.flag("ipspoofchk")
    conf.mac_check = keys.flag("macspoofchk") or conf.ip_check
    conf.dns = read_own_dns(keys)
    conf.layer3 = bool(ipam.read_type(keys))
    conf.ipv6 = read_ipv6(keys)
    bridges.check_name(conf.name)
    if conf.vlans.vlan and conf.is_gateway:
        bridges.check_name(vlans.leg_name(conf.name, conf.vlans.vlan))
    if conf.hairpin and conf.promisc:
        raise CniError(errors.INVALID_CONFIG, "cannot set hairpin mode and promiscuous mode at the same time")
    if conf.ip_check and not conf.layer3:
        raise CniError(errors.INVALID_CONFIG, "cannot use ipspoofchk without IPAM",
                       "ipspoofchk is true, and there is no ipam.type: nobody says which addresses are the pod's")
    if conf.leave_down and conf.layer3:
        raise CniError(errors.INVALID_CONFIG, "cannot use IPAM when DisableContainerInterface flag is set")
    return conf


def guards(conf):
    """Who watches what comes from the pod's port."""
    found = []
    if conf.mac_check:
        from fastcni.kit.firewall import spoofcheck

        found.append(spoofcheck)
    if conf.ip_check:
        from fastcni.kit.firewall import ipspoofcheck

        found.append(ipspoofcheck)
    return found


def add(req, conf, undo):
    pod = Pod(req)
    bridge = bridges.ensure(req.host, conf, undo)
    host, inside = bridges.add_port(req, pod, bridge, conf, undo)
    vlans.set_port(req, bridge, host, conf.vlans)
    result = add_addresses(req, conf, undo) if conf.layer3 else {}
    for guard in guards(conf):
        guard.add(req, host, inside, result, undo)      # before the pod can send anything
    if not conf.leave_down:
        configure.pod_link(pod, inside, result, ipv6=conf.ipv6, dad=conf.enable_dad if conf.layer3 else None,
                        arp_notify=conf.layer3)
    leg = None
    if conf.layer3:
        if conf.is_gateway:
            leg = vlans.ensure_leg(req.host, bridge, conf.vlans, undo) if conf.vlans.vlan else None
            add_gateways(req.host, bridge, leg, conf, result, undo)
        conf.masquerade.add(req, result, undo)
    bridge = find.host_link(req.host, conf.name) or bridge       # the MAC of an adopted one may follow its ports'
    result["interfaces"] = [interface(bridge), interface(host), interface(inside, req.netns)]
    if leg:
        result["interfaces"].append(interface(leg))
    if conf.dns is not None:
        result["dns"] = conf.dns
    pairs.remember(req, host, result)
    if not conf.leave_down:         # last: meanwhile the kernel sees to it on another processor
        announced.port_up(pod.host, host.index, bridge.index)
    return result


def add_addresses(req, conf, undo):
    """What IPAM gives, with what isGateway and isDefaultGateway imply."""
    result = ipam.add_addresses(req, undo, interface=2)
    check_families(conf.ipv6, result)
    complete(result, conf)
    return result


def complete(result, conf):
    """Gateways and default routes are in the result."""
    # A default route of IPAM's without gw goes to the same gateway.
    routed = [len(packed) for packed, prefix in
              (addresses.read_cidr(route["dst"]) for route in result.get("routes", ())) if not prefix]
    for ip in result["ips"]:
        packed, prefix = addresses.read_cidr(ip["address"])
        if conf.is_gateway and not ip.get("gateway"):
            ip["gateway"] = addresses.ip_text(addresses.plus(addresses.network(packed, prefix), 1))
        if conf.is_default_gateway and len(packed) not in routed:
            routed.append(len(packed))
            result.setdefault("routes", []).append({"dst": DEFAULT_ROUTES[len(packed)], "gw": ip["gateway"]})


def add_gateways(host, bridge, leg, conf, result, undo):
    """The gateways become addresses of the bridge, or of its leg in the pod's VLAN, and the host forwards."""
    gateways = dict.fromkeys((addresses.read_ip(ip["gateway"]), addresses.read_cidr(ip["address"])[1])
                             for ip in result["ips"])           # several addresses may share one
    bridges.ensure_addresses(host, bridge, leg, gateways, conf, undo)
    try:
        forwarding.enable(host, result)
    except CniError as e:
        raise CniError(e.code, f"failed to enable forwarding: {e.msg}", e.details) from e


def delete(req, conf):
    # The link first: an address is free to be given again only when nobody has it any more.
    steps = ipam.prepare_delete(req) if conf.layer3 else []
    found, given = remove.pod_link(req, list_addresses=conf.masquerade.wanted)
    if conf.layer3:
        steps.append((conf.masquerade.delete, req, found, given))
    every(*steps, *((guard.delete, req) for guard in guards(conf)))


def restore(req, conf):
    """Put back what is missing in the host's firewall."""
    from fastcni.kit.call import checks

    previous = checks.prev_result(req)
    steps = [(conf.masquerade.restore, req, previous)] if conf.layer3 else []
    every(*steps, *((guard.restore, req) for guard in guards(conf)))


def check(req, conf):
    from fastcni.kit.call import checks

    if conf.layer3:
        ipam.check(req)
    previous = checks.prev_result(req)
    pod = Pod(req)
    bridge = check_bridge(pod, conf, previous)
    inside = checks.inside_link(pod, checks.container_interface(req, previous))
    if inside.kind != "veth":
        raise checks.wrong(f"Error: Container interface {inside.name} not of type veth/p2p")
    host = find.link(pod.host, index=inside.peer)
    named = {item["name"] for item in previous.get("interfaces", ())}
    if host is None or host.peer != inside.index or host.master != bridge.index or host.name not in named:
        raise checks.wrong(f"CNI veth created for bridge {conf.name} was not found")
    if (host.hairpin, host.isolated) != (conf.hairpin, conf.isolated):
        raise checks.wrong(f"Bridge port {host.name} has hairpin {host.hairpin} and isolated {host.isolated}",
                           f"hairpinMode is {conf.hairpin}, portIsolation {conf.isolated}")
    checks.addresses_and_routes(pod, inside, previous)
    for guard in guards(conf):
        guard.check(req, host, inside, previous)


def check_bridge(pod, conf, previous):
    from fastcni.kit.call import checks

    entry = next((item for item in previous.get("interfaces", ()) if item["name"] == conf.name), None)
    bridge = find.link(pod.host, conf.name)
    if entry is None or bridge is None:
        raise checks.wrong(f"Interface name {conf.name} not found")
    if entry.get("sandbox"):
        raise checks.wrong(f"Interface {conf.name} has sandbox {entry['sandbox']}, but a bridge is on the host")
    if bridge.kind != "bridge":
        raise checks.wrong(f"Interface {conf.name} does not have link type of bridge")
    checks.same_mac(entry, bridge, "Bridge interface")
    if bridges.promiscuous(bridge) != conf.promisc:
        raise checks.wrong(f"Bridge interface {conf.name} has promiscuity {bridge.promiscuity}, "
                           f"promiscMode is {str(conf.promisc).lower()}")
    return bridge


def gc(req, conf):
    steps = [(ipam.gc, req), (conf.masquerade.gc, req)] if conf.layer3 else []
    every(*steps, *((guard.gc, req) for guard in guards(conf)))


def status(req, conf):
    steps = [(ipam.status, req)] if conf.layer3 else []
    every(*steps, (bridges.status, req, conf.name))
