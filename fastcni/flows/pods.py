"""Find the pod of this node that has an address, from the result caches of runtimes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from time import monotonic, time_ns
from typing import TYPE_CHECKING, NamedTuple

from fastcni.node.attachments import caches
from fastcni.runtime.cache import Cache, read_file
from fastcni.runtime.records import kubernetes_name
from fastcni.spec.address import read_ip

if TYPE_CHECKING:
    from fastcni.flows.packets import Packet

FORMER_S = 60.0                 # seconds for which the flows of a deleted pod still have the pod's name
SETTLED_NS = 100_000_000        # a directory that changed in the last 0.1 s may change again with the same time


class Pod(NamedTuple):
    """A pod on one network. name: NAMESPACE/NAME, or the container id. links: the names of its links on the host."""

    name: str
    network: str
    container: str
    links: tuple[str, ...]


class Pods:
    """The node's pods, by address. cache_dirs: directories that contain a directory `results`. refresh() reads the
    changed files in these directories."""

    def __init__(self, cache_dirs: Sequence[str]) -> None:
        self.results = [Results(Cache(directory).results()) for directory in cache_dirs]
        self.by_address: dict[bytes, Pod] = {}
        # {address of a deleted pod: monotonic time at which refresh() forgets the pod's name}
        self.former: dict[bytes, float] = {}

    def refresh(self) -> None:
        """Read new and changed files, and forget deleted pods after FORMER_S. Without a change, this costs one stat()
        for each directory."""
        now = monotonic()
        for each in self.results:
            new, gone = each.changes()
            for packed in gone:
                self.former[packed] = now + FORMER_S
            for packed, pod in new:
                self.by_address[packed] = pod
                self.former.pop(packed, None)
        for packed in [packed for packed, until in self.former.items() if until < now]:
            del self.by_address[packed], self.former[packed]

    def at(self, packed: bytes) -> Pod | None:
        """Return the pod that has the address `packed`; None if no pod of this node has it."""
        return self.by_address.get(packed)

    def meant(self, packet: Packet) -> Packet:
        """Return a neighbour solicitation with the address of the pod whose MAC it requests as the destination. Return
        other packets unchanged."""
        if packet.target:
            for packed in self.by_address:
                if len(packed) == 16 and packed[:12] + packed[13:] == packet.target:
                    return packet._replace(destination=packed)
        return packet


class Results:
    """The result files of one cache. seen: {name of a file: (inode, time of the last change in ns, addresses)}."""

    def __init__(self, directory: str) -> None:
        self.directory, self.changed = directory, 0
        self.seen: dict[str, tuple[int, int, tuple[bytes, ...]]] = {}

    def changes(self) -> tuple[list[tuple[bytes, Pod]], set[bytes]]:
        """Return ([(address, pod)] of new and changed files, the addresses of deleted files) since the last call."""
        now = time_ns()
        try:
            changed = os.stat(self.directory).st_mtime_ns
        except OSError:
            changed = -1                    # no runtime has added a pod yet
        if changed == self.changed:
            return [], set()
        self.changed = changed if changed < now - SETTLED_NS else 0
        present = dict(stats(self.directory)) if changed >= 0 else {}
        gone = {packed for name in self.seen.keys() - present.keys() for packed in self.seen.pop(name)[2]}
        new: list[tuple[bytes, Pod]] = []
        for name, stat in present.items():
            if self.seen.get(name, (0, 0, ()))[:2] != (stat.st_ino, stat.st_mtime_ns):
                found = list(read(os.path.join(self.directory, name)))
                self.seen[name] = stat.st_ino, stat.st_mtime_ns, tuple(packed for packed, _ in found)
                new += found
        return new, gone - {packed for packed, _ in new}


def stats(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the name and stat(2) result of each file in a directory. Skip files that a DEL removes at the same time."""
    for entry in os.scandir(directory):
        with suppress(FileNotFoundError):
            yield entry.name, entry.stat()


def read(path: str) -> Iterator[tuple[bytes, Pod]]:
    """Yield (address, pod) for each address of the result in the file `path`. Yield nothing if the file is damaged or
    no longer exists."""
    try:
        found = caches.read(path, read_file(path), 0.0, [])
    except (OSError, ValueError):
        return                              # `fastcni doctor` reports the damaged file
    if found is None:
        return
    sighting, cached = found
    container = sighting.container_id
    pod = Pod(kubernetes_name(cached.args) or container, sighting.network, container, sighting.links)
    for text in sighting.addresses:
        yield read_ip(text), pod
