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
    from collections.abc import Collection, Sequence

    from fastcni.agent.policy.state import Range


def end(pods: Collection[bytes], inside: Sequence[Range]) -> int:
    """Delete the flows that these addresses have begun to outside. Return how many. Raises OSError."""
    if not pods:
        return 0
    with closing(wire.open_socket(uapi.NETLINK_NETFILTER)) as sock:
        found = [flow for flow in conntrack.list_flows(sock, pods)
                 if flow.source in pods and not within(flow.destination, inside)]
        cut.delete(sock, found)
    return len(found)


def within(packed: bytes, ranges: Sequence[Range]) -> bool:
    """Whether an address is in one of the ranges, which are in order for each length of addresses."""
    same = [each for each in ranges if len(each[0]) == len(packed)]
    at = bisect_right(same, packed, key=lambda each: each[0]) - 1
    return at >= 0 and packed <= same[at][1]
