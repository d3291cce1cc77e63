"""Implement the common part of macvlan, ipvlan, vlan, host-device, dummy and tap: plugins that give the pod one link
and leave nothing on the host."""

from __future__ import annotations

from errno import EOPNOTSUPP

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, wire
from fastcni.kit.call import ipam
from fastcni.kit.call.conf import ENDINGS, check_families, keys_of, read_ipv6, read_own_dns
from fastcni.kit.call.pod import Pod, interface
from fastcni.kit.call.undo import every
from fastcni.kit.links import change, configure, find, remove
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

    Result = dict[str, Any]             # ADD's result in the 1.1.0 shape


class Conf:
    """The keys that macvlan, ipvlan, vlan, host-device, dummy and tap have in common. DEL and GC read only layer3."""

    __slots__ = ("layer3", "ipv6", "enable_dad", "dns")

    layer3: bool                        # whether the configuration names an IPAM plugin
    ipv6: bool                          # whether the link has IPv6
    enable_dad: bool
    dns: dict[str, Any] | None          # the configuration's dns; None: the result keeps IPAM's dns

    def __init__(self, req: Request) -> None:
        self.layer3 = bool(ipam.read_type(keys_of(req)))
        if req.command in ENDINGS:
            return
        self.ipv6, self.enable_dad = read_ipv6(req.conf), req.conf.flag("enabledad")
        self.dns = read_own_dns(req.conf) or {}


# -- ADD ----------------------------------------------------------------------------------------------------

def create(req: Request, pod: Pod, undo: Undo, kind: str, *, sock: Socket | None = None, master: Link | None = None,
           why: dict[int, str] | None = None, mtu: int = 0, mac: bytes | None = None,
           data: Iterable[tuple[int, bytes]] = ()) -> Link:
    """Make the link CNI_IFNAME of `kind` in the pod, and return the link, which is down.

    master  the parent link, in the namespace of `sock`
    why     {errno: text}: the details of the CniError for a kernel error
    data    the attributes of the kind, from kernel.kinds

    After a kernel error, raises CniError if a master is given, otherwise NetlinkError. The function makes the link with
    a temporary name and then renames the link, because the kernel rejects a name of a link in the master's namespace.
    """
    name = remove.unfinished(req.ifname)
    batch = rtnl.new_link(Batch(), name, kind, pod.netns_fd, parent=master.index if master else 0, mtu=mtu,
                          address=mac, data=data, what=f"failed to create {kind}")
    try:
        with undo.request(change.delete_by_name, pod.inside, name):
            wire.exchange(sock or pod.inside, batch)
    except wire.NetlinkError as e:
        if master is None:
            raise
        details = [f'the master is "{master.name}"', *([why[e.errno]] if why and e.errno in why else [])]
        raise CniError(errors.INTERNAL, str(e), "; ".join(details)) from e
    return rename(req, pod, undo, find.new_link(pod.inside, name), kind)


def rename(req: Request, pod: Pod, undo: Undo, link: Link, kind: str) -> Link:
    """Rename a new link of the pod to CNI_IFNAME. The rollback deletes the link, even if its name has changed."""
    undo(change.delete_by_index, pod.inside, link.index)
    change.link(pod.inside, link.index, name=req.ifname, what=f'failed to rename {kind} to "{req.ifname}"')
    link.name = req.ifname
    return link


def attach(req: Request, conf: Conf, undo: Undo, pod: Pod, link: Link, *, given: Result | None = None,
           arp_notify: bool = False, ndisc_notify: bool = False) -> Result:
    """Finish ADD: get addresses from IPAM, set the link up, and return the result. See addresses() and set_up()."""
    result = addresses(req, conf, undo, given)
    return set_up(req, conf, pod, link, result, arp_notify=arp_notify, ndisc_notify=ndisc_notify)


def addresses(req: Request, conf: Conf, undo: Undo, given: Result | None = None) -> Result:
    """Return the result of IPAM. Without IPAM, return the addresses and routes of the result `given`; {} without
    `given`."""
    if not conf.layer3 and not given:
        return {}
    result = ipam.add_addresses(req, undo, interface=0) if conf.layer3 else of_interface_0(given or {})
    check_families(conf.ipv6, result)
    return result


def set_up(req: Request, conf: Conf, pod: Pod, link: Link, result: Result, *, arp_notify: bool = False,
           ndisc_notify: bool = False) -> Result:
    """Set the link up with the addresses and routes of `result`, and return the complete result."""
    if result:
        configure.pod_link(pod, link, result, ipv6=conf.ipv6, dad=conf.enable_dad, arp_notify=arp_notify,
                           ndisc_notify=ndisc_notify)
    else:
        configure.pod_link(pod, link, result, ipv6=conf.ipv6)
    return complete(conf, result, interface(link, req.netns))


def complete(conf: Conf, result: Result, entry: dict[str, str]) -> Result:
    """Return the result with `entry` as the only entry of interfaces, and with the configuration's dns."""
    result["interfaces"] = [entry]
    if conf.dns is not None:
        result["dns"] = conf.dns
    return result


def of_interface_0(given: Result) -> Result:
    """Return the addresses and routes of a result. The addresses name interface 0, the result's only interface."""
    return {"ips": [{**ip, "interface": 0} for ip in given["ips"]], "routes": given.get("routes", [])}


# -- DEL, CHECK, GC, STATUS ---------------------------------------------------------------------------------

def delete(req: Request, conf: Conf) -> None:
    # Delete the link first: another pod must not get the address while this link has it.
    steps = ipam.prepare_delete(req) if conf.layer3 else []
    every((remove.pod_link, req), *steps)


def check(req: Request, conf: Conf, kind: str = "") -> tuple[Pod, Link]:
    """Run CHECK of IPAM. Check that the pod's link is of `kind`, is up, and has the addresses and routes of prevResult.
    Raises CniError."""
    from fastcni.kit.links import checks

    if conf.layer3:
        ipam.check(req)
    previous = checks.prev_result(req)
    pod = Pod(req)
    link = checks.link_in_pod(req, pod, previous)
    if kind and link.kind != kind:
        raise checks.wrong(f"Error: Container interface {link.name} not of type {kind}")
    # First report that the link is down: the kernel removes the routes of such a link.
    if conf.layer3 and not link.up:
        raise checks.wrong(f"Interface {link.name} is down")
    checks.addresses_and_routes(pod, link, previous)
    return pod, link


def gc(req: Request, conf: Conf) -> None:
    every(*ipam.steps(ipam.gc, req, conf.layer3))


def status(req: Request, conf: Conf, kind: str) -> None:
    need_kind(req, kind)
    every(*ipam.steps(ipam.status, req, conf.layer3))


def need_kind(req: Request, kind: str) -> None:
    """Raise CniError 50 for STATUS if this kernel makes no links of that kind."""
    if not has_kind(req.mode.route, kind):
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"this kernel has no {kind} links",
                       f"the kernel found no module rtnl-link-{kind}")


def has_kind(sock: Socket, kind: str) -> bool:
    """Return whether this kernel makes links of that kind. The kernel loads the module if needed."""
    _, (refused,) = wire.attempt(sock, rtnl.ask_for_kind(Batch(), kind))
    return refused.errno != EOPNOTSUPP
