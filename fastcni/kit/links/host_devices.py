"""Read the keys of host-device that name a device of the host, and find the device in /sys."""

from __future__ import annotations

from fastcni.kernel import uapi
from fastcni.kernel.devices import sysfs
from fastcni.kit.call.conf import read_mac
from fastcni.kit.links import find
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.spec.config import Section

SYS, DEVICES = "/sys/", "/sys/devices/"
BUSES = ("pci", "auxiliary")
NOT_FOUND = "failed to find host device"
# Drivers for programs in user space (DPDK). A device with such a driver has no link
DPDK_DRIVERS = ("vfio-pci", "uio_pci_generic", "igb_uio")


class Selector:
    """The keys that select the device. The first key in this order that is set decides.

    device      the name of a link
    hwaddr      the MAC of the link, as bytes
    kernelpath  the device's directory below /sys/devices
    pci         pciBusID
    device_id   runtimeConfig.deviceID, the id of a PCI or an auxiliary device; has precedence over pci
    """

    __slots__ = ("device", "hwaddr", "kernelpath", "pci", "device_id")

    def __init__(self, keys: Section) -> None:
        self.device, self.pci = read_name(keys, "device"), read_name(keys, "pciBusID")
        self.device_id = read_name(keys.section("runtimeConfig"), "deviceID")
        self.hwaddr, self.kernelpath = read_hwaddr(keys.text("hwaddr")), read_kernelpath(keys.text("kernelpath"))

    @property
    def given(self) -> bool:
        """Return whether any of the keys is set."""
        return bool(self.device or self.hwaddr or self.kernelpath or self.pci or self.device_id)

    def on_bus(self) -> str:
        """Return the directory below /sys of the PCI or auxiliary device that the keys name, "" if they name no such
        device. Raises CniError 7."""
        if not self.device_id:
            return f"bus/pci/devices/{self.pci}" if self.pci else ""
        for bus in BUSES:
            directory = f"bus/{bus}/devices/{self.device_id}"
            if sysfs.exists(directory):
                return directory
        raise errors.bad_config(f"runtime config DeviceID {self.device_id} not found or unsupported",
                                f"{SYS}bus has no device of this id on the buses {' and '.join(BUSES)}")

    def find(self, host: Socket, directory: str) -> tuple[Link, str]:
        """Return (the link on the host, the name that the link gets when it moves back to the host). directory: the
        result of on_bus().

        Raises CniError 11 if the link is not on the host now.
        """
        link, name, why = None, "", "failed to find physical interface"
        if self.device:
            link, why = find.link(host, self.device), "Link not found"
            # If the pod ended without DEL, the kernel moved the link back with its name in the pod
            if link is None:
                link, name = first(host, "alias", self.device), self.device
        elif self.hwaddr:
            link = first(host, "address", self.hwaddr)
        elif self.kernelpath:
            link = first_of(host, f"{self.kernelpath.removeprefix(SYS)}/net")
            why = f'failed to find network devices at "{self.kernelpath}/net"'
        elif directory:
            # A link of virtio belongs to the virtio device, which belongs to the PCI device.
            virtio = [f"{directory}/{each}/net" for each in sysfs.names(directory) if each.startswith("virtio")]
            link, (_, bus, _, device) = first_of(host, f"{directory}/net", *virtio), directory.split("/")
            why = f"no net directory under {bus} device {device}"
        if link is None:
            raise CniError(errors.TRY_AGAIN_LATER, f"{NOT_FOUND}: {why}",
                           "a device that a pod has is not on the host until that pod is deleted")
        return link, name or link.name

    def status(self) -> None:
        """For STATUS: raise CniError 50 if the machine does not have the device. The device's link may be in a pod."""
        directory = self.kernelpath.removeprefix(SYS) or self.on_bus()
        if directory and not sysfs.exists(directory):
            raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"{NOT_FOUND}: {SYS}{directory} does not exist")


def read_name(keys: Section, key: str) -> str:
    """Return the value of a key that names a link or a device on a bus. A valid value has no "/", and is at most as
    long as an alternative name of a link.

    Raises CniError 7.
    """
    text = keys.text(key)
    if "/" in text or "\0" in text or text in (".", "..") or len(text.encode()) >= uapi.ALTIFNAMSIZ:
        raise keys.wrong(key, f'expected a name, not "{text[:uapi.ALTIFNAMSIZ]}"')
    return text


def read_hwaddr(text: str) -> bytes:
    """Return a MAC as bytes, b"" for "". Raises CniError 7."""
    try:
        return read_mac(text) if text else b""
    except ValueError as e:
        raise errors.bad_config(f'{NOT_FOUND}: failed to parse MAC address "{text}": {e}') from None


def read_kernelpath(text: str) -> str:
    """Return a path below /sys/devices, or "". Raises CniError 7."""
    if text and (not text.startswith(DEVICES) or "\0" in text or ".." in text.split("/")):
        raise errors.bad_config(f'{NOT_FOUND}: kernel device path "{text}" must be absolute and begin with {DEVICES}')
    return text


def first(sock: Socket, field: str, value: object) -> Link | None:
    """Return the first link of a namespace that has this value in that field, or None."""
    return next((link for link in find.all_links(sock) if getattr(link, field) == value), None)


def first_of(sock: Socket, *directories: str) -> Link | None:
    """Return the first link that the `net` directories below /sys list, or None.

    /sys may show another network namespace than the socket's, see kernel/devices/sysfs.py. So this function also
    compares the MACs, because another link may have the same name.
    """
    for directory in directories:
        for name in sysfs.names(directory):
            link = find.link(sock, name)
            if link and link.mac == sysfs.read(f"{directory}/{name}/address"):
                return link
    return None


def is_dpdk(directory: str) -> bool:
    """Return whether the device in `directory`, a result of on_bus(), has a driver of DPDK. Raises CniError 999 for a
    PCI device without a driver."""
    if not directory.startswith("bus/pci/"):
        return False
    try:
        return sysfs.target(f"{directory}/driver") in DPDK_DRIVERS
    except OSError as e:
        raise CniError(errors.INTERNAL, f"error with host device: lstat {SYS}{directory}/driver: "
                       f"{(e.strerror or '').lower()}") from None
