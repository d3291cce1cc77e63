"""Open netlink sockets, exchange batches, dump objects, watch notifications. No other module sends or receives
netlink."""

from __future__ import annotations

import posix
from _socket import AF_NETLINK, SOCK_CLOEXEC, SOCK_RAW, if_indextoname, if_nametoindex, socket
from errno import EINTR, ENOBUFS, ENOENT, ETIMEDOUT
from time import perf_counter_ns

from fastcni import _netlink, _processes, _rtnetlink
from fastcni._netlink import Batch, read_ack, sort_replies
from fastcni.kernel import uapi
from fastcni.kernel.waiting import caller, check_caller, here, waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any, TypeVar

    from fastcni._netlink import Message

    T = TypeVar("T")
    Replies = list[tuple[int, bytes]]           # (type, payload) of each message but ACKs

ANSWER_MS = 30_000              # the kernel answers within send(); only a lost answer takes so long
RECEIVE_TRIES = 5               # tries to receive the replies of one batch
DUMP_TRIES = 5                  # an interrupted dump is requested five times in all, as by the reference plugins
MAX_ASKED = 64                  # requests in one send(), so that the replies fit into the socket's buffer
MAX_SEQUENCE = 1 << 31          # after this number a socket counts from 0 again
EINTR_DUMP = "the kernel's table kept changing while it was read"

_STRICT = (uapi.NETLINK_EXT_ACK, uapi.NETLINK_CAP_ACK, uapi.NETLINK_GET_STRICT_CHK)


class NetlinkError(OSError):
    """The kernel answered a request with an error. what: the request's name. kernel_text: the text of the extended ACK,
    or ""."""

    errno: int

    def __init__(self, errno: int | None, what: str, kernel_text: str = "", offset: int = 0) -> None:
        super().__init__(errno, posix.strerror(errno or 0))
        self.what, self.kernel_text, self.offset = what, kernel_text, offset

    def __str__(self) -> str:
        return f"{self.what}: {self.kernel_text or self.strerror} (errno {self.errno})"


class AnswerLost(NetlinkError):
    """The kernel's answer to a request could not be read. The kernel may have carried out the request."""


class ProtocolError(RuntimeError):
    """A reply belongs to no request of this socket: a bug of fastcni."""


class Socket(socket):
    """A netlink socket that recognises the replies to its requests. `with open_socket() as sock:` closes the socket
    when the body ends.

    sequence  the last used sequence number; each request has a different number, so a late reply is recognised
    port      the socket's port, which the kernel writes into each reply; 0 before the first reply
    """

    __slots__ = ("sequence", "port")
    sequence: int
    port: int

    def __init__(self, protocol: int) -> None:
        super().__init__(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol)
        self.sequence = self.port = 0

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_socket(protocol: int = uapi.NETLINK_ROUTE, groups: Iterable[int] = ()) -> Socket:
    """Open a netlink socket in the calling thread's network namespace, with strict checking and extended ACKs.

    groups: the RTNLGRP_* numbers that the socket subscribes to. Raises OSError.
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
        # An unbound socket has port 0, and the kernel does not send its own notifications to port 0.
        sock.bind((0, 0))
    for group in groups:
        join(sock, group)
    return sock


def join(sock: socket, group: int) -> None:
    """Subscribe the socket to the notifications of a group. Raises NetlinkError."""
    try:
        sock.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_ADD_MEMBERSHIP, group)
    except OSError as e:
        raise NetlinkError(e.errno, f"subscribe to the netlink notifications of group {group}") from None


def leave(sock: socket, group: int) -> None:
    """End the subscription to a group. The kernel makes no notifications for a group without members."""
    sock.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_DROP_MEMBERSHIP, group)


def set_buffer_size(sock: socket, size: int) -> None:
    """Set how many bytes of notifications, as the kernel counts them, can wait before the kernel drops
    notifications."""
    try:
        sock.setsockopt(uapi.SOL_SOCKET, uapi.SO_RCVBUFFORCE, size)
    except OSError:
        # Only root in the initial user namespace may do this; others can store fewer notifications
        return


def set_request_size(sock: socket, size: int) -> None:
    """Set how many bytes of requests go out in one send()."""
    sock.setsockopt(uapi.SOL_SOCKET, uapi.SO_SNDBUFFORCE, size)


def send(sock: Socket, data: bytes) -> None:
    """Send netlink messages. All of fastcni sends netlink by this function."""
    if show := here.request.show:
        show(">", data)
    _netlink.send(sock.fileno(), data)


def send_apart(sock: Socket, data: bytes) -> None:
    """Send messages from another process, which ends when the kernel has carried them out. Raises OSError if the
    process cannot be started. Only the kernel's answers show whether the messages succeeded."""
    if show := here.request.show:
        show(">", data)
    _processes.send_apart(sock.fileno(), data)


def receive(sock: Socket, milliseconds: int = ANSWER_MS, caller: int = -1) -> list[Message] | None:
    """Receive one datagram, and return its messages, [(type, flags, sequence, port, payload)]. All of fastcni receives
    netlink by this function.

    Returns None if no datagram arrives in time, or if the peer of the connection `caller` closes this connection.
    Raises OSError, with ENOBUFS if the kernel dropped notifications.
    """
    return _netlink.receive(sock.fileno(), milliseconds, here.request.show, caller)


def index_of(name: str, sock: Socket | None = None) -> int:
    """Return the index of the link `name` in the namespace of `sock`, 0 if the link does not exist. sock None: search
    the calling thread's namespace.

    index_of() uses the ioctl of netdevice(7), which, unlike RTM_GETLINK, does not wait for the kernel's RTNL lock.
    """
    if sock:
        return _rtnetlink.index_of(sock.fileno(), name)
    try:
        return if_nametoindex(name)
    except OSError:
        return 0


def has_link(index: int) -> bool:
    """Return whether the calling thread's namespace has a link of this index. Like index_of(), has_link() does not wait
    for the RTNL lock."""
    try:
        return bool(if_indextoname(index))
    except OSError:
        return False


def exchange(sock: Socket, batch: Batch | Batches, harmless: Collection[int] = ()) -> Replies:
    """Send a batch, read all replies, then raise the first error. harmless: errnos of errors that are ignored. In a
    transaction, one error may cause further errors; exchange() ignores only those whose errno is in `harmless`.

    Returns [(type, payload)] of all messages but ACKs: echoes and answers to RTM_GET*.
    Raises NetlinkError for the first request that failed, AnswerLost if a reply cannot be read, ProtocolError for a
    reply to another request.
    """
    replies, refused = attempt(sock, batch)
    if refused:
        raise_first(refused, harmless)
    return replies


def raise_first(refused: list[NetlinkError], harmless: Collection[int] = ()) -> None:
    """Raise the first error whose errno is not in `harmless`; `refused` is empty afterwards. An error keeps the frames
    through which it passes, so a list in such a frame must not keep the error."""
    found = [e for e in refused if e.errno not in harmless]
    refused.clear()
    if found:
        raise found.pop(0)


def succeeds(sock: Socket, batch: Batch, harmless: Collection[int]) -> bool:
    """Do exchange(), and return whether the kernel answered without an error. harmless: errnos with which succeeds()
    returns False. Raises NetlinkError for another errno."""
    _, refused = attempt(sock, batch)
    done = not refused
    raise_first(refused, harmless)
    return done


def attempt(sock: Socket, batch: Batch | Batches) -> tuple[Replies, list[NetlinkError]]:
    """Do exchange(), but return the errors: ([(type, payload)], [NetlinkError])."""
    started = perf_counter_ns()
    try:
        return _attempt(sock, batch)
    finally:
        here.request.spent(sock.proto, started)


class Batches:
    """Several Batches that attempt() sends together, for thousands of requests. The socket needs set_request_size(),
    and set_buffer_size() for the ACKs, 768 bytes each."""

    answered = False

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def finish(self, before: int = 0) -> bytes:
        data = []
        for batch in self.batches:
            data.append(batch.finish(before))
            before = batch.last
        return b"".join(data)

    @property
    def asked(self) -> dict[int, Any]:
        return {sequence: what for batch in self.batches for sequence, what in batch.asked.items()}

    @property
    def first(self) -> int:
        return self.batches[0].first

    @property
    def last(self) -> int:
        return self.batches[-1].last

    def clear(self) -> None:
        for batch in self.batches:
            batch.clear()


def in_batches(items: Sequence[T], add: Callable[[Batch, T], object], most: int = MAX_ASKED) -> list[Batch]:
    """Return Batches, each with the requests for at most `most` items. add(batch, item) adds the requests for one
    item."""
    batches = []
    for at in range(0, len(items), most):
        batches.append(Batch())
        for item in items[at:at + most]:
            add(batches[-1], item)
    return batches


def look_up(sock: Socket, batch: Batch) -> Replies | None:
    """Do exchange() for requests about one or several objects. Return None if an object does not exist (ENOENT)."""
    replies, refused = attempt(sock, batch)
    if not refused:
        return replies
    others = [at for at, e in enumerate(refused) if e.errno != ENOENT]
    if not others:
        return None
    raise refused.pop(others[0])


def _attempt(sock: Socket, batch: Batch | Batches) -> tuple[Replies, list[NetlinkError]]:
    data, waiting, first, last = batch.finish(sock.sequence), batch.asked, batch.first, batch.last
    sock.sequence = last if last < MAX_SEQUENCE else 0
    what, final = next(iter(waiting.values()), ""), next(reversed(waiting), 0)      # see Batch.finish()
    answered = final if batch.answered else 0
    batch.clear()
    try:
        send(sock, data)
    except OSError as e:        # the kernel handles requests within send(), so it has not handled these requests
        raise NetlinkError(e.errno, f"{what}: send the request") from None
    replies: Replies = []
    refused: list[NetlinkError] = []
    failures: list[int | None] = []
    timeout_ms = ANSWER_MS
    while final in waiting:
        try:
            found = receive(sock, timeout_ms)
        except OSError as e:
            # The kernel answered before send() returned, so the other replies are in the socket or lost. Read them,
            # because they show which requests were carried out, and because the next batch must not receive them.
            failures.append(e.errno)
            if len(failures) == RECEIVE_TRIES:
                break
            timeout_ms = 0
            continue
        if found is None:
            break
        if not sock.port and found:
            sock.port = found[0][3]
        for kind, flags, sequence, port, payload in sort_replies(found, waiting, replies, sock.port, answered):
            if sequence not in waiting or port != sock.port:
                if kind != uapi.NLMSG_ERROR or not first < sequence <= last or port != sock.port:
                    forget(sock)
                    raise ProtocolError(f"netlink reply of type {kind} to request {sequence}, which was not sent here")
                # If nfnetlink rejects a whole transaction (no permission, no nf_tables, commit failed), the error has
                # the sequence of the opening message. The other replies are already in the socket, or never arrive.
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
    if failures and (final in waiting or ENOBUFS in failures):  # ENOBUFS: the kernel has dropped a reply
        raise AnswerLost(failures[0], f"{what}: read the kernel's answer")
    if final in waiting and timeout_ms:
        refused.append(AnswerLost(ETIMEDOUT, next(iter(waiting.values()))))
    return replies, refused


def dump(sock: Socket, kind: int, header: bytes, what: str,
         fill: Callable[[Batch], object] | None = None) -> Replies:
    """Return all objects of one RTM_GET*/NFT_MSG_GET* dump: [(type, payload)].

    fill(batch) adds the attributes by which the kernel selects objects. The kernel marks a dump as interrupted if the
    table changed during the dump. dump() requests an interrupted dump again, five times in all, then raises
    NetlinkError with errno EINTR. So no caller gets a list that may lack an entry.
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
    raise refused.pop(0)


def dump_existing(sock: Socket, kind: int, header: bytes, what: str,
                  fill: Callable[[Batch], object] | None = None) -> Replies | None:
    """Do dump(). Return None if the object whose parts are dumped does not exist (ENOENT)."""
    try:
        return dump(sock, kind, header, what, fill)
    except NetlinkError as e:
        if e.errno != ENOENT:
            raise
    return None


def drain(sock: Socket, note: Callable[[int, bytes], object], lost: Callable[[], object], own: int = -1) -> None:
    """Read the notifications that wait on a socket. Call note(type, payload) for each notification, and lost() if the
    kernel has dropped notifications. Skip notifications about requests from the port `own`. Raises OSError."""
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
        for kind, _, _, port, payload in messages:
            if port != own:
                note(kind, payload)


def forget(sock: Socket) -> None:
    """Discard the notifications that wait on a socket, and ENOBUFS, the error that the kernel has dropped
    notifications. Raises OSError."""
    drain(sock, lambda kind, payload: None, lambda: None)


def watch(sock: Socket, seconds: float) -> list[Message]:
    """Return the next notifications within `seconds`: [(type, flags, sequence, port, payload)], [] if none arrived.

    Raises OSError with ENOBUFS if the kernel has dropped notifications: the caller must then read the awaited state.
    Raises waiting.CallerGone.
    """
    started = perf_counter_ns()
    try:
        with waiting():
            found = receive(sock, int(seconds * 1000) + 1, caller())
        if found is None:
            check_caller()
        return found or []
    finally:
        here.request.spent(sock.proto, started)
