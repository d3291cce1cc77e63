"""The poll of the legacy iptables: the kernel sends no notification of its changes (real kernel)."""

import os
import time

import pytest
from real_kernel.node import run
from server.foreign_firewalls import needs

from fastcni.kernel import netns
from fastcni.server.restoring.iptables_watch import IptablesWatch
from fastcni.server.restoring.legacy_watch import MAX_REPLAYS, POLL_S, LegacyWatch

pytestmark = needs("iptables-legacy")
RECORDED = {4: 1, 16: 0}


@pytest.fixture
def legacy(host_netns):
    """polled(seconds later, recorded): the signs of a loss, as text. The namespace has a table filter without rules.
    polled.suspected: one entry for each time that a table may have begun to drop."""
    run("iptables-legacy", "-P", "FORWARD", "DROP")
    home, iptables, suspected = netns.open_own(), IptablesWatch(), []
    watch, now = LegacyWatch(home, iptables, lambda: suspected.append(True)), time.monotonic()

    def polled(seconds, recorded=RECORDED):
        watch.attend(now + seconds, pods=True, recorded=recorded)
        iptables.began.clear()
        return iptables.take_missing()

    polled(0.0, {4: 0, 16: 0})
    polled.suspected = suspected
    yield polled
    os.close(home)


def add_jump():
    run("iptables-legacy", "-N", "CNI-FORWARD")
    run("iptables-legacy", "-A", "FORWARD", "-j", "CNI-FORWARD")


def flush():
    run("iptables-legacy", "-F")
    run("iptables-legacy", "-X")


def test_a_jump_that_is_added_and_flushed_between_two_polls_is_missed(legacy):
    """Both polls saw an empty table, so the pod stayed cut off."""
    add_jump()
    flush()
    legacy(0.1)                                     # the nftables record of the pod is announced
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
    """No program of the node changes this table: a replay each second would not end."""
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
