"""Read and check the keys of host-local and the requested addresses. Changes nothing."""

from __future__ import annotations

from fastcni.kit.ipam.ranges import read_range_sets
from fastcni.spec import address
from fastcni.spec import ipam as ipam_conf
from fastcni.spec.config import read_args
from fastcni.spec.errors import INVALID_ENVIRONMENT, CniError
from fastcni.spec.json import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.ipam.ranges import RangeSet
    from fastcni.spec.config import Section

ARGS = ("IP",)                      # the names that host-local reads in CNI_ARGS
DATA_DIR = "/var/lib/cni/networks"


class Keys:
    """The keys of a network's configuration. All requests of the network share this object, so no code may change it.

    data_dir, fsync     the directory of the address files, and whether changes are synced to disk
    sets                a tuple of range sets. DEL and GC do not read sets, routes and resolv_conf
    routes, resolv_conf routes: in the shape of a result. resolv_conf: a path or ""
    """

    __slots__ = ("data_dir", "fsync", "resolv_conf", "routes", "sets")
    data_dir: str
    fsync: bool
    resolv_conf: str
    routes: list[dict[str, Any]]
    sets: tuple[RangeSet, ...]


def read_place(section: Section) -> Keys:
    """Read the Keys of DEL and GC: the directory of the address files. Raises CniError 7."""
    ipam = ipam_conf.ipam_section(section)
    keys = Keys()
    keys.data_dir = ipam.strict.file("dataDir", DATA_DIR)
    keys.fsync = ipam.flag("fsync")
    return keys


def read_keys(section: Section) -> Keys:
    """Read all Keys. Raises CniError 7."""
    ipam, keys = ipam_conf.ipam_section(section), read_place(section)
    keys.sets = read_range_sets(ipam, section.section("runtimeConfig"), section.text("cniVersion"))
    keys.routes = ipam_conf.read_routes(ipam)
    keys.resolv_conf = ipam.text("resolvConf")
    return keys


def max_held(req: Request) -> float:
    """Return the number of addresses that the container's interface can have: one of each range set."""
    try:
        return len(req.conf.once(read_keys).sets)
    # the ranges were valid at ADD and are invalid now, so an unreadable file may belong to the container
    except CniError:
        return float("inf")


def read_requested(req: Request) -> list[bytes]:
    """Return the requested packed addresses of IP= in CNI_ARGS, args.cni.ips and runtimeConfig.ips, each address once
    and without its prefix length. Raises CniError 4 or 7."""
    text = read_args(req.args, ARGS).get("IP", "")
    if not text:
        return req.conf.once(read_configured)
    try:
        first = read_address(text)
    except ValueError as e:
        raise CniError(INVALID_ENVIRONMENT,
                       f"ARGS: error parsing value of pair {quote('IP=' + text)}: {e}") from None
    return list(dict.fromkeys([first, *req.conf.once(read_configured)]))


def read_configured(conf: Section) -> list[bytes]:
    """Return the addresses that the configuration requests. Raises CniError 7."""
    return ipam_conf.requested_addresses(conf, read_address)


def read_address(text: str) -> bytes:
    """Return the packed address of a text with or without a prefix length. Raises ValueError."""
    return address.read_cidr(text)[0] if "/" in text else address.read_ip(text)
