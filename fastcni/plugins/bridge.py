"""bridge: a veth pair whose host end is a port of a Linux bridge; with isGateway the bridge is the pods' gateway.

What only some pods or commands need is imported where it is used: an import costs a one-shot ADD up to 0.1 ms.
"""

from fastcni.kit import announced, bridges, forwarding, ipam, links, vlans
from fastcni.kit.conf import check_families, read_ipv6, read_own_dns, read_requested_mac
from fastcni.kit.masquerade import Masquerade
from fastcni.kit.undo import every
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

DEFAULT_ROUTES = {4: "0.0.0.0/0", 16: "::/0"}


class Conf:
    """The keys under their own names; name is `bridge`, mac the requested MAC as bytes or None, layer3 says that
    there is IPAM."""

    __slots__ = ("name", "is_gateway", "is_default_gateway", "force_address", "mtu", "hairpin", "promisc", "isolated",
                 "vlans", "enable_dad", "leave_down", "mac", "masquerade", "spoofcheck", "dns", "layer3", "ipv6")


def read(req):
    keys, conf = req.conf, Conf()
    conf.name = keys.text("bridge") or "cni0"
    conf.is_default_gateway = keys.flag("isDefaultGateway")
    conf.is_gateway = keys.flag("isGateway") or conf.is_default_gateway
    conf.force_address = keys.flag("forceAddress")
    conf.mtu = keys.whole("mtu")
    conf.hairpin, conf.promisc = keys.flag("hairpinMode"), keys.flag("promiscMode")
    conf.isolated = keys.flag("portIsolation")
    conf.vlans = vlans.read(keys)
    conf.enable_dad = keys.flag("enabledad")
    conf.leave_down = keys.flag("disableContainerInterface")
    conf.mac = read_requested_mac(req)
    conf.masquerade = Masquerade(keys)
    conf.spoofcheck = keys.flag("macspoofchk")
    conf.dns = read_own_dns(keys)
    conf.layer3 = ipam.wanted(req)
    conf.ipv6 = read_ipv6(keys)
    bridges.check_name(conf.name)
    if conf.vlans.vlan and conf.is_gateway:
        bridges.check_name(vlans.leg_name(conf.name, conf.vlans.vlan))
    if conf.hairpin and conf.promisc:
        raise CniError(errors.INVALID_CONFIG, "cannot set hairpin mode and promiscuous mode at the same time",
                       "hairpinMode and promiscMode are both true")
    if conf.leave_down and conf.layer3:
        raise CniError(errors.INVALID_CONFIG, "cannot use IPAM when DisableContainerInterface flag is set",
                       f'disableContainerInterface is true and ipam.type is "{keys.section("ipam").text("type")}"')
    return conf


def add(req, conf, undo):
    pod = links.Pod(req)
    bridge = bridges.ensure(req.host, conf, undo)
    host, inside = links.add_veth(req, pod, undo, mtu=conf.mtu, master=bridge.index, mac=conf.mac, ipv6=conf.ipv6)
    bridges.set_port(pod.host, host, conf)
    vlans.set_port(pod.host, bridge, host, conf.vlans)
    if conf.spoofcheck:
        from fastcni.kit import spoofcheck

        spoofcheck.add(req, host, inside, undo)
    result = add_addresses(req, conf, undo, pod, inside) if conf.layer3 else {}
    if not conf.layer3 and not conf.leave_down:
        links.configure(pod, inside, {}, ipv6=conf.ipv6)
    leg = None
    if conf.is_gateway and conf.layer3:
        leg = vlans.ensure_leg(pod.host, bridge, conf.vlans, undo) if conf.vlans.vlan else None
        add_gateway(req.host, leg or bridge, conf, result, undo)
    conf.masquerade.add(req, result, undo)
    if not conf.leave_down:
        announced.port_up(pod.host, host.index, bridge.index)
    bridge = bridges.find(req.host, conf.name) or bridge        # its MAC may follow its ports'
    result["interfaces"] = [links.interface(bridge), links.interface(host), links.interface(inside, req.netns)]
    if leg:
        result["interfaces"].append(links.interface(leg))
    if conf.dns is not None:
        result["dns"] = conf.dns
    return result


def add_addresses(req, conf, undo, pod, inside):
    """Ask IPAM, complete its answer, and configure the pod's end with it."""
    result = ipam.add_addresses(req, undo, interface=2)
    check_families(conf.ipv6, result)
    complete(result, conf)
    links.configure(pod, inside, result, ipv6=conf.ipv6, dad=conf.enable_dad, arp_notify=True)
    return result


def complete(result, conf):
    """The gateways and default routes that isGateway and isDefaultGateway imply."""
    routed = {route["dst"] for route in result.get("routes", ())}     # without gw it goes to the same gateway
    for ip in result["ips"]:
        packed, prefix = addresses.read_cidr(ip["address"])
        if conf.is_gateway and not ip.get("gateway"):
            ip["gateway"] = addresses.ip_text(addresses.plus(addresses.network(packed, prefix), 1))
        default = DEFAULT_ROUTES[len(packed)]
        if conf.is_default_gateway and default not in routed:
            routed.add(default)
            result.setdefault("routes", []).append({"dst": default, "gw": ip["gateway"]})


def add_gateway(host, link, conf, result, undo):
    """The gateways become addresses of the bridge, or of its leg in the pod's VLAN, and the host forwards."""
    for ip in sorted(result["ips"], key=lambda ip: ":" in ip["address"]):
        _, prefix = addresses.read_cidr(ip["address"])
        bridges.ensure_address(host, link, addresses.read_ip(ip["gateway"]), prefix, conf.force_address, undo)
    try:
        forwarding.enable(host, result)
    except CniError as e:
        raise CniError(e.code, f"failed to enable forwarding: {e.msg}", e.details) from e


def delete(req, conf):
    # The link first: an address is free to be given again only when nobody has it any more.
    found = links.delete_inside(req, list_addresses=conf.masquerade.wanted) if req.netns else []
    steps = [(ipam.delete, req), (conf.masquerade.delete, req, found)] if conf.layer3 else []
    if conf.spoofcheck:
        from fastcni.kit import spoofcheck

        steps.append((spoofcheck.delete, req))
    every(*steps)


def check(req, conf):
    from fastcni.kit import checks

    if conf.layer3:
        ipam.check(req)
    previous = checks.prev_result(req)
    pod = links.Pod(req)
    bridge = check_bridge(pod, conf, previous)
    inside = checks.inside_link(pod, checks.container_interface(req, previous))
    if inside.kind != "veth":
        raise checks.wrong(f"Error: Container interface {inside.name} not of type veth/p2p")
    host = links.find(pod.host, index=inside.peer)
    named = {item["name"] for item in previous.get("interfaces", ())}
    if host is None or host.peer != inside.index or host.master != bridge.index or host.name not in named:
        raise checks.wrong(f"CNI veth created for bridge {conf.name} was not found")
    checks.addresses_and_routes(pod, inside, previous)


def check_bridge(pod, conf, previous):
    from fastcni.kit import checks

    entry = next((item for item in previous.get("interfaces", ()) if item["name"] == conf.name), None)
    bridge = links.find(pod.host, conf.name)
    if entry is None or bridge is None:
        raise checks.wrong(f"Interface name {conf.name} not found")
    if entry.get("sandbox"):
        raise checks.wrong(f"Interface {conf.name} has sandbox {entry['sandbox']}, but a bridge is on the host")
    if bridge.kind != "bridge":
        raise checks.wrong(f"Interface {conf.name} does not have link type of bridge")
    checks.same_mac(entry, bridge, "Bridge interface")
    if bool(bridge.promiscuity) != conf.promisc:
        raise checks.wrong(f"Bridge interface {conf.name} promiscuity is {bridge.promiscuity}, "
                           f"promiscMode is {str(conf.promisc).lower()}")
    return bridge


def gc(req, conf):
    steps = [(ipam.gc, req), (conf.masquerade.gc, req)] if conf.layer3 else []
    if conf.spoofcheck:
        from fastcni.kit import spoofcheck

        steps.append((spoofcheck.gc, req))
    every(*steps)


def status(req, conf):
    if conf.layer3:
        ipam.status(req)
