"""Watch one network namespace whose firewall state the server restores: read the notifications of nftables, and restore
what other programs delete."""

from __future__ import annotations

from errno import EINTR
from math import inf
from threading import Lock
from time import monotonic, time

from fastcni._netlink import Batch, attributes
from fastcni.daemon.backoff import Backoff
from fastcni.kernel import deletions, netns, nft, uapi, wire
from fastcni.kit.call import names
from fastcni.server.restoring.drop_watch import DropWatch
from fastcni.server.restoring.iptables_watch import IptablesWatch
from fastcni.server.restoring.legacy_watch import LegacyWatch
from fastcni.server.restoring.neighbour_watch import NeighbourWatch
from fastcni.server.restoring.replay import Replay
from fastcni.server.restoring.restore_states import DROPPED, FAULT, INTERRUPTED, READ, STALE, Machine
from fastcni.server.restoring.table_mirror import WHOLE_TABLE, TableMirror, wait_for_transactions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.call.mode import Mode
    from fastcni.runtime.records import Attachment
    from fastcni.server.requests.request_queue import Call
    from fastcni.server.restoring.restorer import Restoring

RETRY_S = 0.1                   # seconds until the next reading, if nftables changed during a reading
BUFFER_BYTES = 4 << 20          # limit of the notifications that the kernel queues, in bytes


class NamespaceWatch:
    """The watch of one namespace, with the states of restore_states.py.

    Create the object in a thread that is in the namespace; the constructor raises OSError. One thread calls attend();
    any thread may call note(), deleted_at() and close(). home: a descriptor of the namespace, for the caller to close
    after close(). at_start: see Replay.

    due: when to call attend() without a notification, in monotonic seconds; infinite: never.
    """

    def __init__(self, home: int, restoring: Restoring, at_start: bool) -> None:
        self.home, self.restoring, self.log = home, restoring, restoring.log
        self.ask = wire.open_socket(uapi.NETLINK_NETFILTER)
        wire.exchange(self.ask, nft.get_generation(Batch()))        # fails if the kernel has no nftables
        self.sock = wire.open_socket(uapi.NETLINK_NETFILTER, groups=(uapi.NFNLGRP_NFTABLES,))
        self.deletions = deletions.open_receiver()
        for sock in (self.sock, self.deletions):
            wire.set_buffer_size(sock, BUFFER_BYTES)
        self.neighbours = NeighbourWatch(self.log, self.name)
        self.fds = {self.sock.fileno(), self.deletions.fileno(), self.neighbours.sock.fileno()}
        self.lock, self.reading, self.closed = Lock(), Lock(), False
        self.copy, self.mirror, self.iptables = Machine(STALE), TableMirror(), IptablesWatch()
        self.drops = DropWatch(home, restoring.drops, self.log)
        self.legacy = LegacyWatch(home, self.iptables, self.drops.suspect)
        self.replay = Replay(home, restoring.replay, self.deleted_at, self.iptables, self.mirror,
                             self._replayed, self.log, at_start=at_start)
        self.backoff = Backoff()
        self.due = 0.0

    def note(self, call: Call, mode: Mode) -> None:
        """Record that a request begins: a DEL may run between a flush and the restore, and an ADD may add rules of
        iptables-legacy, whose changes the kernel does not notify. Raises OSError."""
        if call.command == "ADD":
            self.legacy.note_add(monotonic())
            if self.due == inf:
                self.restoring.attend_soon(self)
        elif call.command == "DEL" and (attachment := call.attachment):
            try:
                mark = names.hashes(*attachment)
            except UnicodeEncodeError:
                return                  # bytes that are not UTF-8: the request will fail
            self.mirror.note_deletion(mark, deletions.generation(mode.firewall))

    def close(self) -> None:
        """End the watch."""
        self.restoring.forget(self)
        with self.lock:
            self.closed = True
            for sock in (self.sock, self.deletions, self.neighbours, self.ask):
                sock.close()

    def attend(self, started: float) -> None:
        """Read the notifications, and do the work that is due. started: when the first notification arrived, in
        monotonic seconds."""
        with self.lock:
            if self.closed:
                return
            self.due, replaying = inf, self.replay.running
            try:
                self._note_deletions()
                wire.drain(self.sock, self._receive, self._dropped)
                if self.copy.state == STALE:
                    self._read()
                    wait_for_transactions(self.ask)
                    wire.drain(self.sock, self._receive, self._dropped)
                    if self.copy.state == STALE:
                        self._wake_at(monotonic() + RETRY_S)
                self._note_deletions()
                self.mirror.delete_returned(self.ask)
                self.mirror.keep_deletions = replaying
                self._restore(started)
                self._restore_neighbours(started)
                self._wake_at(self.legacy.attend(started, pods=self.mirror.has_elements,
                                                  recorded=self.mirror.recorded(),
                                                  deleted_since=self.mirror.deleted_since))
                self._wake_at(self.replay.proceed(started))
                self._wake_at(self.drops.proceed(started, settled=self.replay.idle))
            except OSError as e:
                self._try_again()
                self.log.error("restore_failed", netns=self.name, error=str(e))

    def fault(self) -> None:
        """Record that attend() raised an exception, a defect of fastcni: notifications that attend() had read may be
        lost."""
        self.copy.on(FAULT)
        self._try_again()

    @property
    def name(self) -> int:
        """Return the inode of the namespace, for the log."""
        return netns.identity(self.home)[1]

    def deleted_at(self, attachment: Attachment) -> float:
        """Return when the last DEL of an attachment began, in Unix seconds; 0.0 if no DEL is known."""
        self._note_deletions()
        mark = names.hashes(attachment.network, attachment.container_id, attachment.ifname)
        _, moment = self.mirror.deletions.get(mark, (0, 0.0))
        return moment and time() - (monotonic() - moment)

    def _replayed(self, outcome: str) -> None:
        self.restoring.note_replay(outcome)
        self.legacy.expect(monotonic())
        self.legacy.next = 0.0          # poll now, to see the added rules before another program removes them
        self.restoring.attend_soon(self)

    def _note_deletions(self) -> None:
        """Record the one-shot DELs that have begun."""
        with self.reading:
            for generation, mark in deletions.read(self.deletions):
                self.mirror.note_deletion(mark, generation)

    def _try_again(self) -> None:
        self.backoff.begin()
        self._wake_at(monotonic() + max(self.backoff.seconds, RETRY_S))

    def _wake_at(self, when: float) -> None:
        self.due = min(self.due, when)

    def _dropped(self) -> None:
        self.copy.on(DROPPED)           # drain() continues with newer notifications

    def _receive(self, kind: int, payload: bytes) -> None:
        if kind == nft.NFT_MSG_NEWGEN:
            generation, by = nft.read_generation(payload)
            self.mirror.end_transaction(generation, by)
            self.iptables.end_transaction(by)
            return
        fields = attributes(payload, 4)
        where = nft.read_family(payload), nft.as_text(fields.get(nft.NFTA_TABLE_NAME, b""))
        if where in self.mirror.stores:
            self.mirror.receive(kind, where, fields, payload)
        else:
            self.iptables.receive(kind, where, fields, payload)
            self.drops.receive(kind, where[1], payload)

    def _read(self) -> None:
        try:
            self.mirror.read(self.ask)
            self.iptables.read(self.ask)
        except wire.NetlinkError as e:
            if e.errno != EINTR:
                raise
            self.copy.on(INTERRUPTED)
        else:
            self.copy.on(READ)

    def _restore(self, started: float) -> None:
        """Restore fastcni's own tables, if an object may be missing and the last restore was not too recent."""
        if not self.mirror.may_miss_something:
            return
        if self.mirror.suspects and started < self.backoff.until:
            self.mirror.delay()
            self._wake_at(self.backoff.until)
            return
        restored = self.mirror.restore(self.ask)
        if restored:
            self.backoff.begin()
        for where, gone, count in restored:
            self.restoring.restores += 1
            self.restoring.elements += count
            self.log.warning("rules_restored", table=nft_name(*where), gone=gone, by=self.mirror.by, elements=count,
                             netns=self.name, ms=round((monotonic() - started) * 1e3, 1),
                             next_after=self.backoff.seconds)
            if gone == WHOLE_TABLE:     # the flush may also have deleted other tables that have pods' rules
                self.iptables.suspect(f"table {nft_name(*where)}", self.mirror.by)

    def _restore_neighbours(self, started: float) -> None:
        self._wake_at(self.neighbours.attend(started))
        if self.neighbours.dropped:
            self.neighbours.dropped = False
            self.iptables.suspect("neighbours of bridges", "")


class NoWatch:
    """A NamespaceWatch that does nothing, for a process to which the kernel sends no notifications of nftables."""

    def note(self, call: Call, mode: Mode) -> None:
        return

    def close(self) -> None:
        return


def nft_name(family: int, table: str) -> str:
    return f"{nft.FAMILIES[family]} {table}"
