"""tap: a TAP device in the pod, for the pod's virtual machine, VPN or DPDK program."""

from __future__ import annotations

from fastcni.kernel import kinds
from fastcni.kit.call import ipam
from fastcni.kit.call.conf import read_requested_mac
from fastcni.kit.call.pod import Pod
from fastcni.kit.links import devices, find, taps
from fastcni.spec import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.links.find import Link

CAPABILITIES, ARGS = ("mac",), ("MAC",)


class Conf(devices.Conf):
    """The configuration keys of tap, in addition to the keys of devices.Conf."""

    __slots__ = ("mtu", "mac", "multi_queue", "owner", "group", "context", "bridge")

    mtu: int                    # 0: the kernel's default
    mac: bytes | None
    multi_queue: bool
    owner: int | None           # a user id
    group: int | None           # a group id
    context: str                # the key selinuxContext, "" if absent
    bridge: str                 # the name of a bridge inside the pod, "" if absent


def read(req: Request) -> Conf:
    keys, conf = req.conf, Conf(req)
    if req.command in devices.ENDINGS:
        return conf
    conf.mtu, conf.mac = keys.integer("mtu", low=0, high=0xFFFFFFFF), read_requested_mac(req, own=keys.text("mac"))
    conf.multi_queue = keys.flag("multiQueue")
    conf.owner, conf.group = (keys.integer(key, None, low=0, high=taps.MAX_ID) for key in ("owner", "group"))
    conf.context, conf.bridge = keys.text("selinuxContext"), keys.text("bridge")
    return conf


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    pod = Pod(req)
    link = taps.create(req, pod, undo, mtu=conf.mtu, mac=conf.mac, bridge=find_bridge(pod, conf),
                       multi_queue=conf.multi_queue, owner=conf.owner, group=conf.group, context=conf.context)
    return devices.attach(req, conf, undo, pod, link, arp_notify=True)


def find_bridge(pod: Pod, conf: Conf) -> Link | None:
    """Return the configured bridge inside the pod; None if the key `bridge` is absent. Raises CniError 7 if the pod has
    no such bridge."""
    if not conf.bridge:
        return None
    bridge = find.link(pod.inside, conf.bridge)
    if bridge is None:
        raise errors.bad_config(f"failed to get bridge {conf.bridge}: Link not found",
                                "the bridge must exist in the pod's namespace")
    return bridge


delete = devices.delete


def check(req: Request, conf: Conf) -> None:
    from fastcni.kit.links import checks

    pod, link = devices.check(req, conf, "tun")
    wanted = {"type": "tap", "multiQueue": conf.multi_queue, "owner": conf.owner, "group": conf.group}
    for key, found in kinds.tun(link).items():
        if wanted[key] is not None:             # a program in the pod may change a value that no key sets
            checks.same(f"container tap {key}", found, wanted[key])
    if conf.bridge:
        master = find.link(pod.inside, index=link.master) if link.master else None
        checks.same("container tap bridge", master.name if master else None, conf.bridge)


gc = devices.gc


def status(req: Request, conf: Conf) -> None:
    taps.check_driver()
    if conf.layer3:
        ipam.status(req)
