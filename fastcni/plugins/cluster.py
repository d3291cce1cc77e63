"""cluster: addresses that are unique in a cluster, from etcd, the Kubernetes API or a file; also named whereabouts.

A node claims blocks of the range in a store, and allocates addresses of its blocks itself: a usual ADD or DEL contacts
no other machine. The keys are those of whereabouts 0.9, its flat file included, and fastcni's own
(kit/ipam/cluster/conf.py, docs/ipam.md): a configuration of whereabouts works unchanged.

Differences from whereabouts:
- ranges may be /31, /32, /127 and /128, and IPv6 ranges of any size. No pod gets the gateway's address
  (exclude_gateway);
- a gateway is set for the addresses of its family only, and each range can have its own gateway;
- an address of IP= in CNI_ARGS that is in a range is given from it, to one pod only;
- K8S_POD_NAME may be absent;
- CHECK, GC and STATUS work as in the spec; a failed ADD leaves nothing; DEL does not need the store.
"""

from __future__ import annotations

from fastcni.kit.call.conf import ENDINGS
from fastcni.kit.ipam.cluster import allocate, release
from fastcni.kit.ipam.cluster import conf as keys_of_conf
from fastcni.kit.ipam.cluster.requested import read_requested
from fastcni.spec import ipam as ipam_conf
from fastcni.spec.errors import INTERNAL, INVALID_CONFIG, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.ipam.cluster.allocate import Attachment

CAPABILITIES, ARGS = ("ips",), ("IP", "GATEWAY")


def read(req: Request) -> Attachment:
    it = allocate.Attachment(req, keys_of_conf.keys_for(req))
    if req.command in ENDINGS:
        return it
    if not it.keys.ranges and req.command != "STATUS":
        raise CniError(INVALID_CONFIG, "no IP ranges specified", 'ipam.range or ipam.ipRanges has them')
    it.asked = read_requested(req, it.keys.ranges)
    return it


def add(req: Request, attachment: Attachment, undo: Undo) -> dict[str, Any]:
    """Give one address of each range."""
    for text in attachment.keys.warnings:
        req.warn(text)
    undo(release.take_back, req, attachment)
    while what := allocate.give(req, attachment):
        release.ask_store(req, attachment, what)
    req.mode.note_space(attachment.keys, attachment.fresh)
    ips = [(packed, one.prefix, one.gateway) for one,
           packed in zip(attachment.keys.ranges, attachment.taken, strict=True) if packed]
    return ipam_conf.make_result([*ips, *attachment.keys.addresses, *attachment.asked.extra], attachment.keys.routes,
                                 attachment.keys.dns)


def delete(req: Request, attachment: Attachment) -> None:
    """Release all addresses of the container's interface; no address is no error. If the store must release an address
    and is unavailable, the release is recorded, and the next ADD or the server does it."""
    release.release_attachment(req, attachment)


def check(req: Request, attachment: Attachment) -> None:
    """Check that the attachment holds an address of each range."""
    missing = release.missing(req, attachment)
    if missing:
        raise CniError(INTERNAL, f"container {req.container_id} {req.ifname} has no address of {', '.join(missing)}",
                       f"network {req.name}, {attachment.keys.data_dir}/{attachment.keys.space}")


def gc(req: Request, attachment: Attachment) -> None:
    """Release the addresses of this network without a valid attachment."""
    release.collect(req, attachment)


def status(req: Request, attachment: Attachment) -> None:
    """Raise CniError 50 if no address can be allocated, 51 if the store is unavailable but the node's blocks have free
    addresses."""
    for text in attachment.keys.warnings:
        req.warn(text)
    release.report(req, attachment)
