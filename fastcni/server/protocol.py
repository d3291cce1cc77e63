"""One request and its answer, as messages on a unix SEQPACKET socket. launcher.c is the other end.

    request   magic:4 "fcni"  version:u32  descriptors:u32  environment:u32    native byte order
              `environment` bytes of NUL-terminated strings: the plugin's name, then NAME=VALUE
              stdin, up to the end of the message; a request with more than fits goes one-shot
              with it (SCM_RIGHTS), if bit NETNS 1 of `descriptors` is set: what CNI_NETNS names
    answer    magic:4 "fcni"  version:u32  status:u32  stderr:u32
              `stderr` bytes for stderr, the rest for stdout; or, where they are too long for a message, a memfd
              with both instead
              status: 0 and 1 are exit statuses; DECLINED 2: nothing was done, go one-shot

One request a connection. The caller's own network namespace is the one that its end was made in, which the kernel
knows (SIOCGSKNS): it need not be opened and sent.

Closing a connection unread gives the caller ECONNRESET: it goes one-shot; closing it later without an answer says
that the server was lost. magic and version stay where they are in every version; a version that is not ours is
declined.

A server that does not read a request in time is passed by: its caller shuts the connection down, and goes one-shot if
the kernel then says that the request still is unread (SIOCOUTQ). So a server has to look whether the caller has left
after it has read a request, and before it does anything for it.
"""

import array
import os
import socket
import struct

from fastcni import _acceptor
from fastcni._netlink import close_file

HEAD = struct.Struct("=4sIII")
MAGIC, VERSION = b"fcni", 2
NETNS = 1
DECLINED = 2
MAX_MESSAGE = _acceptor.MAX_MESSAGE     # bytes of a request; a launcher's are at most half of it
MAX_ANSWER = 128 << 10          # beyond it a memfd: an answer has to fit the send buffer, net.core.wmem_default
MAX_VARIABLES = 64


class Declined(Exception):
    """This is no request that we serve; the text is for the log."""


class Lost(Exception):
    """The caller has closed its end."""


class Message:
    """A request as it was sent: plugin, env {name: value}, stdin (bytes), own and netns (descriptors, netns None
    where CNI_NETNS was not sent). Who has it closes the descriptors. id and pid (the caller's) are for the log."""

    __slots__ = ("plugin", "env", "stdin", "own", "netns", "id", "pid")

    def close(self):
        for fd in (self.own, self.netns):
            if fd is not None:
                close_file(fd)
        self.own = self.netns = None


class Connection:
    """A caller's connection, and the caller's user and process id (0 in a pid namespace that the server cannot see).
    It is closed once, at the latest with the last reference to it."""

    __slots__ = ("fd", "uid", "pid")

    def __init__(self, fd, uid=0, pid=0):
        self.fd, self.uid, self.pid = fd, uid, pid

    def fileno(self):
        return self.fd

    def close(self):
        fd, self.fd = self.fd, -1
        if fd >= 0:
            close_file(fd)

    __del__ = close


def accept(listener):
    """The next Connection of a listening socket, None when none waits. Raises OSError."""
    taken = _acceptor.accept(listener.fileno())
    return taken and Connection(*taken)


def receive(conn):
    """The Message that waits on a connection, None where none does. Raises Declined, Lost where the caller is gone."""
    received = _acceptor.receive(conn.fileno())
    if received is None:
        return None
    data, fds, cut = received
    try:
        if not data:
            raise Lost
        if cut:
            raise Declined("a message or its descriptors cut short")
        message = read(data, fds)
    finally:
        for fd in fds:          # those that the message took have left the list
            close_file(fd)
    try:
        message.own = _acceptor.namespace_of(conn.fileno())
    except OSError as e:
        message.close()
        raise Declined(f"the caller's network namespace: {e.strerror}") from None
    return message


def request(plugin, env):
    """The bytes of a request without stdin and descriptors."""
    block = b"".join(os.fsencode(text) + b"\0" for text in (plugin, *(f"{key}={value}" for key, value in env.items())))
    return HEAD.pack(MAGIC, VERSION, 0, len(block)) + block


def read(data, fds):
    """A request's bytes and descriptors as a Message, which takes its own out of `fds`. Raises Declined."""
    if len(data) < HEAD.size:
        raise Declined(f"a message of {len(data)} bytes")
    magic, version, mask, size = HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise Declined(f"magic {magic!r}, version {version}")
    if mask & ~NETNS or mask.bit_count() != len(fds):
        raise Declined(f"descriptors {mask:#x}, and {len(fds)} of them")
    if size > len(data) - HEAD.size:
        raise Declined(f"an environment of {size} bytes in a message of {len(data)}")
    message = Message()
    message.plugin, message.env = read_environment(data[HEAD.size:HEAD.size + size])
    message.stdin = data[HEAD.size + size:]
    message.own, message.netns = None, fds.pop(0) if mask & NETNS else None
    return message


def read_environment(block):
    """(plugin, {name: value}). Raises Declined."""
    if block.count(0) > MAX_VARIABLES:
        raise Declined(f"{block.count(0)} variables")
    try:
        return _acceptor.strings(block)     # of two the first counts, as for the launcher
    except ValueError as e:
        raise Declined(str(e)) from None


def answer(conn, status, stdout=b"", stderr=b""):
    """Send the one answer. Raises OSError: EPIPE where the caller is gone, EAGAIN where it does not read."""
    head = HEAD.pack(MAGIC, VERSION, status, len(stderr))
    if len(stdout) + len(stderr) <= MAX_ANSWER:
        _acceptor.tell(conn.fileno(), head + stderr + stdout)
        return
    memory = os.memfd_create("answer")
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(stderr)
            file.write(stdout)
        with socket.socket(fileno=os.dup(conn.fileno())) as sock:
            sock.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))],
                         socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    finally:
        os.close(memory)
