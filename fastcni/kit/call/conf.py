"""Read the keys that several plugins share: mtu, dns, the requested MAC.

DEL reads only the keys that it needs. For a bad value DEL prints a warning, because the configuration may have changed
since ADD, and a typo must not prevent the deletion of a pod. Only `dataDir` and `ipam.type` must be valid, because they
say where ADD's records are. If DEL ignored these keys, it would succeed without releasing the address.
"""

from __future__ import annotations

from fastcni.spec import errors
from fastcni.spec.config import Lenient, read_args
from fastcni.spec.errors import CniError
from fastcni.spec.ipam import DNS_LISTS, read_dns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from fastcni.kit.call.request import Request
    from fastcni.spec.config import Section

    T = TypeVar("T")

ENDINGS = ("DEL", "GC")         # the commands that treat bad values as absent
ETH_MIN_MTU, ETH_MAX_MTU = 68, 65535        # linux/if_ether.h
ETH_ALEN = 6
MAC_LENGTHS = (6, 8, 20)        # lengths in bytes: Ethernet, EUI-64, InfiniBand
EBPF, AUTO = "ebpf", "auto"     # values of the key datapath
MAX_VID = 4094                  # 4095 is reserved (IEEE 802.1Q)


def keys_of(req: Request) -> Section:
    """Return the configuration as a Section. For DEL and GC, return a Lenient, which treats a bad value as absent, with
    a warning."""
    return Lenient(req.conf.values, req.warn) if req.command in ENDINGS else req.conf


def read_once(req: Request, read: Callable[[Section], T]) -> T:
    """Return read(section) of the request's configuration. Cache the result for all pods with this configuration.
    For DEL and GC, a bad value is only a warning."""
    try:
        return req.conf.once(read)
    except CniError:
        if req.command not in ENDINGS:
            raise
        return read(keys_of(req))


def read_own_dns(conf: Section) -> dict[str, Any] | None:
    """Return the configuration's top-level dns in the shape of a result. Return None if that dns is absent or empty;
    the result keeps the IPAM plugin's dns in that case."""
    section = conf.section("dns")
    return read_dns(section) if any(section.has(key) for key in (*DNS_LISTS, "domain")) else None


def read_mtu(conf: Section) -> int:
    """Return the key mtu of a veth pair; 0 and negative numbers mean the kernel's default. Raises CniError 7."""
    mtu: int = conf.integer("mtu", high=ETH_MAX_MTU)
    if 0 < mtu < ETH_MIN_MTU:
        raise conf.wrong("mtu", f"expected {ETH_MIN_MTU} or more, or 0 for the kernel's, got {mtu}")
    return mtu


def read_ipv6(conf: Section) -> bool:
    """Return whether the pod's link has IPv6. fastcni's key disableIPv6 (true) disables it on both ends."""
    return not conf.flag("disableIPv6")


def read_datapath(conf: Section) -> str:
    """Return fastcni's key datapath: EBPF, AUTO, or "" if only the host's network stack forwards the pod's packets.
    Raises CniError 7."""
    found = conf.text("datapath")
    if found not in ("", EBPF, AUTO):
        return conf.bad("datapath", f'expected "{EBPF}" or "{AUTO}", got "{found}"', AUTO)
    return found


def check_families(ipv6: bool, result: dict[str, Any]) -> None:
    """Raise CniError 7 for an IPv6 address in a network without IPv6."""
    for ip in result.get("ips", ()):
        if not ipv6 and ":" in ip["address"]:
            raise errors.bad_config(f"IPAM gave {ip['address']}, but disableIPv6 is true")


def read_requested_mac(req: Request, own: str = "", *, strict: bool = True) -> bytes | None:
    """Return the requested MAC as 6 bytes, or None if no MAC is requested.

    Use the first of these values that is set: runtimeConfig.mac, args.cni.mac, MAC= of CNI_ARGS, `own` (the value of
    the plugin's own key). Raises CniError 7, and CniError 4 for bad CNI_ARGS. strict=False accepts bad
    CNI_ARGS, for plugins whose reference plugin does not read CNI_ARGS.
    """
    text = req.conf.once(read_runtime_mac)
    # Read CNI_ARGS even if runtimeConfig or args.cni has the MAC, so that malformed CNI_ARGS are an error.
    if req.args:
        args = read_args(req.args, ("MAC",)) if strict else dict(pair.partition("=")[::2]
                                                                 for pair in req.args.split(";"))
        text = text or args.get("MAC", "")
    text = text or own
    return read_ethernet(text) if text else None


def read_runtime_mac(conf: Section) -> str:
    """Return runtimeConfig.mac, else args.cni.mac, else ""."""
    return conf.section("runtimeConfig").text("mac") or conf.section("args").section("cni").text("mac")


def read_ethernet(text: str) -> bytes:
    """Decode the text of an Ethernet MAC to 6 bytes. Raises CniError 7."""
    try:
        mac = read_mac(text)
    except ValueError as e:
        raise errors.bad_config(str(e)) from None
    if len(mac) != ETH_ALEN:
        raise errors.bad_config(f"address {text}: not the 6 bytes of an Ethernet address")
    return mac


def read_mac(text: str) -> bytes:
    """Decode a MAC in ':', '-' or dotted form to 6, 8 or 20 bytes, by the rules of Go's net.ParseMAC. Raises
    ValueError."""
    parts = text.replace("-", ":").split(":")
    if len(parts) == 1:
        parts = [half for word in text.split(".") if len(word) == 4 for half in (word[:2], word[2:])]
        digits = text.replace(".", "")
    else:
        digits = "".join(parts)
    if len(parts) not in MAC_LENGTHS or len(digits) != 2 * len(parts) or any(len(part) != 2 for part in parts):
        raise ValueError(f"address {text}: invalid MAC address")
    try:
        return bytes.fromhex("".join(parts))
    except ValueError:
        raise ValueError(f"address {text}: invalid MAC address") from None
