"""vlan: a link in the pod for one VLAN (802.1Q) of a link of the host."""

from __future__ import annotations

from errno import EEXIST

from fastcni.kernel import kinds
from fastcni.kit.call.conf import MAX_VID, read_requested_mac
from fastcni.kit.call.pod import Pod
from fastcni.kit.links import devices
from fastcni.kit.links.master import Master, check_mtu
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

CAPABILITIES, ARGS = ("mac",), ("MAC",)


class Conf(devices.Conf):
    """The configuration keys of vlan, in addition to the keys of devices.Conf."""

    __slots__ = ("master", "vid", "mtu", "mac")

    master: Master
    vid: int                    # the key vlanId
    mtu: int                    # 0: the master's MTU
    mac: bytes | None           # the requested MAC


def read(req: Request) -> Conf:
    keys, conf = req.conf, Conf(req)
    if req.command in devices.ENDINGS:
        return conf
    conf.master, conf.vid, conf.mtu = Master(keys), keys.integer("vlanId"), keys.integer("mtu")
    if not conf.master.name:
        raise errors.bad_config('"master" field is required. It specifies the host interface name to '
                                "create the VLAN for")
    if not 0 <= conf.vid <= MAX_VID:
        raise errors.bad_config(f"invalid VLAN ID {conf.vid} (must be between 0 and {MAX_VID} inclusive)")
    if not conf.layer3:
        raise errors.bad_config("no plugin name provided", "vlan needs ipam.type")
    conf.mac = read_requested_mac(req, strict=False)
    return conf


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    pod = Pod(req)
    master = conf.master.find(req, pod)
    check_mtu(conf.mtu, master)
    if not master.up:
        raise CniError(errors.TRY_AGAIN_LATER, f'master "{master.name}" is down',
                       "a link of a VLAN can be up only while its master is up")
    taken = f"VLAN {conf.vid} of this master is taken, by another pod or by the host (ip -d link show type vlan)"
    link = devices.create(req, pod, undo, "vlan", sock=conf.master.sock(pod), master=master, why={EEXIST: taken},
                          mtu=conf.mtu, mac=conf.mac, data=kinds.vlan(conf.vid))
    return devices.attach(req, conf, undo, pod, link)


delete = devices.delete


def check(req: Request, conf: Conf) -> None:
    from fastcni.kit.links import checks

    pod, link = devices.check(req, conf, "vlan")
    conf.master.find(req, pod)
    checks.same("container VLAN ID", kinds.vlan_id(link), conf.vid)
    if conf.mtu:
        checks.same("container MTU", link.mtu, conf.mtu)


gc = devices.gc


def status(req: Request, conf: Conf) -> None:
    conf.master.status(req)
    devices.status(req, conf, "vlan")
