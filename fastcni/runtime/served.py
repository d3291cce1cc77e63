"""Send a list of fastcni's own plugins to the fastcni server as one request, without starting a program.

As with plugin files (launcher/launcher.c), the caller runs the plugins one by one if the server has not begun the
request, or if the request can be repeated.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastcni.kit.call import invoke, server_messages
from fastcni.kit.call.deadlines import ANSWER_S, UNREAD_S
from fastcni.kit.call.server_messages import DECLINED, MAGIC, VERSION, request
from fastcni.plugins import BUILT_IN, chain
from fastcni.runtime.records import PluginConf
from fastcni.spec import errors, json
from fastcni.spec.errors import CniError

HEAD = struct.Struct(server_messages.HEAD)
SOCKET = "/run/fastcni/fastcni.sock"        # the default of plugin files
SIOCOUTQ = 0x5411               # unix(7): bytes that the peer has not read
MAX_REPLY = 1 << 18             # bytes; longer replies are in a memory file
LOST = "the runtime's DEL removes the rest of this ADD; the log of `fastcni serve` may have the reason"


class Failed(Exception):
    """A plugin failed. index: the plugin's index in the list; None: no plugin was begun, or the failed plugin is
    unknown. rolled_back: whether the server has undone the ADD."""

    def __init__(self, error: CniError, index: int | None, rolled_back: bool) -> None:
        super().__init__(error, index)
        self.error, self.index, self.rolled_back = error, index, rolled_back


def as_chain(plugins: Sequence[PluginConf]) -> PluginConf:
    """Return the plugins as one configuration of the plugin `chain`."""
    declared = {name: True for plugin in plugins for name, on in plugin.capabilities.items() if on}
    values = {"type": chain.KIND, chain.FROM_RUNTIME: True, "plugins": [dict(plugin.values) for plugin in plugins]}
    return PluginConf(b"", values, chain.KIND, capabilities=declared)


def takes(plugin: PluginConf) -> bool:
    """Return whether the server has the plugin, and may run it inside a chain."""
    return plugin.type in BUILT_IN and plugin.type != chain.KIND


def ask(environ: Mapping[str, str], env: Mapping[str, str], stdin: bytes) -> tuple[bytes, bytes] | None:
    """Send a request for the plugin `chain` to the server, from this thread's network namespace. Return (stdout,
    stderr); None: the server has not begun the request, or the request can be repeated.

    environ: the environment that plugin files would get; FASTCNI_SOCKET in it is the server's socket. env: CNI and
    trace variables. Raises Failed.
    """
    path = environ.get("FASTCNI_SOCKET", SOCKET)
    if not path or environ.get("FASTCNI_WIRE") or any("\0" in text for text in env.values()):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(path)
            send(sock, env, stdin)
        except OSError:
            return None
        reply = receive(sock)
    if isinstance(reply, str):
        if env["CNI_COMMAND"] != "ADD":
            return None
        raise Failed(CniError(errors.TRY_AGAIN_LATER, f"the fastcni server {reply}", LOST), None, rolled_back=False)
    if reply is None:
        return None
    status, stdout, stderr = reply
    if status:
        raise failure(stdout, stderr)
    return stdout, stderr


def send(sock: socket.socket, env: Mapping[str, str], stdin: bytes) -> None:
    """Send the request, with an open descriptor of the namespace CNI_NETNS. Raises OSError, also if the request is too
    long for a message, or if no descriptor is free."""
    try:
        netns = os.open(env["CNI_NETNS"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) if env["CNI_NETNS"] else -1
    except (OSError, ValueError) as e:
        if isinstance(e, OSError) and e.errno in errors.EXHAUSTED:
            raise
        netns = -1                  # send no descriptor: the server reports the error
    try:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [netns]))] if netns >= 0 else []
        head = request(chain.KIND, env, has_netns=bool(rights))
        sock.sendmsg([head, stdin], rights, socket.MSG_NOSIGNAL)
    finally:
        if netns >= 0:
            os.close(netns)


def receive(sock: socket.socket) -> tuple[int, bytes, bytes] | str | None:
    """Return (exit status, stdout, stderr); None: the server has not begun the request; a text: why the reply is
    missing although the server may have begun the request."""
    if not readable(sock, UNREAD_S):
        if is_unread(sock):
            # Shut the socket down, then check again: the server does not begin a request whose caller has left.
            sock.shutdown(socket.SHUT_RDWR)
            return None if is_unread(sock) else "has not answered this ADD in time"
        if not readable(sock, ANSWER_S - UNREAD_S):
            return "has not answered this ADD in time"
    try:
        data, ancillary, _, _ = sock.recvmsg(MAX_REPLY, socket.CMSG_SPACE(4))
    except ConnectionResetError:
        return None                 # the server has closed the connection without reading the request
    except OSError:
        data, ancillary = b"", []
    fds = array.array("i")
    for _, _, rights in ancillary:
        fds.frombytes(rights[:len(rights) - len(rights) % fds.itemsize])
    try:
        return read(data, fds)
    finally:
        for fd in fds:
            os.close(fd)


def read(data: bytes, fds: Sequence[int]) -> tuple[int, bytes, bytes] | str | None:
    """Decode the reply `data`; return what receive() returns. fds: descriptors that came with the reply; the first is a
    memory file with a long reply's output."""
    if not data:
        return "was lost while it worked on this ADD"
    if len(data) < HEAD.size:
        return None
    magic, version, status, size = HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION or status == DECLINED:
        return None
    both = data[HEAD.size:]
    if fds:
        with open(fds[0], "rb", closefd=False) as file:
            file.seek(0)
            both = file.read()
    return status, both[size:], both[:size]


def readable(sock: socket.socket, seconds: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    deadline = time.monotonic() + seconds
    while not (ready := poll.poll(max(0.0, deadline - time.monotonic()) * 1000)) and time.monotonic() < deadline:
        continue
    return bool(ready)


def is_unread(sock: socket.socket) -> bool:
    (count,) = struct.unpack("i", fcntl.ioctl(sock, SIOCOUTQ, bytes(4)))
    return bool(count)


def failure(stdout: bytes, stderr: bytes) -> Failed:
    """Return the error of a request that failed. stdout: the CNI error as JSON."""
    error = invoke.read_failure(stdout, stderr, "exit status 1")
    try:
        document: Any = json.read(stdout)
    except json.JsonError:
        document = None
    index = document.get(errors.FAILED_AT) if isinstance(document, dict) else None
    return Failed(error, index if isinstance(index, int) else None, rolled_back=True)
