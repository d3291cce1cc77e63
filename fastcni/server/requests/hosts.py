"""The network namespaces of callers, each with its open sockets and known facts.

The server's namespace stays open. Any other one is closed when no request has come from it for a while: a descriptor of
a namespace, and a socket in it, would keep it alive.
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

KEEP_S = 10.0                   # since the last request
MAX_NAMESPACES = 64             # namespaces besides the server's; a request from a further one goes one-shot


class Namespace:
    """A network namespace, and what is kept of it.

    fd: a descriptor of it. home: is it the server's own? idle: WarmModes that no request uses. users: how many requests
    use one. left: when the last one ended.
    """

    __slots__ = ("fd", "home", "facts", "deletes", "watch", "idle", "users", "left")

    def __init__(self, fd: int, home: bool, defer: Callable[..., None], restoring: Restoring) -> None:
        """Call it in a thread that is in the namespace. Raises OSError."""
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
    """`with hosts.visit(fd) as mode:` has the thread in the namespace `fd`, with a WarmMode of it.

    home: a descriptor of the server's own namespace, in which the calling thread is; close() closes it. cluster,
    networks: for the modes."""

    def __init__(self, home: int, defer: Callable[..., None], restoring: Restoring, cluster: ClusterUpkeep,
                 networks: NetworkSources) -> None:
        self.home, self.defer, self.restoring, self.lock = home, defer, restoring, Lock()
        self.cluster, self.networks = cluster, networks
        own = Namespace(self.home, True, defer, restoring)
        self.known = {netns.identity(self.home): own}
        self.closed_deletes = [0, 0]    # the numbers of link_deletes() of closed namespaces

    def visit(self, fd: int) -> Visit:
        return Visit(self, fd)

    def tidy(self) -> None:
        """Close namespaces that no request has come from for a while."""
        with self.lock:
            gone = [self._forget(key) for key, it in self._unused() if monotonic() - it.left > KEEP_S]
        for namespace in gone:
            namespace.close()

    def make_room(self) -> None:
        """With the lock: if there are many namespaces, close the one that has been unused for the longest time. Raises
        OSError if requests use all of them."""
        if len(self.known) <= MAX_NAMESPACES:
            return
        unused = self._unused()
        if not unused:
            raise OSError(EMFILE, f"callers from {MAX_NAMESPACES} network namespaces at once")
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
        """(links that requests have deleted, requests to the kernel for them)."""
        with self.lock:
            deletes = [it.deletes for it in self.known.values()]
            links, requests = self.closed_deletes
        return links + sum(it.links for it in deletes), requests + sum(it.requests for it in deletes)

    def close(self) -> None:
        for namespace in self.known.values():
            namespace.close()
        self.known.clear()


class Visit:
    """A worker in a caller's namespace. Raises OSError on entering it, netns.Lost if it cannot return."""

    def __init__(self, hosts: Hosts, fd: int) -> None:
        self.hosts, self.fd = hosts, fd
        self.namespace: Namespace
        self.mode: WarmMode
        self.away: netns.inside | None = None
        self.clean = False              # the worker sets it if the mode's sockets have nothing left to be read

    def __enter__(self) -> WarmMode:
        key = netns.identity(self.fd)
        home = self.hosts.known.get(key)
        if not (home and home.home):
            self.away = netns.inside(self.fd, self.hosts.home)
            self.away.__enter__()
        try:
            self.namespace = self._namespace(key)
        except BaseException:
            self._leave()
            raise
        it = self.namespace
        self.mode = it.idle.pop() if it.idle else self._new_mode(it)
        return self.mode

    def _new_mode(self, it: Namespace) -> WarmMode:
        return WarmMode(it.fd, it.facts, it.deletes, self.hosts.defer, self.hosts.cluster, self.hosts.networks)

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
        except BaseException:           # no free descriptor, for instance
            os.close(fd)
            raise

    def __exit__(self, *error: Any) -> None:
        try:
            if self.clean:
                self.namespace.idle.append(self.mode)
            else:
                self.mode.close()
        finally:                        # the thread must leave this namespace in any case, also that of a pod
            with self.hosts.lock:
                self.namespace.users -= 1
                self.namespace.left = monotonic()
            self._leave()

    def _leave(self) -> None:
        if self.away:
            self.away.__exit__(None, None, None)
        elif not self.clean:
            netns.ensure(self.hosts.home)
