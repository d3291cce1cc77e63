"""Make TAP devices in the pod."""

from __future__ import annotations

from errno import EBUSY, ENODEV, ENOENT, ENXIO
from posix import close

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, wire
from fastcni.kernel.devices import tun
from fastcni.kit.links import change, find
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.rtnl import Link
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

MAX_ID = 0xFFFFFFFE             # the greatest user or group id; 0xFFFFFFFF (-1) means "no owner"
NO_TUN = f"does {tun.PATH} exist, and is the module tun loaded (modprobe tun)? A container needs access to the device"
WHY = {ENOENT: NO_TUN, ENODEV: NO_TUN, ENXIO: NO_TUN,
       EBUSY: "the pod has an interface of that name; was it added before?"}


def create(req: Request, pod: Pod, undo: Undo, *, mtu: int, mac: bytes | None, bridge: Link | None, multi_queue: bool,
           owner: int | None, group: int | None, context: str) -> Link:
    """Make the persistent TAP device CNI_IFNAME in the pod, and return its Link. The device is down.

    mtu     0: the kernel's default
    mac     None: the kernel chooses the MAC
    bridge  a bridge inside the pod; the device becomes its port
    owner, group, multi_queue, context
            see kernel.tun.create_tap()

    Raises CniError if the kernel cannot make the device, with code 2 if the kernel rejects the SELinux context. An
    existing link of that name stays as it is.
    """
    try:
        with pod.enter():
            tun.create_tap(req.ifname, multi_queue=multi_queue, owner=owner, group=group, context=context)
    except tun.ContextRefused as e:
        raise CniError(errors.UNSUPPORTED_FIELD, f"failed set socket label: {e.strerror} (errno {e.errno})",
                       f'selinuxContext is "{context}"; is SELinux enabled, and may this process use it?') from None
    except OSError as e:
        raise CniError(errors.INTERNAL, f"failed to create tap: {e.strerror} (errno {e.errno})",
                       WHY.get(e.errno or 0, "")) from None
    undo(change.delete_by_name, pod.inside, req.ifname)
    link = find.new_link(pod.inside, req.ifname)
    link.address = mac or link.address
    batch = Batch()
    if mtu or mac:
        rtnl.set_link(batch, link.index, mtu=mtu, address=mac, what=f"failed to set MTU, MAC of {link.name}")
    if bridge:
        rtnl.set_link(batch, link.index, master=bridge.index,
                      what=f"failed to set tap {link.name} as a port of bridge {bridge.name}")
    if batch:
        wire.exchange(pod.inside, batch)
    return link


def check_driver() -> None:
    """Raise CniError 50 if this kernel does not support TAP devices. The kernel loads the module if needed."""
    try:
        close(tun.open_device())
    except OSError as e:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"{tun.PATH}: {e.strerror} (errno {e.errno})", NO_TUN) from None
