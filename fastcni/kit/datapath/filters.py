"""Add and remove the datapath's filters at the host end of a pod's veth pair.

    qdisc clsact ffff:
      filter ingress pref 64512 bpf fastcni direct-action       from_pod
      filter egress pref 64512 bpf fastcni direct-action        to_pod
"""

from __future__ import annotations

from errno import ENODEV

from fastcni._netlink import Batch, attributes
from fastcni.kernel import tc, uapi, wire
from fastcni.kernel.rtnl import u32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket

PRIORITY, NAME = 0xFC00, "fastcni"      # with this priority, filters of other programs run first and decide
PARENTS = {"from_pod": uapi.TC_H_CLSACT_INGRESS, "to_pod": uapi.TC_H_CLSACT_EGRESS}


def add(sock: Socket, host: Link, programs: Mapping[str, int]) -> None:
    """Add the qdisc and the filters to a new link. programs: {name: descriptor}. Raises NetlinkError."""
    what = f'redirect packets of "{host.name}"'
    wire.exchange(sock, put(tc.new_clsact(Batch(), host.index, what), host.index, programs, what))


def replace(sock: Socket, indexes: Iterable[int], programs: Mapping[str, int]) -> int:
    """Replace the programs of both filters of these links, without a moment in which a packet passes no program. Return
    the number of links that still exist. Raises NetlinkError."""
    count = 0
    for index in indexes:
        for error in wire.attempt(sock, put(Batch(), index, programs, f"replace programs of link {index}"))[1]:
            if error.errno != ENODEV:           # ENODEV: the pod was deleted
                raise error
            break
        else:
            count += 1
    return count


def put(batch: Batch, index: int, programs: Mapping[str, int], what: str) -> Batch:
    for name, parent in PARENTS.items():
        tc.new_bpf_filter(batch, index, parent, PRIORITY, programs[name], NAME, what)
    return batch


def exist(sock: Socket, index: int) -> bool:
    """Return whether a link exists and has both filters."""
    found, refused = wire.attempt(sock, get(Batch(), index))
    return not refused and len(found) == len(PARENTS)


def get(batch: Batch, index: int) -> Batch:
    for parent in PARENTS.values():
        tc.get_bpf_filter(batch, index, parent, PRIORITY, f"get filters of link {index}")
    return batch


def linked(sock: Socket) -> dict[int, set[int]]:
    """Return {index of a link: ids of its programs} of all links with a filter of the datapath. Uses only rtnetlink,
    not bpffs. Raises NetlinkError."""
    qdiscs = wire.dump(sock, uapi.RTM_GETQDISC, tc.tcmsg(0), "list qdiscs")
    indexes = [u32(payload[4:8]) for _, payload in qdiscs if tc.read_kind(payload)[0] == "clsact"]
    found: dict[int, set[int]] = {}
    for batch in wire.in_batches(indexes, get):
        for _, payload in wire.attempt(sock, batch)[0]:         # for a link without filter the kernel returns an error
            options = attributes(tc.read_kind(payload)[1])
            if options.get(uapi.TCA_BPF_NAME, b"").rstrip(b"\0") == NAME.encode():
                found.setdefault(u32(payload[4:8]), set()).add(u32(options[uapi.TCA_BPF_ID]))
    return found


def leave(sock: Socket, index: int) -> bool:
    """Remove a link's filters, so that its packets in both directions pass through the host's stack. Return whether the
    link was in the datapath. Call leave() before shaping a pod's traffic, because a redirected packet passes no qdisc
    of the host end. Raises NetlinkError."""
    if not exist(sock, index):
        return False
    wire.exchange(sock, tc.del_qdisc(Batch(), index, uapi.TC_H_INGRESS, f"delete qdisc clsact of link {index}"))
    return True
