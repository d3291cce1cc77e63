"""Configuration that several plugins share: dns, and the MAC that a pod asks for."""

from fastcni.kernel.rtnl import read_mac
from fastcni.spec import errors
from fastcni.spec.config import read_args
from fastcni.spec.errors import CniError

DNS_LISTS = ("nameservers", "search", "options")


def read_dns(conf):
    """The top-level dns as a result's dns, None where no member is present: then IPAM's stands."""
    section = conf.section("dns")
    if not any(section.has(key) for key in (*DNS_LISTS, "domain")):
        return None
    dns = {key: section.texts(key) for key in DNS_LISTS if section.texts(key)}
    if section.text("domain"):
        dns["domain"] = section.text("domain")
    return dns


def read_requested_mac(req):
    """The MAC asked for, as bytes, or None: runtimeConfig.mac before args.cni.mac before MAC of CNI_ARGS."""
    text = (req.conf.section("runtimeConfig").text("mac") or req.conf.section("args").section("cni").text("mac"))
    from_args = read_args(req.args, ("MAC",)).get("MAC", "")     # read in any case: bad CNI_ARGS are refused
    text = text or from_args
    if not text:
        return None
    try:
        return read_mac(text)
    except ValueError as e:
        raise CniError(errors.INVALID_CONFIG, str(e)) from None
