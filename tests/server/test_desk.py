"""The desk: who is next, who has to wait, and who may not."""

from hypothesis import given
from hypothesis import strategies as st

from fastcni.server.desk import LATER, OVERTAKEN_S, Call, Desk

POD, OTHER = ("net", "c1", "eth0"), ("net", "c2", "eth0")


def put(desk, *calls):
    made = [Call(key, command, None) for command, key in calls]
    assert all(desk.put(call) for call in made)
    return made


def commands(desk):
    """All that can run, as they are taken."""
    taken = []
    while call := desk.take():
        taken.append(call)
    return [call.command for call in taken]


def test_requests_for_one_attachment_wait_for_each_other():
    desk = Desk()
    add, delete, _ = put(desk, ("ADD", POD), ("DEL", POD), ("ADD", POD))
    assert desk.take() is add and desk.take() is None
    desk.done(add)
    assert desk.take() is delete and desk.take() is None
    desk.done(delete)
    assert desk.take().command == "ADD" and desk.take() is None and desk.waiting == 0


def test_different_attachments_do_not_wait():
    desk = Desk()
    put(desk, ("ADD", POD), ("ADD", OTHER), ("ADD", ("other net", "c1", "eth0")), ("ADD", ("net", "c1", "eth1")))
    assert commands(desk) == ["ADD"] * 4 and desk.running == 4


def test_what_is_about_no_attachment_waits_for_nobody():
    desk = Desk()
    put(desk, ("VERSION", None), ("STATUS", None), ("VERSION", None))
    assert commands(desk) == ["VERSION", "STATUS", "VERSION"]


def test_add_goes_before_del_and_gc():
    desk = Desk()
    put(desk, ("DEL", POD), ("GC", None), ("ADD", OTHER), ("CHECK", ("net", "c3", "eth0")))
    assert commands(desk) == ["ADD", "CHECK", "DEL", "GC"]


def test_a_del_that_has_waited_long_is_passed_by_one_add_at_most():
    """Under steady ADDs no DEL was ever run."""
    desk = Desk()
    dels = put(desk, *[("DEL", ("net", f"d{n}", "eth0")) for n in range(3)])
    put(desk, *[("ADD", ("net", f"a{n}", "eth0")) for n in range(6)])
    assert desk.take().command == "ADD"
    for call in dels:
        call.arrived -= 2 * OVERTAKEN_S
    assert commands(desk) == ["DEL", "ADD", "DEL", "ADD", "DEL", "ADD", "ADD", "ADD"]


def test_what_needs_nearly_nothing_goes_first_and_can_be_taken_alone():
    desk = Desk()
    put(desk, ("ADD", POD), ("DEL", OTHER))
    light = Call(("lo", "c1", "lo"), "ADD", None, light=True)
    assert desk.take(light=True) is None and desk.put(light)
    assert desk.take(light=True) is light and desk.take(light=True) is None
    assert commands(desk) == ["ADD", "DEL"] and desk.running == 3


def test_a_del_that_came_before_an_add_of_its_own_stays_before_it():
    desk = Desk()
    delete, _ = put(desk, ("DEL", POD), ("ADD", POD))
    assert desk.take() is delete and desk.take() is None


def test_a_full_desk_takes_nobody_in():
    desk = Desk(room=2)
    first, _ = put(desk, ("ADD", POD), ("ADD", POD))
    assert not desk.put(Call(OTHER, "ADD", None))
    assert desk.take() is first and desk.put(Call(OTHER, "ADD", None))      # who runs takes no room


def test_who_has_waited_too_long_leaves_and_frees_what_came_after():
    desk = Desk(patience=10)
    first, second, third = put(desk, ("ADD", POD), ("DEL", POD), ("ADD", POD))
    assert desk.take() is first and desk.impatient() == [] and 9 < desk.next_deadline() <= 10
    second.arrived -= 11
    assert desk.impatient() == [second] and desk.waiting == 1
    desk.done(first)
    assert desk.take() is third and desk.next_deadline() is None


def test_an_add_behind_a_del_that_has_left_is_next():
    """The DEL was looked for in the line of DELs only, after the line of ADDs: nobody took what it freed."""
    desk = Desk(patience=10)
    running, delete, other, add = put(desk, ("ADD", POD), ("DEL", POD), ("DEL", OTHER), ("ADD", POD))
    assert desk.take() is running
    desk.done(running)
    delete.arrived -= 11
    assert desk.impatient() == [delete]
    assert desk.take() is add and desk.take() is other and desk.take() is None


KEYS = st.sampled_from([None, "a", "b", "c"])
STEPS = st.lists(st.one_of(st.tuples(st.sampled_from(["ADD", "DEL", "GC", "CHECK"]), KEYS), st.just("take"),
                           st.integers(0, 5), st.just("tired")), max_size=60)


@given(STEPS)
def test_the_desk_does_what_a_list_would(steps):
    """Against a model: all that waits in one list, looked through from the start each time."""
    desk, waiting, running = Desk(room=8), [], []
    for step in steps:
        if step == "take":
            free = [c for i, c in enumerate(waiting) if c.key is None
                    or c.key not in {r.key for r in running} | {w.key for w in waiting[:i]}]
            taken = desk.take()
            if not free:
                assert taken is None
                continue
            assert taken in free and (taken.command not in LATER or all(c.command in LATER for c in free))
            waiting.remove(taken)
            running.append(taken)
        elif step == "tired":
            if waiting:
                waiting[0].arrived -= 100
                assert desk.impatient() == [waiting.pop(0)]
        elif isinstance(step, int):
            if step < len(running):
                desk.done(running.pop(step))
        else:
            call = Call(step[1], step[0], None)
            assert desk.put(call) == (len(waiting) < 8)
            waiting += [call] * (len(waiting) < 8)
        assert (desk.waiting, desk.running) == (len(waiting), len(running))
