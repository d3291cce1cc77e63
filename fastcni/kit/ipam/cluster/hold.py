"""The pause after the store was restored from a backup: this node claims no block that another node may have.

The restored store may lack blocks of other nodes. So this node waits until each of them has claimed its own again:

1. PAUSE_S, or node_ttl if that is longer. A server that lost its store asks it again within Times.max_away_s and the
   time out of a request. Signs of life from before the backup have ended by then.
2. Until each node that the store knows is alive, or declared dead, or dead_after has passed since the restore.
3. SETTLE_S: a node sends its heartbeat a moment before it claims its blocks.

State.hold is [boot id, CLOCK_BOOTTIME, seconds, settled], of the beginning of a step, or None. settled: step 3 has
begun. In a later boot the pause has lasted at least since that boot began: CLOCK_BOOTTIME itself.
"""

from __future__ import annotations

from fastcni.kit.ipam.cluster.contract import LOST, NODE_TTL_S
from fastcni.kit.ipam.cluster.node_state import MadeSpace
from fastcni.kit.ipam.cluster.released import boottime
from fastcni.kit.ipam.store import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.kit.ipam.cluster.contract import Store

    Hold = list[Any]

PAUSE_S = 60.0                  # twice a server's max_away_s, 20 s, and some time outs of 5 s
SETTLE_S = 5.0
DEAD_AFTER_S = 600.0            # without dead_after in the store's settings: Times.grace_s
MAX_NAMED = 5                   # nodes that an error names


def begin(settings: Mapping[str, Any]) -> Hold:
    """Begin the pause for a store with these settings."""
    return [boot_id().decode(), boottime(), seconds_of(settings), False]


def seconds_of(settings: Mapping[str, Any]) -> float:
    return max(PAUSE_S, settings.get("node_ttl", NODE_TTL_S))


def age(hold: Hold) -> float:
    """For how many seconds a step has lasted, at least."""
    return boottime() - hold[1] if hold[0] == boot_id().decode() else boottime()


def left(hold: Hold | float) -> float:
    """How many seconds of a step are left. A number is of a version that wrote the end without its boot."""
    return max(0.0, hold[2] - age(hold) if isinstance(hold, list) else PAUSE_S - boottime())


def reason(store: Store, keys: Keys, warn: Callable[[str], object]) -> str:
    """Return why this node may claim no block now, "" if it may. Begins the next step when one is over. Raises Away."""
    with MadeSpace(keys, warn) as space:
        hold = space.state.hold
    if hold is None:
        return ""
    if seconds := left(hold):
        return f"for another {seconds:.0f} s: the store was restored or replaced"
    settled = isinstance(hold, list) and hold[3]
    if not settled and (absent := lost_nodes(store, keys)) and not is_over(hold, keys.store):
        more = f" and {len(absent) - MAX_NAMED} more" if len(absent) > MAX_NAMED else ""
        return f"until {', '.join(absent[:MAX_NAMED])}{more} are back or dead: the store was restored or replaced"
    with MadeSpace(keys, warn) as space:
        if space.state.hold != hold:
            return "" if space.state.hold is None else "yet: the store was restored or replaced"
        state = space.state.copy()
        state.hold = None if settled else [boot_id().decode(), boottime(), SETTLE_S, True]
        space.save(state)
    return "" if settled else f"for another {SETTLE_S:.0f} s: the store was restored or replaced"


def lost_nodes(store: Store, keys: Keys) -> list[str]:
    return [node.name for node in store.nodes() if node.state == LOST and node.name != keys.node]


def is_over(hold: Hold | float, settings: Mapping[str, Any]) -> bool:
    """Return whether a node that has not come back yet is dead by now."""
    since = age(hold) if isinstance(hold, list) else boottime()
    return bool(since >= settings.get("dead_after", DEAD_AFTER_S))
