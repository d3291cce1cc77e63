"""Encode and read a request and its answer as messages on a unix SEQPACKET socket. launcher.c is the other end.

    request   magic:4 "fcni"  version:u32  descriptors:u32  environment:u32    native byte order
              `environment` bytes of NUL-terminated strings: the plugin's name, then NAME=VALUE
              stdin, up to the end of the message; if it does not fit, the request goes one-shot
              a descriptor of CNI_NETNS comes with the message (SCM_RIGHTS) if bit NETNS 1 of `descriptors` is set
    answer    magic:4 "fcni"  version:u32  status:u32  stderr:u32
              `stderr` bytes for stderr, the rest for stdout; if stderr and stdout are too long for a message, a memfd
              has both instead
              status: 0 and 1 are exit statuses; DECLINED 2: nothing was done, go one-shot

Each connection carries one request. The kernel knows in which network namespace the caller made its socket (SIOCGSKNS),
so the caller need not send a descriptor of that namespace.

If the server closes a connection unread, the caller gets ECONNRESET and goes one-shot. If the server closes the
connection later without an answer, the caller reports that the server was lost. In every version of the protocol, magic
and version are at these offsets. The server declines other versions than its own.

If the server does not read a request in time, the caller shuts the connection down, and goes one-shot if the kernel
then reports the request as unread (SIOCOUTQ). So the server reads a request first, then checks whether the caller has
left, and only then works on it.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from typing import TYPE_CHECKING

from fastcni import _acceptor
from fastcni._system import close_file
from fastcni.kit.call import server_messages
from fastcni.kit.call.server_messages import DECLINED, MAGIC, NETNS, VERSION, request

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DECLINED", "HEAD", "MAGIC", "NETNS", "VERSION", "Connection", "Declined", "Lost", "Message", "accept",
           "answer", "finish", "read", "read_environment", "receive", "request"]
HEAD = struct.Struct(server_messages.HEAD)
HEAD_BYTES = HEAD.size
MAX_MESSAGE = _acceptor.MAX_MESSAGE     # limit of a request in bytes; a launcher's request has at most half as many
MAX_ANSWER = 128 << 10          # limit in bytes: longer answers go in a memfd, because the send buffer is small
MAX_VARIABLES = 64


class Declined(Exception):
    """The server does not run this request; the text is for the log."""


class Lost(Exception):
    """The caller has closed its end of the connection."""


class Message:
    """A received request. close() closes its descriptors.

    plugin        the plugin's name
    env           {name: value}
    stdin         bytes
    caller_netns  a descriptor of the caller's network namespace
    netns         a descriptor of CNI_NETNS, None if it was not sent
    id, pid       the request's id and the caller's pid, for the log
    """

    __slots__ = ("plugin", "env", "stdin", "caller_netns", "netns", "id", "pid")
    plugin: str
    env: dict[str, str]
    stdin: bytes
    caller_netns: int | None
    netns: int | None
    id: str
    pid: int

    def close(self) -> None:
        self.close_netns()
        if self.caller_netns is not None:
            close_file(self.caller_netns)
            self.caller_netns = None

    def close_netns(self) -> None:
        if self.netns is not None:
            close_file(self.netns)
            self.netns = None


class Connection:
    """A caller's connection, closed at the latest when this object is deleted.

    uid, pid: the caller's user and process; pid is 0 if the server cannot see the caller's pid namespace.
    shown: the function that converts exit status and stdout of an answer to the caller's protocol; None for CNI.
    """

    __slots__ = ("fd", "uid", "pid", "shown")

    def __init__(self, fd: int, uid: int = 0, pid: int = 0) -> None:
        self.fd, self.uid, self.pid = fd, uid, pid
        self.shown: Callable[[int, bytes], bytes] | None = None

    def fileno(self) -> int:
        return self.fd

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            close_file(fd)

    __del__ = close


def accept(listener: socket.socket) -> Connection | None:
    """Accept the next Connection of a listening socket; None if no connection waits. Raises OSError."""
    taken = _acceptor.accept(listener.fileno())
    return taken and Connection(*taken)


def receive(conn: Connection) -> Message | None:
    """Receive the Message of a connection; None if no message has arrived. Raises Declined; Lost if the caller has
    left."""
    received = _acceptor.receive(conn.fd)
    if received is None:
        return None
    data, fds, cut = received
    try:
        if not data:
            raise Lost
        if cut:
            raise Declined("the message or its descriptors were cut short")
        message = read(data, fds)
    finally:
        for fd in fds:          # descriptors that no message has taken over
            close_file(fd)
    try:
        message.caller_netns = _acceptor.namespace_of(conn.fd)
    except OSError as e:
        message.close()
        raise Declined(f"the caller's network namespace: {e.strerror}") from None
    return message


def read(data: bytes, fds: list[int]) -> Message:
    """Read a request's bytes and descriptors into a Message. The message's descriptors are removed from `fds`. Raises
    Declined."""
    rest = len(data) - HEAD_BYTES
    if rest < 0:
        raise Declined(f"a message of {len(data)} bytes, shorter than its head")
    magic, version, mask, size = HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise Declined(f"magic {magic!r}, version {version}")
    if mask & ~NETNS or mask.bit_count() != len(fds):
        raise Declined(f"descriptors {mask:#x}, but {len(fds)} descriptors came with the message")
    if size > rest:
        raise Declined(f"an environment of {size} bytes in a message of {len(data)}")
    message, stdin = Message(), HEAD_BYTES + size
    message.plugin, message.env = read_environment(data[HEAD_BYTES:stdin])
    message.stdin = data[stdin:]
    message.caller_netns, message.netns = None, fds.pop(0) if mask & NETNS else None
    return message


def read_environment(block: bytes) -> tuple[str, dict[str, str]]:
    """Read the environment of a request: (plugin, {name: value}). Raises Declined."""
    if block.count(0) > MAX_VARIABLES:
        raise Declined(f"{block.count(0)} variables")
    try:
        return _acceptor.read_strings(block)
    except ValueError as e:
        raise Declined(str(e)) from None


def answer(conn: Connection, status: int, stdout: bytes = b"", stderr: bytes = b"") -> None:
    """Send the answer. Raises OSError: EPIPE if the caller has left, EAGAIN if the caller does not read."""
    if conn.shown:
        stdout = conn.shown(status, stdout)
    head = HEAD.pack(MAGIC, VERSION, status, len(stderr))
    if len(stdout) + len(stderr) <= MAX_ANSWER:
        _acceptor.send_message(conn.fd, head + stderr + stdout)
        return
    memory = os.memfd_create("answer")
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(stderr)
            file.write(stdout)
        with socket.socket(fileno=os.dup(conn.fd)) as sock:
            sock.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))],
                         socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    finally:
        os.close(memory)


def finish(conn: Connection, status: int, stdout: bytes = b"") -> None:
    """Send the answer and close the connection. A caller that has left is no error."""
    try:
        answer(conn, status, stdout)
    except OSError:
        return
    finally:
        conn.close()
