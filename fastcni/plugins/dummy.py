"""dummy: a link that leads nowhere, for addresses that a pod is to have all the same."""

from fastcni.kit.call.conf import read_requested_mac
from fastcni.kit.links import devices
from fastcni.kit.links.pod import Pod
from fastcni.spec import errors
from fastcni.spec.errors import CniError

CAPABILITIES, ARGS = ("mac",), ("MAC",)


class Conf(devices.Conf):
    """mac (the requested one as bytes, or None)."""

    __slots__ = ("mac",)


def read(req):
    conf = Conf(req)
    if req.command in devices.ENDINGS:
        return conf
    if not conf.layer3:
        raise CniError(errors.INVALID_CONFIG, "dummy interface requires an IPAM configuration")
    conf.mac, conf.dns = read_requested_mac(req, strict=False), None
    return conf


def add(req, conf, undo):
    pod = Pod(req)
    return devices.attach(req, conf, undo, pod, devices.create(req, pod, undo, "dummy", mac=conf.mac))


delete = devices.delete


def check(req, conf):
    devices.check(req, conf, "dummy")


gc = devices.gc


def status(req, conf):
    devices.status(req, conf, "dummy")
