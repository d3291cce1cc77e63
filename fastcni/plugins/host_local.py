"""host-local: addresses from ranges of this node, kept as files; the Go plugin can share the directory.

The keys are those of the reference, below `ipam`: subnet, rangeStart, rangeEnd, gateway, ranges, routes, dataDir,
resolvConf. Requested addresses come from IP= in CNI_ARGS, args.cni.ips and runtimeConfig.ips, more ranges from
runtimeConfig.ipRanges. The key `fsync` (default false) is fastcni's; kit/ipam/address_files.py has its effect and cost.

Differences from the reference:
- an ADD or DEL holds one lock from begin to end; waiting for the lock too long is an error;
- a container gets no second address of a set by requesting an address (the reference checks for a duplicate only if no
  address is requested);
- a failed ADD releases the addresses that it allocated itself, never those of an earlier ADD;
- a full range is code 11 (try again later), and so is a requested address that another container has; impossible
  requests are code 7. The texts are the reference's; the details have the numbers;
- GC releases addresses that are not in cni.dev/valid-attachments. STATUS warns when a range set is full, and fails when
  the files cannot be read. Both work without ranges, because a runtime may pass ranges only for ADD;
- a relative dataDir is an error: a server has no working directory of its caller.
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
    """The keys, and the values of one container. keys: host_local_conf.Keys. owner: the content of the container's
    files. requested: packed addresses, each once."""

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
    """Allocate one address of each range set."""
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
        ips.append((packed, one.prefix, one.gateway))   # type: ignore[union-attr]  # it was taken from this set
    return ipam_conf.make_result(ips, conf.keys.routes, dns)


def release_taken(req: Request, conf: Conf, taken: list[bytes]) -> None:
    """Roll back ADD: remove the files that ADD created, if they still have its owner."""
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
        for owner in (conf.owner, owner_of(req.container_id)):      # files of plugins before 0.7 have only the id
            released = allocation.release_each(store, [(packed, owner) for packed in store.index.addresses_of(owner)])
            if released:
                break
        if store.unread and len(released) < host_local_conf.max_held(req):
            store.check_all_read()


def check(req: Request, conf: Conf) -> None:
    """Check that the container holds an address of this network. As in the reference, any address is enough."""
    with open_store(req, conf) as store:
        if store and (store.addresses_of(conf.owner) or store.addresses_of(owner_of(req.container_id))):
            return
        if store:
            store.check_all_read()
    raise CniError(INTERNAL, f"host-local: Failed to find address added by container {req.container_id}")


def gc(req: Request, conf: Conf) -> None:
    """Release addresses without a valid attachment, and addresses of torn files."""
    valid = {owner_of(*pair) for pair in req.valid_attachments}
    valid |= {owner_of(pair[0]) for pair in req.valid_attachments}
    with open_store(req, conf) as store:
        if store:
            allocation.collect(req, store, lambda _, owner: owner not in valid)


def status(req: Request, conf: Conf) -> None:
    """Check whether ADD can allocate addresses, without creating a file. A full range is only a warning: for a runtime,
    an error of STATUS means a node without network, and the runtime evicts the node's pods."""
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
    from fastcni.kit.ipam import resolv_conf  # imported here, because few networks name a file

    return resolv_conf.read(path)
