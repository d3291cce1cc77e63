"""Keep the kernel's links, neighbours, FDB entries and routes equal to a State, by the kernel's notifications.

When the kernel notifies that another program has deleted or changed an entry, the Keeper writes the entry again. The
kernel does not notify every change: if a link goes down or loses an address, the kernel deletes its IPv4 routes without
a message. So after any notification about an entry or a link of the State, the Keeper reads and compares all entries,
which takes about 20 ms for 1,000 nodes.
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent import links
from fastcni.agent.contract import State
from fastcni.agent.tables import Tables, read_tables, route_key, route_value, wanted_tables, write_difference
from fastcni.daemon.backoff import Backoff
from fastcni.kernel import neighbours, rtnl, uapi, wire
from fastcni.kit.links import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastcni.daemon.log import Logger

GROUPS = (uapi.RTNLGRP_LINK, uapi.RTNLGRP_NEIGH, uapi.RTNLGRP_IPV4_IFADDR, uapi.RTNLGRP_IPV6_IFADDR,
          uapi.RTNLGRP_IPV4_ROUTE, uapi.RTNLGRP_IPV6_ROUTE)
EVENT_BYTES = 16 << 20          # buffer for notifications: a flush notifies the entries of all nodes together
ANSWER_BYTES = 16 << 20         # buffer for the kernel's ACKs
REQUEST_BYTES = 4 << 20         # the maximum of one send()
RETRY_S = 1.0                   # seconds until the next try after an error, or while the underlay is missing


class Keeper:
    """A State and the netlink sockets that keep the kernel equal to it. Create the Keeper in a thread that is in the
    node's namespace; the same thread calls all methods. Raises OSError.

    wanted: the State. due: when to call attend() without a notification, in monotonic seconds; inf: never.
    """

    def __init__(self, log: Logger) -> None:
        self.log = log
        self.wanted = State()
        self.due = inf
        self.indexes: dict[str, int] = {}           # {name: index} of the links in the State
        self.names: set[str] = set()                # names of the State's links and underlays, including missing links
        self.tables = Tables()                      # the tables of the State
        self.changed = False                        # whether the kernel may differ from the State
        self.backoff = Backoff()
        self.ask, self.events = wire.open_socket(), wire.open_socket(groups=GROUPS)
        wire.set_buffer_size(self.ask, ANSWER_BYTES)
        wire.set_buffer_size(self.events, EVENT_BYTES)
        wire.set_request_size(self.ask, REQUEST_BYTES)

    def fileno(self) -> int:
        """Return the descriptor to wait on for attend()."""
        return self.events.fileno()

    def close(self) -> None:
        """Close the sockets. The kernel's state stays, so that traffic continues while the agent restarts."""
        self.ask.close()
        self.events.close()

    def set(self, state: State) -> None:
        """Make the kernel equal to `state`. On an error, log it and set `due` to try again."""
        same_links, self.wanted = state.links == self.wanted.links and bool(self.indexes), state
        self.names = {link.name for link in state.links} | {route.link for route in state.routes} | {
            link.settings["dev"] for link in state.links if "dev" in link.settings}
        try:
            if self.changed or not same_links:
                self._compare()
                return
            have, self.tables = self.tables, self._resolve()
            self._finish(write_difference(self.ask, have, self.tables))
        except OSError as e:
            self._fail(e)

    def attend(self) -> None:
        """Read the notifications, and restore deleted or changed entries. Raises OSError."""
        wire.drain(self.events, self._note, self._note_dropped)
        if not self.changed:
            self.due = inf
        elif monotonic() < self.backoff.until:
            self.due = self.backoff.until
        else:
            began = monotonic()
            try:
                repaired = self._compare()
            except OSError as e:
                self._fail(e)
                return
            if repaired:
                self.backoff.begin()
                self.log.warning("network_repaired", entries=repaired, ms=round((monotonic() - began) * 1e3, 1))

    # -- writing -------------------------------------------------------------------------------------------------------

    def _compare(self) -> int:
        """Make the links, read the kernel's entries, and write the difference. Return the number of differences."""
        self.changed = False
        count = self._make_links()
        own = {self.indexes[link.name]: link.kind for link in self.wanted.links if link.name in self.indexes}
        former, self.tables = self.tables, self._resolve()
        have = read_tables(self.ask, own, former)
        count += differences(have, self.tables)
        self._finish(write_difference(self.ask, have, self.tables))
        if gone := links.remove_others(self.ask, {link.name for link in self.wanted.links}):
            self.log.info("links_removed", links=" ".join(gone))
        return count

    def _make_links(self) -> int:
        """Create or repair the links of the State. Return how many of their settings were different."""
        count, failed = 0, False
        self.indexes = {}
        for link in self.wanted.links:
            try:
                self.indexes[link.name], changes = links.ensure(self.ask, link)
                count += changes
            except (OSError, links.UnderlayGone) as e:
                failed = True
                self.log.error("link_failed", link=link.name, error=str(e))
        if failed:
            self._retry()
        return count

    def _resolve(self) -> Tables:
        """Return the tables of the State. Find also the index of the underlay, because routes can be on it."""
        for name in {route.link for route in self.wanted.routes} - self.indexes.keys():
            if link := find.link(self.ask, name):
                self.indexes[name] = link.index
        return wanted_tables(self.wanted, self.indexes)

    def _finish(self, refused: Sequence[OSError]) -> None:
        self.due = inf
        for e in refused[:3]:
            self.log.error("entry_refused", error=str(e), more=max(len(refused) - 3, 0))
        if refused:
            self._retry()

    def _fail(self, e: OSError) -> None:
        """Log the error `e` of a socket, for example ENOMEM, and read and compare all entries later."""
        self.log.error("entry_refused", error=str(e), more=0)
        self._retry()

    def _retry(self) -> None:
        self.changed = True
        self.backoff.begin()
        self.due = self.backoff.until = monotonic() + max(self.backoff.seconds, RETRY_S)

    # -- notifications -------------------------------------------------------------------------------------------------

    def _note_dropped(self) -> None:
        self.changed = True

    def _note(self, kind: int, payload: bytes) -> None:
        if self.changed:
            return
        if kind in (uapi.RTM_NEWLINK, uapi.RTM_DELLINK):
            self.changed = rtnl.is_of_link(payload) and (rtnl.read_index(payload) in self.indexes.values()
                                                         or rtnl.read_link(payload).name in self.names)
        elif kind in (uapi.RTM_NEWNEIGH, uapi.RTM_DELNEIGH):
            self.changed = self._is_other_neighbour(kind, payload)
        elif kind in (uapi.RTM_NEWROUTE, uapi.RTM_DELROUTE):
            self.changed = self._is_other_route(kind, payload)
        elif kind in (uapi.RTM_NEWADDR, uapi.RTM_DELADDR):
            self.changed = rtnl.Address(payload).index in self.indexes.values()

    def _is_other_neighbour(self, kind: int, payload: bytes) -> bool:
        """Return whether the kernel notifies that an entry of the State was deleted or has another value."""
        it = neighbours.Neighbour(payload)
        if it.family == uapi.AF_BRIDGE:
            wanted, has = self.tables.stations.get((it.index, it.mac)), it.packed
        else:
            wanted, has = self.tables.neighbours.get((it.index, it.packed)), it.mac
        kept = kind == uapi.RTM_NEWNEIGH and it.state & uapi.NUD_PERMANENT and has == wanted
        return wanted is not None and not kept

    def _is_other_route(self, kind: int, payload: bytes) -> bool:
        it = rtnl.read_route(payload)
        if it is None or it.table != uapi.RT_TABLE_MAIN:
            return False
        wanted = self.tables.routes.get(route_key(payload, it))
        return wanted is not None and (kind == uapi.RTM_DELROUTE or wanted != route_value(payload, it))


def pairs(have: Tables, want: Tables) -> list[tuple[dict, dict]]:
    return [(have.neighbours, want.neighbours), (have.stations, want.stations), (have.routes, want.routes),
            (have.peers, want.peers)]


def differences(have: Tables, want: Tables) -> int:
    """Return how many entries of `have` are missing, different or not in `want`."""
    return sum(len(each.keys() - wanted.keys()) + sum(each.get(key) != value for key, value in wanted.items())
               for each, wanted in pairs(have, want))
