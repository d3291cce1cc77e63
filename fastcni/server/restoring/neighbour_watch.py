"""Restore FDB entries and neighbours of pods with disableFlooding if another program deletes them, in one network
namespace.

The kernel sends a notification of each deleted FDB entry with all fields, and of each deleted neighbour, often without
the MAC. The server keeps a copy of the FDB entries and the neighbours, because the kernel may leave out the MAC or drop
notifications. The server does not restore entries that a DEL deletes, because the entry's port no longer exists, or no
port has the entry's MAC.
"""

from __future__ import annotations

from errno import EINVAL, ENODEV, ENOENT, EOPNOTSUPP
from math import inf
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

BUFFER_BYTES = 4 << 20          # limit of queued notifications: `ip neigh flush` deletes all neighbours in one step
PORT_GONE = (ENODEV, EINVAL, ENOENT, EOPNOTSUPP)        # the kernel's errors for a link that is no port of a bridge


class NeighbourWatch:
    """The watch of one namespace. Create the object in a thread that is in the namespace; the constructor raises
    OSError. One thread calls attend().

    netns: the namespace's inode, for the log. known: {(index of the bridge, packed address): MAC} of the neighbours.
    stations: {(index of the bridge, MAC): entry} of the static FDB entries. dropped: whether the kernel has dropped
    notifications. In that case the caller replays result caches, and sets `dropped` to False.
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

    def attend(self, started: float) -> float:
        """Read the notifications, and restore lost entries. started: when the first notification arrived, in monotonic
        seconds. Return when to call attend() again without a notification; infinite: never. Raises OSError."""
        wire.drain(self.sock, self._receive, self._note_dropped)
        if self.dropped:
            self._read()
        if not self.lost and not self.lost_stations:
            return inf
        if started < self.backoff.until:
            return self.backoff.until
        lost, self.lost = self.lost, {}
        stations, self.lost_stations = self.lost_stations, []
        macs = {*self.known.values(), *lost.values()}           # an entry with another MAC belongs to another program
        try:
            fdb = sum(self._restore_station(it) for it in stations if it.mac in macs)
            count = sum(self._restore_neighbours(bridge, {packed: mac for (index, packed), mac in lost.items()
                                                          if index == bridge})
                        for bridge in dict.fromkeys(index for index, _ in lost))
        except OSError as e:            # for example ENOBUFS: the next call tries again
            self.lost, self.lost_stations = lost | self.lost, stations + self.lost_stations
            self.backoff.begin()
            self.log.error("restore_failed", error=str(e))
            return self.backoff.until
        if fdb or count:
            self.backoff.begin()
            self.log.warning("neighbours_restored", fdb=fdb, neighbours=count, netns=self.netns,
                             ms=round((monotonic() - started) * 1e3, 1), next_after=self.backoff.seconds)
        return inf

    def _read(self) -> None:
        """Read the entries from the kernel, at the start and after the kernel has dropped notifications. Entries that
        were deleted before the first reading stay unknown."""
        known, stations = self.known, self.stations
        ours = {(it.index, it.packed): it.mac for it in unflooded.every_one(self.ask) if it.ours}
        # If a neighbour does not answer, the kernel gives no MAC: keep the known MAC.
        self.known = {key: mac or known[key] for key, mac in ours.items() if mac or key in known}
        self.stations = {(it.master, it.mac): it for it in unflooded.every_station(self.ask)}
        self.lost |= {key: mac for key, mac in known.items() if key not in self.known}
        self.lost_stations += [it for key, it in stations.items() if key not in self.stations]

    def _receive(self, kind: int, payload: bytes) -> None:
        it = neighbours.Neighbour(payload)
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

    def _restore_station(self, neighbour: Neighbour) -> bool:
        """Add an FDB entry again if its port is still on that bridge. Return whether the entry was added. Raises
        OSError."""
        port = find.link(self.ask, index=neighbour.index)
        if port is None or port.kind != "veth" or port.master != neighbour.master:
            return False
        batch = neighbours.new_station(Batch(), port.index, neighbour.mac, what=f'add to the FDB of "{port.name}"')
        try:
            wire.exchange(self.ask, batch)
        except wire.NetlinkError as e:
            if e.errno not in PORT_GONE:
                raise
            return False                # a DEL deleted the port meanwhile
        return True

    def _restore_neighbours(self, bridge: int, lost: dict[bytes, bytes]) -> int:
        """Add the neighbours {packed address: MAC} whose MAC is in the bridge's FDB again. Return their number."""
        try:
            here = unflooded.stations(self.ask, bridge, {*lost.values()})
            missing = [(packed, mac) for packed, mac in lost.items() if mac in here]
            unflooded.put(self.ask, bridge, missing)
        except wire.NetlinkError as e:
            if e.errno != ENODEV:
                raise
            return 0                    # the bridge no longer exists
        return len(missing)
