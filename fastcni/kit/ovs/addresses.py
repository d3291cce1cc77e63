"""Configure a pod's addresses, and derive its MAC from them."""

from __future__ import annotations

from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.call import ipam
from fastcni.kit.call.conf import check_families
from fastcni.kit.links import configure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni._netlink import Batch
    from fastcni.kernel.rtnl import Link
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.ovs.ovs_conf import OvsConf



def add(req: Request, conf: OvsConf, undo: Undo) -> dict[str, Any]:
    """Call IPAM and return its result, whose addresses name the second interface of the plugin's result."""
    result = ipam.add_addresses(req, undo, interface=1)
    check_families(conf.ipv6, result)
    return result


def complete_checksums(req: Request, pod: Pod, inside: Link) -> None:
    """Disable checksum offloading on the pod's link. The userspace datapath forwards packets of a veth unchanged, so
    with offloading UDP and TCP packets would have wrong checksums."""
    from fastcni.kernel.devices import offloads

    with pod.enter():
        sock = wire.open_socket(uapi.NETLINK_GENERIC)
    try:
        if not offloads.complete_checksums(sock, inside.index):
            req.warn(f"this kernel cannot switch off {offloads.CHECKSUM} by netlink: `ethtool -K {inside.name} tx off` "
                     "in the pod, or UDP and TCP do not pass the userspace datapath")
    finally:
        sock.close()


def set_up(pod: Pod, inside: Link, conf: OvsConf) -> None:
    """Set the pod's link up, without addresses. ovs-vswitchd reports the port up only if the pod's link is up."""
    configure.pod_link(pod, inside, {}, ipv6=conf.ipv6, dad=conf.enable_dad if conf.layer3 else None)


def configure_link(pod: Pod, inside: Link, conf: OvsConf, result: dict[str, Any]) -> None:
    """Add addresses and routes to the pod's link, which is already up, and announce the addresses.

    With arp_notify the kernel announces addresses when a link comes up or when its MAC is set. This link is already up,
    so set its MAC again, to the same value.
    """
    def announce(batch: Batch) -> None:
        rtnl.set_link(batch, inside.index, address=inside.address, what=f'failed to announce "{inside.name}"')

    configure.pod_link(pod, inside, result, ipv6=conf.ipv6, dad=conf.enable_dad, arp_notify=True,
                       ndisc_notify=conf.ipv6, then=announce)
