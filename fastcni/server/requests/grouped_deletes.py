"""Delete the links of one namespace together, for several CNI requests.

The kernel notifies the deletion of a link within a millisecond, and acknowledges the request 20 ms later. While a
request runs, further deletions wait. The next request sends these deletions together:

    RTM_NEWLINK index=7 IFLA_GROUP=g    for each link
    RTM_DELLINK IFLA_GROUP=g

For a single link the request is a plain RTM_DELLINK. The first thread is the leader: it sends the request for all
waiting threads, and receives the notifications. If the leader's caller leaves, another waiting thread becomes the
leader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from errno import ENODEV
from functools import partial
from threading import Lock

from fastcni._abandoned import check_request
from fastcni._netlink import Batch
from fastcni._run_token import Gate
from fastcni.kernel import filters, rtnl, wire
from fastcni.kernel.waiting import CallerGone, check_caller, waiting
from fastcni.kit.call.deletion import Deleter, DeleteRequest, Deletion, raise_first, send_out, write_each
from fastcni.kit.links import announced, find

MAX_LINKS = 128                 # limit of the links in one request: the notifications must fit into the receive buffer
LOOK_MS = 100                   # milliseconds between two checks whether the caller is still connected


class SharedRequest(DeleteRequest):
    """A request to the kernel that deletes the links of several threads."""

    __slots__ = ("shared",)

    def __init__(self, shared: Sequence[Shared]) -> None:
        super().__init__([one for each in shared for one in each.deletions])
        self.shared = shared


class Shared:
    """The deletions of a thread that waits at `gate`.

    The gate opens once: when the request for these deletions has ended, or when this thread must lead a request.
    request: the request to lead; None: the next request. caller_left: whether the caller has left.
    """

    __slots__ = ("deletions", "gate", "leads", "request", "caller_left")

    def __init__(self, links: Sequence[tuple[int, str]]) -> None:
        self.deletions = [Deletion(*link) for link in links]
        self.gate = Gate()
        self.leads, self.caller_left = False, False
        self.request: SharedRequest | None = None


class GroupedDeletes(Deleter):
    """The deletions of one namespace, for any number of threads. Create the object in a thread that is in the
    namespace. The constructor raises OSError.

    defer(fn, *args): runs a function in another thread.
    """

    def __init__(self, defer: Callable[..., None]) -> None:
        super().__init__(announced.open_watcher(), partial(defer, send_out))
        self.asking, self.lock = wire.open_socket(), Lock()
        self.waiting: list[Shared] = []
        self.busy = False
        self.links = self.requests = 0          # numbers of deleted links, and of requests to the kernel
        filters.attach(self.watcher, filters.deletions())

    def close(self) -> None:
        self.watcher.close()
        self.asking.close()

    def delete(self, *links: tuple[int, str]) -> None:
        """Delete links (index, name). Return when the kernel has notified that they no longer exist.

        Raises NetlinkError; CniError 11 if no notification arrives; CallerGone, after which the links may still be
        deleted.
        """
        check_request()             # check here, because another request's thread may send the deletion
        mine = Shared(links)
        with self.lock:
            if self.busy:
                self.waiting.append(mine)
            else:
                self.busy = mine.leads = True
        try:
            if not mine.leads:
                with waiting():
                    while not mine.gate.wait(LOOK_MS):
                        check_caller()
            if mine.leads:
                self._lead(mine)
        except CallerGone:
            self._leave(mine)
            raise
        raise_first(mine.deletions)

    def _lead(self, mine: Shared) -> None:
        """Run the request that a previous leader has begun, or a new request for all waiting deletions."""
        if not mine.request:
            with self.lock:
                group = [mine]
                if self.waiting:
                    group += [each for each in self.waiting[:MAX_LINKS] if each is not mine]
                    del self.waiting[:MAX_LINKS]
                mine.request = request = SharedRequest(group)
                self.links += len(request.deletions)
                self.requests += 1
        try:
            self.run(mine.request)
        except CallerGone:
            raise                       # see _leave()
        except BaseException:
            self._pass_on(mine)
            raise
        self._pass_on(mine)

    def _pass_on(self, mine: Shared) -> None:
        """Wake the threads whose links `mine` has deleted, and the next leader."""
        group = [*mine.request.shared] if mine.request else []
        with self.lock:
            if self.waiting:
                self.waiting[0].leads = True
                group.append(self.waiting[0])
            else:
                self.busy = False
        for each in group:
            if each is not mine:
                each.gate.open()

    def _leave(self, mine: Shared) -> None:
        """Handle that the caller of `mine` has left: make another thread of the same request the leader, unless that
        thread's caller has left, too."""
        with self.lock:
            mine.caller_left = True
            if mine in self.waiting:
                self.waiting.remove(mine)
            heir = None
            if mine.leads and mine.request:
                left = mine.request.remaining
                heir = next((each for each in mine.request.shared if not each.caller_left and
                             any(one.index in left for one in each.deletions)), None)
            if heir:
                heir.leads, heir.request = True, mine.request
        if heir:
            heir.gate.open()
        elif mine.leads:
            self._pass_on(mine)

    # Steps of Deleter, overridden for a group of links

    def send_all(self, request: DeleteRequest) -> None:
        wire.forget(self.watcher)       # notifications of other requests' deletions, and late acknowledgements
        self.send(request, request.deletions, write_group)

    def answered(self, request: DeleteRequest, deletions: Sequence[Deletion], code: int, text: str,
                 offset: int) -> None:
        """Handle an answer. The acknowledgement of an IFLA_GROUP message does not mean that the link was deleted."""
        if len(deletions) == 1:
            if code:
                super().answered(request, deletions, code, text, offset)
        elif code not in (0, ENODEV):
            # The kernel has deleted no link of the group: delete the links one by one, to find the rejected link
            self.send(request, [*request.remaining.values()], write_each)

    def missed(self, request: DeleteRequest) -> None:
        for index in [index for index in request.remaining if find.link(self.asking, index=index) is None]:
            del request.remaining[index]


def write_group(batch: Batch, deletions: Sequence[Deletion]) -> dict[int, Sequence[Deletion]]:
    """Write the messages that delete a group of links. Return {sequence: deletions that the answer is about}, like
    write_each(). If the kernel rejects the last message, all deletions have failed."""
    if len(deletions) == 1:
        return write_each(batch, deletions)
    number = int.from_bytes(os.urandom(4), "big") or 1     # an unused group; 0 is the group of all other links
    for each in deletions:
        rtnl.set_group(batch, each.index, number, what=each.what)
    rtnl.del_group(batch, number, what="failed to delete a group of links")
    asked: dict[int, Sequence[Deletion]] = {batch.first + n: [each] for n, each in enumerate(deletions, 1)}
    return asked | {batch.first + len(deletions) + 1: deletions}
