"""Helpers for tests of the datapath: open sockets in two pods, and read the kernel's BPF maps."""

import contextlib
import json
import select
import socket

import pytest
from lab.node import Inside, eventually, run

from fastcni.kernel import wire
from fastcni.kernel.bpf import objects
from fastcni.kernel.bpf.redirect_programs import PROGRAMS
from fastcni.kit.datapath import maps, pins, redirect

marks = [pytest.mark.needs("bpf-redirect"),
         pytest.mark.skipif(not PROGRAMS, reason="fastcni was built without clang: there is no datapath")]
DUAL = ("10.22.0.0/24", "fd00:22::/64")
COUNTER = "table inet seen { chain forward { type filter hook forward priority 0; counter; }; }"
WAIT_S = 10


@pytest.fixture
def bpffs(tmp_path, monkeypatch):
    """Mount a bpffs for this test in place of /sys/fs/bpf."""
    directory = tmp_path / "bpf"
    directory.mkdir()
    run("mount", "-t", "bpf", "bpf", directory)
    monkeypatch.setattr(pins, "ROOT", str(directory))
    try:
        yield directory
    finally:
        run("umount", "-l", directory)


def forwarded():
    """Return the number of packets that the host's stack has forwarded since COUNTER was loaded."""
    found = json.loads(run("nft", "-j", "list", "table", "inet", "seen"))["nftables"]
    return next(item["rule"]["expr"][0]["counter"]["packets"] for item in found if "rule" in item)


def host_end():
    """Return the name of the second pod's host end, by the route to the pod's address."""
    return run("ip", "-o", "route", "get", "10.22.0.3").split(" dev ")[1].split()[0]


@contextlib.contextmanager
def opened_maps():
    """Yield the maps of the test's namespace, or None if the namespace has no maps."""
    with contextlib.closing(wire.open_socket()) as sock:
        opened = pins.open_maps(sock)
        with opened or contextlib.nullcontext():
            yield opened


def kernel_flows():
    """Return the flows in the kernel's map that stand for one connection, not for all connections to a port."""
    with opened_maps() as opened:
        return [flow for flow in redirect.flows(opened) if flow.ports[0]]


def pods_in_map():
    """Return {packed address: struct pod} of the kernel's map."""
    with opened_maps() as opened:
        return {maps.unmapped(key): value for key, value in objects.elements(
            opened.pods, maps.ADDRESS_BYTES, maps.POD_BYTES)} if opened else {}


class Udp:
    """A UDP client in one pod and a UDP server in another pod."""

    def __init__(self, sender, receiver, address, port=5000):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with Inside(receiver):
            self.server = socket.socket(family, socket.SOCK_DGRAM)
            self.server.bind(("", port))
        with Inside(sender):
            self.client = socket.socket(family, socket.SOCK_DGRAM)
            self.client.settimeout(WAIT_S)
            self.client.connect((address, port))
        self.server.settimeout(WAIT_S)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.client.close()
        self.server.close()

    def there(self):
        """Send datagrams until one arrives, because a link that has just come up drops the first datagram. Return the
        sender's address."""
        assert eventually(lambda: (self.client.send(b"there?"), select.select([self.server], [], [], 0.2)[0])[1])
        return self.server.recvfrom(100)[1]

    def there_and_back(self, times=1):
        for _ in range(times):
            self.client.send(b"request")
            data, sender = self.server.recvfrom(100)
            while data != b"request":
                data, sender = self.server.recvfrom(100)
            self.server.sendto(b"answer", sender)
            assert self.client.recv(100) == b"answer"


class Tcp:
    """A TCP connection from one pod to another pod."""

    def __init__(self, sender, receiver, address, port=80):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with Inside(receiver):
            self.listener = socket.create_server(("", port), family=family)
        with Inside(sender):
            self.client = socket.socket(family)
            self.client.settimeout(WAIT_S)
            self.client.connect((address, port))
        self.server, self.peer = self.listener.accept()
        self.server.settimeout(WAIT_S)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for each in (self.client, self.server, self.listener):
            each.close()

    def there_and_back(self, times=1, size=100):
        for _ in range(times):
            for sender, receiver in ((self.client, self.server), (self.server, self.client)):
                sender.sendall(b"x" * size)
                left = size
                while left:
                    left -= len(receiver.recv(left)) or pytest.fail("the connection was closed")
