"""host-local: addresses from ranges of this node, one file each; the Go plugin can use the same directory.

The keys below `ipam` are the reference plugin's: subnet, rangeStart, rangeEnd, gateway, ranges, routes, dataDir,
resolvConf. A pod can request addresses by IP= in CNI_ARGS, by args.cni.ips and by runtimeConfig.ips;
runtimeConfig.ipRanges adds ranges. The key `fsync` (default false) is fastcni's; kit/ipam/address_files.py describes
the key's effect and cost.

Differences from the reference:
- an ADD or DEL holds one lock from begin to end, and fails if it must wait too long for the lock;
- a container that requests an address gets no second address of a range set (the reference plugin makes this check only
  if no address is requested);
- a failed ADD releases the addresses that it allocated itself, never those of an earlier ADD;
- the error code is 11 (try again later) if a range is full or another container has the requested address, and 7 if a
  request is impossible. The error texts are the reference plugin's; the details have the numbers;
- GC releases addresses that are not in cni.dev/valid-attachments. STATUS warns when a range set is full, and fails when
  the files cannot be read. Both work without ranges, because a runtime may pass ranges only for ADD;
- a relative dataDir is an error, because a server does not have its caller's working directory.
"""

from __future__ import annotations

from fastcni.kit.call.conf import ENDINGS, read_once
from fastcni.kit.ipam import allocation, host_local_conf
from fastcni.kit.ipam.address_files import owner_of
from fastcni.kit.ipam.ranges import find_range
from fastcni.kit.ipam.store import Store
from fastcni.spec import ipam as ipam_conf
from fastcni.spec.errors import INTERNAL, INVALID_CONFIG, PLUGIN_NOT_AVAILABLE, TRY_AGAIN_LATER, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

CAPABILITIES, ARGS = ("ipRanges", "ips"), host_local_conf.ARGS


class Conf:
    """The configuration of a network for one container. keys: the network's keys. owner: the content of the container's
    address files. requested: the requested addresses, packed, without duplicates."""

    __slots__ = ("keys", "owner", "requested")
    keys: host_local_conf.Keys
    owner: bytes
    requested: list[bytes]


def read(req: Request) -> Conf:
    conf = Conf()
    conf.owner = owner_of(req.container_id, req.ifname)
    if req.command in ENDINGS:
        conf.keys = read_once(req, host_local_conf.read_place)
        return conf
    conf.keys = req.conf.once(host_local_conf.read_keys)
    conf.requested = host_local_conf.read_requested(req)
    if not conf.keys.sets and req.command != "STATUS":
        raise CniError(INVALID_CONFIG, "no IP ranges specified")
    return conf


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    """Allocate one address of each range set, and return the result."""
    dns = read_dns(conf.keys.resolv_conf) if conf.keys.resolv_conf else {}
    wanted = allocation.assign_requested(conf.keys.sets, conf.requested)
    taken: list[bytes] = []
    undo(release_taken, req, conf, taken)
    store = open_store(req, conf, create=True)
    with store:
        for i, range_set in enumerate(conf.keys.sets):
            taken.append(allocation.allocate(store, i, range_set, wanted[i], conf.owner))
    ips = []
    for range_set, packed in zip(conf.keys.sets, taken, strict=True):
        one = find_range(range_set, packed)
        # One range of this set has the address
        ips.append((packed, one.prefix, one.gateway))  # type: ignore[union-attr]
    return ipam_conf.make_result(ips, conf.keys.routes, dns)


def release_taken(req: Request, conf: Conf, taken: list[bytes]) -> None:
    """Roll back ADD: remove the files of the addresses `taken`, which ADD created, if the files still have ADD's
    owner."""
    if not taken:
        return
    with open_store(req, conf) as store:
        if store is None:
            return
        for packed in taken:
            store.release(packed, conf.owner)


def delete(req: Request, conf: Conf) -> None:
    """Release all addresses of the container's interface, in any range; no address is no error."""
    with open_store(req, conf) as store:
        if store is None:
            return
        released = allocation.release_all(store, conf.owner)
        if not released:
            released = allocation.release_all(store, owner_of(req.container_id))    # by a Go plugin before 0.7
        if store.files.unreadable and len(released) < host_local_conf.max_held(req):
            store.check_all_read()


def check(req: Request, conf: Conf) -> None:
    """Check that the container holds an address of this network. As in the reference plugin, one address of any range
    set is enough."""
    with open_store(req, conf) as store:
        if store and (store.addresses_of(conf.owner) or store.addresses_of(owner_of(req.container_id))):
            return
        if store:
            store.check_all_read()
    raise CniError(INTERNAL, f"host-local: Failed to find address added by container {req.container_id}")


def gc(req: Request, conf: Conf) -> None:
    """Release the addresses that belong to no valid attachment, and the addresses of incompletely written files."""
    valid = {owner_of(*pair) for pair in req.valid_attachments}
    valid |= {owner_of(pair[0]) for pair in req.valid_attachments}
    with open_store(req, conf) as store:
        if store:
            allocation.collect(req, store, lambda _, owner: owner not in valid)


def status(req: Request, conf: Conf) -> None:
    """Check whether ADD can allocate addresses, but create no file. A full range is only a warning: after an error of
    STATUS, the runtime reports the node's network as not ready, and the node's pods may be evicted."""
    try:
        with open_store(req, conf) as store:
            if store is None:
                return
            for i, range_set in enumerate(conf.keys.sets):
                if allocation.is_full(store, range_set):
                    req.warn(f"host-local: range set {i} is full: {allocation.usage(store, range_set)}")
    except CniError as e:
        if e.code != TRY_AGAIN_LATER:
            raise CniError(PLUGIN_NOT_AVAILABLE, e.msg, e.details) from None
        req.warn(f"host-local: {e.msg}")


def open_store(req: Request, conf: Conf, create: bool = False) -> Store:
    return Store(conf.keys.data_dir, req.name, req.warn, create=create, sync=conf.keys.fsync,
                 release_former=req.command not in ("CHECK", "STATUS"))


def read_dns(path: str) -> dict[str, Any]:
    from fastcni.kit.ipam import resolv_conf  # imported here, because few networks have the key resolvConf

    return resolv_conf.read(path)
