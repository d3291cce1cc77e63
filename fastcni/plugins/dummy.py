"""dummy: a link that drops every packet, for addresses that only the pod itself uses."""

from __future__ import annotations

from fastcni.kit.call.conf import read_requested_mac
from fastcni.kit.call.pod import Pod
from fastcni.kit.links import devices
from fastcni.spec import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

CAPABILITIES, ARGS = ("mac",), ("MAC",)


class Conf(devices.Conf):
    """The configuration keys of dummy, in addition to the keys of devices.Conf."""

    __slots__ = ("mac",)

    mac: bytes | None           # the requested MAC


def read(req: Request) -> Conf:
    conf = Conf(req)
    if req.command in devices.ENDINGS:
        return conf
    if not conf.layer3:
        raise errors.bad_config("dummy interface requires an IPAM configuration")
    conf.mac, conf.dns = read_requested_mac(req, strict=False), None
    return conf


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    pod = Pod(req)
    return devices.attach(req, conf, undo, pod, devices.create(req, pod, undo, "dummy", mac=conf.mac))


delete = devices.delete


def check(req: Request, conf: Conf) -> None:
    devices.check(req, conf, "dummy")


gc = devices.gc


def status(req: Request, conf: Conf) -> None:
    devices.status(req, conf, "dummy")
