"""vrf: puts the pod's link into a VRF: the links in a VRF share a separate routing table.

DEL takes the link out of the VRF, and deletes the VRF if no other link is in it.
"""

from __future__ import annotations

from fastcni.kernel import netns
from fastcni.kit.call import chained
from fastcni.kit.call.conf import ENDINGS, keys_of
from fastcni.kit.call.pod import Pod
from fastcni.kit.links import find, vrfs
from fastcni.spec import config, errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

VERSIONS = ("0.3.1", "0.4.0", "1.0.0", "1.1.0")
MISSING = "missing prevResult from earlier plugin"


class Conf:
    """The configuration keys of one network. For DEL and GC only `name` is set."""

    __slots__ = ("name", "table")

    name: str                   # the key vrfname; "" if a DEL lacks the key
    table: int                  # the number of the routing table; 0: choose a free number


def read(req: Request) -> Conf:
    keys, conf = keys_of(req), Conf()
    conf.name = keys.text("vrfname")
    if req.command in ENDINGS:
        return conf
    try:
        config.check_ifname(conf.name)
    except CniError as e:
        raise errors.bad_config("configuration is expected to have a valid vrf name",
                                f'vrfname "{conf.name}": {e.msg}') from None
    conf.table = keys.integer("table", low=0, high=0xFFFFFFFF)
    return conf


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    result = chained.previous(req, MISSING)
    pod = Pod(req)
    with netns.locked(pod.netns_fd, req.warn):
        link = find.pod_link(pod, req.ifname, f"cmdAdd failed: could not get link by name {req.ifname}")
        vrfs.add_link(pod, undo, link, conf.name, conf.table)
    return result


def delete(req: Request, conf: Conf) -> None:
    if req.netns_gone():
        return
    pod = Pod(req)
    with netns.locked(pod.netns_fd, req.warn):
        vrfs.delete_link(pod, req.ifname, conf.name)


def check(req: Request, conf: Conf) -> None:
    chained.previous(req, MISSING)
    vrfs.check_link(Pod(req), req.ifname, conf.name, conf.table)


def status(req: Request, _: Conf) -> None:
    from fastcni.kit.links.devices import need_kind

    need_kind(req, "vrf")
