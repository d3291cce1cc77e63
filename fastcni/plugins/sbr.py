"""sbr: source-based routing: packets that the pod sends from an address of its link leave by that link.

For each address of the link, a rule selects a routing table of its own. The link's routes move from the main table to
these tables.
"""

from __future__ import annotations

from fastcni.kernel import netns
from fastcni.kit.call import chained
from fastcni.kit.call.conf import ENDINGS, keys_of
from fastcni.kit.call.pod import Pod
from fastcni.kit.links import find, source_routing
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.links.find import Link


class Conf:
    """The configuration keys of one network. For DEL and GC only `table` is set."""

    __slots__ = ("table", "gateways", "hints")

    table: int                          # the table's number; 0: choose free tables
    gateways: dict[int, bytes]          # {4 or 16: packed gateway}, which replace the gateways of prevResult
    hints: bool                         # the key addSourceHints


def read(req: Request) -> Conf:
    keys, conf = keys_of(req), Conf()
    conf.table = keys.integer("table", low=1, high=0xFFFFFFFF)
    if req.command in ENDINGS:
        return conf
    conf.gateways = source_routing.read_gateways(keys.texts("gateways"))
    conf.hints = keys.flag("addSourceHints")
    return conf


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    previous, ips = pod_addresses(req)
    pod = Pod(req)
    with netns.locked(pod.netns_fd, req.warn):
        if conf.table:                  # with the key `table`, another plugin makes the routes in that table
            for packed, _, _ in ips:
                source_routing.add_rule(pod, undo, packed, conf.table)
        else:
            source_routing.move_routes(pod, undo, pod_link(req, pod), ips, conf.gateways, hints=conf.hints,
                                       warn=req.warn)
    return previous


def pod_addresses(req: Request) -> tuple[dict[str, Any], list[Any]]:
    """Return (prevResult, the addresses of CNI_IFNAME in prevResult). Raises CniError 7 if CNI_IFNAME has no
    address."""
    previous = chained.previous(req, "This plugin must be called as chained plugin")
    found = source_routing.addresses_of(previous, req.ifname)
    if not found:
        raise errors.bad_config(f"No IP addresses supplied on interface: {req.ifname}")
    return previous, found


def pod_link(req: Request, pod: Pod) -> Link:
    return find.pod_link(pod, req.ifname, f"Cannot find network interface {req.ifname}")


def delete(req: Request, conf: Conf) -> None:
    if req.netns_gone():
        return
    pod = Pod(req)
    with netns.locked(pod.netns_fd, req.warn):
        source_routing.delete(pod, req.ifname, earlier_addresses(req), conf.table)


def earlier_addresses(req: Request) -> set[bytes]:
    """Return the addresses in prevResult; an empty set without prevResult, which a DEL may lack."""
    try:
        return {packed for packed, _, _ in pod_addresses(req)[1]}
    except CniError:
        return set()


def check(req: Request, conf: Conf) -> None:
    _, ips = pod_addresses(req)
    pod = Pod(req)
    source_routing.check(pod, pod_link(req, pod), ips, conf.gateways, conf.table)


def status(req: Request, _: Conf) -> None:
    source_routing.need_rules(req.mode.route)
