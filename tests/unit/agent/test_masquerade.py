"""The rules for packets that leave the cluster's network. The agent keeps them in the real kernel. Needs root."""

import select
import time
from ipaddress import ip_network

import pytest
from lab.loggers import logger_to
from unit.agent.nodes import conf

from fastcni.agent.masquerade import Masquerade
from fastcni.kernel import wire
from fastcni.kernel.wire import NetlinkError
from fastcni.testing.namespaces import run

LIST = ("nft", "-a", "list", "table", "inet", "fastcni-agent")


class Kept:
    def __init__(self):
        self.events = []
        self.it = Masquerade(logger_to(self._note))
        self.it.set(conf(families=(4, 6)), {4: ip_network("10.244.1.0/24"), 6: ip_network("fd00:10:244:1::/64")})
        self.attend(0.05)
        self.rules = self.shown()

    def _note(self, event):
        self.events.append(event["event"])

    def attend(self, seconds=10.0, until=lambda: False):
        """Call attend() as the agent's loop does, for `seconds` or until until() is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            if select.select([self.it], [], [], 0.01)[0] or time.monotonic() >= self.it.due:
                self.it.attend()

    def shown(self):
        """Return the lines of the table that nft lists, without handles."""
        text = run(*LIST, check=False)
        return [line.partition(" # handle")[0].strip() for line in text.splitlines()]


@pytest.fixture
def kept(host_netns):
    found = Kept()
    yield found
    found.it.close()


def test_a_rule_that_another_program_replaces_is_written_again(kept):
    """The number of rules stays the same. Once, the agent did not restore them for this reason."""
    handle = next(line.split()[-1] for line in run(*LIST).splitlines() if "ip saddr 10.244.0.0/16" in line)
    run("nft", "replace", "rule", "inet", "fastcni-agent", "postrouting", "handle", handle, "accept")
    kept.attend(until=lambda: kept.events)
    assert kept.shown() == kept.rules
    assert kept.events == ["masquerade_restored"]


@pytest.mark.parametrize("words", [("flush", "ruleset"), ("delete", "table", "inet", "fastcni-agent"),
                                   ("flush", "chain", "inet", "fastcni-agent", "postrouting"),
                                   ("add", "table", "inet", "fastcni-agent", "{ flags dormant; }")], ids=" ".join)
def test_what_another_program_deletes_is_written_again_with_growing_pauses(kept, words):
    for count in range(1, 4):
        run("nft", *words)
        assert kept.shown() != kept.rules
        kept.attend(until=lambda count=count: len(kept.events) == count)
        assert kept.shown() == kept.rules
    assert kept.it.backoff.seconds >= 0.1


def test_the_own_changes_and_those_of_other_tables_are_left_alone(kept):
    run("nft", "add", "table", "inet", "other")
    run("nft", "delete", "table", "inet", "other")
    kept.it.set(conf(families=(4, 6)), {4: ip_network("10.244.1.0/24"), 6: ip_network("fd00:10:244:1::/64")})
    kept.attend(0.05)
    assert kept.events == []


def test_a_refusal_of_the_kernel_is_tried_again(kept, monkeypatch):
    """Once, the kernel's error ended the agent."""
    real, refusals = wire.exchange, []

    def exchange(sock, batch):
        if not refusals:
            refusals.append(1)
            raise NetlinkError(12, "add the rules")
        return real(sock, batch)

    monkeypatch.setattr(wire, "exchange", exchange)
    run("nft", "flush", "ruleset")
    kept.attend(until=lambda: "masquerade_restored" in kept.events)
    assert kept.events == ["masquerade_refused", "masquerade_restored"]
    assert kept.shown() == kept.rules
