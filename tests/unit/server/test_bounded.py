"""The server's records of the last requests stay bounded while several threads add to them."""

import sys
import threading
from types import SimpleNamespace

import pytest
from unit.server.flushed import Log

from fastcni.server.bounded import forget_oldest
from fastcni.server.records import retried_deletes
from fastcni.server.requests import configurations, facts

ROUNDS, THREADS = 3000, 8


def of_facts(patch):
    """Return (a function that adds a key, a function that returns the number of keys)."""
    patch.setattr(facts, "MAX_PAIRS", 8)
    it = SimpleNamespace(pairs={})
    return lambda key: facts.Facts.keep_pair(it, key, None), it.pairs


def of_deletes(patch):
    patch.setattr(retried_deletes, "MAX_FAILED", 8)
    it = retried_deletes.RetriedDeletes(Log())

    def add(key):
        call = SimpleNamespace(command="DEL", attachment=("net", str(key), "eth0"),
                               message=SimpleNamespace(plugin="bridge", id=""))
        it.note(SimpleNamespace(call=call, outcome="11"))
    return add, it.failed


def of_configurations(patch):
    patch.setattr(configurations, "MAX_KNOWN", 8)
    it = configurations.Configurations()
    return lambda key: it._keep(str(key).encode(), None), it.known


@pytest.mark.parametrize("make", [of_facts, of_deletes, of_configurations])
def test_what_is_kept_is_bounded_while_threads_add_to_it(make, monkeypatch):
    """Once, an iterator searched for the oldest entry. When another thread added one meanwhile, it raised RuntimeError,
    and the request failed with an internal error."""
    add, kept = make(monkeypatch)
    failed = []

    def work(number):
        try:
            for at in range(ROUNDS):
                add((number, at))
        except Exception as e:
            failed.append(e)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failed and len(kept) <= 8 + THREADS


@pytest.mark.parametrize("make", [of_facts, of_deletes, of_configurations])
def test_a_writer_at_any_step_makes_no_error(make, monkeypatch):
    """The RuntimeError of the other test occurs only if threads switch at one step of the interpreter. In half of all
    runs they do not, so this test adds an entry at each step."""
    add, kept = make(monkeypatch)
    for key in range(8):
        add(key)

    def write(frame, event, arg):
        frame.f_trace_opcodes = True
        kept[object()] = None           # as another thread would between two steps
        return write

    before = sys.gettrace()
    sys.settrace(write)
    try:
        add("more")
    finally:
        sys.settrace(before)
    assert len(kept) > 8


def test_the_oldest_are_forgotten():
    known = dict.fromkeys(range(100))
    forget_oldest(known, 100)
    assert len(known) == 100
    known[100] = None
    forget_oldest(known, 100, 12)
    assert list(known) == list(range(13, 101))
