"""Restore what a bridge knows of pods with disableFlooding, if another program deletes it, in one network namespace.

The kernel notifies of each deleted FDB entry with all its fields, and of each deleted neighbour, often without its MAC.
The server keeps a copy of both, for these MACs and because the kernel may drop notifications. What a DEL deletes stays
deleted: its port is gone, or no port has its MAC any more.
"""

from __future__ import annotations

from errno import EINVAL, ENODEV, ENOENT, EOPNOTSUPP
from time import monotonic

from fastcni._netlink import Batch
from fastcni.daemon.backoff import Backoff
from fastcni.kernel import filters, neighbours, uapi, wire
from fastcni.kit.bridge import unflooded
from fastcni.kit.links import find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.daemon.log import Logger
    from fastcni.kernel.neighbours import Neighbour

    Key = tuple[int, bytes]

BUFFER_BYTES = 4 << 20          # of notifications: `ip neigh flush` deletes all neighbours in one step
PORT_GONE = (ENODEV, EINVAL, ENOENT, EOPNOTSUPP)        # the kernel's errors for a link that is no port of a bridge


class NeighbourWatch:
    """Made in a thread that is in the namespace; one thread calls attend(). Raises OSError.

    netns: its inode, for the log. known: {(index of the bridge, packed): MAC}. stations: the static FDB entries,
    {(index of the bridge, MAC): entry}. dropped: whether the kernel has dropped notifications. The caller replays
    result caches then, and sets it to False.
    """

    def __init__(self, log: Logger, netns: int) -> None:
        self.log, self.netns, self.dropped = log, netns, False
        self.known: dict[Key, bytes] = {}
        self.stations: dict[Key, Neighbour] = {}
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
        if self.dropped:
            self._read()
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

    def _read(self) -> None:
        """Read what the kernel has, at the start and after it dropped notifications. What it had before is lost."""
        known, stations = self.known, self.stations
        ours = {(it.index, it.packed): it.mac for it in unflooded.every_one(self.ask) if it.ours}
        # The kernel shows no MAC of a neighbour that does not answer.
        self.known = {key: mac or known[key] for key, mac in ours.items() if mac or key in known}
        self.stations = {(it.master, it.mac): it for it in unflooded.every_station(self.ask)}
        self.lost |= {key: mac for key, mac in known.items() if key not in self.known}
        self.lost_stations += [it for key, it in stations.items() if key not in self.stations]

    def _receive(self, kind: int, payload: bytes) -> None:
        it = neighbours.read_neighbour(payload)
        if it.family == uapi.AF_BRIDGE:
            if not it.static:
                return
            if kind == uapi.RTM_DELNEIGH:
                self.stations.pop((it.master, it.mac), None)
                self.lost_stations.append(it)
            else:
                self.stations[it.master, it.mac] = it
        elif kind == uapi.RTM_DELNEIGH:
            if mac := self.known.pop((it.index, it.packed), b""):
                self.lost[it.index, it.packed] = mac
        elif it.mac:
            self.known[it.index, it.packed] = it.mac
            self.lost.pop((it.index, it.packed), None)

    def _note_dropped(self) -> None:
        self.dropped = True

    def _restore_station(self, it: Neighbour) -> bool:
        """Add an FDB entry again if its port is still on that bridge. Return whether it was added. Raises OSError."""
        port = find.link(self.ask, index=it.index)
        if port is None or port.kind != "veth" or port.master != it.master:
            return False
        batch = neighbours.new_station(Batch(), port.index, it.mac, what=f'add to the FDB of "{port.name}"')
        try:
            wire.exchange(self.ask, batch)
        except wire.NetlinkError as e:
            if e.errno not in PORT_GONE:
                raise
            return False                # the port was deleted after it was found
        return True

    def _restore_neighbours(self, bridge: int, lost: dict[bytes, bytes]) -> int:
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
