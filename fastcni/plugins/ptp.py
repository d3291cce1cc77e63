"""ptp: a veth pair; the host routes packets to the pod, without a bridge."""

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
from fastcni.kit.call.pod import Pod, PodLink, interface
from fastcni.kit.call.undo import every, steps_of
from fastcni.kit.firewall.masquerade import keys as masquerade
from fastcni.kit.links import find, ptp_routes, remove, veth
from fastcni.kit.sysctls import forwarding
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.option import Option
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.spec.config import Section

CAPABILITIES, ARGS = ("mac",), ("MAC",)


class Conf:
    """The configuration keys of one network. For DEL and GC only `masquerade`, `datapath` and `options` are set."""

    __slots__ = ("mtu", "masquerade", "dns", "ipv6", "enable_dad", "datapath", "options")

    mtu: int                    # 0: the kernel's default
    masquerade: masquerade.Masquerade
    dns: dict[str, Any] | None  # the dns of the result; None: the result has the IPAM plugin's dns
    ipv6: bool                  # whether the pod's link has IPv6
    enable_dad: bool
    datapath: str               # see read_datapath()
    options: list[Option[Conf, PodLink]]           # the optional features that the keys enable, in the order of ADD


def read(req: Request) -> Conf:
    if req.command in ENDINGS:
        return read_once(req, read_ending)
    conf = req.conf.once(read_keys)
    read_requested_mac(req, strict=False)   # CHECK and STATUS also reject a bad MAC
    return conf


def read_ending(keys: Section) -> Conf:
    """Read the keys that DEL and GC need, and return the Conf."""
    conf = Conf()
    read_options(keys, conf, ending=True)
    return conf


def read_keys(keys: Section) -> Conf:
    conf = Conf()
    ipam.read_type(keys)
    conf.mtu = read_mtu(keys)
    conf.dns = read_own_dns(keys)
    conf.ipv6 = read_ipv6(keys)
    conf.enable_dad = keys.flag("enabledad")
    read_options(keys, conf)
    return conf


def read_options(keys: Section, conf: Conf, *, ending: bool = False) -> None:
    conf.masquerade = masquerade.Masquerade(keys, ending=ending)
    conf.datapath = read_datapath(keys)
    conf.options = [masquerade] if conf.masquerade.wanted else []
    if conf.datapath:
        from fastcni.kit.datapath import redirect

        conf.options.append(redirect)


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    result = ipam.add_addresses(req, undo, interface=1)
    for ip in result["ips"]:
        if not ip.get("gateway"):
            raise CniError(errors.INTERNAL, f"failed to add IP addr to veth: {ip['address']} has no gateway",
                           "ptp routes everything through the host end; ipam has to name a gateway")
    check_families(conf.ipv6, result)
    ips = results.ips_of(result)
    forwarding.enable(req.mode, ips)
    link = PodLink(Pod(req))
    host, inside = link.host, link.inside = veth.add(req, link.pod, undo, mtu=conf.mtu, ipv6=conf.ipv6,
                                                     mac=read_requested_mac(req, strict=False))
    link.result, link.ips = result, ips
    ptp_routes.configure_host(link, dad=conf.enable_dad)
    ptp_routes.configure_pod(link, ipv6=conf.ipv6, dad=conf.enable_dad)
    for option in conf.options:
        option.add(req, conf, link, undo)
    result["interfaces"] = [interface(host), interface(inside, req.netns)]
    if conf.dns is not None:
        result["dns"] = conf.dns
    req.mode.keep_pair(req, host, ips)
    return result


def delete(req: Request, conf: Conf) -> None:
    # Delete the link first: no other pod may get the link's address while the link has it.
    steps = ipam.prepare_delete(req)
    found, given = remove.pod_link(req, list_addresses=bool(conf.options))
    every(*steps_of(reversed(conf.options), "delete", req, conf, found, given), *steps)


def restore(req: Request, conf: Conf) -> None:
    """Restore the pod's missing firewall rules and set elements on the host."""
    from fastcni.kit.links import checks

    every(*steps_of(conf.options, "restore", req, conf, checks.prev_result(req)))


def check(req: Request, conf: Conf) -> None:
    from fastcni.kit.links import checks

    ipam.check(req)
    link = PodLink(Pod(req))
    link.result = checks.prev_result(req, "ptp: Required prevResult missing")
    inside = link.inside = checks.veth_in_pod(req, link.pod, link.result)
    host = find.link(link.pod.host, index=inside.peer)
    if host is None or host.peer != inside.index:
        raise checks.wrong(f"ptp: host end of {inside.name} was not found")
    link.host = host
    checks.addresses_and_routes(link.pod, inside, link.result)
    for look, *args in steps_of(conf.options, "check", req, conf, link):
        look(*args)


def gc(req: Request, conf: Conf) -> None:
    every((ipam.gc, req), *steps_of(conf.options, "gc", req, conf))


def status(req: Request, conf: Conf) -> None:
    ipam.status(req)
