"""A dhcp daemon without DHCP. It has the real daemon's methods, and leases that a test can read."""

import tempfile
import threading
from pathlib import Path

from unit.dhcp.clock import Log

from fastcni.daemon import listening
from fastcni.dhcp.engine import Engine
from fastcni.dhcp.lease import Lease
from fastcni.dhcp.loop import Loop
from fastcni.dhcp.service import Service

ADDRESS = bytes((10, 22, 0, 9))
OPTIONS = {1: b"\xff\xff\0\0", 3: bytes((10, 22, 0, 1))}


class Leased:
    """The attributes of a Client that Service uses."""

    def __init__(self, owner):
        self.owner = owner
        self.lease = Lease(ADDRESS, 16, OPTIONS[3], b"", OPTIONS, b"", 0.0)


class StubEngine:
    """An Engine that gives one address without a server. directory(): where to create the address's file."""

    leave = Engine.leave

    def __init__(self, loop, directory):
        self.loop, self.directory, self.root, self.log, self.clients = loop, directory, "", Log(), {}

    def _file(self):
        return Path(self.directory()) / "dhcp" / "10.22.0.9"

    def allocate(self, owner, waiter):
        self.clients[owner.key] = Leased(owner)
        self._file().parent.mkdir(parents=True, exist_ok=True)
        self._file().touch()
        waiter("", self.clients[owner.key])

    def release(self, key):
        self._file().unlink(missing_ok=True)
        return "10.22.0.9" if self.clients.pop(key, None) else ""

    def collect(self, network, valid):
        stale = [one.owner for one in self.clients.values() if (one.owner.container_id, one.owner.ifname) not in valid]
        return [(self.release(owner.key), owner.name) for owner in stale]


class StubDaemon:
    """The dhcp daemon's Service with a StubEngine, in a thread. Its socket is at daemon.path in `with
    StubDaemon(directory) as daemon:`."""

    def __init__(self, directory):
        self.directory = directory

    def __enter__(self):
        self.place = tempfile.TemporaryDirectory(prefix="fcni-dhcp-")
        self.path = f"{self.place.name}/dhcp.sock"      # the path of a unix socket has at most 107 bytes
        self.listening = listening.make(self.path, open_to_all=False, kind=listening.socket.SOCK_STREAM)
        self.loop = Loop(Log())
        self.service = Service(StubEngine(self.loop, self.directory), self.listening.sock)
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.loop.stop()
        self.thread.join()
        self.service.close()
        self.listening.sock.close()
        self.listening.unlock()
        self.loop.close()
        self.place.cleanup()
