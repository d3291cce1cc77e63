"""ovs: a veth pair whose host end is a port of an Open vSwitch bridge, in a VLAN, a trunk or the segment of a tunnel.

The plugin uses the keys, external_ids and files of ovs-cni, so each of the two plugins can delete the other's ports.
docs/plugin-ovs.md lists the differences.
"""

from __future__ import annotations

from fastcni.kit.call import ipam
from fastcni.kit.call.conf import ENDINGS
from fastcni.kit.call.pod import Pod, interface
from fastcni.kit.call.undo import every
from fastcni.kit.links import remove, veth
from fastcni.kit.ovs import addresses, cache, ovs_conf, ports
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.ovs.ovs_conf import OvsConf, PodArgs

    Keys = tuple[OvsConf, PodArgs]

CAPABILITIES, ARGS = ("mac",), ("MAC",)


def read(req: Request) -> Keys | OvsConf:
    conf = ovs_conf.read(req)
    if req.command in ENDINGS:
        return conf
    args = ovs_conf.PodArgs(req)            # also for CHECK and STATUS, so that a bad MAC is an error
    if not (conf.bridge or args.ovn_port) and req.command != "STATUS":
        raise errors.bad_config("failed to get bridge name", "set the key bridge")
    return conf, args


def add(req: Request, keys: Keys, undo: Undo) -> dict[str, Any]:
    conf, args = keys
    bridge = conf.bridge or ovs_conf.OVN_BRIDGE
    datapath = ports.find_bridge(conf.address, bridge)      # fails before ADD makes anything if the bridge is missing
    vlan = ports.vlan_of(conf, bridge, conf.address)
    pod = Pod(req)
    late = conf.layer3 and ipam.needs_link(req)             # the plugin dhcp sends packets through the port
    result = addresses.add(req, conf, undo) if conf.layer3 and not late else {}
    # The host end is a switch port and needs no addresses, so IPv6 is off.
    host, inside = veth.add(req, pod, undo, mtu=conf.mtu, mac=args.mac or veth.mac_of(result), ipv6=False)
    if datapath == ports.USERSPACE:
        addresses.complete_checksums(req, pod, inside)
    addresses.set_up(pod, inside, conf)
    undo(delete_port, req, conf)
    cache.write(req, conf, bridge)
    ports.add(req, conf, args, bridge, host.name, vlan)
    if late:
        result = addresses.add(req, conf, undo)
    if conf.layer3:
        addresses.configure_link(pod, inside, conf, result)
    result["interfaces"] = [entry | ({"mtu": conf.mtu} if conf.mtu else {})
                            for entry in (interface(host), interface(inside, req.netns))]
    if conf.dns is not None:
        result["dns"] = conf.dns
    req.mode.keep_pair(req, host, results.ips_of(result))
    return result


def delete(req: Request, conf: OvsConf) -> None:
    if (cache.read(req, conf) or {}).get("deviceID"):
        raise CniError(errors.UNSUPPORTED_FIELD, f"{req.ifname} is a virtual function that ovs-cni attached",
                       "ovs-cni's DEL gives it back")
    # Remove the port first, because ovs-vswitchd would try to use a deleted link. Then delete the link, and release the
    # link's addresses last.
    steps = ipam.prepare_delete(req) if conf.layer3 else []
    every((delete_port, req, conf), (remove.pod_link, req), *steps)


def delete_port(req: Request, conf: OvsConf) -> None:
    """Remove the pod's port and the port's cache file. A missing file shows that ADD made no port, so DEL then succeeds
    even if OVSDB does not answer."""
    known = cache.read(req, conf)
    try:
        ports.forget(req, cache.address_in(known) or conf.address)
    except CniError as e:
        if known is not None or e.code != errors.TRY_AGAIN_LATER:
            raise
        req.warn(f"{e.msg}; ADD made no port: {cache.path(conf.directory, req.container_id, req.ifname)} is missing")
    cache.delete(conf.directory, req.container_id, req.ifname)


def restore(req: Request, conf: Keys) -> None:
    """Add the pod's port again if the OVSDB database has lost the port."""
    from fastcni.kit.links import checks
    from fastcni.kit.ovs import lost

    keys, args = conf
    lost.restore(req, keys, args, keys.bridge or ovs_conf.OVN_BRIDGE, checks.prev_result(req))


def check(req: Request, keys: Keys) -> None:
    from fastcni.kit.links import checks, find

    conf, _ = keys
    if conf.layer3:
        ipam.check(req)
    previous, pod = checks.prev_result(req), Pod(req)
    inside = checks.veth_in_pod(req, pod, previous)
    host = find.link(pod.host, index=inside.peer)
    if host is None or host.peer != inside.index:
        raise checks.wrong(f"Error: Host Interface of {inside.name} not found")
    bridge = conf.bridge or ovs_conf.OVN_BRIDGE
    address = cache.address_in(cache.read(req, conf)) or conf.address       # the address that DEL would use
    ports.check(conf, address, bridge, host.name, ports.vlan_of(conf, bridge, address))
    checks.addresses_and_routes(pod, inside, previous)


def gc(req: Request, conf: OvsConf) -> None:
    from fastcni.kit.ovs import collect

    every((collect.gc, req, conf), *ipam.steps(ipam.gc, req, conf.layer3))


def status(req: Request, keys: Keys) -> None:
    conf, _ = keys
    every(*ipam.steps(ipam.status, req, conf.layer3),
          (ports.find_bridge, conf.address, conf.bridge, errors.PLUGIN_NOT_AVAILABLE, True))
