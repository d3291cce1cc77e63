"""bandwidth: limits the rate at which a pod receives and sends. Ingress is the traffic into the pod.

A qdisc at the host end of the pod's veth pair limits the packets to the pod. The packets from the pod are redirected to
an ifb device, whose qdisc limits these packets.
"""

from __future__ import annotations

from fastcni.kit.call import chained
from fastcni.kit.call.conf import ENDINGS
from fastcni.kit.call.pod import Pod, interface
from fastcni.kit.datapath import pins
from fastcni.kit.shaping import ifbs, limits, qdiscs
from fastcni.kit.shaping.host_end import find_host_end, warn_of_small_bursts
from fastcni.spec import version
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.shaping.limits import Limits

CAPABILITIES = ("bandwidth",)
VERSIONS = version.starting_from("0.3.0")         # results of earlier versions have no interfaces


def read(req: Request) -> Limits | None:
    """Return the Limits of the configuration; None for DEL and GC, which read no configuration."""
    return None if req.command in ENDINGS else limits.read(req.conf)


def add(req: Request, conf: Limits, undo: Undo) -> dict[str, Any]:
    result = chained.previous(req)
    if not conf:
        return result
    pod = Pod(req)
    host = find_host_end(req, pod, result)
    warn_of_small_bursts(req, conf, host)
    if pins.exist(pod.host):
        from fastcni.kit.datapath import redirect

        redirect.leave(pod.host, host, result)
    if conf.ingress:
        qdiscs.add(pod.host, host, conf.ingress, undo)
    if conf.egress:
        qdiscs.add_ingress(pod.host, host, undo)           # fails if an earlier ADD has limited the pod
        ifb = ifbs.add(req, host.mtu, undo)
        qdiscs.add(pod.host, ifb, conf.egress, undo)
        qdiscs.redirect(pod.host, host, ifb)
        result.setdefault("interfaces", []).append(interface(ifb))
    return result


def delete(req: Request, _: None) -> None:
    """Delete the pod's ifb device. The kernel deletes the qdiscs together with the pod's link."""
    ifbs.delete(req)


def check(req: Request, conf: Limits) -> None:
    from fastcni.kit.shaping import shaping_checks  # needed only by CHECK

    previous = chained.previous(req, "must be called as a chained plugin")
    if conf:
        pod = Pod(req)
        shaping_checks.check(req, pod, find_host_end(req, pod, previous), conf)


def gc(req: Request, _: None) -> None:
    ifbs.gc(req)


def status(req: Request, conf: Limits) -> None:
    """Check that the kernel has qdiscs and ifb devices. Raise CniError 50 if a feature is missing and the network
    limits every pod. Only warn if the network limits only pods that ask for limits."""
    from fastcni.kit.links import devices

    try:
        devices.need_kind(req, "ifb")
        qdiscs.status(req.mode.route, conf)
    except CniError as e:
        if conf:
            raise
        req.warn(f"bandwidth: {e}")
