"""tap: a TAP device in the pod, for a program there that is a network of its own: a virtual machine, a VPN, DPDK."""

from errno import EBUSY, ENODEV, ENOENT, ENXIO
from posix import close

from fastcni._netlink import Batch
from fastcni.kernel import kinds, rtnl, tun, wire
from fastcni.kit.call import ipam
from fastcni.kit.call.conf import read_requested_mac
from fastcni.kit.links import change, devices, find
from fastcni.kit.links.pod import Pod
from fastcni.spec import errors
from fastcni.spec.errors import CniError

CAPABILITIES, ARGS = ("mac",), ("MAC",)
NO_ID = 0xFFFFFFFF              # -1: no user and no group has it
NO_TUN = f"is {tun.PATH} here, and the module tun in the kernel? modprobe tun; a container needs the device given to it"
WHY = {ENOENT: NO_TUN, ENODEV: NO_TUN, ENXIO: NO_TUN,
       EBUSY: "the pod has an interface of that name; was it added before?"}


class Conf(devices.Conf):
    """mtu (0: the kernel's), mac (bytes or None), multi_queue, owner and group (ids or None), context (selinuxContext),
    bridge (its name inside the pod, or "")."""

    __slots__ = ("mtu", "mac", "multi_queue", "owner", "group", "context", "bridge")


def read(req):
    keys, conf = req.conf, Conf(req)
    if req.command in devices.ENDINGS:
        return conf
    conf.mtu, conf.mac = keys.integer("mtu", low=0, high=0xFFFFFFFF), read_requested_mac(req, own=keys.text("mac"))
    conf.multi_queue = keys.flag("multiQueue")
    conf.owner, conf.group = (keys.integer(key, None, low=0, high=NO_ID - 1) for key in ("owner", "group"))
    conf.context, conf.bridge = keys.text("selinuxContext"), keys.text("bridge")
    return conf


def add(req, conf, undo):
    pod = Pod(req)
    bridge = find_bridge(pod, conf)
    create(req, conf, pod)
    undo(change.delete_by_name, pod.inside, req.ifname)
    link = find.new_link(pod.inside, req.ifname)
    link.address = conf.mac or link.address
    batch = Batch()
    if conf.mtu or conf.mac:
        rtnl.set_link(batch, link.index, mtu=conf.mtu, address=conf.mac, what=f"failed to set MTU, MAC of {link.name}")
    if bridge:
        rtnl.set_link(batch, link.index, master=bridge.index,
                      what=f"failed to set tap {link.name} as a port of bridge {bridge.name}")
    if batch:
        wire.exchange(pod.inside, batch)
    return devices.attach(req, conf, undo, pod, link, arp_notify=True)


def find_bridge(pod, conf):
    """The Link of the bridge inside the pod, None where none is configured. Raises CniError 7."""
    if not conf.bridge:
        return None
    bridge = find.link(pod.inside, conf.bridge)
    if bridge is None:
        raise CniError(errors.INVALID_CONFIG, f"failed to get bridge {conf.bridge}: Link not found",
                       "it is looked for in the pod")
    return bridge


def create(req, conf, pod):
    """Make the device, not yet up, under its name: a link of that name is not touched."""
    try:
        with pod.enter():
            tun.create_tap(req.ifname, multi_queue=conf.multi_queue, owner=conf.owner, group=conf.group,
                           context=conf.context)
    except tun.ContextRefused as e:
        raise CniError(errors.UNSUPPORTED_FIELD, f"failed set socket label: {e.strerror} (errno {e.errno})",
                       f'selinuxContext is "{conf.context}"; is SELinux on, and may this process go there?') from None
    except OSError as e:
        raise CniError(errors.INTERNAL, f"failed to create tap: {e.strerror} (errno {e.errno})",
                       WHY.get(e.errno, "")) from None


delete = devices.delete


def check(req, conf):
    pod, link = devices.check(req, conf, "tun")
    wanted = {"type": "tap", "multiQueue": conf.multi_queue, "owner": conf.owner, "group": conf.group}
    for key, found in kinds.tun(link).items():
        if wanted[key] is not None:             # without the key, a program in the pod may have set it
            devices.same(f"container tap {key}", found, wanted[key])
    if conf.bridge:
        master = link.master and find.link(pod.inside, index=link.master)
        devices.same("container tap bridge", master.name if master else None, conf.bridge)


gc = devices.gc


def status(req, conf):
    try:
        close(tun.open_device())        # which loads the module
    except OSError as e:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"{tun.PATH}: {e.strerror} (errno {e.errno})", NO_TUN) from None
    if conf.layer3:
        ipam.status(req)
