"""Poll the tables of legacy iptables in one namespace once a second, while pods have rules: the kernel sends no
notification of a change. iptables_watch.py collects the rules and chains that the tables lose.

If fastcni adds a jump after a poll, and another program deletes the jump before the next poll, no poll sees the loss.
So a poll after an ADD or a replay checks whether the jump to CNI-FORWARD exists.
"""

from __future__ import annotations

from errno import ENOENT
from math import inf

from fastcni.kernel import netns, xtables
from fastcni.kit.firewall.iptables import LEGACY_TABLES
from fastcni.server.restoring.iptables_watch import (
    CHAINS,
    FILTER,
    FIREWALLD,
    FIREWALLD_SOURCES,
    FORWARD,
    PREFIX,
    ZONES,
    chain_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.server.restoring.iptables_watch import IptablesWatch

    Where = tuple[int, str]

POLL_S = 1.0
ADD_S = 3.0                     # seconds for which polls go on after an ADD, even if no pod has an element in nftables
TABLES = ("nat", FILTER)
JUMP = (FORWARD, "CNI-FORWARD")
MAX_REPLAYS = 3                 # limit of replays while a jump stays missing: replays may not help


class LegacyWatch:
    """The polls of one namespace. home: a descriptor of the namespace. iptables: gets the objects that the tables lose.
    suspect_drops(): called when a table filter has more rules that drop or reject than at the last poll. known:
    {(length, table): the kernel's counts} at the last poll; None before the first poll. refusals: {length: number of
    rules that drop or reject}. A length is the length of an address in bytes: 4 or 16.

    recorded: {length: number of pods' addresses that fastcni has let through iptables} at the last attend(). expected:
    from when on the tables must have JUMP for these addresses, in monotonic seconds; None: a poll has seen JUMP since.
    misses: number of consecutive polls without JUMP.
    """

    def __init__(self, home: int, iptables: IptablesWatch, suspect_drops: Callable[[], None]) -> None:
        self.home, self.iptables, self.suspect_drops, self.next = home, iptables, suspect_drops, 0.0
        self.known: dict[Where, bytes] | None = None
        self.refusals: dict[int, int] = {}
        self.zoned: set[Where] = set()          # the tables that have firewalld's chain
        self.recorded: dict[int, int] = {}
        self.expected: float | None = None
        self.misses = 0
        self.added = -ADD_S                     # when the last ADD began, in monotonic seconds

    def attend(self, now: float, *, pods: bool, recorded: dict[int, int],
               deleted_since: Callable[[float], int]) -> float:
        """Poll if the next poll is due. now: monotonic seconds. pods: whether any pod has elements in nftables.
        recorded: see the class. deleted_since(moment): returns the number of DELs that have begun since `moment`.

        Return when to call attend() again; infinite: only after a pod has got rules. Raises OSError, netns.Lost.
        """
        pods = pods or now < self.added + ADD_S or any(self.iptables.jumps[where] for where in self.known or ())
        if not pods and self.known is not None:
            return inf
        if any(count > self.recorded.get(length, 0) for length, count in recorded.items()):
            self.expect(now)
        self.recorded = recorded
        if now >= self.next:
            self.next = now + POLL_S
            with netns.inside(self.home):
                self._poll(deleted_since(now - 2 * POLL_S))
            if self.expected is not None and now >= self.expected:
                self._miss()
        return self.next if pods else inf

    def note_add(self, now: float) -> None:
        """Record that an ADD begins: the pod may get rules only in iptables. Any thread may call this."""
        self.added = now

    def expect(self, now: float) -> None:
        """Record that an ADD or a replay adds JUMP within POLL_S. Any thread may call this."""
        if self.expected is None:       # further requests do not delay a check that is due
            self.expected = now + POLL_S

    def _miss(self) -> None:
        self.expected = None
        missing = [where for where in self.known or () if where[1] == FILTER and self.recorded.get(where[0])
                   and JUMP not in self.iptables.jumps[where].values()]
        self.misses = self.misses + 1 if missing else 0
        if self.misses <= MAX_REPLAYS:
            for where in missing:
                self.iptables.lose(where, {JUMP})

    def _poll(self, deletions: int) -> None:
        before, self.known = self.known, {where: info for where in listed() if (info := self._figures(where))}
        for where, info in self.known.items():
            if before is None or info != before.get(where):
                self._read(where, deletions, first=before is None)
            if where[1] == FILTER:
                self.iptables.begin_to_filter(chain_name(where, FORWARD), new=before is not None)

    @staticmethod
    def _figures(where: Where) -> bytes | None:
        try:
            return xtables.get_info(*where)
        except OSError as e:
            if e.errno != ENOENT:
                raise
            return None

    def _read(self, where: Where, deletions: int, *, first: bool) -> None:
        table = xtables.read_table(*where)
        jumps = {(chain, target) for chain in CHAINS for target in table.targets(chain) if target.startswith(PREFIX)}
        # A reload of firewalld removes the rules of sources; a start of firewalld adds the chain ZONES.
        jumps |= {(ZONES, target) for target in table.targets(ZONES)}
        if not table.has_chain(ZONES):
            self.zoned.discard(where)
        elif where not in self.zoned:
            self.zoned.add(where)
            if not first:
                self.iptables.suspect(FIREWALLD_SOURCES, FIREWALLD)
        self.iptables.replace(where, jumps, table.has_chain, deletions)
        if where[1] == FILTER:
            before, now = self.refusals.get(where[0], 0), table.refusals()
            self.refusals[where[0]] = now
            if now > before and not first:
                self.suspect_drops()


def listed() -> list[Where]:
    """Return the legacy tables of the calling thread's namespace that exist. The kernel would create a table that a
    request names."""
    found = []
    for length, path in LEGACY_TABLES.items():
        try:
            with open(path, encoding="ascii") as file:
                found += [(length, table) for table in file.read().split() if table in TABLES]
        except (FileNotFoundError, PermissionError):    # module not loaded, or a namespace of another user namespace
            continue
    return found
