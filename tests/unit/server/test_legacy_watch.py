"""The server polls the legacy iptables, because the kernel does not announce their changes. The tests use the real
kernel."""

import os
import time

import pytest
from lab.node import run
from unit.server.foreign_firewalls import needs

from fastcni.kernel import netns
from fastcni.server.restoring.iptables_watch import IptablesWatch
from fastcni.server.restoring.legacy_watch import MAX_REPLAYS, POLL_S, LegacyWatch

pytestmark = needs("iptables-legacy")
RECORDED = {4: 1, 16: 0}


@pytest.fixture
def legacy(host_netns):
    """Yield a function polled(seconds, recorded) that polls with a clock so much later. It returns the missing jumps as
    text. The namespace has a table filter without rules. polled.suspected gets one entry each time a table may have
    begun to drop packets."""
    run("iptables-legacy", "-P", "FORWARD", "DROP")
    home, iptables, suspected = netns.open_own(), IptablesWatch(), []
    watch, now = LegacyWatch(home, iptables, lambda: suspected.append(True)), time.monotonic()

    def polled(seconds, recorded=RECORDED, pods=True, deletions=0):
        watch.attend(now + seconds, pods=pods, recorded=recorded, deleted_since=lambda _: deletions)
        iptables.began.clear()
        return iptables.take_missing()

    polled(0.0, {4: 0, 16: 0})
    polled.suspected, polled.watch = suspected, watch
    yield polled
    os.close(home)


def add_jump():
    run("iptables-legacy", "-N", "CNI-FORWARD")
    run("iptables-legacy", "-A", "FORWARD", "-j", "CNI-FORWARD")


def flush():
    run("iptables-legacy", "-F")
    run("iptables-legacy", "-X")


def test_a_jump_that_is_added_and_flushed_between_two_polls_is_missed(legacy):
    """Once, the pod stayed cut off, because the table was empty at both polls."""
    add_jump()
    flush()
    legacy(0.1)                                     # nftables announces the pod's record
    assert legacy(3 * POLL_S) == "legacy ip filter FORWARD to CNI-FORWARD"


def test_a_jump_that_is_there_is_not_missed_and_a_flush_of_it_is(legacy):
    legacy(0.1)
    add_jump()
    assert legacy(3 * POLL_S) == ""
    flush()
    assert legacy(5 * POLL_S) == "legacy ip filter FORWARD to CNI-FORWARD"


def test_an_add_has_time_for_its_rules(legacy):
    legacy(0.1)
    assert legacy(POLL_S + 0.05) == ""


def test_a_jump_that_no_replay_brings_back_is_given_up(legacy):
    """No program of this node restores the table, so the server would replay each second without end."""
    legacy(0.1)
    missed = [legacy(3 * POLL_S * number, {4: number, 16: 0}) for number in range(1, 5 * MAX_REPLAYS)]
    assert len([text for text in missed if text]) == MAX_REPLAYS


@pytest.mark.parametrize("rule", ["-A FORWARD -s 10.22.0.2 -j DROP", "-A FORWARD -i br0 -j REJECT"])
def test_a_rule_that_drops_is_a_suspicion_once_and_one_that_accepts_is_none(legacy, rule):
    run("iptables-legacy", "-A", "FORWARD", "-s", "10.22.0.2", "-j", "ACCEPT")
    legacy(2 * POLL_S)
    assert legacy.suspected == []
    run("iptables-legacy", *rule.split())
    legacy(4 * POLL_S)
    legacy(6 * POLL_S)
    assert legacy.suspected == [True]
    run("iptables-legacy", "-D", "FORWARD", "1")
    legacy(8 * POLL_S)
    assert legacy.suspected == [True]


def test_a_table_filter_that_another_program_makes_is_noticed_and_another_table_is_not(host_netns):
    home, iptables = netns.open_own(), IptablesWatch()
    try:
        watch, now = LegacyWatch(home, iptables, lambda: None), time.monotonic()

        def began(seconds):
            watch.attend(now + seconds, pods=True, recorded={4: 0, 16: 0}, deleted_since=lambda _: 0)
            return iptables.take_began()

        assert began(0.0) == ""
        run("iptables-legacy", "-t", "nat", "-P", "POSTROUTING", "ACCEPT")
        assert began(2 * POLL_S) == ""
        run("iptables-legacy", "-P", "FORWARD", "DROP")
        assert began(4 * POLL_S) == "legacy ip filter FORWARD"
        assert began(6 * POLL_S) == ""
    finally:
        os.close(home)


def masqueraded(*numbers):
    """Add the chains of pods and the jumps to them in the table nat, as ipMasq does."""
    for number in numbers:
        chain = f"CNI-{number:024x}"
        for rule in (f"-N {chain}", f"-A {chain} -j MASQUERADE", f"-A POSTROUTING -s 10.22.0.{number} -j {chain}"):
            run("iptables-legacy", "-t", "nat", *rule.split())


def test_a_flush_of_table_nat_with_all_chains_is_noticed_though_no_pod_is_in_nftables(legacy):
    """Once, the server did not restore the rules, because jumps and chains that disappear together can be those of a
    DEL."""
    masqueraded(1, 2)
    legacy.watch.note_add(time.monotonic())
    assert legacy(1.5 * POLL_S, pods=False) == ""
    run("iptables-legacy", "-t", "nat", "-F")
    run("iptables-legacy", "-t", "nat", "-X")
    lost = legacy(100 * POLL_S, pods=False, deletions=1)
    assert lost.count("legacy ip nat POSTROUTING to CNI-") == 2


def test_dels_of_all_pods_are_no_flush(legacy):
    masqueraded(1, 2)
    legacy(2 * POLL_S, recorded={4: 0, 16: 0})
    run("iptables-legacy", "-t", "nat", "-F")
    run("iptables-legacy", "-t", "nat", "-X")
    assert legacy(4 * POLL_S, recorded={4: 0, 16: 0}, deletions=2) == ""
