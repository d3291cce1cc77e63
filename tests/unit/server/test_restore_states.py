"""Each transition in restore_states.py: its cause and its effect in the server. The tests use the real kernel."""

import errno
import os
import threading
import time
from collections import namedtuple
from math import inf

import pytest
from lab.node import elements, run
from lab.portmap_chain import mapping
from unit.server.flushed import nft, ruleset

from fastcni.daemon.backoff import MAX_DELAY_S
from fastcni.kernel import wire
from fastcni.server.restoring import legacy_watch, namespace_watch, replay
from fastcni.server.restoring.iptables_watch import IptablesWatch
from fastcni.server.restoring.restore_states import (
    BEGUN,
    COMPLETE,
    CURRENT,
    DELAYED,
    DROPPED,
    ENDED,
    FAULT,
    IDLE,
    INTERRUPTED,
    LOST,
    MAYBE_LOST,
    MAYBE_NEEDED,
    MESSAGE,
    NEEDED,
    NOT_STARTED,
    PARTIAL,
    PRESENT,
    READ,
    READING,
    REFUSED,
    RESTORED,
    RUNNING,
    STALE,
    SUSPECT,
    SUSPICIOUS,
    TOO_SOON,
    TRANSITIONS,
    VALID,
    Machine,
)
from fastcni.server.restoring.table_mirror import TableMirror
from fastcni.testing.witnesses import eventually

POD_JUMP = "rule ip nat POSTROUTING jump CNI-0123456789abcdef01234567"
SHARED_JUMP = "rule ip nat POSTROUTING jump CNI-HOSTPORT-MASQ"
LATER_S = 60.0                  # longer than any delay of the server
Restored, Failed = namedtuple("Restored", "attachments plugins failed"), namedtuple("Failed", "plugin")


def shows(*transitions):
    """Return a decorator for a test that must cause these transitions."""
    def mark(test):
        test.shows = transitions
        return test

    return mark


@pytest.fixture(autouse=True)
def transitions_are_shown(request, monkeypatch):
    seen, on = set(), Machine.on

    def note(self, event):
        seen.add((self.state, event))
        on(self, event)

    monkeypatch.setattr(Machine, "on", note)
    yield
    missing = set(getattr(request.function, "shows", ())) - seen
    assert not missing, missing


def test_every_transition_has_a_test():
    shown = {each for test in globals().values() for each in getattr(test, "shows", ())}
    assert shown == set(TRANSITIONS)


def attend(watch, after=0.0):
    watch.attend(time.monotonic() + after)


@pytest.fixture
def before(watch, net, pod):
    """Return the ruleset with one pod. The watch has already read it."""
    net.add(pod, mapping())
    attend(watch)
    return ruleset()


@pytest.fixture
def delayed(watch, before):
    """Flush the ruleset immediately after a restore, so that the next restore is delayed. Return the watch."""
    watch.backoff.until = time.monotonic() + LATER_S / 2
    nft("flush ruleset")
    attend(watch)
    assert watch.mirror.machine.state == DELAYED and ruleset() == []
    return watch


# -- the copy ----------------------------------------------------------------------------------------------

@shows((STALE, READ))
def test_a_watch_begins_with_reading(make_watch, net, pod):
    net.add(pod, mapping())
    watch = make_watch()
    assert watch.copy.state == STALE and watch.due == 0.0
    attend(watch)
    assert watch.copy.state == VALID
    assert 0 < watch.due - time.monotonic() <= legacy_watch.POLL_S         # it polls because pods have rules
    assert any(watch.mirror.present.values())


@shows((STALE, INTERRUPTED))
def test_a_reading_that_changes_interrupt_is_repeated(make_watch, monkeypatch):
    def interrupted(self, sock):
        raise wire.NetlinkError(errno.EINTR, "list")

    watch = make_watch()
    with monkeypatch.context() as patch:
        patch.setattr(TableMirror, "read", interrupted)
        attend(watch)
    assert watch.copy.state == STALE and 0 < watch.due - time.monotonic() <= namespace_watch.RETRY_S
    attend(watch)
    assert watch.copy.state == VALID and watch.log.lines == []


def drop_some(watch):
    """Cause more announcements than fit into the buffer of the watch's socket."""
    watch.sock.setsockopt(1, 8, 1)              # the smallest buffer: SO_RCVBUF of SOL_SOCKET
    run("nft", "-f", "-", stdin="add table inet other\n" + "".join(
        f"add chain inet other chain-{n}-{'x' * 100}\n" for n in range(300)))
    nft("delete table inet other")


@shows((STALE, DROPPED))
def test_announcements_that_are_dropped_before_the_first_reading_are_read(make_watch, net, pod):
    watch = make_watch()
    net.add(pod, mapping())
    drop_some(watch)
    attend(watch)
    assert watch.copy.state == VALID and any(watch.mirror.present.values())


@shows((VALID, DROPPED), (STALE, READ))
def test_a_flush_among_dropped_announcements_is_restored(watch, before):
    nft("flush ruleset")
    drop_some(watch)
    attend(watch)
    assert watch.copy.state == VALID and ruleset() == before


def fail(*_):
    raise KeyError("made up")


@shows((STALE, FAULT))
def test_after_a_fault_in_the_first_reading_it_is_repeated(make_watch, monkeypatch):
    watch = make_watch()
    with monkeypatch.context() as patch:
        patch.setattr(IptablesWatch, "read", fail)
        watch.restoring._attend(watch, time.monotonic())
    assert watch.copy.state == STALE and [event for event, *_ in watch.log.lines] == ["server_fault"]
    assert watch.due < inf              # the next notification may be late, and the watch would miss a flush until then
    attend(watch)
    assert watch.copy.state == VALID


@shows((VALID, FAULT), (STALE, READ))
def test_announcements_lost_by_a_fault_are_replaced_by_a_reading(watch, before, monkeypatch):
    nft("flush ruleset")
    with monkeypatch.context() as patch:
        patch.setattr(TableMirror, "receive", fail)
        watch.restoring._attend(watch, time.monotonic())
    assert watch.copy.state == STALE and ruleset() == []
    attend(watch)
    assert ruleset() == before


# -- our own tables ----------------------------------------------------------------------------------------

@shows((CURRENT, MESSAGE), (PARTIAL, MESSAGE), (PARTIAL, COMPLETE))
def test_a_transaction_that_removes_nothing_needs_no_restore(watch, net, pod):
    net.add(pod, mapping())
    attend(watch)
    assert watch.mirror.machine.state == CURRENT and watch.log.lines == []


@shows((PARTIAL, SUSPICIOUS), (SUSPECT, RESTORED))
def test_a_flush_of_our_tables_is_restored(watch, before):
    nft("flush ruleset")
    attend(watch)
    assert watch.mirror.machine.state == CURRENT and ruleset() == before


@shows((SUSPECT, MESSAGE))
def test_a_transaction_behind_a_flush_is_followed_before_the_flush_is_restored(watch, net, before, pod_netns):
    nft("flush ruleset")
    net.add(pod_netns(), mapping(8081))
    attend(watch)
    assert watch.mirror.machine.state == CURRENT and len(elements("pods4")) == 2


def announcements(watch):
    """Return the announcements that wait in the watch's socket. The watch does not receive them."""
    found = []
    wire.drain(watch.sock, lambda *message: found.append(message), fail)
    return found


@shows((PARTIAL, READING))
def test_a_transaction_whose_end_was_dropped_is_replaced_by_a_reading(watch, before):
    nft("flush ruleset")
    for message in announcements(watch)[:3]:
        watch._receive(*message)
    assert watch.mirror.machine.state == PARTIAL
    attend(watch)
    assert watch.mirror.machine.state == PARTIAL and ruleset() == []        # further announcements may follow
    watch.copy.on(DROPPED)
    attend(watch)
    assert watch.mirror.machine.state == CURRENT and ruleset() == before


@shows((CURRENT, READING), (SUSPECT, RESTORED))
def test_a_reading_that_shows_nothing_missing_changes_nothing(watch, before):
    watch.copy.on(DROPPED)
    attend(watch)
    assert watch.mirror.machine.state == CURRENT
    assert ruleset() == before
    assert watch.log.lines == []


@shows((SUSPECT, READING))
def test_a_flush_that_was_announced_before_others_were_dropped_is_restored(watch, before):
    watch.copy.on(DROPPED)
    nft("flush ruleset")
    attend(watch)
    assert ruleset() == before


@shows((SUSPECT, TOO_SOON), (DELAYED, TOO_SOON), (DELAYED, RESTORED))
def test_a_flush_soon_after_another_is_restored_when_its_delay_is_over(delayed, before):
    assert delayed.due == delayed.backoff.until
    attend(delayed)
    assert delayed.mirror.machine.state == DELAYED
    assert ruleset() == []
    assert delayed.due == delayed.backoff.until
    attend(delayed, LATER_S)
    assert delayed.mirror.machine.state == CURRENT and ruleset() == before


@shows((DELAYED, MESSAGE))
def test_a_transaction_during_the_delay_is_followed(delayed, net, before, pod_netns):
    net.add(pod_netns(), mapping(8081))
    attend(delayed)
    assert delayed.mirror.machine.state == DELAYED
    assert len(elements("pods4")) == 1
    attend(delayed, LATER_S)
    assert len(elements("pods4")) == 2


@shows((DELAYED, READING))
def test_a_reading_during_the_delay_does_not_end_it(delayed, before):
    delayed.copy.on(DROPPED)
    attend(delayed)
    assert delayed.mirror.machine.state == DELAYED and ruleset() == []
    attend(delayed, LATER_S)
    assert ruleset() == before


@shows((SUSPECT, REFUSED), (DELAYED, REFUSED))
def test_a_refused_restore_is_tried_again_after_a_delay(watch, before):
    """Another program has made a table of the same name, in which a set of the server's name has another type."""
    run("nft", "-f", "-", stdin="delete table inet fastcni\nadd table inet fastcni\n"
                                "add set inet fastcni pods4 { type inet_service; }\n")
    attend(watch)
    assert watch.mirror.machine.state == DELAYED and watch.due > time.monotonic()
    attend(watch, LATER_S)
    assert [event for event, _ in watch.log.lines] == ["restore_failed"] * 2
    nft("delete table inet fastcni")
    attend(watch, LATER_S)
    assert watch.mirror.machine.state == CURRENT and ruleset() == before


# -- replays -----------------------------------------------------------------------------------------------

class Runs:
    """Is in the place of runtime.restore.restore(). It counts its calls, each of which waits until `go_on` is set."""

    def __init__(self):
        self.count, self.go_on, self.failed = 0, threading.Event(), ()
        self.go_on.set()

    def __call__(self, deleted_at):
        self.count += 1
        assert self.go_on.wait(30)
        return Restored(1, 1, self.failed)


@pytest.fixture
def runs():
    runs = Runs()
    yield runs
    runs.go_on.set()


@pytest.fixture
def replaying(make_watch, runs):
    """Return a NamespaceWatch that can replay. Its namespace has a jump of one pod and a jump of all pods."""
    for command in ("table ip nat", "chain ip nat POSTROUTING", "chain ip nat CNI-0123456789abcdef01234567",
                  "chain ip nat CNI-HOSTPORT-MASQ", POD_JUMP, SHARED_JUMP):
        nft(f"add {command}")
    watch = make_watch(runs)
    attend(watch)
    assert watch.replay.machine.state == IDLE
    return watch


def delete_jump(command):
    lines = run("nft", "-a", "list", "ruleset").splitlines()
    target = command.split()[-1]
    handle = next(line.rpartition(" ")[2] for line in lines if f"jump {target}" in line)
    nft(f"delete rule ip nat POSTROUTING handle {handle}")


def is_idle(watch):
    return eventually(lambda: watch.replay.machine.state == IDLE)


@shows((IDLE, MAYBE_LOST), (MAYBE_NEEDED, BEGUN), (RUNNING, ENDED))
def test_a_missing_jump_of_a_pod_causes_a_replay_after_a_longer_delay(replaying, runs):
    delete_jump(POD_JUMP)
    started = time.monotonic()
    replaying.attend(started)
    assert replaying.replay.machine.state == MAYBE_NEEDED and replaying.due == started + replay.DELAY_AFTER_DEL_S
    attend(replaying, LATER_S)
    assert is_idle(replaying)
    assert runs.count == 1
    assert replaying.due == 0.0
    assert [event for event, _ in replaying.log.lines] == ["rules_replayed"]


@shows((IDLE, LOST), (NEEDED, BEGUN), (RUNNING, ENDED))
def test_a_missing_jump_of_all_pods_causes_a_replay_soon(replaying, runs):
    delete_jump(SHARED_JUMP)
    started = time.monotonic()
    replaying.attend(started)
    assert replaying.replay.machine.state == NEEDED and replaying.due == started + replay.DELAY_S
    attend(replaying, LATER_S)
    assert is_idle(replaying) and runs.count == 1


@shows((IDLE, LOST), (NEEDED, BEGUN))
def test_a_server_that_starts_replays_once(make_watch, runs):
    watch = make_watch(runs, at_start=True)
    for _ in range(3):
        attend(watch, LATER_S)
        attend(watch, 2 * LATER_S)
        assert is_idle(watch)
    assert runs.count == 1 and [event for event, _ in watch.log.lines] == ["start_replay_done"]


@shows((MAYBE_NEEDED, LOST))
def test_a_need_of_all_pods_shortens_the_delay(replaying):
    delete_jump(POD_JUMP)
    started = time.monotonic()
    replaying.attend(started)
    nft("add table inet firewalld")
    replaying.attend(started + replay.DELAY_S / 2)
    assert replaying.replay.machine.state == NEEDED and replaying.due == started + replay.DELAY_S


@shows((MAYBE_NEEDED, PRESENT), (NEEDED, PRESENT))
def test_a_jump_that_is_there_again_needs_no_replay(replaying, runs):
    for jump in (POD_JUMP, SHARED_JUMP):
        delete_jump(jump)
        attend(replaying)
        nft(f"add {jump}")
        attend(replaying, LATER_S)
        assert replaying.replay.machine.state == IDLE and runs.count == 0


@shows((RUNNING, ENDED))
def test_a_loss_during_a_replay_causes_another_one(replaying, runs):
    runs.go_on.clear()
    delete_jump(SHARED_JUMP)
    attend(replaying)
    attend(replaying, LATER_S)
    assert eventually(lambda: runs.count == 1) and replaying.replay.running
    delete_jump(POD_JUMP)
    attend(replaying, LATER_S)
    assert replaying.replay.running and replaying.mirror.keep_deletions
    runs.go_on.set()
    assert is_idle(replaying)
    attend(replaying, LATER_S)
    assert replaying.replay.machine.state == MAYBE_NEEDED and not replaying.mirror.keep_deletions
    attend(replaying, 2 * LATER_S)
    assert is_idle(replaying) and runs.count == 2


@pytest.mark.parametrize("plugin, count, errors", [("firewall", 2, []), ("", 1, ["rules_replayed"])])
def test_a_replay_in_which_a_plugin_failed_is_repeated(replaying, runs, plugin, count, errors):
    """Once, a pod stayed cut off if firewalld ended during a replay. Once, this was an error in the log."""
    runs.failed = (Failed(plugin),)
    delete_jump(SHARED_JUMP)
    attend(replaying)
    attend(replaying, LATER_S)
    assert is_idle(replaying) and runs.count == 1
    runs.failed = ()
    for _ in range(2):
        attend(replaying, LATER_S)
        attend(replaying, 2 * LATER_S)
        assert is_idle(replaying) and (runs.count, replaying.log.errors) == (count, errors)


def test_a_replay_that_fails_again_and_again_is_given_up(replaying, runs):
    runs.failed = (Failed("firewall"),)
    delete_jump(SHARED_JUMP)
    for number in range(2 * replay.MAX_REPEATS):
        attend(replaying, number * LATER_S)
        attend(replaying, (number + 1) * LATER_S)
        assert is_idle(replaying)
    assert runs.count == 1 + replay.MAX_REPEATS == 1 + len(replaying.log.errors)    # the first failure is a warning


@pytest.mark.parametrize("lacking", ["threads", "descriptors"])
@shows((RUNNING, NOT_STARTED))
def test_a_replay_that_cannot_be_started_is_tried_again(replaying, runs, monkeypatch, lacking):
    """Once, if no descriptor was free, the server never tried this replay again."""
    def refuse(*_, **__):
        raise RuntimeError("can't start new thread") if lacking == "threads" else OSError(errno.EMFILE, "made up")

    delete_jump(SHARED_JUMP)
    attend(replaying)
    with monkeypatch.context() as patch:
        patch.setattr(*((replay, "Thread") if lacking == "threads" else (os, "dup")), refuse)
        replaying.restoring._attend(replaying, time.monotonic() + LATER_S)
    assert replaying.replay.machine.state == IDLE and 0 < replaying.due - time.monotonic() <= MAX_DELAY_S
    assert [event for event, _ in replaying.log.lines] == ["replay_failed"]
    attend(replaying, LATER_S)
    attend(replaying, 2 * LATER_S)
    assert is_idle(replaying) and runs.count == 1
