"""Read the networks of a configuration directory as containerd and CRI-O do: find the default network and broken
files."""

import os
import time
from dataclasses import dataclass

from fastcni.runtime.discover import list_files, load_file
from fastcni.runtime.errors import ConfError, NoConfigsFound, NotFound
from fastcni.runtime.records import NetworkList
from fastcni.spec.config import check_network_name
from fastcni.spec.errors import CniError

EXTENSIONS = (".conf", ".conflist", ".json")
RACY_NS = 1_000_000_000         # nanoseconds; a file can change twice without a change of its time stamp

Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a configuration directory. networks: sorted by file name. broken: the error of each invalid file;
    the error's text names the file."""

    directory: str
    networks: tuple[NetworkList, ...] = ()
    broken: tuple[ConfError, ...] = ()

    @property
    def default(self) -> NetworkList:
        """Return the first network, which pods get if they ask for no network. Raises NoConfigsFound; ConfError if all
        files are broken."""
        if self.networks:
            return self.networks[0]
        if self.broken:
            raise ConfError(f"no valid network configuration in {self.directory}: "
                            f"{'; '.join(error.msg for error in self.broken)}")
        raise NoConfigsFound(self.directory)

    def named(self, name: str) -> NetworkList:
        """Return the first network of that name. Raises NoConfigsFound or NotFound."""
        for net in self.networks:
            if net.name == name:
                return net
        if not self.networks and not self.broken:
            raise NoConfigsFound(self.directory)
        raise NotFound(self.directory, name, [error.msg for error in self.broken], [net.name for net in self.networks])


class NetworkDirectory:
    """A configuration directory, which need not exist. If a file has changed, listing() reads all files again.

    As in containerd and CRI-O, `.conf`, `.conflist` and `.json` files are read, in the order of their names.
    """

    def __init__(self, path: str):
        self.path = path
        # One assignment replaces both values, so no lock is needed
        self._read: tuple[Signature, Listing] | None = None

    def listing(self) -> Listing:
        """Return the networks that the directory has now. Raises ConfError if it cannot be listed."""
        signature = self.signature()
        if self._read and self._read[0] == signature:
            return self._read[1]
        listing = self.read()
        newest = max((changed for _, _, changed, _ in signature), default=0)
        if time.time_ns() - newest > RACY_NS:
            self._read = (signature, listing)
        return listing

    def read(self) -> Listing:
        networks, broken = [], []
        for path in list_files(self.path, EXTENSIONS):
            try:
                networks.append(load(path))
            except ConfError as e:
                broken.append(e)
        return Listing(self.path, tuple(networks), tuple(broken))

    def directories(self) -> list[str]:
        """Return the paths of the directory and its subdirectories. A subdirectory may have the plugins of a
        network."""
        try:
            with os.scandir(self.path) as entries:
                return [self.path, *sorted(entry.path for entry in entries if entry.is_dir())]
        except OSError:
            return [self.path]

    def signature(self) -> Signature:
        """Return (path, inode, time of change in ns, size in bytes) of each configuration file, to detect changes."""
        found = []
        for directory in self.directories():
            for path in list_files(directory, EXTENSIONS):
                try:
                    it = os.stat(path)
                except OSError:
                    found.append((path, 0, 0, 0))
                else:
                    found.append((path, it.st_ino, max(it.st_mtime_ns, it.st_ctime_ns), it.st_size))
        return tuple(found)


def load(path: str) -> NetworkList:
    """Return the network of a configuration file. Raises ConfError, whose text names the file."""
    net = load_file(path)
    try:
        check_network_name(net.name)
    except CniError as e:
        raise ConfError(f"{path}: {e}") from None
    return net
