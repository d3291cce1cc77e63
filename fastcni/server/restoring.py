"""Firewall state that another program has flushed is restored: one thread for all namespaces, asleep until nftables
announces something.

What is in our own tables is restored from the mirror of them. What pods have in iptables and firewalld the server does
not keep; `replay` works it out anew, from what runtimes remember.
"""

import os
import select
from errno import EACCES, EINTR, EINVAL, EOPNOTSUPP, EPERM, EPROTONOSUPPORT
from threading import Lock, Thread
from time import monotonic, sleep, time

from fastcni._netlink import Batch, attributes
from fastcni.kernel import deletions, netns, nft, uapi, wire
from fastcni.kit.call import names
from fastcni.server.iptables_watch import IptablesWatch
from fastcni.server.table_mirror import OWN_NAME, WHOLE_TABLE, TableMirror

GATHER = 0.02                   # seconds: what comes meanwhile is read at once, and no ADD shares the processor with us
SETTLE, SETTLE_DEL = 0.02, 0.5  # seconds before a replay: a reload is many transactions; so is a DEL, which it may be
AGAIN = 0.1                     # seconds, where what we have seen has changed meanwhile
AT_START = "start"              # why a replay is due, before any announcement
ROOM = 4 << 20                  # bytes of notifications
PAUSE, LONGEST_PAUSE, QUIET = 0.1, 10.0, 30.0
NOT_FOR_US = (EACCES, EPERM, EINVAL, EOPNOTSUPP, EPROTONOSUPPORT)       # no rights, or a kernel without nf_tables


class Pause:
    """How long the next time has to wait: not at all after a quiet time, else twice as long as the last one had to."""

    def __init__(self):
        self.seconds, self.until, self.last = 0.0, 0.0, -QUIET

    def begin(self):
        now = monotonic()
        soon = now - self.last < QUIET
        self.seconds = min(max(PAUSE, 2 * self.seconds), LONGEST_PAUSE) if soon else 0.0
        self.last, self.until = now, now + self.seconds


class Watch:
    """One namespace. Made in a thread that is in it; all but heed() and leave() is for one thread. Raises OSError.

    due: when there is something to do without an announcement, None: then alone. at_start: what was flushed before is
    to be replayed.
    """

    def __init__(self, home, restoring, at_start):
        self.home, self.restoring, self.log, self.replay = home, restoring, restoring.log, restoring.replay
        self.ask = wire.open_socket(uapi.NETLINK_NETFILTER)
        wire.exchange(self.ask, nft.get_generation(Batch()))        # or there is nothing to hear
        self.sock = wire.open_socket(uapi.NETLINK_NETFILTER, groups=(uapi.NFNLGRP_NFTABLES,))
        self.deletions = deletions.open_receiver()
        for sock in (self.sock, self.deletions):
            wire.make_room(sock, ROOM)
        self.fds = {self.sock.fileno(), self.deletions.fileno()}
        self.mirror, self.jumps = TableMirror(), IptablesWatch()
        self.lock, self.reading, self.closed = Lock(), Lock(), False
        self.unseen, self.due, self.settled, self.at_start = True, 0.0, None, at_start
        self.pause, self.replays, self.replaying = Pause(), Pause(), False

    def heed(self, call, host):
        """A request begins; a DEL may meet a flush that is not put back yet. Raises OSError."""
        if call.attachment and call.command == "DEL":
            try:
                mark = names.hashes(*call.attachment)
            except UnicodeEncodeError:
                return                  # bytes that are no text: it will be refused
            self.mirror.heed(host.firewall, mark)

    def leave(self):
        """Watch no more; the namespace's descriptor may be closed then."""
        self.restoring.forget(self)
        with self.lock:
            self.closed = True
            for sock in (self.sock, self.deletions, self.ask):
                sock.close()

    def attend(self, started):
        """Read what has come, and do what is to be done by now. `started`: when it began to come."""
        with self.lock:
            if self.closed:
                return
            self.due, replaying = None, self.replaying
            try:
                self._note_deletions()
                wire.drain(self.sock, self._hear, self._lost)
                if self.unseen:
                    self._look()
                self._note_deletions()
                self.mirror.delete_returned(self.ask)
                self.mirror.replaying = replaying
                self._put_back(started)
                self._replay(started)
            except OSError as e:
                self.pause.begin()
                self._wake_at(monotonic() + max(self.pause.seconds, AGAIN))
                self.log.error("restore_failed", netns=self.name, error=str(e))

    @property
    def name(self):
        return netns.identity(self.home)[1]

    def _note_deletions(self):
        """One-shot DELs that have begun."""
        with self.reading:
            for generation, mark in deletions.read(self.deletions):
                self.mirror.note_deletion(mark, generation)

    def deleted_at(self, it):
        """When the last DEL of the attachment began, in seconds since the epoch; 0.0 where none is known. In any
        thread."""
        self._note_deletions()
        _, moment = self.mirror.leaving.get(names.hashes(it.network, it.container_id, it.ifname), (0, 0.0))
        return moment and time() - (monotonic() - moment)

    def _wake_at(self, when):
        self.due = when if self.due is None else min(self.due, when)

    def _lost(self):
        self.unseen = True              # and what comes now is newer

    def _hear(self, kind, payload):
        if kind == nft.NFT_MSG_NEWGEN:
            generation, by = nft.read_generation(payload)
            self.mirror.transaction_ends(generation, by)
            self.jumps.transaction_ends(by)
            return
        fields = attributes(payload, 4)
        where = payload[0], nft.as_text(fields.get(nft.NFTA_TABLE_NAME, b""))
        if where in self.mirror.stores:
            self.mirror.hear(kind, where, fields, payload)
        else:
            self.jumps.hear(kind, where, fields, payload)

    def _look(self):
        try:
            self.mirror.look(self.ask)
            self.jumps.look(self.ask)
            self.unseen = False
        except wire.NetlinkError as e:
            if e.errno != EINTR:
                raise
            self._wake_at(monotonic() + AGAIN)

    def _put_back(self, started):
        """Unless it is too soon, or the end of a transaction is still to be heard."""
        if self.mirror.amid:
            return
        if self.mirror.suspects and started < self.pause.until:
            self._wake_at(self.pause.until)
            return
        found = []
        for where in sorted(self.mirror.suspects):
            if done := self.mirror.put_back(self.ask, where):
                found.append((where, *done))
        if found:
            self.pause.begin()
        for where, gone, back in found:
            self.log.warning("rules_restored", table=nft_name(*where), gone=gone, by=self.mirror.by, elements=back,
                             netns=self.name, ms=round((monotonic() - started) * 1e3, 1), next_after=self.pause.seconds)
            if gone == WHOLE_TABLE:     # others' tables may have gone with it, and what pods had in these
                self.jumps.suspect(f"table {nft_name(*where)}", self.mirror.by)

    def _replay(self, now):
        """Begin a replay when what shows that one is needed has lasted for a while."""
        if not self.replay or self.replaying or not (self.at_start or self.jumps.suspicious):
            return
        if self.settled is None:
            self.settled = now
        begin = max(self.settled + (SETTLE if self.at_start or self.jumps.certain else SETTLE_DEL), self.replays.until)
        if now < begin:
            self._wake_at(begin)
            return
        gone = self.jumps.settle() or (AT_START if self.at_start else "")
        self.settled, self.at_start = None, False
        if gone:
            if gone != AT_START:
                self.replays.begin()
            self._start_replay(gone)

    def _start_replay(self, gone):
        home = os.dup(self.home)
        try:
            self.mirror.replaying = self.replaying = True
            Thread(target=self._run_replay, args=(home, gone), name="replay", daemon=True).start()
        except RuntimeError as e:               # no more threads: it is still to be done
            os.close(home)
            self.replaying = False
            self.jumps.suspect(gone, self.jumps.by)
            self.log.error("replay_failed", gone=gone, by=self.jumps.by, error=str(e))
            self._wake_at(monotonic() + LONGEST_PAUSE)

    def _run_replay(self, home, gone):
        started, by = monotonic(), self.jumps.by
        name_thread()
        try:
            with netns.inside(home):
                done = self.replay(self.deleted_at)
            fields = {"attachments": done.attachments, "plugins": done.plugins, "failed": len(done.failed),
                      "error": "; ".join(map(str, done.failed[:3])), "netns": netns.identity(home)[1],
                      "ms": round((monotonic() - started) * 1e3, 1)}
            if gone != AT_START:
                level = self.log.error if done.failed else self.log.warning
                level("rules_replayed", gone=gone, by=by, **fields)
            elif done.attachments or done.failed:
                level = self.log.error if done.failed else self.log.info
                level("start_replay_done", **fields)
        except (OSError, netns.Lost) as e:      # Lost: this thread ends
            self.log.error("replay_failed", gone=gone, by=by, error=str(e))
        finally:
            os.close(home)
            self.replaying = False
            self.restoring.visit(self)      # for what was flushed, and which pods were deleted, meanwhile


class Blind:
    """In the place of a Watch, where there is nothing for us to hear."""

    def heed(self, call, host):
        return

    def leave(self):
        return


class Restoring:
    """watch(fd), in a thread that is in the namespace `fd`: a Watch.

    replay: a function that works out in the calling thread's namespace what pods have there, and returns what it did
    (see runtime.restore.Restored); None: nobody does. It is given a function that says of an attachment when a DEL of
    it began, see Watch.deleted_at().
    """

    def __init__(self, log, replay=None):
        self.log, self.replay = log, replay
        self.watches, self.lock, self.stopping = {}, Lock(), False
        self.poll, self.bell = select.epoll(), os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.poll.register(self.bell, select.EPOLLIN)
        self.thread = Thread(target=self._work, name="restoring", daemon=True)

    def start(self):
        """May be called again, where no thread could be started."""
        if self.thread.is_alive():
            return
        try:
            self.thread.start()
        except RuntimeError as e:
            self.log.warning("no_thread", thread=self.thread.name, why=str(e))

    def stop(self):
        self.stopping = True
        os.eventfd_write(self.bell, 1)
        if self.thread.is_alive():
            self.thread.join()

    def watch(self, home, *, at_start=False):
        """at_start: replay once, for what was flushed before."""
        try:
            it = Watch(home, self, at_start)
        except OSError as e:
            if e.errno not in NOT_FOR_US:
                raise
            self.log.warning("watch_unavailable", netns=netns.identity(home)[1], error=str(e))
            return Blind()
        fd = it.sock.fileno()
        with self.lock:
            self.watches[fd] = it
        for each in it.fds:
            self.poll.register(each, select.EPOLLIN)
        self.visit(it)                          # it has to see what is there already
        return it

    def visit(self, it):
        """attend() to it soon."""
        it.due = 0.0
        os.eventfd_write(self.bell, 1)

    def forget(self, it):
        with self.lock:
            del self.watches[it.sock.fileno()]

    def _work(self):
        name_thread()
        while not self.stopping:
            ready = {fd for fd, _ in self.poll.poll(self._patience())}
            now = monotonic()
            if self.bell in ready:
                os.eventfd_read(self.bell)
            sleep(GATHER)
            with self.lock:
                some = [it for it in self.watches.values()
                        if it.fds & ready or (it.due is not None and it.due <= now)]
            for it in some:
                self._attend(it, now)

    def _patience(self):
        """Seconds until somebody has something to do; -1: who knows."""
        with self.lock:
            due = [it.due for it in self.watches.values() if it.due is not None]
        return max(0.0, min(due) - monotonic()) if due else -1

    def _attend(self, it, started):
        try:
            it.attend(started)
        except Exception:
            it.unseen = True            # what was read may have been lost
            self.log.exception("server_fault")


def name_thread():
    """So that the kernel says of our own transactions that they are ours."""
    try:
        with open("/proc/thread-self/comm", "w", encoding="ascii") as file:
            file.write(OWN_NAME)
    except OSError:
        return                          # then they count as anybody's


def nft_name(family, table):
    return f"{'bridge' if family == nft.NFPROTO_BRIDGE else 'inet'} {table}"
