"""ipvlan: a link on a link of the host, with the same MAC; the kernel finds the pod by IP address."""

from __future__ import annotations

from fastcni.kernel import kinds
from fastcni.kit.call.pod import Pod
from fastcni.kit.links import devices
from fastcni.kit.links.master import WHY, Master
from fastcni.spec import errors
from fastcni.spec import result as results

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo


class Conf(devices.Conf):
    """The configuration keys of ipvlan, in addition to the keys of devices.Conf."""

    __slots__ = ("master", "mode", "mtu", "previous")

    master: Master
    mode: str
    mtu: int                            # 0: the master's MTU
    previous: dict[str, Any] | None     # prevResult


def read(req: Request) -> Conf:
    keys, conf = req.conf, Conf(req)
    if req.command in devices.ENDINGS:
        return conf
    conf.master, conf.mtu = Master(keys), keys.integer("mtu", high=0xFFFFFFFF)
    conf.mode = keys.text("mode") or "l2"
    if conf.mode not in kinds.IPVLAN_MODES:
        raise errors.bad_config(f'unknown ipvlan mode: "{conf.mode}"', f"there are {', '.join(kinds.IPVLAN_MODES)}")
    conf.previous = results.read_prev_result(keys, req.version)
    if req.command == "ADD":
        read_previous(conf)
    return conf


def read_previous(conf: Conf) -> None:
    """Fill missing keys of `conf` from prevResult: the only interface of prevResult becomes the master, and its
    addresses become the pod's addresses.

    Raises CniError 7 if a value is missing in the keys and in prevResult.
    """
    if conf.previous and not conf.master.name:
        names = [item["name"] for item in conf.previous.get("interfaces", ())]
        if len(names) != 1 or not names[0]:
            raise errors.bad_config("chained master failure. PrevResult lacks a single named interface",
                                    'name a link with the key "master"')
        conf.master.name = names[0]
    if not conf.layer3 and not (conf.previous or {}).get("ips"):
        raise errors.bad_config("no plugin name provided", "ipvlan needs ipam.type, or addresses of a plugin before it")


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    pod = Pod(req)
    master = conf.master.find(req, pod)
    link = devices.create(req, pod, undo, "ipvlan", sock=conf.master.sock(pod), master=master, why=WHY, mtu=conf.mtu,
                          data=kinds.ipvlan(conf.mode))
    return devices.attach(req, conf, undo, pod, link, given=conf.previous, arp_notify=True, ndisc_notify=True)


delete = devices.delete


def check(req: Request, conf: Conf) -> None:
    from fastcni.kit.links import checks

    pod, link = devices.check(req, conf, "ipvlan")
    # without the key `master`, ADD used the link of the default route, which may differ now
    if conf.master.name:
        conf.master.find(req, pod)
    checks.same("Container IPVlan mode", kinds.ipvlan_mode(link), conf.mode)


gc = devices.gc


def status(req: Request, conf: Conf) -> None:
    # without the key `master`, ADD may take the master from prevResult, which STATUS lacks
    if conf.master.name:
        conf.master.status(req)
    devices.status(req, conf, "ipvlan")
