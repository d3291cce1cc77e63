"""loopback: sets `lo` up in the pod, and nothing else. CNI_IFNAME is not looked at."""

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, wire
from fastcni.kit.links import find
from fastcni.kit.links.pod import Pod
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError


def read(req):
    """The prevResult, if any: there are no keys. DEL needs none and must not fail for it."""
    if req.command == "DEL":
        return None
    try:
        return results.read_prev_result(req.conf, req.version)
    except CniError as e:
        raise CniError(e.code, f"failed to parse prevResult: {e.msg}", e.details) from None


def add(req, previous, undo):
    pod = Pod(req)
    lo = find.link(pod.inside, "lo")
    if not lo.up:
        undo(set_up, pod, lo, False)
        set_up(pod, lo, True)
    found = find.addresses(pod.inside, lo.index)
    for item in found:
        if item.packed[:1] != b"\x7f" and item.packed != bytes(15) + b"\x01":
            raise CniError(errors.INTERNAL, "loopback interface found with non-loopback address "
                           f'"{addresses.ip_text(item.packed)}"')
    if previous:
        return previous
    return {"interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": req.netns}],
            "ips": [{"address": addresses.cidr_text(item.packed, item.prefix), "interface": 0} for item in found]}


def delete(req, _):
    if req.netns_gone():
        return
    pod = Pod(req)
    set_up(pod, find.link(pod.inside, "lo"), False)


def check(req, _):
    if not find.link(Pod(req).inside, "lo").up:
        raise CniError(errors.INTERNAL, "loopback interface is down")


def set_up(pod, lo, up):
    wire.exchange(pod.inside, rtnl.set_link(Batch(), lo.index, up=up, what=f"set lo {'up' if up else 'down'}"))
