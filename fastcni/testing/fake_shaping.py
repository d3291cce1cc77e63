"""Model traffic control for tests: store qdiscs, classes and filters, and return them as they were sent."""

from __future__ import annotations

from errno import EEXIST, EINVAL, ENOENT

from fastcni._netlink import attributes
from fastcni.kernel import uapi
from fastcni.testing.fake_messages import Refused, Replies, number

ANSWERS = {uapi.RTM_GETQDISC: uapi.RTM_NEWQDISC, uapi.RTM_GETTCLASS: uapi.RTM_NEWTCLASS,
           uapi.RTM_GETTFILTER: uapi.RTM_NEWTFILTER}
MESSAGES = (*ANSWERS, *ANSWERS.values(), uapi.RTM_DELQDISC)


class Shaping:
    """The model of traffic control. items: [(namespace, index of the link, type of message, handle, payload)]; for
    qdiscs and filters, the fourth item is the parent's handle."""

    def __init__(self) -> None:
        self.items: list[tuple[str, int, int, int, bytes]] = []

    def serve(self, where: str, kind: int, payload: bytes) -> Replies:
        index, handle, parent = (number(payload[at:at + 4]) for at in (4, 8, 12))
        if kind == uapi.RTM_DELQDISC:
            if not self.find(where, index, uapi.RTM_NEWQDISC, parent):
                raise Refused(ENOENT)
            self.items = [item for item in self.items
                          if item[:2] != (where, index) or is_ingress(item[3]) != is_ingress(parent)]
            return []
        stored = ANSWERS.get(kind, kind)
        found = self.find(where, index, stored, handle if stored == uapi.RTM_NEWTCLASS else parent)
        if kind == uapi.RTM_GETTFILTER:
            return [(stored, item[4]) for item in found]
        if kind in ANSWERS:
            if not found:
                raise Refused(ENOENT)
            return [(stored, found[0][4])]
        if uapi.TCA_STAB in attributes(payload, 20):        # fastcni tests whether the kernel has this kind of qdisc
            raise Refused(EINVAL)
        if found and kind == uapi.RTM_NEWQDISC:
            raise Refused(EEXIST)
        self.items.append((where, index, kind, handle if kind == uapi.RTM_NEWTCLASS else parent, payload))
        return []

    def find(self, where: str, index: int, kind: int, at: int) -> list[tuple[str, int, int, int, bytes]]:
        return [item for item in self.items if item[:4] == (where, index, kind, at)]

    def forget(self, where: str, index: int) -> None:
        """Delete the qdiscs, classes and filters of the deleted link `index` in the namespace `where`."""
        self.items = [item for item in self.items if item[:2] != (where, index)]


def is_ingress(handle: int) -> bool:
    """Return whether a handle belongs to the ingress qdisc: its major number is 0xFFFF."""
    return handle >> 16 == 0xFFFF and handle != uapi.TC_H_ROOT
