"""The network namespaces that requests come from, and what is kept open and known of each.

The server's own is kept for good. Another one is let go when nobody has called from it for a while: a descriptor of
it, and a socket in it, would keep a namespace alive that is gone otherwise.
"""

import os
from errno import EMFILE
from threading import Lock
from time import monotonic

from fastcni.kernel import netns
from fastcni.kit.call.host import Host
from fastcni.server.facts import Facts
from fastcni.server.grouped_deletes import GroupedDeletes

LINGER = 10.0                   # seconds
MOST = 64                       # namespaces beside our own; beyond them nothing is kept


class Namespace:
    """fd: a descriptor of it. idle: Hosts that no worker uses. users: how many do. left: when the last one did."""

    __slots__ = ("fd", "home", "memory", "deletes", "watch", "idle", "users", "left")

    def __init__(self, fd, home, defer, restoring):
        """In a thread that is in it."""
        self.fd, self.home = fd, home
        self.memory, self.deletes, self.watch = Facts(), GroupedDeletes(defer), restoring.watch(fd, at_start=home)
        self.idle, self.users, self.left = [], 0, 0.0

    def close(self):
        self.watch.close()
        for host in self.idle:
            host.close(lambda fn: fn())
        self.memory.close()
        self.deletes.close()
        os.close(self.fd)


class Hosts:
    """`with hosts.visit(fd) as host:` has the thread in the namespace `fd`, which is closed here, with its Host.

    home: a descriptor of the server's own namespace, in which the calling thread is; close() closes it."""

    def __init__(self, home, defer, restoring):
        self.home, self.defer, self.restoring, self.lock = home, defer, restoring, Lock()
        own = Namespace(self.home, True, defer, restoring)
        self.known = {netns.identity(self.home): own}
        self.device = netns.identity(self.home)[0]      # nsfs: that of every namespace

    def visit(self, fd):
        return Visit(self, fd)

    def tidy(self):
        """Let go of namespaces that nobody has called from for a while."""
        with self.lock:
            old = [key for key, it in self.known.items()
                   if not it.home and not it.users and monotonic() - it.left > LINGER]
            gone = [self.known.pop(key) for key in old]
        for namespace in gone:
            namespace.close()

    def close(self):
        for namespace in self.known.values():
            namespace.close()
        self.known.clear()


class Visit:
    """A worker in a caller's namespace. Raises OSError on entering it, netns.Lost where there is no way back."""

    def __init__(self, hosts, fd):
        self.hosts, self.fd = hosts, fd
        self.namespace = self.host = self.away = None
        self.clean = False              # what the host's sockets have to say has been read; the worker knows

    def __enter__(self):
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
        self.host = self.namespace.idle.pop() if self.namespace.idle else Host(
            self.namespace.fd, self.namespace.memory, self.namespace.deletes)
        self.host.in_ipam = 0.0
        return self.host

    def _namespace(self, key):
        with self.hosts.lock:
            found = self.hosts.known.get(key)
            if not found:
                if len(self.hosts.known) > MOST:
                    raise OSError(EMFILE, f"callers from {MOST} network namespaces at once")
                found = self.hosts.known[key] = self._new_namespace()
            found.users += 1
            return found

    def _new_namespace(self):
        fd = os.dup(self.fd)
        try:
            return Namespace(fd, False, self.hosts.defer, self.hosts.restoring)
        except BaseException:           # no descriptor left, for instance
            os.close(fd)
            raise

    def __exit__(self, kind, error, trace):
        try:
            if self.clean:
                self.namespace.idle.append(self.host)
            else:
                self.host.close(self.hosts.defer)
        finally:                        # whatever goes wrong, the thread may not stay here, nor in a pod
            with self.hosts.lock:
                self.namespace.users -= 1
                self.namespace.left = monotonic()
            self._leave()

    def _leave(self):
        if self.away:
            self.away.__exit__(None, None, None)
        elif not self.clean:
            netns.ensure(self.hosts.home)
