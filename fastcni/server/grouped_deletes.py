"""Links of one namespace, deleted together.

The kernel announces a link gone within a millisecond, and ends the request 20 ms later, after an RCU grace period.
Whoever deletes waits for the first only; a thread of `background` is in the kernel until the second. While one
request is under way, those that come wait, and go out together as the next:

    RTM_NEWLINK index=7 IFLA_GROUP=g    for each
    RTM_DELLINK IFLA_GROUP=g

Of one link alone the request is a plain RTM_DELLINK.

Whoever leads and loses its caller hands the request to another one that waits for it.
"""

import os
from _thread import allocate_lock
from errno import ENOBUFS, ENODEV
from time import monotonic

from fastcni._netlink import Batch, read_ack
from fastcni._run_token import Gate
from fastcni.kernel import filters, rtnl, uapi, wire
from fastcni.kernel.waiting import CallerGone, check_caller, waiting
from fastcni.kit.links import announced, find
from fastcni.spec import errors
from fastcni.spec.errors import CniError

MOST = 128                      # links in one request: their announcements fit the receive buffer
LOOK_MS = 100                   # between two looks whether the caller is still there, and the request was sent


class Deletion:
    """One link on its way out. `gate` opens once: when it is gone, with `error` or without, or when its deleter is to
    lead: `request`, or, where that is None, the next one. gone: its deleter's caller has left."""

    __slots__ = ("index", "name", "gate", "leads", "request", "gone", "error")

    def __init__(self, index, name):
        self.index, self.name, self.gate, self.error = index, name, Gate(), None
        self.leads, self.request, self.gone = False, None, False

    @property
    def what(self):
        return f'failed to delete "{self.name}"'


class Group:
    """Deletions that one request asks for. asked: {sequence number: those that its refusal is about}, None until it is
    sent. remaining: {index: Deletion} of those that are not gone. deadline: monotonic seconds. unsent: the error of a
    request that could not be sent, None: no such error."""

    __slots__ = ("deletions", "asked", "remaining", "deadline", "unsent")

    def __init__(self, deletions):
        self.deletions, self.asked, self.unsent = deletions, None, None
        self.remaining = {each.index: each for each in deletions}
        self.deadline = monotonic() + announced.DELETE_SECONDS


class GroupedDeletes:
    """delete() of veth pairs, for any number of threads; made in a thread that is in the namespace. Raises OSError.

    `defer(fn, *args)` runs a function in another thread.
    """

    def __init__(self, defer):
        self.defer, self.lock = defer, allocate_lock()
        self.waiting, self.busy = [], False
        self.sequence = 0               # answers to earlier requests come late
        self.asking = wire.open_socket()
        self.watcher = announced.open_watcher()
        filters.attach(self.watcher, filters.deletions())

    def close(self):
        self.watcher.close()
        self.asking.close()

    def delete(self, index, name):
        """Back when the kernel has announced link `index` gone. Raises NetlinkError, CniError 11 when it does not,
        CallerGone: then it may still come to be deleted.

        The first that comes leads: it sends for all who wait, and listens for them. The others sleep until their
        link is gone, or until it is their turn to lead.
        """
        mine = Deletion(index, name)
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
        if mine.error:
            raise mine.error

    def _lead(self, mine):
        """Delete the links of a request: of one that was begun, or of a new one for all who wait."""
        if not mine.request:
            with self.lock:
                group = [mine, *(each for each in self.waiting[:MOST] if each is not mine)]
                del self.waiting[:MOST]
            mine.request = Group(group)
        try:
            self._delete(mine.request)
        except CallerGone:
            raise                       # see _leave()
        except BaseException:
            self._hand_on(mine)
            raise
        self._hand_on(mine)

    def _hand_on(self, mine):
        """Wake those whose links `mine` has deleted, and who leads next."""
        group = [*mine.request.deletions] if mine.request else []
        with self.lock:
            if self.waiting:
                self.waiting[0].leads = True
                group.append(self.waiting[0])
            else:
                self.busy = False
        for each in group:
            if each is not mine:
                each.gate.open()

    def _leave(self, mine):
        """The caller of `mine` has left. What it leads goes on: by another one of its group, where there is one."""
        with self.lock:
            mine.gone = True
            if mine in self.waiting:
                self.waiting.remove(mine)
            heir = None
            if mine.leads and mine.request:
                heir = next((each for each in mine.request.remaining.values() if not each.gone), None)
            if heir:
                heir.leads, heir.request = True, mine.request
        if heir:
            heir.gate.open()
        elif mine.leads:
            self._hand_on(mine)

    def _delete(self, group):
        """Send the request, unless that was done, and listen until every link of the group is gone, or refused."""
        try:
            if group.asked is None:
                wire.forget(self.watcher)       # links that others deleted, late answers
                batch = Batch(self.sequence)
                group.asked = request_of(batch, group.deletions)
                self.sequence += len(group.asked)
                self.defer(self._send, group, batch.finish())
            left = group.remaining
            while left:
                if group.unsent:
                    raise group.unsent
                if (seconds := group.deadline - monotonic()) <= 0:
                    raise CniError(errors.TRY_AGAIN_LATER, f"not announced gone after {announced.DELETE_SECONDS} s: "
                                   + ", ".join(each.name for each in left.values()))
                self._hear(min(seconds, LOOK_MS / 1000), group)
        except CallerGone:
            raise
        except BaseException as e:      # all that are left have it from their leader
            for each in group.remaining.values():
                each.error = each.error or (e if isinstance(e, Exception) else unfinished(each))
            if not isinstance(e, Exception):
                raise

    def _send(self, group, request):
        """In another thread: back when the kernel has done what the request asks for. An error is left in the group,
        where its leader finds it."""
        try:
            wire.send(self.watcher, request)
        except OSError as e:
            group.unsent = wire.NetlinkError(e.errno, "send the request that deletes links")
        except Exception as e:
            group.unsent = e

    def _hear(self, seconds, group):
        """Take out of the group's remaining links what the next notifications say."""
        asked, left = group.asked, group.remaining
        try:
            messages = wire.watch(self.watcher, seconds)
        except OSError as e:
            if e.errno != ENOBUFS:
                raise
            for index in [index for index in left if find.link(self.asking, index=index) is None]:
                del left[index]
            return
        for kind, flags, sequence, _, payload in messages:
            if kind == uapi.RTM_DELLINK:
                left.pop(rtnl.read_index(payload), None)
            elif kind == uapi.NLMSG_ERROR and sequence in asked:
                code, text, offset = read_ack(kind, flags, payload)
                if code not in (0, ENODEV) and len(asked[sequence]) > 1:
                    asked |= self._ask_one_by_one(group)            # the kernel has deleted none of the group
                    continue
                for each in asked[sequence] if code else ():
                    if code != ENODEV and each.index in left:
                        each.error = wire.NetlinkError(code, each.what, text, offset)
                    if code != ENODEV or len(asked[sequence]) == 1:
                        left.pop(each.index, None)

    def _ask_one_by_one(self, group):
        """Send a request for each that remains, to see whose fault it was; as request_of()."""
        batch = Batch(self.sequence)
        asked = one_by_one(batch, group.remaining.values())
        self.sequence += len(asked)
        self.defer(self._send, group, batch.finish())
        return asked


def unfinished(deletion):
    """The error of a deletion whose leader was abandoned or lost."""
    return CniError(errors.TRY_AGAIN_LATER, f"{deletion.what}: the request that it shared was abandoned")


def request_of(batch, group):
    """Write the request that deletes a group: {sequence number: the deletions that its refusal is about}."""
    if len(group) == 1:
        return one_by_one(batch, group)
    number = int.from_bytes(os.urandom(4), "big") or 1     # a group of nobody's; 0 is every link's
    for each in group:
        rtnl.set_group(batch, each.index, number, what=each.what)
    rtnl.del_group(batch, number, what="failed to delete a group of links")
    return {batch.first + n: [each] for n, each in enumerate(group, 1)} | {batch.first + len(group) + 1: group}


def one_by_one(batch, deletions):
    """The same with a request for each."""
    for each in deletions:
        rtnl.del_link(batch, index=each.index, what=each.what)
    return {batch.first + n: [each] for n, each in enumerate(deletions, 1)}
