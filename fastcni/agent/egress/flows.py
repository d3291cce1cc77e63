"""Connections of pods whose egress address has changed: their flows are deleted from conntrack.

A connection keeps the translation of its first packet, so with another address or way its packets would be dropped
until it ends. Without its flow the next packet gets the new translation. A TCP connection goes on if that is the same
address and port.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import closing
from typing import TYPE_CHECKING

from fastcni.agent.policy import cut
from fastcni.kernel import conntrack, uapi, wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastcni.agent.policy.state import Range


def end(pods: Mapping[bytes, bytes], inside: Sequence[Range]) -> int:
    """Delete the flows that pods have begun to outside, but for those with the right source. Return how many. Raises
    OSError.

    pods: {address: the source with which its packets are to leave this node, b"" if each flow is to go}.
    """
    if not pods:
        return 0
    with closing(wire.open_socket(uapi.NETLINK_NETFILTER)) as sock:
        found = [flow for flow in conntrack.list_flows(sock, pods) if pods.get(flow.source, flow.translated)
                 != flow.translated and not within(flow.destination, inside)]
        cut.delete(sock, found)
    return len(found)


def within(packed: bytes, ranges: Sequence[Range]) -> bool:
    """Whether an address is in one of the ranges, which are in order for each length of addresses."""
    same = [each for each in ranges if len(each[0]) == len(packed)]
    at = bisect_right(same, packed, key=lambda each: each[0]) - 1
    return at >= 0 and packed <= same[at][1]
