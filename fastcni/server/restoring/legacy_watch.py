"""Poll the tables of legacy iptables in one namespace once a second, while pods have rules: the kernel sends no
notification of a change. iptables_watch.py collects what the tables lose.
"""

from __future__ import annotations

from errno import ENOENT

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
    from fastcni.server.restoring.iptables_watch import IptablesWatch

    Where = tuple[int, str]

POLL_S = 1.0
TABLES = ("nat", FILTER)


class LegacyWatch:
    """home: a descriptor of the namespace. iptables: gets what the tables lose. known: {(length, table): the kernel's
    figures} at the last poll, None before the first."""

    def __init__(self, home: int, iptables: IptablesWatch) -> None:
        self.home, self.iptables, self.next = home, iptables, 0.0
        self.known: dict[Where, bytes] | None = None
        self.zoned: set[Where] = set()          # the tables that have firewalld's chain

    def attend(self, now: float, *, pods: bool) -> float | None:
        """Poll if that is due. now: in monotonic seconds. pods: whether any pod has rules.

        Return when to call this again; None: when a pod has rules. Raises OSError, netns.Lost.
        """
        if not pods and self.known is not None:
            return None
        if now >= self.next:
            self.next = now + POLL_S
            with netns.inside(self.home):
                self._poll()
        return self.next if pods else None

    def _poll(self):
        before, self.known = self.known, {where: info for where in listed() if (info := self._figures(where))}
        for where, info in self.known.items():
            if before is None or info != before.get(where):
                self._read(where, first=before is None)
            if where[1] == FILTER:
                self.iptables.begin_to_filter(chain_name(where, FORWARD), new=before is not None)

    @staticmethod
    def _figures(where):
        try:
            return xtables.get_info(*where)
        except OSError as e:
            if e.errno != ENOENT:
                raise
            return None

    def _read(self, where, *, first):
        table = xtables.read_table(*where)
        jumps = {(chain, target) for chain in CHAINS for target in table.targets(chain) if target.startswith(PREFIX)}
        # A reload of firewalld removes the rules of sources, and a start adds the chain.
        jumps |= {(ZONES, target) for target in table.targets(ZONES)}
        if not table.has_chain(ZONES):
            self.zoned.discard(where)
        elif where not in self.zoned:
            self.zoned.add(where)
            if not first:
                self.iptables.suspect(FIREWALLD_SOURCES, FIREWALLD)
        self.iptables.replace(where, jumps, table.has_chain)


def listed() -> list[Where]:
    """Return the legacy tables of the calling thread's namespace. The kernel makes a table that is asked for."""
    found = []
    for length, path in LEGACY_TABLES.items():
        try:
            with open(path, encoding="ascii") as file:
                found += [(length, table) for table in file.read().split() if table in TABLES]
        except (FileNotFoundError, PermissionError):    # not loaded; of another user namespace
            continue
    return found
