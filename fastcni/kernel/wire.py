"""Netlink sockets: open one, exchange a batch, dump, watch notifications. The only module that sends or receives."""

from __future__ import annotations

import posix
from _socket import AF_NETLINK, SOCK_CLOEXEC, SOCK_RAW, if_nametoindex, socket
from errno import EINTR, ENOBUFS, ENOENT, ETIMEDOUT
from time import perf_counter

from fastcni import _netlink
from fastcni._netlink import Batch, read_ack, sort_replies
from fastcni.kernel import uapi
from fastcni.kernel.waiting import caller, check_caller, here, waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastcni._netlink import Message

    Replies = list[tuple[int, bytes]]           # (type, payload) of what the kernel sends besides ACKs

ANSWER_MS = 30_000              # the kernel answers within send(); only a lost answer would be waited for
RECEIVE_TRIES = 5               # for the replies of one batch; what fails more often is broken
DUMP_TRIES = 5                  # as the reference plugins: an interrupted dump is asked for five times in all
MAX_SEQUENCE = 1 << 31          # then a socket counts from the beginning
EINTR_DUMP = "the kernel's table kept changing while it was read"

_STRICT = (uapi.NETLINK_EXT_ACK, uapi.NETLINK_CAP_ACK, uapi.NETLINK_GET_STRICT_CHK)


class NetlinkError(OSError):
    """The kernel refused a request; `what` says which one, `kernel_text` what its extended ACK said."""

    errno: int

    def __init__(self, errno: int | None, what: str, kernel_text: str = "", offset: int = 0) -> None:
        super().__init__(errno, posix.strerror(errno or 0))
        self.what, self.kernel_text, self.offset = what, kernel_text, offset

    def __str__(self) -> str:
        return f"{self.what}: {self.kernel_text or self.strerror} (errno {self.errno})"


class AnswerLost(NetlinkError):
    """The kernel's answer to a request could not be read: it may have done what was asked."""


class ProtocolError(RuntimeError):
    """A reply that answers nothing we asked: our bug, and loud."""


class Socket(socket):
    """A netlink socket, which knows what a reply to its requests has to look like.

    sequence  the last sequence number that it has used; no two requests have the same, so a late reply is noticed
    port      its port, which the kernel writes into each reply; 0 before the first one
    """

    __slots__ = ("sequence", "port")
    sequence: int
    port: int

    def __init__(self, protocol: int) -> None:
        super().__init__(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol)
        self.sequence = self.port = 0


def open_socket(protocol: int = uapi.NETLINK_ROUTE, groups: Iterable[int] = ()) -> Socket:
    """Open a netlink socket in the calling thread's network namespace, strict and with extended ACKs.

    `groups` are the RTNLGRP_* numbers it subscribes to. Raises OSError.
    """
    try:
        sock = Socket(protocol)
    except OSError as e:
        raise NetlinkError(e.errno, f"open a netlink socket of protocol {protocol}") from None
    for option in _STRICT:
        try:
            sock.setsockopt(uapi.SOL_NETLINK, option, 1)
        except OSError:
            continue            # Linux before 4.20 lacks strict checking; the requests are the same
    if groups:
        # Unbound, its port is 0, which is the sender that the kernel's own notifications leave out.
        sock.bind((0, 0))
    for group in groups:
        sock.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_ADD_MEMBERSHIP, group)
    return sock


def make_room(sock: socket, size: int) -> None:
    """Set how many bytes of notifications can wait, as the kernel counts them, before it drops any."""
    try:
        sock.setsockopt(uapi.SOL_SOCKET, uapi.SO_RCVBUFFORCE, size)
    except OSError:
        return                  # not root of the machine: what was dropped is asked for


def send(sock: Socket, data: bytes) -> None:
    """The one place that sends."""
    if show := here.request.show:
        show(">", data)
    _netlink.send(sock.fileno(), data)


def receive(sock: Socket, milliseconds: int = ANSWER_MS, caller: int = -1) -> list[Message] | None:
    """The one place that receives. Return a datagram's messages, [(type, flags, sequence, port, payload)]; None if none
    comes in time, or before the other end of the connection `caller` is closed. Raises OSError, with ENOBUFS if the
    kernel had to drop notifications."""
    return _netlink.receive(sock.fileno(), milliseconds, here.request.show, caller)


def index_of(name: str) -> int:
    """The index of the link called `name` in the calling thread's namespace, 0 without one. By ioctl (netdevice(7)):
    unlike RTM_GETLINK it does not wait for the kernel's RTNL lock."""
    try:
        return if_nametoindex(name)
    except OSError:
        return 0


def exchange(sock: Socket, batch: Batch) -> Replies:
    """Send a batch and read every reply before the first refusal is raised.

    Returns [(type, payload)] of what the kernel sent besides ACKs: echoes and answers to RTM_GET*.
    Raises NetlinkError for the first refused request, AnswerLost if a reply cannot be read, ProtocolError for one to
    another request.
    """
    replies, refused = attempt(sock, batch)
    if refused:
        raise refused[0]
    return replies


def attempt(sock: Socket, batch: Batch) -> tuple[Replies, list[NetlinkError]]:
    """Like exchange(), but refusals are returned: ([(type, payload)], [NetlinkError])."""
    started = perf_counter()
    try:
        return _attempt(sock, batch)
    finally:
        here.request.spent(sock.proto, perf_counter() - started)


def look_up(sock: Socket, batch: Batch) -> Replies | None:
    """Like exchange(), for a question about one thing: None if there is no such thing (ENOENT)."""
    replies, refused = attempt(sock, batch)
    if not refused:
        return replies
    if refused[0].errno == ENOENT:
        return None
    raise refused[0]


def _attempt(sock: Socket, batch: Batch) -> tuple[Replies, list[NetlinkError]]:
    data, waiting, first, last = batch.finish(sock.sequence), batch.asked, batch.first, batch.last
    sock.sequence = last if last < MAX_SEQUENCE else 0
    what = next(iter(waiting.values()), "")
    batch.clear()
    try:
        send(sock, data)
    except OSError as e:        # the kernel works on a request within send(): this one has not reached it
        raise NetlinkError(e.errno, f"{what}: send the request") from None
    replies: Replies = []
    refused: list[NetlinkError] = []
    failures: list[int | None] = []
    timeout_ms = ANSWER_MS
    while waiting:
        try:
            found = receive(sock, timeout_ms)
        except OSError as e:
            # The kernel has answered before send() returned: the other replies wait in the socket, or never come. They
            # are read, so that they say what was done, and so that the next batch does not find them.
            failures.append(e.errno)
            if len(failures) == RECEIVE_TRIES:
                break
            timeout_ms = 0
            continue
        if found is None:
            break
        if found and not sock.port:
            sock.port = found[0][3]
        for kind, flags, sequence, port, payload in sort_replies(found, waiting, replies, sock.port):
            if sequence not in waiting or port != sock.port:
                if kind != uapi.NLMSG_ERROR or not first < sequence <= last or port != sock.port:
                    forget(sock)
                    raise ProtocolError(f"netlink reply of type {kind} to request {sequence}, which is not ours")
                # nfnetlink refuses a transaction as a whole (no permission, no nf_tables, commit failed) in
                # the name of its opening message; the other replies are there already or never come.
                refused.append(NetlinkError(read_ack(kind, flags, payload)[0], "commit transaction"))
                timeout_ms = 0
                continue
            if flags & uapi.NLM_F_DUMP_INTR:
                refused.append(NetlinkError(EINTR, waiting[sequence], EINTR_DUMP))
            if kind in (uapi.NLMSG_ERROR, uapi.NLMSG_DONE):
                code, text, offset = read_ack(kind, flags, payload)
                asked = waiting.pop(sequence)
                if code:
                    refused.append(NetlinkError(code, asked, text, offset))
    if failures and (waiting or ENOBUFS in failures):           # ENOBUFS: the kernel has dropped a reply
        raise AnswerLost(failures[0], f"{what}: read the kernel's answer")
    if waiting and timeout_ms:
        refused.append(AnswerLost(ETIMEDOUT, next(iter(waiting.values()))))
    return replies, refused


def dump(sock: Socket, kind: int, header: bytes, what: str,
         fill: Callable[[Batch], object] | None = None) -> Replies:
    """Return all objects of one RTM_GET*/NFT_MSG_GET* dump: [(type, payload)].

    `fill(batch)` adds attributes that filter. The kernel marks a dump as interrupted if the table changed meanwhile.
    Such a dump is asked for five times in all, then NetlinkError has errno EINTR: no caller gets a list that may lack
    an entry.
    """
    for _ in range(DUMP_TRIES):
        batch = Batch().begin(kind, uapi.NLM_F_DUMP, header, what)
        if fill:
            fill(batch)
        replies, refused = attempt(sock, batch)
        if not refused:
            return replies
        if refused[0].errno != EINTR:
            break
    raise refused[0]


def drain(sock: Socket, note: Callable[[int, bytes], object], lost: Callable[[], object]) -> None:
    """Read the notifications that wait on a socket. Call note(type, payload) for each, and lost() if the kernel had to
    drop some before it. Raises OSError."""
    while True:
        try:
            messages = receive(sock, 0)
        except OSError as e:
            if e.errno != ENOBUFS:
                raise
            lost()
            continue
        if messages is None:
            return
        for kind, _, _, _, payload in messages:
            note(kind, payload)


def forget(sock: Socket) -> None:
    """Discard the notifications that wait on a socket, and the note that the kernel dropped some. Raises OSError."""
    drain(sock, lambda kind, payload: None, lambda: None)


def watch(sock: Socket, seconds: float) -> list[Message]:
    """Return the next notifications within `seconds`: [(type, flags, sequence, port, payload)], [] if none came.

    Raises OSError with ENOBUFS when the kernel dropped some: look again at what was waited for; waiting.CallerGone.
    """
    started = perf_counter()
    try:
        with waiting():
            found = receive(sock, int(seconds * 1000) + 1, caller())
        if found is None:
            check_caller()
        return found or []
    finally:
        here.request.spent(sock.proto, perf_counter() - started)
