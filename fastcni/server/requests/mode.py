"""Define WarmMode, the mode of requests to the server: it keeps sockets and cached state for the next request from the
same namespace."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from errno import EINVAL, ENOENT
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar

try:
    import orjson
except ImportError:             # for example Debian 12 has no package of orjson
    orjson = None               # type: ignore[assignment]

from fastcni.daemon.stamp import stamp
from fastcni.kernel import netns, presence, wire
from fastcni.kit.call import search
from fastcni.kit.call.mode import Mode, Pair
from fastcni.server.bounded import forget_oldest
from fastcni.spec import result as results
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.daemon.stamp import Stamp
    from fastcni.kernel.rtnl import Link
    from fastcni.kit.call.request import Request
    from fastcni.server.cluster.upkeep import ClusterUpkeep
    from fastcni.server.networks.sources import NetworkSources
    from fastcni.server.requests.facts import Facts
    from fastcni.server.requests.grouped_deletes import GroupedDeletes
    from fastcni.server.requests.protocol import Message
    from fastcni.server.requests.workers import Answer

T = TypeVar("T")

MAX_OWN_FILES = 64
SETTLED_NS = 2 * 10**9          # nanoseconds after which a further change of a file gets a different time of change


class WarmMode(Mode):
    """The mode of one request at a time, from begin() to forget_request(). The sockets of a mode stay open between
    requests. facts, deletes: the cache and the deletions of the namespace, shared by all its WarmModes. background(fn,
    *args): runs a function in another thread. cluster: keeps the stores of cluster-wide addresses open. networks: keeps
    the watches of pods and network definitions.

    Methods of Mode that another object implements are attributes with that object's function, so that a request calls
    the function directly.
    """

    __slots__ = ("facts", "cluster", "networks", "identity", "message", "pod", "own_files",
                 "recall", "delete_links", "defer", "decode", "deliver")
    recall: Callable[..., Any]
    delete_links: Callable[..., None]
    defer: Callable[..., None]
    decode: Callable[..., Section]
    deliver: Callable[..., None]

    def __init__(self, home: int, facts: Facts, deletes: GroupedDeletes, background: Callable[..., None],
                 cluster: ClusterUpkeep, networks: NetworkSources) -> None:
        super().__init__(home)
        self.facts, self.recall, self.delete_links, self.defer = facts, facts.recall, deletes.delete, background
        self.cluster, self.networks = cluster, networks
        self.own_files: dict[str, Stamp] = {}       # {path of a plugin file of fastcni's: its stamp}
        self.pod: tuple[int, int] | None = None         # the identity of the pod's namespace, once it is open
        self.identity = netns.identity(home)            # (device, inode); with nsfs, all namespaces have this device

    def begin(self, decode: Callable[[bytes], Section], message: Message, answer: Answer) -> None:
        """Begin a request. decode: decodes the configuration. message: has a descriptor of the pod's namespace.
        answer: sends an ADD's result."""
        self.decode, self.message, self.deliver = decode, message, answer.deliver
        self.pod = None

    def forget_request(self) -> None:
        """End a request: an idle mode keeps neither the request's configuration nor the caller's connection."""
        del self.decode, self.message, self.deliver

    def encode(self, result: dict[str, Any]) -> bytes:
        """Encode by orjson if it is installed: this saves up to 6 us for each ADD."""
        if orjson is not None:
            try:
                return orjson.dumps(results.printed(result), option=orjson.OPT_INDENT_2)
            except TypeError:               # orjson rejects integers of more than 64 bits, and lone surrogates
                pass
        return super().encode(result)

    def open_netns(self, path: str) -> int:
        """Return the descriptor that the launcher sent, if it is a network namespace; otherwise open `path`.

        If the caller has another pid or mount namespace than the server, `path` may be another pod's namespace here. If
        the caller has sent no descriptor, the caller has no file at `path`.
        """
        fd = self.message.netns
        if fd is not None and (identity := netns.identity(fd))[0] == self.identity[0]:
            self.message.netns = None       # from here on the plugin's Request closes the descriptor
        elif not self.pod and not sees_paths_of(self.message.pid):
            if fd is None:
                raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path)
            raise netns.NotNamespace(EINVAL, "not a network namespace", path)
        else:
            fd = super().open_netns(path)
            try:
                identity = netns.identity(fd)
            except OSError:
                netns.close_file(fd)
                raise
        self.pod = identity
        return fd

    def find_plugin(self, name: str, directories: list[str], own: bool) -> str:
        """Return a plugin's path, or "" if `own` is true and the file is fastcni's. After this method has found that a
        file is fastcni's, the method reads the file again only if the file has changed."""
        first = f"{directories[0]}/{name}" if directories else ""
        state = stamp(first) if own else ()
        if state and self.own_files.get(first) == state:
            return ""
        path = super().find_plugin(name, directories, own)
        if not own or not search.is_own(path):
            return path
        if state and path == first and time_ns() - state[-1] > SETTLED_NS:
            self.own_files[first] = state
            forget_oldest(self.own_files, MAX_OWN_FILES)
        return ""

    def is_home(self, fd: int) -> bool:
        return (self.pod or netns.identity(fd)) == self.identity

    def end_request(self) -> None:
        """Do nothing: the sockets stay open until close()."""

    def cluster_store(self, key: Hashable, open_store: Callable[[], Any]) -> Any:
        """Return the store of `key`. open_store() opens the store once; the store stays open for all requests."""
        return self.cluster.store(key, open_store)

    def network_objects(self, key: Hashable, open_objects: Callable[[], Any]) -> Any:
        """Return the source of `key`, which open_objects() opens once. The source's watches serve all requests."""
        return self.networks.objects(key, open_objects)

    def note_space(self, keys: Any, addresses: Sequence[bytes]) -> None:
        self.cluster.note(keys, addresses)

    def keep_pair(self, req: Request, link: Link, ips: Sequence[tuple[bytes, int]]) -> None:
        self.facts.keep_pair(pair_key(self, req), Pair(link.index, link.name, [packed for packed, _ in ips]))

    def find_pair(self, req: Request) -> Pair | None:
        """Return the pair that keep_pair() recorded; None: the server has no record of the ADD."""
        try:
            return self.facts.pairs.get(pair_key(self, req))
        except CniError:                # the pod's namespace cannot be opened
            return None

    def take_pair(self, req: Request) -> Pair | None:
        """For DEL: return the recorded pair if a link still has the name and the index of the pair's host end. No other
        link has both, because the name is random."""
        pair = self.facts.take_pair(pair_key(self, req))
        return pair if pair and wire.index_of(pair.name, self.route) == pair.index else None

    def announce_delete(self, req: Request) -> None:
        """Do nothing: the server already knows of the DEL."""


def pair_key(mode: WarmMode, req: Request) -> tuple[tuple[int, int], str]:
    """Return the key of the request's veth pair in Facts.pairs: the identity of the pod's namespace, and the
    interface."""
    fd = req.open_netns()
    return mode.pod or netns.identity(fd), req.ifname


def sees_paths_of(pid: int) -> bool:
    """Return False if a path may be another file for a caller than for the server.

    pid: the caller's process; 0 if the server cannot see the caller's pid namespace.
    """
    return pid > 0 and not presence.has_other_mounts(pid)
