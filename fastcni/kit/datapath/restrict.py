"""Policies begin and end to restrict pods of the datapath: flows of a restricted pod are not redirected.

A connection that is redirected is unknown to conntrack. So before its packets pass through the host's stack again,
conntrack gets an entry for it, in the direction of its first packet. Then rules judge it as every known connection.
"""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import conntrack, wire
from fastcni.kernel.bpf import objects
from fastcni.kit.datapath import pins
from fastcni.kit.datapath.maps import (
    ADDRESS_BYTES,
    IPPROTO_TCP,
    POD_BYTES,
    RESTRICTED,
    mapped,
    u32,
    unmapped,
    with_flags,
)
from fastcni.kit.datapath.redirect import flows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from fastcni.kernel.wire import Socket
    from fastcni.kit.datapath.pins import Pins

MAX_ENTRIES = 128               # of conntrack in one send
ROUNDS = 3                      # a program that ran before the flag was set may add a flow after the first


def restrict(sock: Socket, addresses: Collection[bytes]) -> None:
    """Make these packed addresses the restricted ones of the node: call this before their rules are written. Other
    pods are not restricted any more. sock: of NETLINK_NETFILTER. Raises OSError."""
    if opened := pins.open_maps(sock):
        with opened:
            begun = []
            for key, value in list(objects.elements(opened.pods, ADDRESS_BYTES, POD_BYTES)):
                wanted = RESTRICTED if (packed := unmapped(key)) in addresses else 0
                if u32(value, 4) != wanted:
                    objects.update(opened.pods, key, with_flags(value, wanted))
                    begun += [packed] if wanted else []
            if begun:
                hand_back(sock, opened, frozenset(begun))


def restrict_more(sock: Socket, addresses: Collection[bytes]) -> None:
    """Restrict new pods, which have no flows yet. Raises OSError."""
    if opened := pins.open_maps(sock):
        with opened:
            for packed in addresses:
                if value := objects.look_up(opened.pods, mapped(packed), POD_BYTES):
                    objects.update(opened.pods, mapped(packed), with_flags(value, RESTRICTED))


def restrict_all(opened: Pins) -> None:
    """Restrict all pods, so that no flow begins to be redirected. Raises OSError."""
    for key, value in list(objects.elements(opened.pods, ADDRESS_BYTES, POD_BYTES)):
        objects.update(opened.pods, key, with_flags(value, RESTRICTED))


def hand_back(sock: Socket, opened: Pins, addresses: frozenset[bytes] | None = None) -> int:
    """End the redirect of flows from or to these addresses, None: of all flows. Connections go on through the host's
    stack. Return the number of flows. Raises OSError.

    conntrack has UDP's flows, because one of their packets passes through the host every 10 s.
    """
    count = 0
    for _ in range(ROUNDS):
        found = [flow for flow in flows(opened) if addresses is None or not addresses.isdisjoint(flow.ends)]
        known = [flow for flow in found if flow.protocol == IPPROTO_TCP and flow.ports[0] and all(flow.seen)]
        for at in range(0, len(known), MAX_ENTRIES):
            batch = Batch()
            for flow in known[at:at + MAX_ENTRIES]:
                conntrack.put_established(batch, flow.ends, flow.ports)
            for error in wire.attempt(sock, batch)[1]:
                raise error
        for flow in found:
            count += objects.delete(opened.flows, flow.key)
        if not found:
            break
    return count
