"""host-device: a link of the host moves into the pod, and back when the pod ends: a network card, a virtual function.

A device with a driver of DPDK is no link, and stays where it is: the pod is given addresses alone.
"""

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, wire
from fastcni.kit.call import ipam
from fastcni.kit.call.conf import read_mac, read_requested_mac
from fastcni.kit.call.undo import every
from fastcni.kit.links import attribute_backup, devices, moving
from fastcni.kit.links.attribute_backup import Backup
from fastcni.kit.links.host_devices import Selector, is_dpdk
from fastcni.kit.links.pod import Pod
from fastcni.spec import errors
from fastcni.spec.errors import CniError

CAPABILITIES, ARGS = ("deviceID", "mac"), ("MAC",)
FOLDER = "/run/cni/host-device"


class Conf(devices.Conf):
    """data_dir (where a device's own MAC is kept), selector, mac (the requested one as bytes, or None)."""

    __slots__ = ("data_dir", "selector", "mac")


def read(req):
    conf = Conf(req)
    conf.data_dir = attribute_backup.read_folder(req.conf, FOLDER)
    if req.command in devices.ENDINGS:
        return conf
    conf.selector, conf.mac = Selector(req.conf), read_requested_mac(req, strict=False)
    if not conf.selector.given and req.command != "STATUS":         # which may not know of a pod's deviceID
        raise CniError(errors.INVALID_CONFIG, 'specify either "device", "hwaddr", "kernelpath" or "pciBusID"')
    if not conf.layer3:
        conf.dns = None
    return conf


def add(req, conf, undo):
    pod = Pod(req)
    folder = conf.selector.on_bus()
    if is_dpdk(folder):
        if conf.mac:
            req.warn(f"the MAC of {folder} is not set: it has a driver of DPDK")
        return devices.whole(conf, devices.addresses(req, conf, undo), {"name": req.ifname, "sandbox": req.netns})
    link, name = conf.selector.find(pod.host, folder)
    # The addresses first: without them the device is not touched, and keeps its own.
    result = devices.addresses(req, conf, undo)
    link = moving.lend(req, pod, undo, link, name)
    if conf.mac not in (None, link.address):
        backup = Backup(req, conf.data_dir)
        undo(backup.remove)
        backup.write({"mac": link.mac})
        wire.exchange(pod.inside, rtnl.set_link(Batch(), link.index, address=conf.mac,
                                                what=f'failed to set the MAC of "{link.name}"'))
        link.address = conf.mac
    return devices.bring_up(req, conf, pod, link, result)


def delete(req, conf):
    """In this order: what the pod has is not free, and the MAC is known until the device is back with it."""
    steps = devices.prepare_ipam_delete(req, conf)
    backup = Backup(req, conf.data_dir)
    mac = backup.read().get("mac")
    moving.give_back(req, mac and read_mac(mac))
    every((backup.remove,), *steps)


def check(req, conf):
    from fastcni.kit.call import checks

    if is_dpdk(conf.selector.on_bus()):
        every(*devices.ipam_step(ipam.check, req, conf))
        checks.prev_result(req)
        return
    _, link = devices.check(req, conf)
    if not moving.name_on_host(link):
        raise checks.wrong(f'failed to find original ifname for "{link.name}" (alias is not set)')


def gc(req, conf):
    every((devices.gc, req, conf), (attribute_backup.gc, req, conf.data_dir))


def status(req, conf):
    conf.selector.status()
    every(*devices.ipam_step(ipam.status, req, conf))
