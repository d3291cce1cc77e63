"""ptp: a veth pair; the host end routes to the pod, no bridge between."""

from __future__ import annotations

from fastcni.kit.call import ipam
from fastcni.kit.call.conf import (
    ENDINGS,
    check_families,
    read_datapath,
    read_ipv6,
    read_mtu,
    read_once,
    read_own_dns,
    read_requested_mac,
)
from fastcni.kit.call.pod import Pod, interface
from fastcni.kit.call.undo import every
from fastcni.kit.firewall.masquerade.keys import Masquerade
from fastcni.kit.links import find, remove, routed, veth
from fastcni.kit.sysctls import forwarding
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.spec.config import Section

CAPABILITIES, ARGS = ("mac",), ("MAC",)


class Conf:
    """The keys of one network. For DEL and GC only masquerade and datapath are set."""

    __slots__ = ("mtu", "masquerade", "dns", "ipv6", "enable_dad", "datapath")

    mtu: int                    # 0: the kernel's default
    masquerade: Masquerade
    dns: dict[str, Any] | None  # the result's dns; None: IPAM's dns
    ipv6: bool                  # the pod's link has IPv6
    enable_dad: bool
    datapath: str               # see read_datapath()


def read(req: Request) -> Conf:
    if req.command in ENDINGS:
        return read_once(req, read_ending)
    conf = req.conf.once(read_keys)
    requested_mac(req)              # for every command, so that a bad MAC is an error
    return conf


def read_ending(keys: Section) -> Conf:
    """Return the Conf of DEL and GC."""
    conf = Conf()
    conf.masquerade = Masquerade(keys, ending=True)
    conf.datapath = read_datapath(keys)
    return conf


def read_keys(keys: Section) -> Conf:
    conf = Conf()
    ipam.read_type(keys)
    conf.mtu = read_mtu(keys)
    conf.masquerade = Masquerade(keys)
    conf.dns = read_own_dns(keys)
    conf.ipv6 = read_ipv6(keys)
    conf.enable_dad = keys.flag("enabledad")
    conf.datapath = read_datapath(keys)
    return conf


def requested_mac(req: Request) -> bytes | None:
    return read_requested_mac(req, strict=False)


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    result = ipam.add_addresses(req, undo, interface=1)
    for ip in result["ips"]:
        if not ip.get("gateway"):
            raise CniError(errors.INTERNAL, f"failed to add IP addr to veth: {ip['address']} has no gateway",
                           "ptp routes everything through the host end; ipam has to name a gateway")
    check_families(conf.ipv6, result)
    forwarding.enable(req.mode, result)
    pod = Pod(req)
    host, inside = veth.add(req, pod, undo, mtu=conf.mtu, mac=requested_mac(req), ipv6=conf.ipv6)
    routed.configure_host(pod, host, result, dad=conf.enable_dad)
    routed.configure_pod(pod, inside, result, ipv6=conf.ipv6, dad=conf.enable_dad)
    result["interfaces"] = [interface(host), interface(inside, req.netns)]
    conf.masquerade.add(req, result, undo)
    if conf.datapath:
        from fastcni.kit.datapath import redirect

        redirect.join(req, conf.datapath, pod.host, host, inside, result, undo)
    if conf.dns is not None:
        result["dns"] = conf.dns
    req.mode.keep_pair(req, host, result)
    return result


def delete(req: Request, conf: Conf) -> None:
    # Delete the link first: another pod must not get the address while this link has it.
    steps = ipam.prepare_delete(req)
    found, given = remove.pod_link(req, list_addresses=conf.masquerade.wanted or bool(conf.datapath))
    every(*steps, (leave_datapath, req, conf, found), (conf.masquerade.delete, req, found, given))


def leave_datapath(req: Request, conf: Conf, addresses: list[bytes]) -> None:
    """Delete a deleted pod's addresses from the datapath; if `addresses` is empty, those of all pods that no longer
    exist."""
    if conf.datapath:
        from fastcni.kit.datapath import redirect

        redirect.forget(req.mode.route, addresses)


def restore(req: Request, conf: Conf) -> None:
    """Restore missing rules and elements in the host's firewall."""
    from fastcni.kit.links import checks

    conf.masquerade.restore(req, checks.prev_result(req))


def check(req: Request, conf: Conf) -> None:
    from fastcni.kit.links import checks

    ipam.check(req)
    previous = checks.prev_result(req, "ptp: Required prevResult missing")
    pod = Pod(req)
    link = checks.veth_in_pod(req, pod, previous)
    host = find.link(pod.host, index=link.peer)
    if host is None or host.peer != link.index:
        raise checks.wrong(f"ptp: host end of {link.name} was not found")
    checks.addresses_and_routes(pod, link, previous)
    if conf.datapath:
        from fastcni.kit.datapath import redirect

        redirect.check(pod.host, host, previous)


def gc(req: Request, conf: Conf) -> None:
    every((ipam.gc, req), (conf.masquerade.gc, req), (leave_datapath, req, conf, []))


def status(req: Request, conf: Conf) -> None:
    ipam.status(req)
