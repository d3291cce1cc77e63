"""Pause claims of blocks after the store was restored from a backup, because another node may have the block.

The restored store may lack blocks of other nodes. So this node waits until each other node has claimed its blocks
again:

1. Wait for PAUSE_S, or node_ttl if that is longer. A server that lost its store calls it again within Times.max_away_s
   plus the timeout of a request. Heartbeats from before the backup have expired by then.
2. Wait until each node in the store is alive or declared dead, or until dead_after has passed since the restore.
3. Wait for SETTLE_S, because a node sends its heartbeat a moment before it claims its blocks.

State.hold is None, or describes the current step: [boot id, CLOCK_BOOTTIME when the step began, seconds of the step,
settled]. settled: whether the current step is step 3. After a reboot, the step has lasted at least CLOCK_BOOTTIME, the
time since that boot.
"""

from __future__ import annotations

from fastcni.kit.ipam.cluster.contract import LOST, NODE_TTL_S
from fastcni.kit.ipam.cluster.node_state import MadeSpace, state_of
from fastcni.kit.ipam.cluster.released import boottime
from fastcni.kit.ipam.store import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.kit.ipam.cluster.contract import Store

    Hold = list[Any]

PAUSE_S = 60.0                  # twice a server's max_away_s of 20 s, plus some timeouts of 5 s
SETTLE_S = 5.0
DEAD_AFTER_S = 600.0            # as Times.grace_s, if the store's settings have no dead_after
MAX_NAMED = 5                   # how many nodes an error names


def begin(settings: Mapping[str, Any]) -> Hold:
    """Return the value of State.hold for a pause that begins now. settings: the store's."""
    return [boot_id().decode(), boottime(), seconds_of(settings), False]


def seconds_of(settings: Mapping[str, Any]) -> float:
    return max(PAUSE_S, settings.get("node_ttl", NODE_TTL_S))


def age(hold: Hold) -> float:
    """Return for how many seconds a step has lasted; after a reboot, the least possible number."""
    return boottime() - hold[1] if hold[0] == boot_id().decode() else boottime()


def left(hold: Hold | float) -> float:
    """Return how many seconds of a step are left. hold: a number if an earlier version of fastcni wrote it, without the
    boot id."""
    return max(0.0, hold[2] - age(hold) if isinstance(hold, list) else PAUSE_S - boottime())


def reason(store: Store, keys: Keys, warn: Callable[[str], object]) -> str:
    """Return why this node may not claim a block now, or "". If the current step is over, begin the next step. Raises
    Away."""
    hold = state_of(keys, warn).hold
    if hold is None:
        return ""
    if seconds := left(hold):
        return f"for another {seconds:.0f} s: the store was restored or replaced"
    settled = isinstance(hold, list) and hold[3]
    if not settled and (absent := lost_nodes(store, keys)) and not is_over(hold, keys.store):
        more = f" and {len(absent) - MAX_NAMED} more" if len(absent) > MAX_NAMED else ""
        return f"until {', '.join(absent[:MAX_NAMED])}{more} are back or dead: the store was restored or replaced"
    if settled:
        store.settle()
    with MadeSpace(keys, warn) as space:
        if space.state.hold != hold:
            return "" if space.state.hold is None else "yet: the store was restored or replaced"
        space.save(space.state.copy(hold=None if settled else [boot_id().decode(), boottime(), SETTLE_S, True]))
    return "" if settled else f"for another {SETTLE_S:.0f} s: the store was restored or replaced"


def lost_nodes(store: Store, keys: Keys) -> list[str]:
    return [node.name for node in store.nodes() if node.state == LOST and node.name != keys.node]


def is_over(hold: Hold | float, settings: Mapping[str, Any]) -> bool:
    """Return whether the pause has lasted for dead_after, so that a node that is still lost counts as dead."""
    since = age(hold) if isinstance(hold, list) else boottime()
    return bool(since >= settings.get("dead_after", DEAD_AFTER_S))
