"""loopback: sets `lo` up in the pod, and nothing else. CNI_IFNAME is ignored."""

from __future__ import annotations

from fastcni.kit.call.pod import Pod
from fastcni.kit.links import change, find
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.links.find import Link

MISSING = "failed to find the loopback interface"


def read(req: Request) -> dict[str, Any] | None:
    """Return prevResult, or None if it is absent; the plugin has no keys. DEL reads nothing, so that no configuration
    can make DEL fail."""
    if req.command == "DEL":
        return None
    try:
        return results.read_prev_result(req.conf, req.version)
    except CniError as e:
        raise CniError(e.code, f"failed to parse prevResult: {e.msg}", e.details) from None


def add(req: Request, previous: dict[str, Any] | None, undo: Undo) -> dict[str, Any]:
    pod = Pod(req)
    lo = find.pod_link(pod, "lo", MISSING)
    if not lo.up:
        undo(set_down, pod, lo)
        change.link(pod.inside, lo.index, up=True, what="set lo up")
    found = find.addresses(pod.inside, lo.index)
    for item in found:
        if not addresses.is_loopback(item.packed):
            raise CniError(errors.INTERNAL, "loopback interface found with non-loopback address "
                           f'"{addresses.ip_text(item.packed)}"')
    if previous:
        return previous
    return {"interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": req.netns}],
            "ips": [{"address": addresses.cidr_text(item.packed, item.prefix), "interface": 0} for item in found]}


def delete(req: Request, _: None) -> None:
    if req.netns_gone():
        return
    pod = Pod(req)
    set_down(pod, find.pod_link(pod, "lo", MISSING))


def set_down(pod: Pod, lo: Link) -> None:
    change.link(pod.inside, lo.index, up=False, what="set lo down")


def check(req: Request, _: dict[str, Any] | None) -> None:
    if not find.pod_link(Pod(req), "lo", MISSING).up:
        raise CniError(errors.INTERNAL, "loopback interface is down")
