"""cluster: addresses that are unique in a cluster, from etcd, the Kubernetes API or a file; also named whereabouts.

A node claims blocks of the range in a store, and allocates addresses from its own blocks, so a usual ADD or DEL
contacts no other machine. The plugin reads the keys of whereabouts 0.9, also from whereabouts' flat file, so a
configuration of whereabouts works unchanged. fastcni has further keys (kit/ipam/cluster/conf.py, docs/ipam.md).

Differences from whereabouts:
- a range may be a /31, /32, /127 or /128; an IPv6 range may have any size. No pod gets the gateway's address
  (exclude_gateway);
- only addresses of the gateway's family get the gateway, and each range can have its own gateway;
- if IP= in CNI_ARGS names an address of a range, the pod gets this address, unless another pod has the address;
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
        raise CniError(INVALID_CONFIG, "no IP ranges specified", 'set ipam.range or ipam.ipRanges')
    it.asked = read_requested(req, it.keys.ranges)
    return it


def add(req: Request, attachment: Attachment, undo: Undo) -> dict[str, Any]:
    """Allocate one address of each range, and return the result."""
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
    """Release all addresses of the container's interface; no address is no error. If an address must be released in the
    store and the store is unavailable, record the release. The next ADD, or the server, repeats a recorded release."""
    release.release_attachment(req, attachment)


def check(req: Request, attachment: Attachment) -> None:
    """Check that the attachment holds an address of each range. Raise CniError if an address is missing."""
    missing = release.missing(req, attachment)
    if missing:
        raise CniError(INTERNAL, f"container {req.container_id} {req.ifname} has no address of {', '.join(missing)}",
                       f"network {req.name}, {attachment.keys.data_dir}/{attachment.keys.space}")


def gc(req: Request, attachment: Attachment) -> None:
    """Release the addresses of this network that belong to no valid attachment."""
    release.collect(req, attachment)


def status(req: Request, attachment: Attachment) -> None:
    """Check whether ADD can allocate addresses. Raise CniError 50 if no address can be allocated, 51 if the store is
    unavailable but the node's blocks have free addresses."""
    for text in attachment.keys.warnings:
        req.warn(text)
    release.report(req, attachment)
