"""host-device: moves a link of the host, such as a network card, into the pod, and back when the pod ends.

A device with a driver of DPDK has no link and is not moved: the pod only gets addresses.
"""

from __future__ import annotations

from fastcni.kit.call import ipam
from fastcni.kit.call.conf import read_mac, read_requested_mac
from fastcni.kit.call.pod import Pod
from fastcni.kit.call.undo import every
from fastcni.kit.links import attribute_backup, change, devices, moving
from fastcni.kit.links.attribute_backup import Backup
from fastcni.kit.links.host_devices import Selector, is_dpdk
from fastcni.spec import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

CAPABILITIES, ARGS = ("deviceID", "mac"), ("MAC",)
DIRECTORY = "/run/cni/host-device"


class Conf(devices.Conf):
    """The configuration keys of host-device, in addition to the keys of devices.Conf."""

    __slots__ = ("data_dir", "selector", "mac")

    data_dir: str               # the directory of the files that store devices' original MACs
    selector: Selector
    mac: bytes | None           # the requested MAC


def read(req: Request) -> Conf:
    conf = Conf(req)
    conf.data_dir = attribute_backup.read_directory(req.conf, DIRECTORY)
    if req.command in devices.ENDINGS:
        return conf
    conf.selector, conf.mac = Selector(req.conf), read_requested_mac(req, strict=False)
    if not conf.selector.given and req.command != "STATUS":         # STATUS has no pod, so it may lack deviceID
        raise errors.bad_config('specify either "device", "hwaddr", "kernelpath" or "pciBusID"')
    if not conf.layer3:
        conf.dns = None
    return conf


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    pod = Pod(req)
    directory = conf.selector.on_bus()
    if is_dpdk(directory):
        if conf.mac:
            req.warn(f"the MAC of {directory} is not set: it has a driver of DPDK")
        return devices.complete(conf, devices.addresses(req, conf, undo), {"name": req.ifname, "sandbox": req.netns})
    link, name = conf.selector.find(pod.host, directory)
    # Allocate addresses first, so that the device stays unchanged if IPAM has no free address.
    late = conf.layer3 and ipam.needs_link(req)
    result = {} if late else devices.addresses(req, conf, undo)
    link = moving.move_into_pod(req, pod, undo, link, name)
    if conf.mac not in (None, link.address):
        backup = Backup(req, conf.data_dir)
        undo(backup.remove)
        backup.write({"mac": link.mac})
        change.link(pod.inside, link.index, address=conf.mac, what=f'failed to set the MAC of "{link.name}"')
        link.address = conf.mac
    if late:
        result = devices.addresses(req, conf, undo)
    return devices.set_up(req, conf, pod, link, result)


def delete(req: Request, conf: Conf) -> None:
    """Move the device back, then release its addresses: another pod must not get them while the device has them. The
    file with the device's original MAC must exist until the device has moved."""
    steps = ipam.prepare_delete(req) if conf.layer3 else []
    backup = Backup(req, conf.data_dir)
    mac = backup.read().get("mac")
    moving.move_back(req, read_mac(str(mac)) if mac else None)
    every((backup.remove,), *steps)


def check(req: Request, conf: Conf) -> None:
    from fastcni.kit.links import checks

    if is_dpdk(conf.selector.on_bus()):
        every(*ipam.steps(ipam.check, req, conf.layer3))
        checks.prev_result(req)
        return
    _, link = devices.check(req, conf)
    if not moving.name_on_host(link):
        raise checks.wrong(f'failed to find original ifname for "{link.name}" (alias is not set)')


def gc(req: Request, conf: Conf) -> None:
    every((devices.gc, req, conf), (attribute_backup.gc, req, conf.data_dir))


def status(req: Request, conf: Conf) -> None:
    conf.selector.status()
    every(*ipam.steps(ipam.status, req, conf.layer3))
