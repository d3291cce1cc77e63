"""The filters of the datapath at the host end of a pod's veth pair.

    qdisc clsact ffff:
      filter ingress pref 64512 bpf fastcni direct-action       from_pod
      filter egress pref 64512 bpf fastcni direct-action        to_pod
"""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import tc, uapi, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket

PRIORITY, NAME = 0xFC00, "fastcni"      # filters of other programs come first, and what they decide stays
PARENTS = {"from_pod": uapi.TC_H_CLSACT_INGRESS, "to_pod": uapi.TC_H_CLSACT_EGRESS}


def add(sock: Socket, host: Link, programs: Mapping[str, int]) -> None:
    """Add the qdisc and the filters to a new link. programs: {name: descriptor}. Raises NetlinkError."""
    what = f'redirect packets of "{host.name}"'
    wire.exchange(sock, put(tc.new_clsact(Batch(), host.index, what), host.index, programs, what))


def replace(sock: Socket, index: int, programs: Mapping[str, int]) -> None:
    """Replace the programs of both filters. Each packet passes the old program or the new one. Raises NetlinkError."""
    wire.exchange(sock, put(Batch(), index, programs, f"replace programs of link {index}"))


def put(batch: Batch, index: int, programs: Mapping[str, int], what: str) -> Batch:
    for name, parent in PARENTS.items():
        tc.new_bpf_filter(batch, index, parent, PRIORITY, programs[name], NAME, what)
    return batch


def exist(sock: Socket, index: int) -> bool:
    """Return whether a link exists and has both filters."""
    batch = Batch()
    for parent in PARENTS.values():
        tc.get_bpf_filter(batch, index, parent, PRIORITY, f"get filters of link {index}")
    found, refused = wire.attempt(sock, batch)
    return not refused and len(found) == len(PARENTS)


def leave(sock: Socket, index: int) -> bool:
    """Take a link out of the datapath: its packets, in both directions, pass through the host's stack. Return whether
    the link was in it. Call leave() before traffic is shaped: a redirected packet passes no qdisc of the host end.
    Raises NetlinkError."""
    if not exist(sock, index):
        return False
    wire.exchange(sock, tc.del_qdisc(Batch(), index, uapi.TC_H_INGRESS, f"delete qdisc clsact of link {index}"))
    return True
