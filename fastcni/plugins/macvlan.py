"""macvlan: a link with a separate MAC on a link of the host, so that the pod is a station of that network."""

from __future__ import annotations

from errno import EINVAL

from fastcni.kernel import kinds
from fastcni.kit.call.conf import read_requested_mac
from fastcni.kit.call.pod import Pod
from fastcni.kit.links import devices
from fastcni.kit.links.master import WHY, Master, check_mtu
from fastcni.spec import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

CAPABILITIES, ARGS = ("mac",), ("MAC",)
WHY_REFUSED = {**WHY, EINVAL: "it has to be of Ethernet, and a macvlan of mode passthru has it for itself alone"}


class Conf(devices.Conf):
    """The configuration keys of macvlan, in addition to the keys of devices.Conf."""

    __slots__ = ("master", "mode", "mtu", "mac", "queue")

    master: Master
    mode: str
    mtu: int                    # 0: the master's MTU
    mac: bytes | None
    queue: int                  # bcqueuelen, 0: the kernel's default


def read(req: Request) -> Conf:
    keys, conf = req.conf, Conf(req)
    if req.command in devices.ENDINGS:
        return conf
    conf.master, conf.mtu = Master(keys), keys.integer("mtu")
    conf.mode = keys.text("mode") or "bridge"
    if conf.mode not in kinds.MACVLAN_MODES:
        raise errors.bad_config(f'unknown macvlan mode: "{conf.mode}"')
    conf.mac = read_requested_mac(req, own=keys.text("mac"))
    conf.queue = keys.integer("bcqueuelen", low=0, high=0xFFFFFFFF)
    return conf


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    pod = Pod(req)
    master = conf.master.find(req, pod)
    check_mtu(conf.mtu, master)
    link = devices.create(req, pod, undo, "macvlan", sock=conf.master.sock(pod), master=master, why=WHY_REFUSED,
                          mtu=conf.mtu, mac=conf.mac, data=kinds.macvlan(conf.mode, conf.queue))
    return devices.attach(req, conf, undo, pod, link, arp_notify=True, ndisc_notify=True)


delete = devices.delete


def check(req: Request, conf: Conf) -> None:
    from fastcni.kit.links import checks

    pod, link = devices.check(req, conf, "macvlan")
    conf.master.find(req, pod)
    checks.same("container macvlan mode", kinds.macvlan_mode(link), conf.mode)


gc = devices.gc


def status(req: Request, conf: Conf) -> None:
    conf.master.status(req)
    devices.status(req, conf, "macvlan")
