"""static: the addresses that the configuration or the caller names. The plugin stores nothing.

The result has the addresses of `ipam.addresses`, then the addresses of IP= in CNI_ARGS. args.cni.ips replaces both
lists, and has no gateways; runtimeConfig.ips replaces all other addresses. A gateway of GATEWAY= in CNI_ARGS applies to
those addresses of IP= whose subnet contains the gateway. If no address is given, the result is empty, and interface
plugins reject it.
"""

from __future__ import annotations

from fastcni.kit.ipam.ranges import check_one_per_family
from fastcni.spec import address
from fastcni.spec import ipam as ipam_conf
from fastcni.spec.config import read_args
from fastcni.spec.errors import INTERNAL, INVALID_CONFIG, INVALID_ENVIRONMENT, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.spec.config import Section

    Address = tuple[bytes, int, bytes | None]

CAPABILITIES, ARGS = ("ips",), ("IP", "GATEWAY")


class Conf:
    """The values of a request. addresses: [(packed, prefix length, packed gateway or None)]. routes, dns: as in a CNI
    result."""

    __slots__ = ("addresses", "dns", "routes")
    addresses: list[Address]
    dns: dict[str, Any]
    routes: list[dict[str, Any]]


def read(req: Request) -> Conf | None:
    """Return the Conf; None for DEL, which reads no configuration, so that DEL never fails."""
    if req.command == "DEL":
        return None
    ipam = ipam_conf.ipam_section(req.conf)
    conf = Conf()
    conf.addresses = _read_addresses(ipam) + _read_cni_args(req.args)
    for _, texts in ipam_conf.requested_ips(req.conf):
        if texts:
            cidrs = [_cidr(text, INVALID_CONFIG, "an entry in the 'ips' field is NOT in CIDR notation, got: '{}'")
                     for text in texts]
            conf.addresses = [(packed, prefix, None) for packed, prefix in cidrs]
    if req.version in ("0.1.0", "0.2.0"):
        check_one_per_family((packed for packed, _, _ in conf.addresses), req.version)
    conf.routes = ipam_conf.read_routes(ipam)
    conf.dns = ipam_conf.read_dns(ipam.section("dns"))
    return conf


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    return ipam_conf.make_result(conf.addresses, conf.routes, conf.dns)


def delete(req: Request, conf: None) -> None:
    """Do nothing: the plugin stores no addresses."""


def check(req: Request, conf: Conf) -> None:
    """Compare the configuration with prevResult: an address that is in both must have the configured gateway, if one is
    configured."""
    from fastcni.kit.call import chained

    result = chained.previous(req, "Required prevResult missing")
    listed: dict[bytes, str] = {}
    for entry in result.get("ips", ()):
        listed.setdefault(address.read_cidr(entry["address"])[0], entry.get("gateway", ""))
    for packed, _, gateway in conf.addresses:
        if gateway is not None and listed.get(packed) not in (None, address.ip_text(gateway)):
            raise CniError(INTERNAL, f"static: Failed to match addr {address.ip_text(packed)} on interface "
                           f"{req.ifname}", f"prevResult has gateway {listed[packed] or 'none'}, "
                           f"the configuration {address.ip_text(gateway)}")


def _read_addresses(ipam: Section) -> list[Address]:
    found = []
    for one in ipam.sections("addresses"):
        packed, prefix = _cidr(one.text("address"), INVALID_CONFIG,
                               "the 'address' field is expected to be in CIDR notation, got: '{}'")
        found.append((packed, prefix, one.ip("gateway")))
    return found


def _read_cni_args(text: str) -> list[Address]:
    """Return the addresses of IP= in CNI_ARGS. The gateway of an address is the last address of GATEWAY= in the same
    subnet, or None."""
    args = read_args(text, ("IP", "GATEWAY"))
    found: list[Address] = []
    for one in _listed(args, "IP"):
        packed, prefix = _cidr(one, INVALID_ENVIRONMENT,
                               "the 'ip' field is expected to be in CIDR notation, got: '{}'")
        found.append((packed, prefix, None))
    for one in _listed(args, "GATEWAY"):
        try:
            gateway = address.read_ip(one)
        except ValueError:
            raise CniError(INVALID_ENVIRONMENT, f"invalid gateway address: {one[:80]}") from None
        found = [(packed, prefix, gateway if address.in_subnet(gateway, packed, prefix) else old)
                 for packed, prefix, old in found]
    return found


def _listed(args: dict[str, str], key: str) -> list[str]:
    return [one.strip() for one in args[key].split(",")] if args.get(key) else []


def _cidr(text: str, code: int, message: str) -> tuple[bytes, int]:
    try:
        return address.read_cidr(text)
    except ValueError:
        raise CniError(code, message.format(text[:80])) from None
