"""Links of one namespace, deleted together.

The kernel announces a link gone within a millisecond, and ends the request 20 ms later, after an RCU grace period.
Whoever deletes waits for the first only; a thread of `crew` is in the kernel until the second. While one request is
under way, those that come wait, and go out together as the next:

    RTM_NEWLINK index=7 IFLA_GROUP=g    for each
    RTM_DELLINK IFLA_GROUP=g

Of one link alone the request is a plain RTM_DELLINK.
"""

import os
from _thread import allocate_lock
from errno import ENOBUFS, ENODEV
from time import monotonic

from fastcni._netlink import Batch, Gate, read_ack
from fastcni.kernel import filters, rtnl, uapi, wire
from fastcni.kernel.waiting import waiting
from fastcni.kit import announced, links
from fastcni.spec import errors
from fastcni.spec.errors import CniError

MOST = 128                      # links in one request: their announcements fit the receive buffer


class Deletion:
    """One link on its way out. `gate` opens once: when it is gone, with `error` or without, or when its
    deleter is to lead the next request."""

    __slots__ = ("index", "name", "gate", "leads", "error")

    def __init__(self, index, name):
        self.index, self.name, self.gate, self.leads, self.error = index, name, Gate(), False, None

    @property
    def what(self):
        return f'failed to delete "{self.name}"'


class Deletes:
    """delete() of veth pairs, for any number of threads; made in a thread that is in the namespace. Raises OSError.

    `aside(fn, *args)` runs a function in another thread.
    """

    def __init__(self, aside):
        self.aside, self.lock = aside, allocate_lock()
        self.waiting, self.busy = [], False
        self.sequence = 0               # answers to earlier requests come late
        self.asking = wire.open_socket()
        self.watcher = announced.open_watcher()
        filters.attach(self.watcher, filters.deletions())

    def close(self):
        self.watcher.close()
        self.asking.close()

    def delete(self, index, name):
        """Back when the kernel has announced link `index` gone. Raises NetlinkError, CniError 11 when it does not.

        The first that comes leads: it sends for all who wait, and listens for them. The others sleep until their
        link is gone, or until it is their turn to lead.
        """
        mine = Deletion(index, name)
        with self.lock:
            if self.busy:
                self.waiting.append(mine)
            else:
                self.busy = mine.leads = True
        if not mine.leads:
            with waiting():
                mine.gate.wait()
        if mine.leads:
            with self.lock:
                group = [mine, *(each for each in self.waiting[:MOST] if each is not mine)]
                del self.waiting[:MOST]
            try:
                self._delete(group)
            finally:
                self._hand_on(group)
        if mine.error:
            raise mine.error

    def _hand_on(self, group):
        with self.lock:
            if self.waiting:
                self.waiting[0].leads = True
                group = [*group, self.waiting[0]]
            else:
                self.busy = False
        for each in group[1:]:          # the first is the leader itself
            each.gate.open()

    def _delete(self, group):
        """Send the request and listen until every link of the group is gone, or refused."""
        try:
            wire.forget(self.watcher)       # links that others deleted, late answers
            batch = Batch(self.sequence)
            asked = request_of(batch, group)
            self.sequence += len(asked)
            self.aside(wire.send, self.watcher, batch.finish())
            left = {each.index: each for each in group}
            deadline = monotonic() + announced.DELETE_SECONDS
            while left:
                if (seconds := deadline - monotonic()) <= 0:
                    raise CniError(errors.TRY_AGAIN_LATER, f"not announced gone after {announced.DELETE_SECONDS} s: "
                                   + ", ".join(each.name for each in left.values()))
                self._hear(seconds, asked, left)
        except Exception as e:          # all that are left have it from their leader
            for each in group:
                each.error = each.error or e

    def _hear(self, seconds, asked, left):
        """Take out of `left` what the next notifications say. `asked` is {sequence number: deletions it is about}."""
        try:
            messages = wire.watch(self.watcher, seconds)
        except OSError as e:
            if e.errno != ENOBUFS:
                raise
            for index in [index for index in left if links.find(self.asking, index=index) is None]:
                del left[index]
            return
        for kind, flags, sequence, _, payload in messages:
            if kind == uapi.RTM_DELLINK:
                left.pop(rtnl.u32(payload[4:8]), None)
            elif kind == uapi.NLMSG_ERROR and sequence in asked:
                code, text, offset = read_ack(kind, flags, payload)
                if code not in (0, ENODEV) and len(asked[sequence]) > 1:
                    asked |= self._ask_one_by_one(left.values())    # the kernel has deleted none of the group
                    continue
                for each in asked[sequence] if code else ():
                    if code != ENODEV and each.index in left:
                        each.error = wire.NetlinkError(code, each.what, text, offset)
                    if code != ENODEV or len(asked[sequence]) == 1:
                        left.pop(each.index, None)

    def _ask_one_by_one(self, deletions):
        """Send a request for each, to see whose fault it was; as request_of()."""
        batch = Batch(self.sequence)
        asked = one_by_one(batch, deletions)
        self.sequence += len(asked)
        self.aside(wire.send, self.watcher, batch.finish())
        return asked


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
