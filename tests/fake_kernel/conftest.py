"""Whole plugins without root: the doors to the kernel lead to a model of a node."""

import json
import os

import pytest
from fake_kernel.node import HOST, POD, Node

from fastcni.handle import handle
from fastcni.kernel import netns, sysctl, wire
from fastcni.kit.firewall import iptables
from fastcni.kit.ipam import store

POD_PATH = "/run/netns/a-pod-that-is-not-there"


class Calls:
    """Requests to plugins on `node`, a fresh Node at first and after fresh()."""

    def __init__(self, folder):
        self.folder, self.count, self.decode = folder, 0, None
        self.fresh()

    def fresh(self, refuse=-1):
        self.node, self.pods, self.count = Node(refuse), {POD_PATH: POD}, self.count + 1

    @property
    def data(self):
        """The directory of host-local's files, one for each Node."""
        return self.folder / str(self.count)

    def held(self):
        """The addresses that host-local holds."""
        return sorted(path.name for path in self.data.glob("*/*") if path.name[0].isdigit())

    def conf(self, kind, **keys):
        ipam = {"type": "host-local", "subnet": "10.22.0.0/16", "dataDir": str(self.data),
                "routes": [{"dst": "0.0.0.0/0"}]}
        return {"cniVersion": "1.1.0", "name": "net", "type": kind, "ipam": ipam} | keys

    def __call__(self, command, conf, **env):
        """(exit status, the document on stdout)"""
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_NETNS": POD_PATH, "CNI_IFNAME": "eth0",
               "CNI_PATH": "/nowhere"} | env
        reply = handle(conf["type"], env, json.dumps(conf).encode(), defer=lambda fn, *args: fn(*args), in_process=True,
                       decode=self.decode)
        assert all(sock.closed for sock in self.node.sockets), f"{command} left a socket open"
        assert self.node.here == HOST
        return reply.status, json.loads(reply.stdout or "null")


@pytest.fixture(autouse=True)
def exchanged(monkeypatch):
    """What is sent goes to a kernel.Socket, and what is received comes from its queue."""
    def send(sock, data):
        if wire.show:
            wire.show(">", data)
        sock.send(data)

    monkeypatch.setattr(wire, "send", send)
    monkeypatch.setattr(wire, "receive", lambda sock, *limits: sock.receive(*limits))


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Calls whose sockets, namespaces and sysctls are those of a model."""
    state = Calls(tmp_path)

    class Inside:
        def __init__(self, fd, home=None):
            self.fd = fd

        def __enter__(self):
            self.home, state.node.here = state.node.here, state.node.namespaces[self.fd]

        def __exit__(self, *_):
            state.node.here = self.home

    def open_path(path):
        if path not in state.pods:
            raise FileNotFoundError(2, "No such file or directory", path)
        fd = os.open("/dev/null", os.O_RDONLY)
        state.node.namespaces[fd] = state.pods[path]
        return fd

    def open_socket(*args, **keys):
        return state.node.socket(*args, **keys)

    def write(name, value):
        state.node.sysctls[state.node.here, name] = value

    monkeypatch.setattr(wire, "open_socket", open_socket)
    monkeypatch.setattr(netns, "inside", Inside)
    monkeypatch.setattr(netns, "open_path", open_path)
    monkeypatch.setattr(netns, "is_own", lambda fd, home=None: False)
    monkeypatch.setattr(sysctl, "read", lambda name: state.node.sysctls.get((state.node.here, name), "0"))
    monkeypatch.setattr(sysctl, "write", write)
    monkeypatch.setattr(sysctl, "open_folder", lambda name: os.open("/dev/null", os.O_RDONLY))
    monkeypatch.setattr(sysctl, "write_at", lambda fd, name, value: write(f"net/ipv6/conf/{name}", value))
    monkeypatch.setattr(store, "known_boot_id", b"")        # what it reads here is of no use to others
    monkeypatch.setattr(iptables, "LEGACY_TABLES", {})       # the real node's, and root's to read
    return state
