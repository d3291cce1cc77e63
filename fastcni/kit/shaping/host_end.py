"""Find the host end of the pod's veth pair, whose traffic the plugin bandwidth limits."""

from __future__ import annotations

from fastcni.kit.links import find
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kernel.rtnl import Link
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.request import Request
    from fastcni.kit.shaping.limits import Limits

ETH_HLEN = 14                   # linux/if_ether.h: bytes of the Ethernet header, which a qdisc counts, too


def find_host_end(req: Request, pod: Pod, result: dict[str, Any]) -> Link:
    """Return the peer of CNI_IFNAME. Raises CniError 999 if CNI_IFNAME has no peer on the host, or if the result does
    not list the peer."""
    if not result.get("interfaces"):
        raise CniError(errors.INTERNAL, "no interfaces provided")
    inside = find.link(pod.inside, req.ifname)
    if inside is None or inside.kind != "veth" or not inside.peer:
        why = f"it is of kind {inside.kind or 'physical'}" if inside else "it is not in the pod"
        raise CniError(errors.INTERNAL, f"container interface {req.ifname} has no veth peer",
                       f"{why}; bandwidth can shape a veth pair, as bridge and ptp make it")
    host = find.link(pod.host, index=inside.peer)
    if host is None or host.peer != inside.index:
        raise CniError(errors.INTERNAL, f"veth peer with index {inside.peer} is not in host ns")
    if not any(item["name"] == host.name and not item.get("sandbox") for item in result["interfaces"]):
        raise CniError(errors.INTERNAL, "no veth peer of container interface found in host ns")
    return host


def warn_of_small_bursts(req: Request, limits: Limits, host: Link) -> None:
    """Warn if a burst is smaller than the link's largest packet, because the kernel drops larger packets than the
    burst."""
    for direction, limit in (("ingress", limits.ingress), ("egress", limits.egress)):
        packet = host.mtu + ETH_HLEN
        if limit and not limit.subnets and limit.burst < packet:
            req.warn(f"bandwidth: {direction}Burst is {8 * limit.burst} bit: of {host.name}'s packets of up to "
                     f"{8 * packet} bit, longer ones are dropped")
