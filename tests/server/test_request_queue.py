"""The queue: who is next, who has to wait, and who may not."""

from hypothesis import given
from hypothesis import strategies as st

from fastcni.server.request_queue import LATER, OVERTAKEN_S, Call, RequestQueue

POD, OTHER = ("net", "c1", "eth0"), ("net", "c2", "eth0")


def put(queue, *calls):
    made = [Call(key, command, None) for command, key in calls]
    assert all(queue.put(call) for call in made)
    return made


def commands(queue):
    """All that can run, as they are taken."""
    taken = []
    while call := queue.take():
        taken.append(call)
    return [call.command for call in taken]


def test_requests_for_one_attachment_wait_for_each_other():
    queue = RequestQueue()
    add, delete, _ = put(queue, ("ADD", POD), ("DEL", POD), ("ADD", POD))
    assert queue.take() is add and queue.take() is None
    queue.done(add)
    assert queue.take() is delete and queue.take() is None
    queue.done(delete)
    assert queue.take().command == "ADD" and queue.take() is None and queue.waiting == 0


def test_different_attachments_do_not_wait():
    queue = RequestQueue()
    put(queue, ("ADD", POD), ("ADD", OTHER), ("ADD", ("other net", "c1", "eth0")), ("ADD", ("net", "c1", "eth1")))
    assert commands(queue) == ["ADD"] * 4 and queue.running == 4


def test_what_is_about_no_attachment_waits_for_nobody():
    queue = RequestQueue()
    put(queue, ("VERSION", None), ("STATUS", None), ("VERSION", None))
    assert commands(queue) == ["VERSION", "STATUS", "VERSION"]


def test_add_goes_before_del_and_gc():
    queue = RequestQueue()
    put(queue, ("DEL", POD), ("GC", None), ("ADD", OTHER), ("CHECK", ("net", "c3", "eth0")))
    assert commands(queue) == ["ADD", "CHECK", "DEL", "GC"]


def test_a_del_that_has_waited_long_is_passed_by_one_add_at_most():
    """Under steady ADDs no DEL was ever run."""
    queue = RequestQueue()
    dels = put(queue, *[("DEL", ("net", f"d{n}", "eth0")) for n in range(3)])
    put(queue, *[("ADD", ("net", f"a{n}", "eth0")) for n in range(6)])
    assert queue.take().command == "ADD"
    for call in dels:
        call.arrived -= 2 * OVERTAKEN_S
    assert commands(queue) == ["DEL", "ADD", "DEL", "ADD", "DEL", "ADD", "ADD", "ADD"]


def test_what_needs_nearly_nothing_goes_first_and_can_be_taken_alone():
    queue = RequestQueue()
    put(queue, ("ADD", POD), ("DEL", OTHER))
    light = Call(("lo", "c1", "lo"), "ADD", None, light=True)
    assert queue.take(light=True) is None and queue.put(light)
    assert queue.take(light=True) is light and queue.take(light=True) is None
    assert commands(queue) == ["ADD", "DEL"] and queue.running == 3


def test_a_del_that_came_before_an_add_of_its_own_stays_before_it():
    queue = RequestQueue()
    delete, _ = put(queue, ("DEL", POD), ("ADD", POD))
    assert queue.take() is delete and queue.take() is None


def test_a_full_desk_takes_nobody_in():
    queue = RequestQueue(room=2)
    first, _ = put(queue, ("ADD", POD), ("ADD", POD))
    assert not queue.put(Call(OTHER, "ADD", None))
    assert queue.take() is first and queue.put(Call(OTHER, "ADD", None))      # who runs takes no room


def test_who_has_waited_too_long_leaves_and_frees_what_came_after():
    queue = RequestQueue(patience=10)
    first, second, third = put(queue, ("ADD", POD), ("DEL", POD), ("ADD", POD))
    assert queue.take() is first and queue.impatient() == [] and 9 < queue.next_deadline() <= 10
    second.arrived -= 11
    assert queue.impatient() == [second] and queue.waiting == 1
    queue.done(first)
    assert queue.take() is third and queue.next_deadline() is None


def test_an_add_behind_a_del_that_has_left_is_next():
    """The DEL was looked for in the line of DELs only, after the line of ADDs: nobody took what it freed."""
    queue = RequestQueue(patience=10)
    running, delete, other, add = put(queue, ("ADD", POD), ("DEL", POD), ("DEL", OTHER), ("ADD", POD))
    assert queue.take() is running
    queue.done(running)
    delete.arrived -= 11
    assert queue.impatient() == [delete]
    assert queue.take() is add and queue.take() is other and queue.take() is None


KEYS = st.sampled_from([None, "a", "b", "c"])
STEPS = st.lists(st.one_of(st.tuples(st.sampled_from(["ADD", "DEL", "GC", "CHECK"]), KEYS), st.just("take"),
                           st.integers(0, 5), st.just("tired")), max_size=60)


@given(STEPS)
def test_the_desk_does_what_a_list_would(steps):
    """Against a model: all that waits in one list, looked through from the start each time."""
    queue, waiting, running = RequestQueue(room=8), [], []
    for step in steps:
        if step == "take":
            free = [c for i, c in enumerate(waiting) if c.key is None
                    or c.key not in {r.key for r in running} | {w.key for w in waiting[:i]}]
            taken = queue.take()
            if not free:
                assert taken is None
                continue
            assert taken in free and (taken.command not in LATER or all(c.command in LATER for c in free))
            waiting.remove(taken)
            running.append(taken)
        elif step == "tired":
            if waiting:
                waiting[0].arrived -= 100
                assert queue.impatient() == [waiting.pop(0)]
        elif isinstance(step, int):
            if step < len(running):
                queue.done(running.pop(step))
        else:
            call = Call(step[1], step[0], None)
            assert queue.put(call) == (len(waiting) < 8)
            waiting += [call] * (len(waiting) < 8)
        assert (queue.waiting, queue.running) == (len(waiting), len(running))
