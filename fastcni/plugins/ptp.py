"""ptp: a veth pair; the host end routes to the pod, no bridge between."""

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
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
from fastcni.kit.links import configure, find, pairs, remove, veth
from fastcni.kit.links.pod import Pod, interface
from fastcni.kit.sysctls import forwarding
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

CAPABILITIES, ARGS = ("mac",), ("MAC",)


class Conf:
    """mtu (0: the kernel's), masquerade, dns (None: what IPAM says), ipv6 (is it on the link), enable_dad."""

    __slots__ = ("mtu", "masquerade", "dns", "ipv6", "enable_dad")


def read(req):
    if req.command in ENDINGS:
        return read_once(req, read_ending)
    conf = req.conf.once(read_keys)
    requested_mac(req)              # in any case, for what is bad in it
    return conf


def read_ending(keys):
    """The Conf of DEL and GC."""
    conf = Conf()
    conf.masquerade = Masquerade(keys, ending=True)
    return conf


def read_keys(keys):
    conf = Conf()
    ipam.read_type(keys)
    conf.mtu = read_mtu(keys)
    conf.masquerade = Masquerade(keys)
    conf.dns = read_own_dns(keys)
    conf.ipv6 = read_ipv6(keys)
    conf.enable_dad = keys.flag("enabledad")
    return conf


def requested_mac(req):
    return read_requested_mac(req, strict=False)


def add(req, conf, undo):
    result = ipam.add_addresses(req, undo, interface=1)
    for ip in result["ips"]:
        if not ip.get("gateway"):
            raise CniError(errors.INTERNAL, f"failed to add IP addr to veth: {ip['address']} has no gateway",
                           "ptp routes everything through the host end; ipam has to name a gateway")
    check_families(conf.ipv6, result)
    forwarding.enable(req.host, result)
    pod = Pod(req)
    host, inside = veth.add(req, pod, undo, mtu=conf.mtu, mac=requested_mac(req), ipv6=conf.ipv6)
    configure_host(pod, host, result, conf.enable_dad)
    configure.pod_link(pod, inside, result, ipv6=conf.ipv6, dad=conf.enable_dad,
                    then=lambda batch: route_through_gateway(batch, inside, result))
    result["interfaces"] = [interface(host), interface(inside, req.netns)]
    conf.masquerade.add(req, result, undo)
    if conf.dns is not None:
        result["dns"] = conf.dns
    pairs.remember(req, host, result)
    return result


def route_through_gateway(batch, inside, result):
    """Everything goes to the gateway, the own subnet too, so the kernel's on-link route makes room:

        10.9.0.1 scope link src 10.9.0.2
        10.9.0.0/24 via 10.9.0.1 src 10.9.0.2
    """
    done = set()                        # several addresses may share a subnet, or the gateway
    for ip in result["ips"]:
        packed, prefix = addresses.read_cidr(ip["address"])
        gateway = addresses.read_ip(ip["gateway"])
        network, whole = addresses.network(packed, prefix), 8 * len(packed)
        scope, own_subnet = uapi.RT_SCOPE_LINK, prefix < whole and (network, prefix) not in done
        if own_subnet:                  # for a host address the kernel has made no route
            rtnl.route(batch, network, prefix, index=inside.index, scope=scope, delete=True,
                       what=f"failed to delete route {ip['address']}")
        if gateway not in done:
            rtnl.route(batch, gateway, whole, index=inside.index, scope=scope, source=packed,
                       what=f"failed to add route {ip['gateway']}")
        if own_subnet:
            rtnl.route(batch, network, prefix, index=inside.index, gateway=gateway, source=packed,
                       what=f"failed to add route {ip['address']} via {ip['gateway']}")
        done |= {gateway, (network, prefix)}


def configure_host(pod, host, result, dad):
    """The gateways' addresses on the host end, and a route to each of the pod's."""
    batch = Batch()
    for gateway in dict.fromkeys(addresses.read_ip(ip["gateway"]) for ip in result["ips"]):
        rtnl.new_address(batch, host.index, gateway, 8 * len(gateway), nodad=not dad,
                         what=f"failed to add IP addr ({addresses.ip_text(gateway)}) to veth")
    for ip in result["ips"]:
        packed, _ = addresses.read_cidr(ip["address"])
        rtnl.route(batch, packed, 8 * len(packed), index=host.index, scope=uapi.RT_SCOPE_HOST,
                   what=f"failed to add route on host: {ip['address']}")
    wire.exchange(pod.host, batch)


def delete(req, conf):
    # The link first: an address is free to be given again only when nobody has it any more.
    steps = ipam.prepare_delete(req)
    found, given = remove.pod_link(req, list_addresses=conf.masquerade.wanted)
    every(*steps, (conf.masquerade.delete, req, found, given))


def restore(req, conf):
    """Put back what is missing in the host's firewall."""
    from fastcni.kit.call import checks

    conf.masquerade.restore(req, checks.prev_result(req))


def check(req, conf):
    from fastcni.kit.call import checks

    ipam.check(req)
    previous = checks.prev_result(req, "ptp: Required prevResult missing")
    pod = Pod(req)
    link = checks.inside_link(pod, checks.container_interface(req, previous))
    if link.kind != "veth":
        raise checks.wrong(f"Error: Container interface {link.name} not of type veth/p2p")
    host = find.link(pod.host, index=link.peer)
    if host is None or host.peer != link.index:
        raise checks.wrong(f"ptp: host end of {link.name} was not found")
    checks.addresses_and_routes(pod, link, previous)


def gc(req, conf):
    every((ipam.gc, req), (conf.masquerade.gc, req))


def status(req, conf):
    ipam.status(req)
