"""The keys of host-device that say which link of the host is meant, and where the machine has it."""

from fastcni.kernel import rtnl, sysfs, uapi, wire
from fastcni.kit.call.conf import read_mac
from fastcni.kit.links import find
from fastcni.spec import errors
from fastcni.spec.errors import CniError

SYS, DEVICES = "/sys/", "/sys/devices/"
BUSES = ("pci", "auxiliary")
NOT_FOUND = "failed to find host device"
DPDK_DRIVERS = ("vfio-pci", "uio_pci_generic", "igb_uio")       # of a device that a program drives: it is no link


class Selector:
    """device, hwaddr (bytes), kernelpath, pci (pciBusID), device_id (runtimeConfig.deviceID, of a PCI or an auxiliary
    device, in place of pci): the first that is there counts."""

    __slots__ = ("device", "hwaddr", "kernelpath", "pci", "device_id")

    def __init__(self, keys):
        self.device, self.pci = read_name(keys, "device"), read_name(keys, "pciBusID")
        self.device_id = read_name(keys.section("runtimeConfig"), "deviceID")
        self.hwaddr, self.kernelpath = read_hwaddr(keys.text("hwaddr")), read_kernelpath(keys.text("kernelpath"))

    @property
    def given(self):
        return bool(self.device or self.hwaddr or self.kernelpath or self.pci or self.device_id)

    def on_bus(self):
        """The folder below /sys of the PCI or auxiliary device that is named, "" where none is. Raises CniError 7."""
        if not self.device_id:
            return self.pci and f"bus/pci/devices/{self.pci}"
        for bus in BUSES:
            folder = f"bus/{bus}/devices/{self.device_id}"
            if sysfs.exists(folder):
                return folder
        raise CniError(errors.INVALID_CONFIG, f"runtime config DeviceID {self.device_id} not found or unsupported",
                       f"{SYS}bus has it neither as {' nor as '.join(BUSES)} device")

    def find(self, host, folder):
        """(its Link on the host, the name that it is to have there again); `folder` is what on_bus() says.
        Raises CniError 11 where it is not there now."""
        link, name, why = None, "", "failed to find physical interface"
        if self.device:
            link, why = find.link(host, self.device), "Link not found"
            if link is None:            # its pod has ended without DEL: it comes back by itself, under the pod's name
                link, name = first(host, "alias", self.device), self.device
        elif self.hwaddr:
            link = first(host, "address", self.hwaddr)
        elif self.kernelpath:
            link = first_of(host, f"{self.kernelpath.removeprefix(SYS)}/net")
            why = f'failed to find network devices at "{self.kernelpath}/net"'
        elif folder:
            # Between a PCI device and a link of virtio stands the virtio device.
            virtio = [f"{folder}/{each}/net" for each in sysfs.names(folder) if each.startswith("virtio")]
            link, (_, bus, _, device) = first_of(host, f"{folder}/net", *virtio), folder.split("/")
            why = f"no net directory under {bus} device {device}"
        if link is None:
            raise CniError(errors.TRY_AGAIN_LATER, f"{NOT_FOUND}: {why}",
                           "a device that a pod has is not on the host until that pod is deleted")
        return link, name or link.name

    def status(self):
        """STATUS: the machine has the device, whoever has its link: a pod may. Raises CniError 50."""
        folder = self.kernelpath.removeprefix(SYS) or self.on_bus()
        if folder and not sysfs.exists(folder):
            raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"{NOT_FOUND}: {SYS}{folder} is not there")


def read_name(keys, key):
    """A name of a link or of a device on a bus: no path, and not longer than the longest of a link."""
    text = keys.text(key)
    if "/" in text or "\0" in text or text in (".", "..") or len(text.encode()) >= uapi.ALTIFNAMSIZ:
        raise keys.wrong(key, f'expected a name, not "{text[:uapi.ALTIFNAMSIZ]}"')
    return text


def read_hwaddr(text):
    try:
        return read_mac(text) if text else b""
    except ValueError as e:
        raise CniError(errors.INVALID_CONFIG, f'{NOT_FOUND}: failed to parse MAC address "{text}": {e}') from None


def read_kernelpath(text):
    if text and (not text.startswith(DEVICES) or "\0" in text or ".." in text.split("/")):
        raise CniError(errors.INVALID_CONFIG,
                       f'{NOT_FOUND}: kernel device path "{text}" must be absolute and begin with {DEVICES}')
    return text


def first(sock, field, value):
    """The first Link of a namespace that has this value in that field, or None."""
    found = wire.dump(sock, uapi.RTM_GETLINK, rtnl.ifinfomsg(), "list links",
                      lambda batch: batch.u32(uapi.IFLA_EXT_MASK, uapi.RTEXT_FILTER_SKIP_STATS))
    return next((link for link in (rtnl.read_link(payload) for _, payload in found)
                 if getattr(link, field) == value), None)


def first_of(sock, *folders):
    """The first Link of those that `net` folders below /sys list, or None.

    Their names may be those of another namespace than ours, see kernel/sysfs.py: a link that has such a name here by
    chance has another MAC.
    """
    for folder in folders:
        for name in sysfs.names(folder):
            link = find.link(sock, name)
            if link and link.mac == sysfs.read(f"{folder}/{name}/address"):
                return link
    return None


def is_dpdk(folder):
    """Has the device of that folder, as on_bus() says it, a driver of DPDK? Raises CniError 999 for a PCI device
    without a driver."""
    if not folder.startswith("bus/pci/"):
        return False
    try:
        return sysfs.target(f"{folder}/driver") in DPDK_DRIVERS
    except OSError as e:
        raise CniError(errors.INTERNAL, f"error with host device: lstat {SYS}{folder}/driver: "
                       f"{e.strerror.lower()}") from None
