"""Run the thread that maintains cluster-wide addresses, for all address spaces that requests of this node have used.

    member.py          this node in one store: sends heartbeats, and checks that the node still owns its blocks
    space.py           one address space: claims the next block, returns idle blocks, writes their use to the store
    ip_claims.py       addresses of the space's blocks that have a claim of their own
    reconcile.py       addresses whose pod no longer exists
    lost.py            other nodes without heartbeats
    watch.py           the thread that waits for changes in a store

A request waits for this thread only if the request itself must ask the store: both need the space's claim lock. A store
that does not answer delays the work on other stores by its timeout. After that, the thread contacts the store less
often.
"""

from __future__ import annotations

from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Any

from fastcni.daemon.background import enter_home, start_thread
from fastcni.daemon.log import RateLimited
from fastcni.kit.ipam.cluster import stores
from fastcni.server.cluster.member import NEVER, Member
from fastcni.server.cluster.pods import Pods
from fastcni.server.cluster.space import ClusterSpace
from fastcni.server.cluster.times import Times
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from fastcni.daemon.log import Logger
    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.kit.ipam.cluster.contract import Store


class ClusterUpkeep:
    """The thread that maintains addresses, and the stores that requests share with the thread.

    home: a descriptor of the server's network namespace, which the thread enters. pods: a Pods. configured(): returns
    the Keys of the networks in this node's configurations.

    The thread starts with the first address space. Any thread may call the methods without an underscore.
    """

    def __init__(self, home: int, log: Logger, pods: Pods, configured: Callable[[], Iterable[Keys]] = tuple,
                 times: Times | None = None) -> None:
        self.home, self.log, self.pods, self.configured = home, log, pods, configured
        self.times, self.failed = times or Times(), RateLimited(log.warning)
        self.lock, self.event, self.stopping = Lock(), Event(), False
        self.stores: dict[Hashable, Store] = {}
        self.members: dict[tuple[Hashable, str], Member] = {}
        # Input that the thread has not handled yet: `learned` has the Keys of configurations, `noted` the addresses
        # that requests have given or released
        self.learned: list[Keys] = []
        self.noted: dict[tuple[str, str], tuple[Keys, set[bytes]]] = {}
        self.thread: Thread | None = None

    # For requests

    def store(self, key: Hashable, open_store: Callable[[], Store]) -> Store:
        """Return the store of a configuration, opened once for all requests."""
        with self.lock:
            if key not in self.stores:
                self.stores[key] = open_store()
            return self.stores[key]

    def note(self, keys: Keys, addresses: Sequence[bytes]) -> None:
        """Record that a request has given or released these addresses."""
        with self.lock:
            _, changed = self.noted.setdefault(place_of(keys), (keys, set()))
            changed.update(addresses)
        self.event.set()
        if not self.thread:
            self.keep()

    # The thread

    def learn(self) -> None:
        """Maintain also the address spaces that this node used before the server started."""
        try:
            found = [*self.configured()]
        except Exception:
            self.log.exception("server_fault")
            return
        with self.lock:
            self.learned += found
        self.event.set()
        self.keep()

    def keep(self) -> None:
        """Start the thread if it has work and does not run. Call keep() periodically, because Python cannot always
        start a thread."""
        with self.lock:
            if self.stopping or (self.thread and self.thread.is_alive()) or not (self.learned or self.noted):
                return
            thread = Thread(target=self._work, name="cluster", daemon=True)
            if start_thread(thread, self.log):
                self.thread = thread

    def stop(self) -> None:
        """End the thread after it has written the pending changes. Wait at most stop_s, because a store may hang."""
        self.stopping = True
        self.event.set()
        deadline = monotonic() + self.times.stop_s
        for member in list(self.members.values()):
            member.watch.stop()
        if self.thread:
            self.thread.join(self.times.stop_s)
        for member in list(self.members.values()):
            member.watch.join(deadline - monotonic())
        if not self.thread or not self.thread.is_alive():
            for store in self.stores.values():
                store.close()

    def status(self) -> list[dict[str, Any]]:
        """Return a part of the status document, see status.py: one entry for each store."""
        now = monotonic()
        return [member.status(now) for member in list(self.members.values())]

    def _work(self) -> None:
        if not enter_home(self.home, "cluster", self.log):
            return
        while not self.stopping:
            self.event.wait(self._pause())
            if self.event.is_set() and not self.stopping:
                sleep(self.times.gather_s)
            self.event.clear()
            try:
                self._take_noted()
                for member in list(self.members.values()):
                    member.run(monotonic())
            except (CniError, OSError) as e:            # for example: no descriptor is free
                self.failed("cluster_failed", store="", error=str(e))
                sleep(self.times.away_s)
            except Exception:
                self.log.exception("server_fault")
                sleep(self.times.away_s)
        self._finish()

    def _finish(self) -> None:
        """Write the pending changes to the stores."""
        try:
            self._take_noted()
            for member in self.members.values():
                member.finish()
        except Exception:
            self.log.exception("server_fault")

    def _pause(self) -> float | None:
        """Return the seconds until the next job is due; None: no job is due before a request or a change."""
        due = min([member.due() for member in self.members.values()], default=NEVER)
        if self.learned:                # the spaces of these Keys could not be read
            due = min(due, monotonic() + self.times.max_away_s)
        return None if due == NEVER else max(0.0, due - monotonic())

    def _take_noted(self) -> None:
        with self.lock:
            noted, self.noted = self.noted, {}
            learned, self.learned = self.learned, []
        for keys, addresses in [*((keys, None) for keys in learned), *noted.values()]:
            try:
                space = self._space(keys)
                if addresses is None:
                    space.note_network(keys)
                else:
                    space.note(keys, addresses)
            except (CniError, OSError) as e:        # a later request records its space again
                self.failed("cluster_failed", space=keys.space, error=str(e))
                if addresses is None:               # no request may come: try again after max_away_s
                    self.learned.append(keys)

    def _space(self, keys: Keys) -> ClusterSpace:
        """Return the ClusterSpace of a configuration. Create it for the first configuration of a space."""
        settings = keys.store
        key = stores.key_of(settings), keys.node
        if key not in self.members:
            store = self.store(key[0], lambda: stores.open_store(settings))
            self.members[key] = Member(store, keys.node, self.times.with_settings(settings), self.log, self.event.set)
        member = self.members[key]
        space = member.spaces.get(place_of(keys))
        if space is None:
            space = ClusterSpace(keys, self.pods, member)
            member.add(space)
        return space


def place_of(keys: Keys) -> tuple[str, str]:
    """Return a key that identifies the local state of a space."""
    return keys.data_dir, keys.space
