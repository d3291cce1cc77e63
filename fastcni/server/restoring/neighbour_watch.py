"""Restore what a bridge knows of pods with disableFlooding, if another program deletes it, in one network namespace.

The kernel announces each deleted FDB entry with all its fields, and each deleted neighbour, often without its MAC: so
the server keeps the MACs. What a DEL deletes stays deleted: its port is gone, or no port has its MAC any more.
"""

from __future__ import annotations

from errno import ENODEV
from time import monotonic

from fastcni._netlink import Batch
from fastcni.daemon.backoff import Backoff
from fastcni.kernel import filters, neighbours, uapi, wire
from fastcni.kit.links import find, unflooded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.daemon.log import Logger
    from fastcni.kernel.neighbours import Neighbour

    Key = tuple[int, bytes]

BUFFER_BYTES = 4 << 20          # of announcements: `ip neigh flush` deletes all neighbours at once


class NeighbourWatch:
    """Made in a thread that is in the namespace; one thread calls attend(). Raises OSError.

    netns: its inode, for the log. known: {(index of the bridge, packed): MAC}. dropped: whether the kernel has dropped
    announcements; the caller replays result caches then, and sets it to False.
    """

    def __init__(self, log: Logger, netns: int) -> None:
        self.log, self.netns, self.dropped = log, netns, False
        self.known: dict[Key, bytes] = {}
        self.lost: dict[Key, bytes] = {}
        self.lost_stations: list[Neighbour] = []
        self.backoff = Backoff()
        self.ask, self.sock = wire.open_socket(), wire.open_socket(groups=(uapi.RTNLGRP_NEIGH,))
        wire.set_buffer_size(self.sock, BUFFER_BYTES)
        filters.attach(self.sock, filters.neighbours())
        self._read()

    def close(self) -> None:
        self.ask.close()
        self.sock.close()

    def attend(self, started: float) -> float | None:
        """Read the announcements, and restore what is lost. `started`: when these began to come, in monotonic seconds.
        Return when to call this again without an announcement; None: never. Raises OSError."""
        wire.drain(self.sock, self._receive, self._note_dropped)
        if not self.lost and not self.lost_stations:
            return None
        if started < self.backoff.until:
            return self.backoff.until
        lost, self.lost = self.lost, {}
        stations, self.lost_stations = self.lost_stations, []
        macs = {*self.known.values(), *lost.values()}           # an entry with another MAC is another program's
        try:
            fdb = sum(self._restore_station(it) for it in stations if it.mac in macs)
            count = sum(self._restore_neighbours(bridge, {packed: mac for (index, packed), mac in lost.items()
                                                          if index == bridge})
                        for bridge in dict.fromkeys(index for index, _ in lost))
        except OSError as e:            # ENOBUFS, for instance: the next call tries again
            self.lost, self.lost_stations = lost | self.lost, stations + self.lost_stations
            self.backoff.begin()
            self.log.error("restore_failed", error=str(e))
            return self.backoff.until
        if fdb or count:
            self.backoff.begin()
            self.log.warning("neighbours_restored", fdb=fdb, neighbours=count, netns=self.netns,
                             ms=round((monotonic() - started) * 1e3, 1), next_after=self.backoff.seconds)
        return None

    def _read(self):
        """Read the neighbours that the kernel has."""
        for it in unflooded.every_one(self.ask):
            if it.ours and it.mac:
                self.known[it.index, it.packed] = it.mac

    def _receive(self, kind, payload):
        it = neighbours.read_neighbour(payload)
        if it.family == uapi.AF_BRIDGE:
            if kind == uapi.RTM_DELNEIGH and it.static:
                self.lost_stations.append(it)
        elif kind == uapi.RTM_DELNEIGH:
            if mac := self.known.pop((it.index, it.packed), b""):
                self.lost[it.index, it.packed] = mac
        elif it.mac:
            self.known[it.index, it.packed] = it.mac
            self.lost.pop((it.index, it.packed), None)

    def _note_dropped(self):
        self.dropped = True

    def _restore_station(self, it):
        """Add an FDB entry again if its port is still on that bridge. Return whether it was added."""
        port = find.link(self.ask, index=it.index)
        if port is None or port.kind != "veth" or port.master != it.master:
            return False
        batch = neighbours.new_station(Batch(), port.index, it.mac, what=f'add to the FDB of "{port.name}"')
        return not wire.attempt(self.ask, batch)[1]         # refused: the port has gone meanwhile

    def _restore_neighbours(self, bridge, lost):
        """Add the neighbours {packed: MAC} again whose MAC is in the bridge's FDB. Return their number."""
        try:
            here = unflooded.stations(self.ask, bridge, {*lost.values()})
            missing = [(packed, mac) for packed, mac in lost.items() if mac in here]
            unflooded.put(self.ask, bridge, missing)
        except wire.NetlinkError as e:
            if e.errno != ENODEV:
                raise
            return 0                    # the bridge is gone
        return len(missing)
