"""Keep the network namespaces of callers, each with its open sockets and cached state.

The server's namespace stays open. Other namespaces are closed after KEEP_S without a request, because a descriptor of a
namespace, or a socket in it, keeps the namespace alive.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import EMFILE
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from fastcni.kernel import netns
from fastcni.server.requests.facts import Facts
from fastcni.server.requests.grouped_deletes import GroupedDeletes
from fastcni.server.requests.mode import WarmMode

if TYPE_CHECKING:
    from fastcni.server.cluster.upkeep import ClusterUpkeep
    from fastcni.server.networks.sources import NetworkSources
    from fastcni.server.restoring.restorer import Restoring

KEEP_S = 10.0                   # seconds for which a namespace stays open after the last request
MAX_NAMESPACES = 64             # limit of the other namespaces: requests from further namespaces go one-shot


class Namespace:
    """A network namespace, with its sockets and cached state.

    fd: a descriptor of the namespace. home: whether it is the server's own namespace. idle: WarmModes that no request
    uses. users: how many requests use a WarmMode. left: when the last request ended, in monotonic seconds.
    """

    __slots__ = ("fd", "home", "facts", "deletes", "watch", "idle", "users", "left")

    def __init__(self, fd: int, home: bool, defer: Callable[..., None], restoring: Restoring) -> None:
        """Create a Namespace in a thread that is in the namespace. Raises OSError."""
        self.fd, self.home = fd, home
        self.facts, self.deletes, self.watch = Facts(), GroupedDeletes(defer), restoring.watch(fd, at_start=home)
        self.idle: list[WarmMode] = []
        self.users, self.left = 0, 0.0

    def close(self) -> None:
        self.watch.close()
        for mode in self.idle:
            mode.close()
        self.facts.close()
        self.deletes.close()
        os.close(self.fd)


class Hosts:
    """The callers' network namespaces. In `with Visit(hosts, fd) as mode:` the thread is in the namespace `fd`, and
    `mode` is a WarmMode of that namespace.

    home: a descriptor of the server's own namespace, in which the calling thread is; close() closes the descriptor.
    cluster, networks: passed to each WarmMode."""

    def __init__(self, home: int, defer: Callable[..., None], restoring: Restoring, cluster: ClusterUpkeep,
                 networks: NetworkSources) -> None:
        self.home, self.defer, self.restoring, self.lock = home, defer, restoring, Lock()
        self.cluster, self.networks = cluster, networks
        self.own_key = netns.identity(home)
        self.known = {self.own_key: Namespace(home, True, defer, restoring)}
        self.closed_deletes = [0, 0]    # the numbers of link_deletes() of closed namespaces

    def tidy(self) -> None:
        """Close the namespaces that have had no request for KEEP_S."""
        with self.lock:
            gone = [self._forget(key) for key, it in self._unused() if monotonic() - it.left > KEEP_S]
        for namespace in gone:
            namespace.close()

    def make_room(self) -> None:
        """If MAX_NAMESPACES are open, close the namespace that has been unused for the longest time. The caller holds
        the lock. Raises OSError if requests use all namespaces."""
        if len(self.known) <= MAX_NAMESPACES:
            return
        unused = self._unused()
        if not unused:
            raise OSError(EMFILE, f"callers from {MAX_NAMESPACES} network namespaces at the same time")
        key, _ = min(unused, key=lambda pair: pair[1].left)
        self.defer(self._forget(key).close)

    def _unused(self) -> list[tuple[tuple[int, int], Namespace]]:
        return [(key, it) for key, it in self.known.items() if not it.home and not it.users]

    def _forget(self, key: tuple[int, int]) -> Namespace:
        namespace = self.known.pop(key)
        self.closed_deletes[0] += namespace.deletes.links
        self.closed_deletes[1] += namespace.deletes.requests
        return namespace

    def link_deletes(self) -> tuple[int, int]:
        """Return (number of links that requests have deleted, number of requests to the kernel for them)."""
        with self.lock:
            deletes = [it.deletes for it in self.known.values()]
            links, requests = self.closed_deletes
        return links + sum(it.links for it in deletes), requests + sum(it.requests for it in deletes)

    def close(self) -> None:
        for namespace in self.known.values():
            namespace.close()
        self.known.clear()


class Visit:
    """The visit of a worker to a caller's namespace. Entering raises OSError. Leaving raises netns.Lost if the worker
    cannot return to the server's namespace."""

    namespace: Namespace
    mode: WarmMode
    away: netns.inside | None = None    # None: the caller is in the server's namespace
    clean = False                       # the worker sets True if the mode's sockets have no unread replies

    def __init__(self, hosts: Hosts, fd: int) -> None:
        self.hosts, self.fd = hosts, fd

    def __enter__(self) -> WarmMode:
        key, hosts = netns.identity(self.fd), self.hosts
        if key != hosts.own_key:
            self.away = netns.inside(self.fd, hosts.home)
            self.away.__enter__()
        try:
            self.namespace = it = self._namespace(key)
        except BaseException:
            self._leave()
            raise
        self.mode = mode = it.idle.pop() if it.idle else WarmMode(it.fd, it.facts, it.deletes, hosts.defer,
                                                                  hosts.cluster, hosts.networks)
        return mode

    def _namespace(self, key: tuple[int, int]) -> Namespace:
        with self.hosts.lock:
            found = self.hosts.known.get(key)
            if not found:
                self.hosts.make_room()
                found = self.hosts.known[key] = self._new_namespace()
            found.users += 1
            return found

    def _new_namespace(self) -> Namespace:
        fd = os.dup(self.fd)
        try:
            return Namespace(fd, False, self.hosts.defer, self.hosts.restoring)
        except BaseException:           # for example: no descriptor is free
            os.close(fd)
            raise

    def __exit__(self, *error: Any) -> None:
        namespace = self.namespace
        try:
            if self.clean:
                namespace.idle.append(self.mode)
            else:
                self.mode.close()
        finally:                        # also after an error the thread returns to the server's namespace
            namespace.left = monotonic()
            with self.hosts.lock:
                namespace.users -= 1
            self._leave()

    def _leave(self) -> None:
        if self.away:
            self.away.__exit__(None, None, None)
        elif not self.clean:
            netns.ensure(self.hosts.home)
