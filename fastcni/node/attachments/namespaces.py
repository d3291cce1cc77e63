"""Read addresses and links inside the network namespaces of this node, without changing them. Needs root."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fastcni._system import identity
from fastcni.kernel import netns, uapi, wire
from fastcni.kernel.presence import USUAL_DIRECTORIES
from fastcni.kernel.rtnl import Link
from fastcni.kit.links import find
from fastcni.runtime.restore import knows
from fastcni.spec import address


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface in a namespace. namespace: the namespace's path. peer: the index of the peer or parent in another
    namespace; 0 without one. addresses: its global addresses. linked: whether a link connects the namespace with the
    namespace of the caller.
    """

    namespace: str
    name: str
    kind: str
    index: int
    peer: int
    addresses: tuple[str, ...]
    linked: bool

    def host_of(self, links: Mapping[int, Link]) -> Link | None:
        """Return the host's end of a veth pair. links: the host's links by index. None: the interface is no veth, or
        its peer is not on the host."""
        host = links.get(self.peer)
        return host if host and self.kind == host.kind == "veth" and host.peer == self.index else None


def paths(more: Iterable[str] = ()) -> Iterator[str]:
    """Yield paths that may be network namespaces: first the paths `more`, then named namespaces, then the namespaces of
    all processes but init."""
    yield from more
    for directory in USUAL_DIRECTORIES:
        try:
            yield from (os.path.join(directory, name) for name in sorted(os.listdir(directory)))
        except OSError:
            continue                    # no runtime on this node uses the directory
    try:
        yield from (f"/proc/{name}/ns/net" for name in sorted(os.listdir("/proc"), key=len)
                    if name.isdecimal() and name != "1")
    except OSError:
        return


def read_all(more: Iterable[str], unseen: list[str]) -> list[Interface]:
    """Return the interfaces of all namespaces but the caller's. Each namespace counts once, under its first path. Add a
    text to `unseen` if namespaces could not be entered."""
    home = netns.open_own()
    seen = {identity(home)}
    found, refused = [], 0
    sock = wire.open_socket()
    try:
        for path in paths(more):
            try:
                fd = netns.open_path(path)
            except OSError as e:
                refused += e.errno in (errno.EACCES, errno.EPERM)
                continue
            except ValueError:
                continue
            try:
                if identity(fd) in seen:
                    continue
                seen.add(identity(fd))
                found += read(path, fd, home, knows(sock, fd))
            except OSError:
                refused += 1
            finally:
                os.close(fd)
    finally:
        sock.close()
        os.close(home)
    if refused:
        unseen.append(f"network namespaces: {refused} could not be entered (not root?)")
    return found


def read(path: str, fd: int, home: int, linked: bool) -> list[Interface]:
    """Return the interfaces of one namespace. linked: whether the caller's namespace has an nsid for the namespace.
    Raises OSError."""
    with netns.inside(fd, home):
        sock = wire.open_socket()
    with sock:
        return [Interface(path, link.name, link.kind, link.index, link.peer if link.peer_elsewhere else 0,
                          tuple(addresses(sock, link.index)), linked or knows(sock, home))
                for link in find.all_links(sock) if link.name != "lo"]


def addresses(sock: wire.Socket, index: int) -> Iterator[str]:
    """Yield the global addresses of a link."""
    for it in find.addresses(sock, index):
        if it.scope == uapi.RT_SCOPE_UNIVERSE:
            yield address.ip_text(it.packed)
