"""Configuration that several plugins share: what DEL reads of it, the MAC that a pod asks for, and dns.

DEL reads only the keys that it needs, and warns of a bad value: the configuration may have changed since ADD, and a
typo must not keep a pod from ending. Only `dataDir` and `ipam.type`, which say where ADD's records are, must be valid.
If DEL ignored these, it would succeed and the address would stay held.
"""

from fastcni.kit.ipam.ipam_conf import DNS_LISTS, read_dns
from fastcni.spec import errors
from fastcni.spec.config import Lenient, read_args
from fastcni.spec.errors import CniError

ENDINGS = ("DEL", "GC")         # these are lenient
MTU_MIN, MTU_MAX = 68, 65535     # linux/if_ether.h: ETH_MIN_MTU, ETH_MAX_MTU


def keys_of(req):
    """The configuration as a Section, for DEL and GC as a Lenient one."""
    return Lenient(req.conf.values, req.warn) if req.command in ENDINGS else req.conf


def read_once(req, read):
    """What read(Section) says of the configuration, for all pods of the network; for DEL and GC it is lenient."""
    try:
        return req.conf.once(read)
    except CniError:
        if req.command not in ENDINGS:
            raise
        return read(keys_of(req))


def read_own_dns(conf):
    """The top-level dns as a result's dns, None where no member is present: then IPAM's stands."""
    section = conf.section("dns")
    return read_dns(section) if any(section.has(key) for key in (*DNS_LISTS, "domain")) else None


def read_mtu(conf):
    """The key mtu of a veth pair; 0 and less mean the kernel's."""
    mtu = conf.integer("mtu", high=MTU_MAX)
    if 0 < mtu < MTU_MIN:
        raise conf.wrong("mtu", f"expected {MTU_MIN} or more, or 0 for the kernel's, got {mtu}")
    return mtu


def read_ipv6(conf):
    """Is there IPv6 on the pod's link? disableIPv6, a key of fastcni's: true takes it off both ends."""
    return not conf.flag("disableIPv6")


def check_families(ipv6, result):
    """Raises CniError 7 for an IPv6 address in a network without IPv6."""
    for ip in result.get("ips", ()):
        if not ipv6 and ":" in ip["address"]:
            raise CniError(errors.INVALID_CONFIG, f"IPAM gave {ip['address']}, but disableIPv6 is true")


def read_requested_mac(req, own="", *, strict=True):
    """The MAC asked for, as 6 bytes, or None: runtimeConfig.mac before args.cni.mac before MAC of CNI_ARGS before
    `own`, the plugin's key. Bad CNI_ARGS are refused, but not with strict=False: for plugins of which the reference
    reads none."""
    text = req.conf.once(read_runtime_mac)
    # Read in any case, for what is bad in it.
    if req.args:
        args = read_args(req.args, ("MAC",)) if strict else dict(pair.partition("=")[::2]
                                                                 for pair in req.args.split(";"))
        text = text or args.get("MAC", "")
    text = text or own
    return read_ethernet(text) if text else None


def read_runtime_mac(conf):
    return conf.section("runtimeConfig").text("mac") or conf.section("args").section("cni").text("mac")


def read_ethernet(text):
    """A MAC of Ethernet as 6 bytes. Raises CniError 7."""
    try:
        mac = read_mac(text)
    except ValueError as e:
        raise CniError(errors.INVALID_CONFIG, str(e)) from None
    if len(mac) != 6:
        raise CniError(errors.INVALID_CONFIG, f"address {text}: not the 6 bytes of an Ethernet address")
    return mac


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
