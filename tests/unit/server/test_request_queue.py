"""The request queue: which request runs next, which requests wait, and which are refused."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcni._run_token import give_token, take_token
from fastcni.kernel import waiting
from fastcni.server.requests import slots
from fastcni.server.requests.request_queue import DEFERRED_COMMANDS, OVERTAKEN_S, Call, RequestQueue
from fastcni.spec.errors import CniError

POD, OTHER = ("c1", "eth0"), ("c2", "eth0")
CONNECTION = SimpleNamespace(fd=-1)


def queue_of(workers=100, busy=100, **more):
    return RequestQueue(workers, busy, **more)


def call_of(command, key, light=False):
    return Call(key, command, CONNECTION, None, light)


def put(queue, *calls):
    made = [call_of(*each) for each in calls]
    assert all(queue.put(call) for call in made)
    return made


def take(queue):
    """Return the next call, or None if no call may run. The call then runs until the test ends it."""
    running = queue.take()
    return running and running.call


def commands(queue):
    """Take all calls that may run. Return their commands in this order."""
    taken = []
    while call := take(queue):
        taken.append(call.command)
    return taken


def adds(count):
    return [("ADD", (f"a{number}", "eth0")) for number in range(count)]


# -- the order ---------------------------------------------------------------------------------------------

def test_requests_for_one_attachment_wait_for_each_other():
    queue = queue_of()
    add, delete, _ = put(queue, ("ADD", POD), ("DEL", POD), ("ADD", POD))
    running = queue.take()
    assert running.call is add and queue.take() is None
    queue.done(running)
    running = queue.take()
    assert running.call is delete and queue.take() is None
    queue.done(running)
    assert commands(queue) == ["ADD"] and queue.waiting == 0


def test_different_attachments_do_not_wait():
    queue = queue_of()
    put(queue, ("ADD", POD), ("ADD", OTHER), ("ADD", ("c1", "eth1")))
    assert commands(queue) == ["ADD"] * 3 and queue.running == 3


def test_requests_without_an_attachment_do_not_wait():
    queue = queue_of()
    put(queue, ("GC", None), ("GC", None), ("GC", None))
    assert commands(queue) == ["GC", "GC", "GC"]


def test_add_goes_before_del_and_gc():
    queue = queue_of()
    put(queue, ("DEL", POD), ("GC", None), ("ADD", OTHER), ("CHECK", ("c3", "eth0")))
    assert commands(queue) == ["ADD", "CHECK", "DEL", "GC"]


def test_one_add_at_most_goes_before_a_del_that_has_waited_long():
    """Once, no DEL ran while ADDs continued to arrive."""
    queue = queue_of()
    dels = put(queue, *[("DEL", (f"d{number}", "eth0")) for number in range(3)])
    put(queue, *adds(6))
    assert take(queue).command == "ADD"
    for call in dels:
        call.arrived -= 2 * OVERTAKEN_S
    assert commands(queue) == ["DEL", "ADD", "DEL", "ADD", "DEL", "ADD", "ADD", "ADD"]


def test_light_requests_go_first():
    queue = queue_of()
    put(queue, ("ADD", POD), ("DEL", OTHER), ("STATUS", None, True))
    assert commands(queue) == ["STATUS", "ADD", "DEL"] and queue.running == 3


def test_a_del_that_came_before_an_add_of_its_attachment_stays_before_it():
    queue = queue_of()
    delete, _ = put(queue, ("DEL", POD), ("ADD", POD))
    assert take(queue) is delete and queue.take() is None


# -- the limits --------------------------------------------------------------------------------------------

def test_one_light_request_runs_beside_those_that_the_workers_run():
    queue = queue_of(workers=2)
    put(queue, *adds(3))
    assert commands(queue) == ["ADD", "ADD"]
    put(queue, ("VERSION", None, True), ("STATUS", None, True))
    assert commands(queue) == ["VERSION"] and queue.waiting == 2


def test_a_request_that_waits_lets_another_one_work_and_wakes_a_worker_for_it():
    woken = []
    queue = queue_of(workers=4, busy=1, wake=lambda: woken.append(1))
    put(queue, *adds(3))
    first = queue.take()
    assert queue.take() is None and not woken
    queue.begin_wait(first, waiting.PROGRAM)
    second = queue.take()
    assert second
    assert queue.take() is None
    assert len(woken) == 1
    queue.end_wait(first)               # two calls run now, so a third one runs only after both have ended
    queue.done(second)
    assert queue.take() is None
    queue.done(first)
    assert queue.take()


def test_a_thread_reports_the_begin_and_the_end_of_its_wait():
    queue = queue_of()
    put(queue, *adds(1))
    running = queue.take()
    take_token()
    try:
        running.pause(waiting.PROGRAM)
        assert (queue.working, running.kind) == (0, waiting.PROGRAM)
        running.resume()
        assert (queue.working, running.kind) == (1, "")
    finally:
        give_token()


def test_a_request_that_hangs_in_a_wait_adds_no_place_to_work():
    """A call that waits does no work, so the queue replaces it immediately. The queue replaces a call that hangs only
    if this call is not in a wait."""
    queue = queue_of(workers=4, busy=1)
    put(queue, *adds(3))
    first = queue.take()
    queue.begin_wait(first, waiting.PROGRAM)
    first.since -= 2 * slots.HANGS_S
    second = queue.take()
    assert second and queue.take() is None and queue.working == 1
    queue.done(first)
    assert queue.working == 1
    queue.done(second)
    assert queue.working == 0


def test_a_wait_wakes_no_worker_if_no_request_waits():
    woken = []
    queue = queue_of(wake=lambda: woken.append(1))
    put(queue, *adds(1))
    queue.begin_wait(queue.take(), waiting.PROGRAM)
    assert woken == []


def test_a_request_is_awaited_while_another_one_of_its_attachment_waits():
    """A request of hot plug ends early if a DEL of its pod waits."""
    queue = queue_of(timeout_s=10)
    put(queue, ("UPDATE", POD))
    queue.take()
    assert not queue.is_awaited(POD)
    (delete,) = put(queue, ("DEL", POD))
    assert queue.is_awaited(POD) and not queue.is_awaited(OTHER)
    delete.arrived -= 11
    assert queue.expired() == [delete]
    assert not queue.is_awaited(POD)


def test_workers_wake_when_a_request_has_waited_too_long_or_another_one_begins_to_hang():
    queue = queue_of(workers=1, busy=1, timeout_s=0.5)
    put(queue, ("ADD", POD), ("ADD", OTHER))
    running = queue.take()
    assert queue.next_deadline() <= 0.5
    queue.timeout_s = 10
    assert queue.next_deadline() <= slots.HANGS_S
    running.since -= 0.9 * slots.HANGS_S
    assert queue.next_deadline() <= 0.1 * slots.HANGS_S
    running.since -= 2 * slots.HANGS_S
    assert 9 < queue.next_deadline() <= 10


def test_a_request_that_hangs_occupies_no_worker(monkeypatch):
    queue = queue_of(workers=1, busy=1)
    put(queue, *adds(slots.MAX_HANGING + 3))
    hanging = [queue.take()]
    assert queue.take() is None and 0 < queue.next_deadline() <= slots.HANGS_S
    threads = queue.wanted_threads()
    for each in hanging:                # the queue adds one call for each call that hangs
        each.since -= 2 * slots.HANGS_S
        if another := queue.take():
            hanging.append(another)
    assert len(hanging) == queue.running == 1 + slots.MAX_HANGING
    assert queue.wanted_threads() == threads + slots.MAX_HANGING


@pytest.mark.parametrize(("workers", "busy"), [(1, 2), (2, 1)])
def test_either_limit_alone_counts_no_request_that_hangs(workers, busy):
    queue = queue_of(workers=workers, busy=busy)
    put(queue, *adds(2))
    hanging = queue.take()
    assert queue.take() is None
    hanging.since -= 2 * slots.HANGS_S
    assert queue.take()


@pytest.mark.parametrize(("kind", "refusal"), [(waiting.PROGRAM, waiting.Crowded), (waiting.BUS, waiting.Crowded),
                                               (waiting.LOCK, CniError), (waiting.NAMESPACE_LOCK, None)])
def test_a_network_with_a_quarter_of_the_workers_stuck_gets_no_more(kind, refusal):
    queue = queue_of(workers=8)
    put(queue, *adds(4))
    stuck, other = [queue.take(), queue.take()], queue.take()
    for each in (*stuck, other):
        queue.begin_wait(each, kind)
        each.since -= 2 * slots.STUCK_S
    late = queue.take()
    for each in (*stuck, late):
        each.call.network = "net-a"
    other.admit(kind)                   # this call is of another network
    if refusal:
        with pytest.raises(refusal):
            late.admit(kind)
    else:
        late.admit(kind)
    queue.end_wait(stuck[0])
    late.admit(kind)


def test_a_full_queue_refuses_all_but_probes():
    queue = queue_of(size=2)
    first, _ = put(queue, ("ADD", POD), ("ADD", POD))
    assert not queue.put(call_of("ADD", OTHER))
    # the queue has one place again, because a running request is not in it
    assert take(queue) is first and queue.put(call_of("ADD", OTHER))
    assert not queue.put(call_of("ADD", OTHER)) and queue.put(call_of("VERSION", None), always=True)


def test_a_request_that_has_waited_too_long_leaves_and_frees_those_behind_it():
    queue = queue_of(timeout_s=10)
    first, second, third = put(queue, ("ADD", POD), ("DEL", POD), ("ADD", POD))
    running = queue.take()
    running.since -= 2 * slots.HANGS_S
    assert running.call is first
    assert queue.expired() == []
    assert 9 < queue.next_deadline() <= 10
    second.arrived -= 11
    assert queue.expired() == [second] and queue.waiting == 1
    queue.done(running)
    assert take(queue) is third and queue.next_deadline() is None


def test_a_call_that_has_waited_too_long_is_not_taken():
    queue = queue_of(timeout_s=10)
    late, in_time = put(queue, *adds(2))
    late.arrived -= 11
    assert queue.take() is None and queue.expired() == [late]
    assert take(queue) is in_time


def test_an_add_behind_a_del_that_has_left_is_next():
    """Once, after the caller of a DEL had left, no worker took the ADD that waited for this DEL."""
    queue = queue_of(timeout_s=10)
    _, delete, other, add = put(queue, ("ADD", POD), ("DEL", POD), ("DEL", OTHER), ("ADD", POD))
    queue.done(queue.take())
    delete.arrived -= 11
    assert queue.expired() == [delete]
    assert take(queue) is add
    assert take(queue) is other
    assert queue.take() is None


KEYS = st.sampled_from([None, "a", "b", "c"])
STEPS = st.lists(st.one_of(st.tuples(st.sampled_from(["ADD", "DEL", "GC", "CHECK"]), KEYS), st.just("take"),
                           st.integers(0, 5), st.just("expire")), max_size=60)


@given(STEPS)
def test_the_queue_agrees_with_a_list(steps):
    """The model is one list of all waiting calls, which is searched from its start."""
    queue, waiting, running = queue_of(size=8), [], []
    for step in steps:
        if step == "take":
            keys = {each.call.key for each in running}
            free = [call for number, call in enumerate(waiting) if call.key is None
                    or call.key not in keys | {earlier.key for earlier in waiting[:number]}]
            taken = queue.take()
            if not free:
                assert taken is None
                continue
            assert taken.call in free
            assert taken.call.command not in DEFERRED_COMMANDS or all(
                call.command in DEFERRED_COMMANDS for call in free)
            waiting.remove(taken.call)
            running.append(taken)
        elif step == "expire":
            if waiting:
                waiting[0].arrived -= 100
                assert queue.expired() == [waiting.pop(0)]
        elif isinstance(step, int):
            if step < len(running):
                queue.done(running.pop(step))
        else:
            call = call_of(*step)
            assert queue.put(call) == (len(waiting) < 8)
            waiting += [call] * (len(waiting) < 8)
        assert (queue.waiting, queue.running) == (len(waiting), len(running))
