"""Delete the conntrack flows of pods whose egress address has changed.

A connection keeps the source NAT of its first packet. If the pod's egress address or next hop changes, the rules would
drop the connection's packets until the connection ends. After the flow is deleted, the next packet creates a flow with
the new source NAT. A TCP connection continues if the new source address and port are the same.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from fastcni.agent.policy import cut
from fastcni.kernel import conntrack, uapi, wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastcni.agent.policy.state import Range


def end(pods: Mapping[bytes, bytes], inside: Sequence[Range]) -> int:
    """Delete the flows from pods to destinations outside the cluster, except flows that have the right source address.
    Return the number of deleted flows. Raises OSError.

    pods: {a pod's address: the source address that its packets must have when they leave this node; b"" to delete all
    flows of the pod}. inside: the ranges of addresses inside the cluster.
    """
    if not pods:
        return 0
    with wire.open_socket(uapi.NETLINK_NETFILTER) as sock:
        found = [flow for flow in conntrack.list_flows(sock, pods) if pods.get(flow.source, flow.translated)
                 != flow.translated and not within(flow.destination, inside)]
        cut.delete(sock, found)
    return len(found)


def within(packed: bytes, ranges: Sequence[Range]) -> bool:
    """Return whether the address `packed` is in one of `ranges`. For each address family, the ranges are sorted."""
    same = [each for each in ranges if len(each[0]) == len(packed)]
    at = bisect_right(same, packed, key=lambda each: each[0]) - 1
    return at >= 0 and packed <= same[at][1]
