"""Which egress addresses a node claims, renews and gives up. The test supplies the claims, the links and the table."""

from types import SimpleNamespace

import pytest
from lab.loggers import logger_to

from fastcni.agent.egress import holding
from fastcni.agent.egress.claims.contract import LEASE_S, RENEW_S
from fastcni.agent.egress.holding import AGAIN_S, YIELD_S, Holding
from fastcni.clients.errors import Away
from fastcni.spec.address import read_ip

ONE, TWO = read_ip("192.0.2.50"), read_ip("192.0.2.51")


class Claims:
    """A store in memory. away: whether the store is unavailable."""

    node = "me"

    def __init__(self, clock):
        self.clock, self.by, self.away, self.released = clock, {}, False, []

    def renew(self, held):
        self.ask()
        return {packed: self.clock.now + LEASE_S for packed in held if self.by.get(packed) == "me"}

    def claim(self, packed):
        self.ask()
        if self.by.setdefault(packed, "me") != "me":
            return 0.0
        return self.clock.now + LEASE_S

    def release(self, addresses):
        self.ask()
        for packed in addresses:
            self.by.pop(packed, None)

    def holders(self):
        return dict(self.by)

    def free_at(self, packed):
        return 0.0 if self.by.get(packed, "me") == "me" else float("inf")

    def ask(self):
        if self.away:
            raise Away("store: no answer")


class Links:
    def __init__(self):
        self.there, self.lent = {ONE, TWO}, {}

    def places(self, addresses):
        return {packed: SimpleNamespace(name="eth0") for packed in addresses if packed in self.there}

    def lend(self, until, places):
        assert until.keys() <= places.keys()
        self.lent = dict(until)


class Table:
    def __init__(self):
        self.held = {}

    def hold(self, until):
        self.held = dict(until)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Node:
    def __init__(self, clock):
        self.clock, self.claims, self.links, self.table, self.log = clock, Claims(clock), Links(), Table(), []
        self.it = Holding(self.claims, self.links, self.table, logger_to(self._note))

    def _note(self, event):
        self.log.append(event["event"] + (f" on {event['link']}" if "link" in event else ""))

    def attend(self, *wanted, after=0.0):
        self.clock.now += after
        self.it.attend(set(wanted))
        assert self.links.lent == self.table.held == self.it.until
        return set(self.it.until)


@pytest.fixture
def node(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(holding, "monotonic", clock)
    return Node(clock)


def test_what_is_wanted_and_fits_a_link_is_claimed_renewed_and_given_up(node):
    node.links.there = {ONE}
    assert node.attend(ONE, TWO) == {ONE}
    first = node.it.until[ONE]
    assert node.attend(ONE, TWO, after=RENEW_S) == {ONE}
    assert node.it.until[ONE] == first + RENEW_S
    assert node.attend(TWO) == set()
    assert node.claims.by == {}
    assert node.log == ["egress_held on eth0", "egress_lost"]


def test_a_node_that_holds_one_lets_others_claim_the_next_one_first(node):
    assert len(node.attend(ONE, TWO)) == 2              # no node has claimed either address
    node.claims.by[TWO] = "other"
    assert node.attend(ONE, TWO, after=RENEW_S) == {ONE}
    node.claims.free_at = lambda packed: node.clock.now if packed == TWO else 0.0
    assert node.it._due_of(TWO) >= node.clock.now + YIELD_S


def test_while_the_store_is_away_an_address_is_held_until_the_lease_ends_and_no_longer(node):
    assert node.attend(ONE) == {ONE}
    node.claims.away = True
    for _ in range(3):
        assert node.attend(ONE, after=RENEW_S) == {ONE}
    assert node.attend(ONE, after=RENEW_S) == set()
    assert node.log == ["egress_held on eth0", "egress_claims_away", "egress_lost"]
    node.claims.away = False
    assert node.attend(ONE, after=AGAIN_S) == {ONE}


def test_an_address_that_another_node_has_claimed_is_given_up(node):
    node.attend(ONE)
    node.claims.by[ONE] = "other"
    assert node.attend(ONE, after=RENEW_S) == set()


def test_a_claim_that_another_program_has_deleted_is_made_again(node):
    node.attend(ONE)
    # etcd renews the lease even if the claim's key is deleted
    node.claims.renew = lambda held: dict.fromkeys(held, node.clock.now + LEASE_S)
    del node.claims.by[ONE]
    assert node.attend(ONE, after=RENEW_S) == {ONE}
    assert node.claims.by == {ONE: "me"}


def test_an_address_whose_link_goes_down_is_free_for_others(node):
    node.attend(ONE)
    node.links.there = set()
    assert node.attend(ONE) == set()
    assert node.claims.by == {}


def test_after_a_lost_race_the_next_try_waits(node):
    node.claims.claim = lambda packed: tries.append(packed) or 0.0
    tries = []
    for _ in range(3):
        node.attend(ONE)
    assert tries == [ONE]
    assert node.it.due == node.clock.now + AGAIN_S
