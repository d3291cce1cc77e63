"""Open or load the datapath's programs and maps of one network namespace. Their pins in bpffs outlive every process.

    /sys/fs/bpf/fastcni-COOKIE/pods-1           maps, named by the version of their layout
    /sys/fs/bpf/fastcni-COOKIE/flows-1
    /sys/fs/bpf/fastcni-COOKIE/from_pod-DIGEST  programs, named by their digest: a new version has new pins and uses the
    same maps /sys/fs/bpf/fastcni-COOKIE/to_pod-DIGEST

COOKIE identifies the network namespace (socket(7), SO_NETNS_COOKIE), because links of two namespaces can have the same
index.
"""

from __future__ import annotations

import posix
from errno import EEXIST, ENOENT, ENOPROTOOPT, EPERM

from fastcni.kernel.bpf import objects
from fastcni.kit.datapath.maps import ADDRESS_BYTES, FLOW_BYTES, KEY_BYTES, MAX_FLOWS, MAX_PODS, POD_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.kernel.wire import Socket

ROOT = "/sys/fs/bpf"
LAYOUT = 1                      # version of the structs in the maps, part of the maps' names
SOL_SOCKET, SO_NETNS_COOKIE = 1, 71         # since Linux 5.14
MAPS = {"pods": (ADDRESS_BYTES, POD_BYTES, MAX_PODS), "flows": (KEY_BYTES, FLOW_BYTES, MAX_FLOWS)}


class Unavailable(Exception):
    """The error if the datapath is unavailable because of the kernel, the process's rights, or the build of fastcni.
    The text is the reason."""


class Pins:
    """Descriptors of the pinned objects. The end of `with` closes them.

    pods, flows: the maps. programs: {"from_pod": descriptor, "to_pod": descriptor}, {} if only the maps are open.
    """

    __slots__ = ("pods", "flows", "programs")

    def __init__(self, pods: int, flows: int, programs: dict[str, int]) -> None:
        self.pods, self.flows, self.programs = pods, flows, programs

    def __enter__(self) -> Pins:
        return self

    def __exit__(self, *error: object) -> None:
        objects.close(self.pods, self.flows, *self.programs.values())


def directory(sock: Socket) -> str:
    """Return the path of the pins of a socket's network namespace. Raises OSError: ENOPROTOOPT before Linux 5.14."""
    return f"{ROOT}/fastcni-{int.from_bytes(sock.getsockopt(SOL_SOCKET, SO_NETNS_COOKIE, 8), objects.ORDER)}"


def open_maps(sock: Socket) -> Pins | None:
    """Return the maps of a socket's network namespace, None if no pod of that namespace has used the datapath. Raises
    OSError."""
    try:
        found = opened(directory(sock), [f"{name}-{LAYOUT}" for name in MAPS])
    except OSError as e:
        if e.errno in (ENOENT, ENOPROTOOPT):
            return None
        raise
    return Pins(found[0], found[1], {})


def exist(sock: Socket) -> bool:
    """Return whether a pod of a socket's network namespace has used the datapath."""
    try:
        return posix.access(directory(sock), posix.F_OK)
    except OSError:                     # Linux before 5.14
        return False


def program_pins() -> list[str]:
    """Return the names of the pins of this version's programs, [] if this build has no programs."""
    from fastcni.kernel.bpf.redirect_programs import DIGEST, PROGRAMS

    return [f"{name}-{DIGEST}" for name in PROGRAMS]


def open_or_load(sock: Socket, warn: Callable[[str], object]) -> Pins:
    """Return the maps and programs of a socket's network namespace. The first call in a namespace loads and pins them,
    which takes some 15 ms. If bpffs is not mounted, mount it and warn. Raises Unavailable."""
    from fastcni.kernel.bpf.redirect_programs import PROGRAMS

    if not PROGRAMS:
        raise Unavailable("fastcni was built without clang")
    names = [*(f"{name}-{LAYOUT}" for name in MAPS), *program_pins()]
    try:
        where = directory(sock)
        try:
            found = opened(where, names)
        except OSError as e:
            if e.errno not in (ENOENT, EPERM):
                raise
            make_directory(where, warn)
            created = load(where, names)
            found = opened(where, names)
            if created:
                from fastcni.kit.datapath import filters

                # The filters of existing pods may use maps that have lost their pins. No process can open such a map to
                # end its flows, so replace the filters' programs by programs that use the new maps.
                try:
                    filters.replace(sock, filters.linked(sock), dict(zip(PROGRAMS, found[len(MAPS):], strict=True)))
                except OSError:
                    objects.close(*found)
                    raise
    except OSError as e:
        raise Unavailable(f"{e.strerror} (errno {e.errno})") from None
    return Pins(found[0], found[1], dict(zip(PROGRAMS, found[len(MAPS):], strict=True)))


def opened(where: str, names: list[str]) -> list[int]:
    """Return a descriptor for each pin. After an OSError, close the opened descriptors and raise the error again."""
    found: list[int] = []
    try:
        for name in names:
            found.append(objects.get(f"{where}/{name}"))
    except OSError:
        objects.close(*found)
        raise
    return found


def make_directory(where: str, warn: Callable[[str], object]) -> None:
    """Make the directory of the pins, and mount bpffs if it is not mounted. Raises OSError."""
    from fastcni.kernel import process

    for mounted in (False, True):
        try:
            posix.mkdir(where, 0o700)
        except OSError as e:
            if e.errno == EEXIST:
                return
            if e.errno not in (ENOENT, EPERM) or mounted:       # sysfs' errors for the empty directory /sys/fs/bpf
                raise
        else:
            return
        done = process.run("/bin/mount", {}, b"", ("mount", "-t", "bpf", "bpf", ROOT), timeout=10)
        if done.status:
            raise OSError(EPERM, f"mount bpffs at {ROOT}: {done.stderr.decode(errors='replace').strip() or done.cause}")
        warn(f"mounted bpffs at {ROOT}")


def load(where: str, names: list[str]) -> bool:
    """Pin the programs and maps that are missing in the directory `where`. Return whether a map was missing: if so, the
    filters of existing pods use a lost map, and the caller has to replace the filters' programs. If two processes pin
    at the same time, both use the first pin. Raises OSError."""
    from fastcni.kernel.bpf.redirect_programs import PROGRAMS

    fds: dict[str, int] = {}
    there = posix.listdir(where)
    created = not set(names[:len(MAPS)]).issubset(there)
    for name in names[len(MAPS):]:
        if created and name in there:
            posix.unlink(f"{where}/{name}")
    try:
        for (name, (key, value, most)), pin in zip(MAPS.items(), names, strict=False):
            fds[name] = pinned(f"{where}/{pin}", lambda: objects.create_hash(key, value, most))     # noqa: B023 - called now
        for (name, (instructions, relocations)), pin in zip(PROGRAMS.items(), names[len(MAPS):], strict=True):
            fds[name] = pinned(f"{where}/{pin}", lambda: objects.load(instructions, relocations, fds))      # noqa: B023
    finally:
        objects.close(*fds.values())
    return created


def pinned(path: str, make: Callable[[], int]) -> int:
    """Return a descriptor of the object at a pin. If the pin does not exist, pin the object that make() returns. Raises
    OSError."""
    try:
        return objects.get(path)
    except OSError as e:
        if e.errno != ENOENT:
            raise
    fd = make()
    try:
        objects.pin(fd, path)
    except OSError as e:
        objects.close(fd)
        if e.errno != EEXIST:
            raise
        return objects.get(path)
    return fd
