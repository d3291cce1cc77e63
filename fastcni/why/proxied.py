"""Follow a connection that the HTTP proxy of network policies takes.

The proxy accepts the connection before it connects to the target, so an accepted connection says nothing about the
target.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fastcni.agent.policy.http.redirect import DIVERT
from fastcni.agent.policy.ruleset import TABLE
from fastcni.kernel import nft, nft_trace
from fastcni.why.report import Report
from fastcni.why.spy import ON_NODE

if TYPE_CHECKING:
    from fastcni.why.path import Path

HOP, DECISION = "HTTP proxy", "policy"      # names of hops; the proxy gets the packets that the policies accept


def taken(path: Path) -> bool:
    """Return whether the node's chains gave the packet to the proxy."""
    return path.spy is not None and any(
        it.where == ON_NODE and not it.reply and (it.event.table, it.event.chain) == (TABLE, DIVERT)
        and it.event.kind == nft_trace.NFT_TRACETYPE_RULE and it.event.verdict == nft.NF_ACCEPT
        for it in path.spy.seen)


def joined(first: Report, second: Report) -> Report:
    """Return the Report of both parts of the connection. first: from the source to the proxy, which accepts it. second:
    from the node, in the proxy's place, to the target."""
    at = first.hops.index((DECISION, True)) + 1
    before = (*first.hops[:at], (HOP, True))
    behind = (hop for hop in second.hops if hop not in before)
    fault = second.ends and replace(second.ends, what=f"the HTTP proxy of the network policies accepts the connection, "
                                    f"and behind the proxy {second.ends.what}")
    return replace(first, hops=(*before, *behind), ends=fault)
