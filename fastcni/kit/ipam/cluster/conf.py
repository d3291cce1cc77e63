"""Read the keys of the `ipam` section for cluster-wide addresses, including the keys of whereabouts 0.9. This module
opens only the files that flat_file.py names.

    range, range_start, range_end, exclude, gateway     of one range; ipRanges: a list of objects with these keys
    addresses, routes, dns                              copied to the result
    network_name                                        the address space: ranges may overlap, no address is given twice
    sticky: "pod"                                       a pod keeps its address in its next sandbox, on any node
    cool_down (30), exclude_gateway (true), block_size, block_size6, node_slice_size
    store, kubernetes, node_name, dataDir, fsync, serve_after_loss, reclaim_after

An IP address may have leading zeros, as in whereabouts. A range_start or range_end outside of its range is ignored with
a warning.
"""

from __future__ import annotations

import posix
import time

from fastcni.kit.call.conf import ENDINGS, keys_of, read_once
from fastcni.kit.ipam.cluster import flat_file, stores
from fastcni.kit.ipam.cluster.grid import Range, ends, make_range, to_int, usable
from fastcni.kit.ipam.cluster.node_state import Cache
from fastcni.kit.ipam.cluster.requested import lenient, read_net
from fastcni.kit.ipam.ranges import check_one_per_family
from fastcni.spec import address, version
from fastcni.spec import ipam as ipam_conf
from fastcni.spec.config import is_name, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.ipam.cluster.requested import Address
    from fastcni.spec.config import Section

DATA_DIR = "/var/lib/cni/cluster"
SPACE = "default"
COOL_DOWN_S = 30
FLAT_S = 1.0                    # interval, in seconds, at which requests check the flat file for changes
MAX_BLOCK_BITS = 16             # host bits of the largest block
MAX_SECONDS = 10 ** 9

# Keys of whereabouts that fastcni ignores, and the reason
IGNORED = {
    "leader_lease_duration": "there is no leader",
    "leader_renew_deadline": "there is no leader",
    "leader_retry_period": "there is no leader",
    "log_file": "FASTCNI_LOG names the log, see docs/troubleshooting.md",
    "log_level": "FASTCNI_LOG names the log, see docs/troubleshooting.md",
    "reconciler_cron_expression": "the server reconciles every minute",
    "sleep_for_race": "there is nothing to test with it",
    "datastore": "`store` names the store",
    "etcd_host": "`store` names the store",
    "etcd_username": "`store` names the store",
    "etcd_password": "`store` names the store",
    "etcd_key_file": "`store` names the store",
    "etcd_cert_file": "`store` names the store",
    "etcd_ca_cert_file": "`store` names the store",
}


class Keys:
    """The keys of a network's configuration. All requests of the network share this object, so no code may change it.

    data_dir, fsync       the directory of the node's state, and whether address files need fsync(2)
    space, node, store    names of the address space and of this node; the Settings of the store, see stores/__init__.py
    store_key             key_of() the Settings of the store
    flat                  the flat file that was read, as flat_file.find() returns it
    DEL and GC do not read the following keys:
    ranges                the Ranges; a pod gets one address of each
    addresses             more addresses for the result, [(packed, prefix length, packed gateway or None)]
    routes, dns           in the form of a result
    cool_down             seconds before a released address is given again
    sticky                whether a pod keeps its address
    serve_after_loss      seconds after which a node that cannot reach the store stops giving addresses, 0: never
    reclaim_after         seconds after which the blocks of a dead node are freed, 0: never
    warnings              texts that each ADD and STATUS logs
    cache                 the node's state as last read: the only member that changes
    """

    __slots__ = ("addresses", "cache", "cool_down", "data_dir", "dns", "flat", "fsync", "node", "ranges",
                 "reclaim_after", "routes", "serve_after_loss", "space", "sticky", "store", "store_key",
                 "warnings")
    addresses: list[Address]
    cache: Cache
    cool_down: int
    data_dir: str
    dns: dict[str, Any]
    flat: flat_file.Seen
    fsync: bool
    node: str
    ranges: tuple[Range, ...]
    reclaim_after: int
    routes: list[dict[str, Any]]
    serve_after_loss: int
    space: str
    sticky: bool
    store: stores.Settings
    store_key: str
    warnings: list[str]


def keys_for(req: Request) -> Keys:
    """Return the Keys of a request. For DEL and GC, the Keys have no ranges. Raises CniError 5 and 7."""
    read = read_place if req.command in ENDINGS else read_keys
    keys = read_once(req, read)
    now = time.monotonic()
    if now - keys.cache.flat_seen < FLAT_S:
        return keys
    keys.cache.flat_seen = now
    if keys.cache.flat_changed or flat_file.find(read_path(req.conf)) != keys.flat:
        keys.cache.flat_changed, keys.cache.flat_seen = True, 0.0       # so the next request checks the flat file
        return read(keys_of(req))
    return keys


def read_path(conf: Section) -> str:
    return conf.section("ipam").text("configuration_path")


def merged_section(conf: Section) -> tuple[Section, flat_file.Seen]:
    """Return the `ipam` section merged with the keys of the flat file, and the identity of that file
    (flat_file.find())."""
    ipam = ipam_conf.ipam_section(conf)
    seen = flat_file.find(read_path(conf))
    return (ipam if seen is flat_file.NONE else ipam.below(flat_file.merged(ipam.values, seen), ipam.where)), seen


def read_place(conf: Section) -> Keys:
    """Return the Keys that DEL and GC need: the directory of the node's state, and the store. Raises CniError 5 and
    7."""
    ipam, seen = merged_section(conf)
    return _read_place(ipam, seen, read_path(conf))


def _read_place(ipam: Section, seen: flat_file.Seen, path: str) -> Keys:
    keys = Keys()
    keys.flat, keys.cache = seen, Cache()
    keys.cache.flat_seen = time.monotonic()
    keys.data_dir = ipam.strict.file("dataDir", DATA_DIR)
    keys.space = ipam.strict.text("network_name") or SPACE
    if not is_name(keys.space):
        raise ipam.wrong("network_name", f"expected letters, digits, '.', '_' and '-', got {shown(keys.space)}")
    keys.node = ipam.strict.text("node_name") or flat_file.node_name(path) or posix.uname().nodename
    keys.store = stores.read_settings(ipam)
    keys.store_key = stores.key_of(keys.store)
    keys.fsync = ipam.flag("fsync")
    return keys


def read_keys(conf: Section) -> Keys:
    """Return the Keys with all members. Raises CniError 5 and 7."""
    ipam, seen = merged_section(conf)
    keys = _read_place(ipam, seen, read_path(conf))
    keys.warnings = [f"ipam.{key} is ignored: {why}" for key, why in IGNORED.items() if ipam.has(key)]
    if not ipam.flag("enable_overlapping_ranges", True):
        keys.warnings.append("ipam.enable_overlapping_ranges is ignored: the addresses of a space are given once; "
                             "networks with another network_name have another space")
    keys.cool_down = ipam.integer("cool_down", COOL_DOWN_S, 0, MAX_SECONDS)
    keys.serve_after_loss = ipam.integer("serve_after_loss", 0, 0, MAX_SECONDS)
    keys.reclaim_after = ipam.integer("reclaim_after", 0, 0, MAX_SECONDS)
    sticky = ipam.text("sticky")
    if sticky not in ("", "pod"):
        raise ipam.wrong("sticky", f'expected "pod", got {shown(sticky)}')
    keys.sticky = sticky == "pod"
    keys.ranges = read_ranges(ipam, keys.warnings)
    keys.addresses = read_addresses(ipam)
    keys.routes, keys.dns = ipam_conf.read_routes(ipam), ipam_conf.read_dns(ipam.section("dns"))
    spoken = conf.text("cniVersion") or version.ALL[0]
    if not version.at_least(spoken, "0.3.0"):
        families = [bytes(one.bits // 8) for one in keys.ranges] + [packed for packed, _, _ in keys.addresses]
        check_one_per_family(families, spoken)
    return keys


def read_addresses(ipam: Section) -> list[Address]:
    found: list[Address] = []
    for one in ipam.sections("addresses"):
        try:
            packed, prefix = address.read_cidr(lenient(one.text("address")))
        except ValueError:
            raise one.wrong("address", f"expected CIDR notation, got {shown(one.text('address'))}") from None
        found.append((packed, prefix, read_one_ip(one, "gateway")))
    return found


# -- ranges -------------------------------------------------------------------------------------------

def read_ranges(ipam: Section, warnings: list[str]) -> tuple[Range, ...]:
    """Read the range of `range` and its keys, then the ranges of ipRanges. A range without the key `gateway` gets the
    `gateway` of the `ipam` section, if the address family is the same. Raises CniError 7."""
    sections = [ipam] if ipam.has("range") else []
    for one in sections + ipam.sections("ipRanges"):
        if not one.text("range"):
            raise one.wrong("range", 'missing; expected "10.0.0.0/24" or "10.0.0.5-10.0.0.9/24"')
    common, keep = read_one_ip(ipam, "gateway"), ipam.flag("exclude_gateway", True)
    sizes = {32: read_block_size(ipam, "block_size", 32), 128: read_block_size(ipam, "block_size6", 128)}
    slices = read_slice_size(ipam)
    sizes[32] = sizes[32] or slices
    return tuple(read_range(one, common, keep, sizes, warnings) for one in sections + ipam.sections("ipRanges"))


def read_range(section: Section, common: bytes | None, without_gateway: bool, sizes: dict[int, int],
               warnings: list[str]) -> Range:
    """Return the Range of a section with the key `range`: "10.0.0.0/24", or "10.0.0.5-10.0.0.9/24". common: the gateway
    of a section without `gateway`. without_gateway: exclude the gateway. sizes: {32 or 128: block size}. Raises
    CniError 7."""
    text = section.text("range")
    start_text, dash, net_text = text.rpartition("-")
    try:
        packed, prefix = address.read_cidr(lenient(net_text.strip()))
        start = to_int(address.read_ip(lenient(start_text.strip()))) if dash else None
    except ValueError as e:
        raise section.wrong("range", str(e)) from None
    bits = len(packed) * 8
    network, last_of_net = ends(bits, to_int(packed), prefix)
    if start is not None and not network <= start <= last_of_net:
        raise section.wrong("range", f"its first address is not in {address.cidr_text(packed, prefix)}")
    first, last = usable(bits, network, prefix)
    low, high = read_bound(section, "range_start", bits), read_bound(section, "range_end", bits)
    bounds = (start, to_int(packed)) if start is not None else (low, high)
    for key, bound in (("range_start", low), ("range_end", high)):
        if bound is not None and not network <= bound <= last_of_net:
            warnings.append(f"{section.path(key)} is ignored: it is not in {text}")
    inside = [one if one is not None and network <= one <= last_of_net else None for one in bounds]
    first = first if inside[0] is None else max(first, inside[0])
    last = last if inside[1] is None else min(last, inside[1])
    if first > last:
        raise section.wrong("range", f"{text} has no address between its bounds")
    gateway = read_one_ip(section, "gateway") or common
    gateway = gateway if gateway and len(gateway) * 8 == bits else None
    listed = [read_excluded(section, i, one) for i, one in enumerate(section.texts("exclude"))]
    excluded = [(low, high) for of, low, high in listed if of == bits]
    if gateway and without_gateway:
        excluded.append((to_int(gateway), to_int(gateway)))
    one = make_range(bits, network, prefix, (first, last), excluded)
    if not one.spans:
        raise section.wrong("exclude", f"nothing is left of {text}")
    one.gateway, one.block_size = gateway, sizes[bits]
    if 0 < one.block_size < prefix:         # a block is at most as large as the range
        one.block_size = prefix
    return one


def read_bound(section: Section, key: str, bits: int) -> int | None:
    """Return the bound `key` of a range as a number, or None if the key is absent or has an address of the other
    family."""
    packed = read_one_ip(section, key)
    return to_int(packed) if packed and len(packed) * 8 == bits else None


def read_excluded(section: Section, i: int, text: str) -> tuple[int, int, int]:
    """Return (address bits, first, last) of an excluded CIDR or address. text: `exclude[i]`."""
    try:
        packed, prefix = read_net(text)
    except ValueError as e:
        raise section.wrong(f"exclude[{i}]", str(e)) from None
    return len(packed) * 8, *ends(len(packed) * 8, to_int(packed), prefix)


def read_one_ip(section: Section, key: str) -> bytes | None:
    text = section.text(key)
    try:
        return address.read_ip(lenient(text)) if text else None
    except ValueError as e:
        raise section.wrong(key, str(e)) from None


def read_block_size(ipam: Section, key: str, bits: int) -> int:
    """Return the configured prefix length of blocks. 0: grid.py chooses the length. The value of `bits`: a node claims
    single addresses instead of blocks."""
    size: int = ipam.integer(key, 0, 0, bits)
    if (size and size < bits - MAX_BLOCK_BITS) or bits - 2 < size < bits:
        raise ipam.wrong(key, f"expected {bits - MAX_BLOCK_BITS} to {bits - 2}, or {bits} for single addresses")
    return size


def read_slice_size(ipam: Section) -> int:
    """Return whereabouts' node_slice_size, "/22" or "22", as a prefix length of IPv4 blocks; 0 without that key."""
    text = ipam.text("node_slice_size")
    digits = text.removeprefix("/")
    if not text:
        return 0
    if not (digits.isascii() and digits.isdigit() and 0 < int(digits) <= 32):
        raise ipam.wrong("node_slice_size", f'expected a prefix length as "/24", got {shown(text)}')
    return min(max(int(digits), 32 - MAX_BLOCK_BITS), 30)
