"""Read, set and check the attributes of the pod's link that a configuration may set: MAC, MTU, queue length,
promiscuity, multicast."""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.call.conf import read_ethernet, read_mac
from fastcni.spec import errors
from fastcni.spec.config import Section, read_args
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.request import Request

    Values = dict[str, Any]         # value types: str for mac, bool for FLAGS, int for other attributes

# {attribute: (keyword of rtnl.set_link, CHECK's text)}, in the order of the backup file
TABLE = {
    "mac": ("address", "configured Ethernet of {}"),
    "promisc": ("promisc", "link {} configured promisc"),
    "mtu": ("mtu", "configured MTU of {}"),
    "allmulti": ("allmulti", "link {} configured all-multicast mode"),
    "txQLen": ("txqlen", "configured txQLen of {}"),
}
FLAGS = ("promisc", "allmulti")
MAX_U32 = 0xFFFFFFFF
ARGS = ("MAC",)                 # the names that this module reads in CNI_ARGS


def read_wanted(req: Request) -> Values:
    """Return the attributes that a request asks for, from args.cni, otherwise from the plugin's own keys. Search the
    MAC in args.cni, runtimeConfig, MAC= of CNI_ARGS and the plugin's keys, in this order. Omit promisc if it is false.
    Raises CniError 4 or 7."""
    keys = req.conf
    asked, runtime, variable = (keys.section("args").section("cni"), keys.section("runtimeConfig"),
                                Section(read_args(req.args, ARGS)))

    def pick(key: str) -> Section:
        layers = (asked, runtime, variable, keys) if key == "mac" else (asked, keys)
        return next((layer for layer in layers if layer.raw(key, "") != ""), keys)

    wanted = read(pick)
    if not wanted.get("promisc", True):
        del wanted["promisc"]
    return wanted


def read(pick: Callable[[str], Section]) -> Values:
    """Return {attribute: value} of the attributes that are set, in the order of TABLE; pick(key) is the Section that
    has the key.

    An empty mac and an mtu of 0 count as not set. Raises CniError 7 for a value that the kernel's field cannot hold.
    """
    found: Values = {}
    for key in TABLE:
        section = pick(key)
        if key == "mac":
            found[key] = section.text(key)
            if found[key]:
                read_ethernet(found[key])
        elif section.has(key):
            found[key] = section.flag(key) if key in FLAGS else section.integer(key, low=0, high=MAX_U32)
    return {key: value for key, value in found.items() if value or key not in ("mac", "mtu")}


def of(link: Link) -> Values:
    """Return all attributes of a link."""
    return {"mac": link.mac, "promisc": bool(link.flags & uapi.IFF_PROMISC), "mtu": link.mtu,
            "allmulti": bool(link.flags & uapi.IFF_ALLMULTI), "txQLen": link.txqlen}


def write(sock: Socket, link: Link, values: Values) -> None:
    """Set attributes. If the kernel rejects an attribute, still set the rest. Raises NetlinkError."""
    batch = Batch()
    for key, value in values.items():
        keyword, _ = TABLE[key]
        changed: dict[str, Any] = {keyword: read_mac(value) if key == "mac" else value}
        rtnl.set_link(batch, link.index, **changed, what=f'failed to set {key} of "{link.name}" to {value}')
    wire.exchange(sock, batch)


def check(link: Link, ifname: str, wanted: Values) -> None:
    """Raise CniError 999 if an attribute of the link differs from `wanted`. If `wanted` does not have promisc, promisc
    must be off. The error names the link by `ifname`."""
    found = of(link)
    for key, value in {"promisc": False, **wanted}.items():
        if key == "mac":
            value = read_mac(value).hex(":")
        if found[key] != value:
            _, text = TABLE[key]
            current = int(found[key]) if key in FLAGS else found[key]
            raise CniError(errors.INTERNAL, f"Error: Tuning {text.format(ifname)} is {str(value).lower()}, "
                           f"current value is {current}")
