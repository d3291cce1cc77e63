"""The keys of host-local, read and checked, and the addresses that a container asks for. Touches nothing."""

from __future__ import annotations

from fastcni.kit.ipam.ranges import read_range_sets
from fastcni.spec import address
from fastcni.spec import ipam as ipam_conf
from fastcni.spec.config import read_args, shown
from fastcni.spec.errors import INVALID_CONFIG, INVALID_ENVIRONMENT, CniError
from fastcni.spec.json import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.ipam.ranges import RangeSet
    from fastcni.spec.config import Section

ARGS = ("IP",)                      # the pairs of CNI_ARGS that are read
DATA_DIR = "/var/lib/cni/networks"


class Keys:
    """The keys that all pods of a network share, so no code may change them.

    data_dir, fsync     the folder of the address files, and whether they are synced
    sets                the range sets, a tuple; this and the next two not for DEL and GC
    routes, resolv_conf routes as a result has them; a path or ""
    """

    __slots__ = ("data_dir", "fsync", "resolv_conf", "routes", "sets")
    data_dir: str
    fsync: bool
    resolv_conf: str
    routes: list[dict[str, Any]]
    sets: tuple[RangeSet, ...]


def read_place(section: Section) -> Keys:
    """Read the Keys of DEL and GC: the folder of the address files. Raises CniError 7."""
    ipam = ipam_conf.ipam_section(section)
    keys = Keys()
    keys.data_dir = ipam.strict.text("dataDir") or DATA_DIR
    if not keys.data_dir.startswith("/") or "\0" in keys.data_dir:
        raise ipam.wrong("dataDir", f"expected an absolute path, got {shown(keys.data_dir)}")
    keys.fsync = ipam.flag("fsync")
    return keys


def read_keys(section: Section) -> Keys:
    """All Keys. Raises CniError 7."""
    ipam, keys = ipam_conf.ipam_section(section), read_place(section)
    keys.sets = read_range_sets(ipam, section.section("runtimeConfig"), section.text("cniVersion"))
    keys.routes = ipam_conf.read_routes(ipam)
    keys.resolv_conf = ipam.text("resolvConf")
    return keys


def max_held(req: Request) -> float:
    """The number of addresses that the container's interface can have: one of each range set."""
    try:
        return len(req.conf.once(read_keys).sets)
    # the ranges have a typo since the ADD: then a file that could not be read may be the container's, too
    except CniError:
        return float("inf")


def read_requested(req: Request) -> list[bytes]:
    """The requested addresses, packed, prefix lengths ignored: IP= of CNI_ARGS, args.cni.ips and runtimeConfig.ips,
    each address once. Raises CniError 4 or 7."""
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
    """The addresses that the configuration asks for. Raises CniError 7."""
    found = []
    for path, texts in ipam_conf.requested_ips(conf):
        for text in texts:
            try:
                found.append(read_address(text))
            except ValueError as e:
                raise CniError(INVALID_CONFIG, f"cannot understand ip: {e}", path) from None
    return list(dict.fromkeys(found))


def read_address(text: str) -> bytes:
    """An address with or without prefix length, packed. Raises ValueError."""
    return address.read_cidr(text)[0] if "/" in text else address.read_ip(text)
