"""Claim and renew this node's egress addresses, add them to links, and tell nftables how long to use each address."""

from __future__ import annotations

from ipaddress import ip_address
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.egress.claims.contract import RENEW_S
from fastcni.clients.errors import Away

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastcni.agent.egress.claims.contract import Claims
    from fastcni.agent.egress.lending import Lending
    from fastcni.agent.egress.table import Table
    from fastcni.daemon.log import Logger

YIELD_S = 0.05          # seconds that a node waits before a claim, for each address that it already holds
AGAIN_S = 0.5           # seconds between two tries to claim the same address


class Holding:
    """The egress addresses that this node holds. One thread calls all methods. attend() raises OSError if the kernel
    refuses a change.

    until: {a held address: the monotonic time when this node's claim ends}. due: when to call attend() even if no claim
    has changed, in monotonic seconds.
    """

    def __init__(self, claims: Claims, lending: Lending, table: Table, log: Logger) -> None:
        self.claims, self.lending, self.table, self.log = claims, lending, table, log
        self.until: dict[bytes, float] = {}
        self.due = 0.0
        self._renewed = 0.0
        self._tried: dict[bytes, float] = {}            # {address: when this node may try again to claim it, monotonic}
        self._problem = ""

    def attend(self, wanted: Collection[bytes]) -> None:
        """Renew this node's claims, and claim the free addresses in `wanted` that fit a link of this node. Give up held
        addresses that are no longer wanted or no longer fit a link."""
        before = dict(self.until)
        if self.until and monotonic() >= self._renewed + RENEW_S:
            self._renew()
        now = monotonic()
        self.until = {packed: end for packed, end in self.until.items() if end > now}
        places = self.lending.places(self.until.keys() | {packed for packed in wanted if self._is_due(packed, now)})
        if gone := [packed for packed in self.until if packed not in wanted or packed not in places]:
            self.give_up(gone)
        for packed in wanted:
            if packed in places and self._is_due(packed, now):
                self._claim(packed)
        if self.until != before:
            self.lending.lend(self.until, places)
            self.table.hold(self.until)
            for packed in self.until.keys() - before.keys():
                self.log.info("egress_held", address=str(ip_address(packed)), link=places[packed].name)
            for packed in before.keys() - self.until.keys():
                self.log.warning("egress_lost", address=str(ip_address(packed)))
        self.due = min([self._renewed + RENEW_S if self.until else inf,
                        *(self._due_of(packed) for packed in wanted if packed not in self.until)])

    def give_up(self, addresses: Collection[bytes]) -> None:
        """Stop using `addresses`, and release their claims, so that other nodes can claim them."""
        self.until = {packed: end for packed, end in self.until.items() if packed not in addresses}
        self.table.hold(self.until)
        try:
            self.claims.release(addresses)
        except Away as e:
            self._tell_away(e)

    def _renew(self) -> None:
        self._renewed = monotonic()
        try:
            renewed = self.claims.renew(self.until.keys())
            self.until = dict(renewed)
            holders = self.claims.holders()
            for packed in [packed for packed in self.until if packed not in holders]:   # the claim was deleted
                self.until[packed] = self.claims.claim(packed)
            self._problem = ""
        except Away as e:
            self._tell_away(e)

    def _due_of(self, packed: bytes) -> float:
        """Return the monotonic time when to try to claim an address: earlier on a node that holds fewer addresses."""
        free = self.claims.free_at(packed)
        return max(self._tried.get(packed, 0.0), free + YIELD_S * len(self.until))

    def _is_due(self, packed: bytes, now: float) -> bool:
        return packed not in self.until and now >= self._due_of(packed)

    def _claim(self, packed: bytes) -> None:
        self._tried[packed] = monotonic() + AGAIN_S
        try:
            if end := self.claims.claim(packed):
                self.until[packed] = end
        except Away as e:
            self._tell_away(e)

    def _tell_away(self, e: Away) -> None:
        if str(e) != self._problem:
            self.log.error("egress_claims_away", error=str(e))
        self._problem = str(e)
