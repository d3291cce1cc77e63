"""Configuration that several plugins share: the MAC that a pod asks for, and dns."""

from fastcni.kit.ipam_conf import DNS_LISTS, read_dns
from fastcni.spec import errors
from fastcni.spec.config import read_args
from fastcni.spec.errors import CniError


def read_own_dns(conf):
    """The top-level dns as a result's dns, None where no member is present: then IPAM's stands."""
    section = conf.section("dns")
    return read_dns(section) if any(section.has(key) for key in (*DNS_LISTS, "domain")) else None


def read_ipv6(conf):
    """Is there IPv6 on the pod's link? disableIPv6, a key of fastcni's: true takes it off both ends."""
    return not conf.flag("disableIPv6")


def check_families(ipv6, result):
    """Raises CniError 7 for an IPv6 address in a network without IPv6."""
    for ip in result.get("ips", ()):
        if not ipv6 and ":" in ip["address"]:
            raise CniError(errors.INVALID_CONFIG, f"IPAM gave {ip['address']}, but disableIPv6 is true")


def read_requested_mac(req, own=""):
    """The MAC asked for, as bytes, or None: runtimeConfig.mac before args.cni.mac before MAC of CNI_ARGS before `own`,
    the plugin's key."""
    text = req.conf.section("runtimeConfig").text("mac") or req.conf.section("args").section("cni").text("mac")
    from_args = read_args(req.args, ("MAC",)).get("MAC", "")     # read in any case: bad CNI_ARGS are refused
    text = text or from_args or own
    if not text:
        return None
    try:
        return read_mac(text)
    except ValueError as e:
        raise CniError(errors.INVALID_CONFIG, str(e)) from None


def read_mac(text):
    """A MAC in ':', '-' or dotted form as 6, 8 or 20 bytes, as Go reads it. Raises ValueError."""
    parts = text.replace("-", ":").split(":")
    if len(parts) == 1:
        parts = [half for word in text.split(".") if len(word) == 4 for half in (word[:2], word[2:])]
        whole = text.replace(".", "")
    else:
        whole = "".join(parts)
    if len(parts) not in (6, 8, 20) or len(whole) != 2 * len(parts) or any(len(part) != 2 for part in parts):
        raise ValueError(f"address {text}: invalid MAC address")
    try:
        return bytes.fromhex("".join(parts))
    except ValueError:
        raise ValueError(f"address {text}: invalid MAC address") from None
