"""Background threads. Each job runs once, in the thread that became free last."""

import os
import threading
from queue import SimpleQueue

import pytest
from unit.server.flushed import Log

from fastcni.daemon.background import Background
from fastcni.kernel import netns
from fastcni.testing.witnesses import eventually


@pytest.fixture
def background():
    home = netns.open_own()
    yield Background(2, home, Log())
    os.close(home)


class Held:
    """A job that runs until the test calls release(). begun receives the number of its thread."""

    def __init__(self):
        self.begun, self.ended = SimpleQueue(), threading.Event()

    def __call__(self):
        self.begun.put(threading.get_ident())
        assert self.ended.wait(60)

    def release(self):
        self.ended.set()


def test_the_thread_that_became_free_last_runs_the_next_job(background):
    """Once, all free threads waited in one queue, the oldest first, and each job woke two of them."""
    first, second = Held(), Held()
    background(first)
    background(second)
    threads = [first.begun.get(timeout=60), second.begun.get(timeout=60)]
    assert len(set(threads)) == 2
    second.release()
    assert eventually(lambda: len(background.free) == 1)
    first.release()
    assert eventually(lambda: len(background.free) == 2)
    ran = SimpleQueue()
    for _ in range(3):
        background(lambda: ran.put(threading.get_ident()))
        assert ran.get(timeout=60) == threads[0]
        assert eventually(lambda: len(background.free) == 2)


def test_jobs_for_which_no_thread_is_free_wait_and_run_in_their_order(background):
    jobs, ran = [Held(), Held()], SimpleQueue()
    for job in jobs:
        background(job)
        job.begun.get(timeout=60)
    for number in range(5):
        background(ran.put, number)
    assert ran.empty() and background.size == 2
    jobs[0].release()
    assert [ran.get(timeout=60) for _ in range(5)] == [0, 1, 2, 3, 4]
    jobs[1].release()


def test_a_job_whose_socket_was_closed_ends_no_thread(background):
    def fail():
        raise OSError("made up")

    ran = threading.Event()
    background(fail)
    assert eventually(lambda: len(background.free) == 1)
    background(ran.set)
    assert ran.wait(60) and background.size == 1


@pytest.mark.parametrize("threads", [2, 0], ids=["in a thread", "without a thread"])
def test_a_job_with_a_fault_is_logged_and_ends_no_thread(background, threads):
    """Once, each such fault ended a thread, and no other thread replaced it. When none was left, no DEL could delete
    its link."""
    if not threads:
        background._start_one = lambda job: False
    for _ in range(3):
        background(lambda: 1 // 0)
        assert eventually(lambda: len(background.free) == background.size == bool(threads))
    assert background.log.lines == [("server_fault", {})] * 3
    ran = threading.Event()
    background(ran.set)
    assert ran.wait(60)
