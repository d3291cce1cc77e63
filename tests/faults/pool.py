"""Child processes that share the work of a campaign and report while they work.

Each child asks for one case after another. Each child has its own session, so Ctrl-C reaches only the parent. The
parent lets each child finish its current fault and end.
"""

import contextlib
import multiprocessing
import os
import time
from multiprocessing.connection import wait

PROGRESS_S = 15.0               # between two lines of progress
CONTEXT = multiprocessing.get_context("fork")


class Pool:
    """Child processes that each work on one unit after another.

    job(unit, send, stopped): called in a child. job() sends tuples: ("failed", text), and further kinds for
    on_message(). job() must return soon after stopped() becomes true."""

    def __init__(self, row, processes, job):
        self.row, self.job, self.stop = row, job, CONTEXT.Event()
        self.children = {}
        for _ in range(processes):
            here, there = CONTEXT.Pipe()
            child = CONTEXT.Process(target=self._child, args=(there, [here, *self.children]), daemon=True)
            child.start()
            there.close()
            self.children[here] = child

    def run(self, todo, on_message, on_idle):
        """Give the units of `todo` to children until the row's end. On Ctrl-C wait until the children have ended, then
        raise KeyboardInterrupt.

        on_message(connection, kind, ...): called for each message. on_idle(): called every PROGRESS_S."""
        todo, waiting = iter(todo), dict(self.children)
        try:
            self._serve(todo, waiting, on_message, on_idle)
        except KeyboardInterrupt:
            self.stop.set()
            self._serve(iter(()), waiting, on_message, lambda: None)
            raise

    def _serve(self, todo, waiting, on_message, on_idle):
        printed = time.monotonic()
        while waiting:
            for conn in wait(list(waiting), 1.0):
                try:
                    kind, *more = conn.recv()
                except EOFError:
                    child = waiting.pop(conn)
                    child.join()
                    if child.exitcode:
                        self.row.failed(f"a process of the campaign ended with status {child.exitcode}")
                    continue
                if kind == "next":
                    conn.send(next(todo, None) if self.row.running and not self.stop.is_set() else None)
                elif kind == "failed":
                    self.row.failed(*more)
                else:
                    on_message(conn, kind, *more)
            if time.monotonic() > printed + PROGRESS_S:
                printed = time.monotonic()
                on_idle()

    def _child(self, conn, others):
        os.setsid()
        for other in others:
            other.close()
        parent = os.getppid()
        with contextlib.suppress(EOFError):
            while True:
                conn.send(("next",))
                unit = conn.recv()
                if unit is None:
                    return
                try:
                    self.job(unit, conn.send, lambda: self.stop.is_set() or os.getppid() != parent)
                except Exception as e:          # the other cases still run
                    conn.send(("failed", f"{' '.join(unit)}: the campaign itself: {type(e).__name__}: {e}"))
