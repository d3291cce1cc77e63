"""Run complete plugins without root, on a model of a node that replaces netlink, namespaces and sysctls."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastcni import third_party
from fastcni.handle import handle
from fastcni.kernel import dbus, netns, presence, sysctl, waiting, wire
from fastcni.kernel.devices import tun
from fastcni.kit.firewall import iptables
from fastcni.kit.ipam import store
from fastcni.runtime.mode import InProcessMode
from fastcni.testing.fake_messages import HOST, POD, Refused
from fastcni.testing.fake_node import Node

POD_PATH = "/run/netns/a-pod-that-is-not-there"


class AtOnceMode(InProcessMode):
    """A mode of requests that runs deferred work immediately, in the same thread."""

    __slots__ = ()

    def defer(self, fn: Callable[..., object], *args: object) -> None:
        fn(*args)


class FakeRuntime:
    """A runtime that sends requests to plugins on a fake node: `status, document = fake_runtime("ADD", conf)`.

    node     the Node; fresh() replaces it by a new Node
    pods     {path of a namespace: its name in the Node}. After you delete an item, its path no longer exists
    mode     the class of each request's mode; by default AtOnceMode
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.count, self.mode = directory, 0, AtOnceMode
        self.fresh()

    def fresh(self, refuse: int = -1) -> None:
        """Replace the node by a new node that answers request number `refuse` with EIO; -1: none."""
        self.node, self.pods, self.count = Node(refuse), {POD_PATH: POD}, self.count + 1

    @property
    def data(self) -> Path:
        """Return the directory of host-local's files for the current Node. Each Node has its own directory."""
        return self.directory / str(self.count)

    def held(self) -> list[str]:
        """Return the addresses, as text, that host-local has allocated."""
        return sorted(path.name for path in self.data.glob("*/*") if path.name[0].isdigit())

    def conf(self, kind: str, **keys: Any) -> dict[str, Any]:
        """Return a network configuration for the plugin `kind`, with host-local; `keys` override its keys."""
        ipam = {"type": "host-local", "subnet": "10.22.0.0/16", "dataDir": str(self.data),
                "routes": [{"dst": "0.0.0.0/0"}]}
        return {"cniVersion": "1.1.0", "name": "net", "type": kind, "ipam": ipam} | keys

    def __call__(self, command: str, conf: dict[str, Any], **env: str) -> tuple[int, Any]:
        """Send a request. Return (exit status, the JSON document on stdout or None). env: CNI variables that override
        the default variables."""
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_NETNS": POD_PATH, "CNI_IFNAME": "eth0",
               "CNI_PATH": "/nowhere", dbus.ADDRESS: "unix:path=/nowhere"} | env
        reply = handle(conf["type"], env, json.dumps(conf).encode(), self.mode())
        assert all(sock.closed for sock in self.node.sockets), f"{command} left a socket open"
        assert self.node.here == HOST, f"{command} left its thread in another namespace"
        return reply.status, json.loads(reply.stdout or "null")


@pytest.fixture
def fake_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the sending and receiving of netlink messages: requests go to a fake_sockets.Socket, whose queue has the
    replies."""
    def send(sock: Any, data: bytes) -> None:
        if waiting.here.request.show:
            waiting.here.request.show(">", data)
        sock.send(data)

    monkeypatch.setattr(wire, "send", send)
    monkeypatch.setattr(wire, "receive", lambda sock, *limits: sock.receive(*limits))


@pytest.fixture(scope="session")
def third_party_plugins() -> None:
    """Add the plugins of installed distributions to the table of plugins."""
    third_party.register()


@pytest.fixture
def fake_runtime(tmp_path: Path, fake_sockets: None, third_party_plugins: None,
                 monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    """Make a FakeRuntime, whose sockets, namespaces and sysctls are models."""
    state = FakeRuntime(tmp_path)

    class Inside:
        def __init__(self, fd: int, home: int | None = None) -> None:
            self.fd = fd

        def __enter__(self) -> None:
            self.home, state.node.here = state.node.here, state.node.namespaces[self.fd]

        def __exit__(self, *_: object) -> None:
            state.node.here = self.home

    def open_path(path: str) -> int:
        if path not in state.pods:
            raise FileNotFoundError(2, "No such file or directory", path)
        return open_namespace(state.pods[path])

    def open_namespace(name: str) -> int:
        fd = os.open(tmp_path / f"netns-{name}", os.O_RDONLY | os.O_CREAT, 0o600)
        state.node.namespaces[fd] = name
        return fd

    def ask(function: Callable[..., object], *args: object) -> None:
        """Call a function of the Node for a request that is not a netlink message. Raise Refused as an OSError."""
        try:
            function(*args)
        except Refused as e:
            raise OSError(e.errno, os.strerror(e.errno)) from None

    def open_socket(*args: Any, **keys: Any) -> object:
        return state.node.socket(*args, **keys)

    def write(name: str, value: str) -> None:
        if (state.node.here, "/conf/" in name) == (POD, False):
            ask(state.node.count)
        state.node.sysctls[state.node.here, name] = value

    monkeypatch.setattr(wire, "open_socket", open_socket)
    monkeypatch.setattr(netns, "inside", Inside)
    monkeypatch.setattr(netns, "open_path", open_path)
    monkeypatch.setattr(netns, "open_own", lambda: open_namespace(state.node.here))
    monkeypatch.setattr(netns, "is_own", lambda fd, home=None: False)
    monkeypatch.setattr(presence, "state_of", lambda path, since=0.0: (
        presence.ALIVE if path in state.pods else presence.GONE, f"the model of the node decides about {path}"))
    monkeypatch.setattr(sysctl, "read", lambda name: state.node.sysctls.get((state.node.here, name), "0"))
    monkeypatch.setattr(sysctl, "write", write)
    monkeypatch.setattr(sysctl, "exists", lambda name: True)
    monkeypatch.setattr(tun, "create_tap", lambda name, **_: ask(state.node.create_tap, name))
    monkeypatch.setattr(tun, "open_device", lambda: os.open("/dev/null", os.O_RDONLY))
    monkeypatch.setattr(sysctl, "open_directory", lambda name: os.open("/dev/null", os.O_RDONLY))
    monkeypatch.setattr(sysctl, "read_at", lambda fd, name: state.node.sysctls.get(
        (state.node.here, f"net/ipv6/conf/{name}"), "1" if name.endswith("/accept_ra") else "0"))
    monkeypatch.setattr(sysctl, "write_at", lambda fd, name, value: write(f"net/ipv6/conf/{name}", value))
    monkeypatch.setattr(store, "known_boot_id", b"")        # monkeypatch restores the cached boot id after the test
    monkeypatch.setattr(iptables, "LEGACY_TABLES", dict.fromkeys((4, 16), str(tmp_path / "none")))     # no iptables
    return state
