"""Delete links, and wait until the kernel notifies that they no longer exist.

The kernel notifies the deletion of a veth within a millisecond. The kernel acknowledges the request about 20 ms later,
after an RCU grace period, and sendmsg(2) blocks until the acknowledgement. So another thread or process sends the
request, while the caller listens on the same socket for the notification or the kernel's error. Each link has a request
of its own: in a request for two links, the kernel would begin the second deletion only after the first one's grace
period.
"""

from __future__ import annotations

from errno import ENOBUFS, ENODEV
from time import monotonic

from fastcni._abandoned import check_request
from fastcni._netlink import Batch, read_ack
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kernel.waiting import CallerGone
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fastcni.kernel.wire import Socket

    Send = Callable[[Socket, bytes, "DeleteRequest"], None]

DELETE_TIMEOUT_S = 30           # limit of the wait for the notification, which usually arrives within a millisecond
LOOK_S = 0.1                    # interval at which the waiter checks whether the request could not be sent


def delete(watcher: Socket, send: Send, *links: tuple[int, str]) -> None:
    """Delete links (index, name) of the watcher's namespace, and close the watcher. A link that does not exist is no
    error.

    Returns when the kernel has notified that the links no longer exist. `send`: a mode's send_deletion(). Raises
    NetlinkError, CallerGone, and CniError 11 if there is no notification within DELETE_TIMEOUT_S.
    """
    check_request()             # the thread or process that send() uses cannot check the request
    deletions = [Deletion(*link) for link in links]
    try:
        Deleter(watcher, send).run(DeleteRequest(deletions))
    finally:
        watcher.close()
    raise_first(deletions)


def raise_first(deletions: Iterable[Deletion]) -> None:
    """Raise the error of the first failed deletion; return if none failed."""
    for each in deletions:
        if each.error:
            raise each.error


class Deletion:
    """A link to be deleted. error: why the kernel did not delete the link, or None."""

    __slots__ = ("index", "name", "error")

    def __init__(self, index: int, name: str) -> None:
        self.index, self.name = index, name
        self.error: Exception | None = None

    @property
    def what(self) -> str:
        return f'failed to delete "{self.name}"'


class DeleteRequest:
    """A request that deletes links.

    sent       whether the request was sent
    asked      {sequence number of a message: the deletions that fail if the kernel answers the message with an error}
    remaining  {index: Deletion} of the links that still exist
    unsent     the error that kept the request from being sent, or None
    """

    __slots__ = ("deletions", "sent", "asked", "remaining", "deadline", "unsent")

    def __init__(self, deletions: Sequence[Deletion]) -> None:
        self.deletions = deletions
        self.sent = False
        self.asked: dict[int, Sequence[Deletion]] = {}
        self.remaining = {each.index: each for each in deletions}
        self.deadline = monotonic() + DELETE_TIMEOUT_S
        self.unsent: Exception | None = None


class Deleter:
    """The sender of DeleteRequests on a watcher's socket, one request at a time. send_deletion: the mode's
    send_deletion(). sequence: the sequence number of the last message."""

    def __init__(self, watcher: Socket, send_deletion: Send) -> None:
        self.watcher, self.send_deletion, self.sequence = watcher, send_deletion, 0

    def run(self, request: DeleteRequest) -> None:
        """Send the request, unless it has been sent, and wait until each link is deleted or has its error.

        If run() was interrupted by CallerGone or by a BaseException such as KeyboardInterrupt, a second call with the
        same request continues the wait.
        """
        try:
            if not request.sent:
                request.sent = True
                self.send_all(request)
            while request.remaining:
                if request.unsent:
                    raise request.unsent
                if (seconds := request.deadline - monotonic()) <= 0:
                    for each in request.remaining.values():
                        each.error = late(each)
                    return
                self.receive(min(seconds, LOOK_S), request)
        except CallerGone:
            raise
        except BaseException as e:
            for each in request.remaining.values():
                each.error = each.error or (e if isinstance(e, Exception) else unfinished(each))
            if not isinstance(e, Exception):
                raise

    def send_all(self, request: DeleteRequest) -> None:
        """Send one request for each link."""
        for each in request.deletions:
            self.send(request, [each], write_each)

    def send(self, request: DeleteRequest, deletions: Sequence[Deletion],
             write: Callable[..., dict[int, Sequence[Deletion]]]) -> None:
        """Send one request to the kernel. write(batch, deletions) appends the messages that delete the links, and
        returns {sequence number of a message: its deletions}."""
        batch = Batch(self.sequence)
        asked = write(batch, deletions)
        request.asked |= asked
        self.sequence += len(asked)
        self.send_deletion(self.watcher, batch.finish(), request)

    def receive(self, seconds: float, request: DeleteRequest) -> None:
        """Receive the next notifications, within `seconds`. Remove the deleted links from request.remaining."""
        try:
            messages = wire.watch(self.watcher, seconds)
        except OSError as e:
            if e.errno != ENOBUFS:
                raise
            self.missed(request)
            return
        for kind, flags, sequence, _, payload in messages:
            if kind == uapi.RTM_DELLINK and rtnl.is_of_link(payload):
                request.remaining.pop(rtnl.read_index(payload), None)
            elif kind == uapi.NLMSG_ERROR and sequence in request.asked:
                self.answered(request, request.asked[sequence], *read_ack(kind, flags, payload))

    def answered(self, request: DeleteRequest, deletions: Sequence[Deletion], code: int, text: str,
                 offset: int) -> None:
        """Handle the kernel's acknowledgement (code 0) or error for the message about these deletions."""
        for each in deletions:
            if code not in (0, ENODEV) and each.index in request.remaining:
                each.error = wire.NetlinkError(code, each.what, text, offset)
            request.remaining.pop(each.index, None)

    def missed(self, request: DeleteRequest) -> None:
        """Handle dropped notifications (ENOBUFS). Nothing to do here, because the kernel's acknowledgement still
        arrives on this socket, and then answered() removes the link from `remaining`."""


def send_out(watcher: Socket, data: bytes, request: DeleteRequest) -> None:
    """Send the request, and return when the kernel has deleted the links. Store an error in `request`, for the thread
    that waits. (If that thread has closed the watcher, nothing reads the error.)"""
    try:
        wire.send(watcher, data)
    except OSError as e:
        request.unsent = wire.NetlinkError(e.errno, "send the request that deletes links")
    except Exception as e:
        request.unsent = e


def write_each(batch: Batch, deletions: Sequence[Deletion]) -> dict[int, Sequence[Deletion]]:
    """Write an RTM_DELLINK for each deletion. Return {sequence number: [Deletion]}."""
    asked: dict[int, Sequence[Deletion]] = {}
    for each in deletions:
        rtnl.del_link(batch, index=each.index, what=each.what)
        asked[batch.first + len(asked) + 1] = [each]
    return asked


def late(each: Deletion) -> CniError:
    return CniError(errors.TRY_AGAIN_LATER, f"{each.what}: the link still exists after {DELETE_TIMEOUT_S} s")


def unfinished(each: Deletion) -> CniError:
    """Return the error for a deletion whose request the sending thread has abandoned."""
    return CniError(errors.TRY_AGAIN_LATER, f"{each.what}: the request for this link was abandoned")
