"""Add egress addresses to this node's links for a limited time. The kernel removes an address that is not renewed."""

from __future__ import annotations

from contextlib import suppress
from errno import EADDRNOTAVAIL, ENODEV
from ipaddress import ip_interface
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kernel.sockets import packet_sockets
from fastcni.kernel.wire import NetlinkError
from fastcni.kit.links import find

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fastcni.agent.contract import Prefix
    from fastcni.kernel.rtnl import Link

ANNOUNCEMENTS, ANNOUNCE_S = 4, 0.5      # ARP or ND messages for a new address, as some get lost; seconds between two
ROUND_S = 0.4                           # the kernel may remove an address this many seconds after the claim's end


class Place(NamedTuple):
    """A link, up and with a carrier, that has an address in `network`."""

    link: Link
    network: Prefix


class Lending:
    """The egress addresses on this node's links. Create the object in a thread that is in the node's namespace; the
    same thread calls all methods. Raises OSError.

    lent: {address: the link that has it}.
    """

    def __init__(self) -> None:
        self.sock = wire.open_socket()
        self.lent: dict[bytes, Link] = {}
        self._announced: dict[bytes, list[float]] = {}          # {address: monotonic times of its next announcements}

    def close(self) -> None:
        self.sock.close()

    def places(self, addresses: Collection[bytes]) -> dict[bytes, Link]:
        """Return {address: the link that can have it}. Leave out addresses that fit no link, and the node's own
        addresses. An address fits a link that has an address in the same network."""
        if not addresses:
            return {}
        there = [(link, it) for link in find.all_links(self.sock) for it in find.addresses(self.sock, link.index)]
        own = {it.packed for _, it in there if it.flags & uapi.IFA_F_PERMANENT or it.prefix < 8 * len(it.packed)}
        places = [Place(link, ip_interface((it.packed, it.prefix)).network) for link, it in there
                  if usable(link) and it.prefix < 8 * len(it.packed) and not it.flags & uapi.IFA_F_DADFAILED]
        found = {}
        for packed in addresses:
            number = int.from_bytes(packed, "big")
            fitting = [place for place in places if place.network.max_prefixlen == 8 * len(packed) and
                       int(place.network[0]) <= number <= int(place.network[-1])
                       and not of_all_hosts(packed, place.network)]
            if fitting and packed not in own:
                found[packed] = max(fitting, key=lambda place: place.network.prefixlen).link
        return found

    def lend(self, until: Mapping[bytes, float], places: Mapping[bytes, Link]) -> None:
        """Add each address of `until` to its link in `places` until its monotonic time. Remove lent addresses that are
        not in `until`."""
        for packed in self.lent.keys() - until.keys():
            self._take_back(packed)
        for packed, end in until.items():
            link = places[packed]
            if packed in self.lent and self.lent[packed].index != link.index:
                self._take_back(packed)
            seconds = int(end - monotonic() + ROUND_S)
            if seconds < 1:
                continue                        # the kernel's lifetime of an address has at least one second
            wire.exchange(self.sock, rtnl.lend_address(Batch(), link.index, packed, seconds, what="lend an address"))
            if packed not in self.lent:
                now = monotonic()
                self.lent[packed] = link
                self._announced[packed] = [now + number * ANNOUNCE_S for number in range(ANNOUNCEMENTS)]
            if monotonic() > end:               # the process was stopped; another node may hold the address now
                self._take_back(packed)
        self._announce()

    def _announce(self) -> None:
        for packed, times in self._announced.items():
            if times and times[0] <= monotonic():
                del times[0]
                with suppress(OSError):         # the link went down, which the next call of places() finds
                    packet_sockets.announce(self.lent[packed].name, self.lent[packed].address, packed)

    def _take_back(self, packed: bytes) -> None:
        link = self.lent.pop(packed)
        self._announced.pop(packed, None)
        try:
            wire.exchange(self.sock, rtnl.del_address(Batch(), link.index, packed, 8 * len(packed),
                                                      what="take back an address"))
        except NetlinkError as e:
            if e.errno not in (EADDRNOTAVAIL, ENODEV):
                raise


def of_all_hosts(packed: bytes, network: Prefix) -> bool:
    """Return whether the address `packed` is not a single host's: the first address of a network (IPv6: of all its
    routers), or the last address of an IPv4 network (broadcast)."""
    if network.prefixlen >= network.max_prefixlen - 1:
        return False
    return packed == network[0].packed or (network.version == 4 and packed == network[-1].packed)


def usable(link: Link) -> bool:
    """Return whether neighbours can reach an address on the link: the link is up, and has a carrier and a MAC."""
    return link.up and bool(link.flags & uapi.IFF_LOWER_UP) and not link.flags & uapi.IFF_LOOPBACK and (
        len(link.address) == 6)
