"""Run the tests in several processes, forked when the tests are collected: `pytest --processes 8`.

Each process of pytest-xdist imports and collects all tests, four seconds of a processor. Here the processes inherit the
collected tests, the imported modules, the known kernel features and the packed plugin files.
"""

import os
import zlib
from collections import deque
from contextlib import suppress
from multiprocessing import connection, get_context
from warnings import WarningMessage

import pytest

ALIVE_S = 5.0       # between two checks whether the processes exist
END_S = 60          # for the fixtures of a process, after Ctrl-C


def pytest_addoption(parser):
    parser.addoption("--processes", type=int, default=0, metavar="N", help="run the tests in N processes")


def pytest_configure(config):
    if processes := config.getoption("processes"):
        config.pluginmanager.register(Runner(processes))


class Runner:
    """A plugin of pytest, in the first process: it gives the tests to forked processes and logs their reports.

    A process gets the tests of a part of the list in their order, because the tests of a file share fixtures. If no
    test of the part is left, the process gets half of the largest part.
    """

    def __init__(self, processes):
        self.parts, self.workers, self.started = [deque() for _ in range(processes)], {}, 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        """Mix the files. In the order of directories, the tests that wait for the kernel would run at the same time,
        and the processors would idle."""
        items.sort(key=lambda item: zlib.crc32(item.location[0].encode()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        if session.testsfailed or session.config.option.collectonly:
            return None                             # pytest's own loop handles both
        count, parts = len(session.items), len(self.parts)
        for number, part in enumerate(self.parts):
            part.extend(range(count * number // parts, count * (number + 1) // parts))
        session.config._tmp_path_factory.getbasetemp()
        if terminal := session.config.pluginmanager.getplugin("terminalreporter"):
            terminal.showfspath = False             # the tests of a file do not come one after another
        try:
            for part in self.parts:
                self.start(session, part)
            while self.workers:
                for channel in connection.wait(self.workers, ALIVE_S) or self.ended():
                    self.attend(session, self.workers[channel])
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            for worker in self.workers.values():
                worker.end()
        return True

    def ended(self):
        """Return the channels of ended processes. A process that a test forked may keep such a channel open."""
        return [channel for channel, worker in self.workers.items() if not worker.process.is_alive()]

    def start(self, session, part):
        """Fork a process and give it its first two tests, if there are tests left."""
        if part or self.steal(part):
            self.started += 1
            worker = Worker(session, self.started, part, [*self.workers])
            self.workers[worker.channel] = worker
            self.give(worker)
            self.give(worker)

    def steal(self, part):
        """Move half of the largest part to the empty `part`. Return whether `part` has tests now."""
        largest = max(self.parts, key=len)
        part.extendleft([largest.pop() for _ in range((len(largest) + 1) // 2)])
        return bool(part)

    def give(self, worker):
        """Send the number of the next test to a process, None if no test is left."""
        worker.given.append(worker.part.popleft() if worker.part or self.steal(worker.part) else None)
        with suppress(ConnectionError):             # attend() notices that the process has ended
            worker.channel.send(worker.given[-1])

    def attend(self, session, worker):
        """Log the reports of the test that a process has run, and give another test to the process."""
        hook = session.config.hook
        try:
            reports, warnings = worker.channel.recv() if worker.channel.poll() else ((), ())
        except (EOFError, ConnectionError):
            reports, warnings = (), ()
        if not reports:
            self.replace(session, worker)
            return
        for warning in warnings:
            hook.pytest_warning_recorded.call_historic(kwargs=warning)
        self.log(session, worker.given.popleft(), [
            hook.pytest_report_from_serializable(config=session.config, data=data) for data in reports])
        if worker.given[0] is not None:
            self.give(worker)

    def replace(self, session, worker):
        """Remove a process that has ended. If the process did not report its test, the test fails, and another process
        gets the other tests of the part."""
        del self.workers[worker.channel]
        worker.end()
        if (number := worker.given.popleft()) is None:
            return
        item = session.items[number]
        why = f"the process of this test has ended with status {worker.process.exitcode}"
        self.log(session, number, [pytest.TestReport(item.nodeid, item.location, dict.fromkeys(item.keywords, 1),
                                                     "failed", why, "call")])
        worker.part.extendleft(other for other in worker.given if other is not None)
        self.start(session, worker.part)

    def log(self, session, number, reports):
        item, hook = session.items[number], session.config.hook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


class Worker:
    """A forked process, seen from the first process.

    part: the numbers of the tests that the process may get. given: the numbers that it has got and not reported, None
    for the end. channel: the connection to the process. others: the channels of the other processes.
    """

    def __init__(self, session, number, part, others):
        self.part, self.given = part, deque()
        self.channel, theirs = connection.Pipe()
        self.process = get_context("fork").Process(
            target=serve, args=(session, f"pytest-{number}", theirs, [self.channel, *others]))
        self.process.start()
        theirs.close()

    def end(self):
        """Wait until the process has ended its fixtures. Kill it after END_S."""
        self.channel.close()
        self.process.join(END_S)
        self.process.kill()
        self.process.join()


class Recorder:
    """A plugin of pytest, in a forked process: it keeps reports and warnings for the first process."""

    def __init__(self, config):
        self.config, self.reports, self.warnings = config, [], []

    def pytest_runtest_logreport(self, report):
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        message = WarningMessage(str(warning_message.message), warning_message.category, warning_message.filename,
                                 warning_message.lineno)
        self.warnings.append({"warning_message": message, "when": when, "nodeid": nodeid, "location": location})

    def take(self):
        taken, self.reports, self.warnings = (self.reports, self.warnings), [], []
        return taken


def serve(session, name, channel, others):
    """Run the tests whose numbers come from `channel`, until None comes or the first process ends.

    name: the name of this process's temporary directory. others: connections of the first process, to close.
    """
    for other in others:
        other.close()
    config, plugins = session.config, session.config.pluginmanager
    if plugins.hasplugin("terminalreporter"):
        plugins.unregister(name="terminalreporter")
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()                 # its files are shared with the first process
    capture.start_global_capturing()
    capture.suspend_global_capture()
    config._tmp_path_factory._basetemp = config._tmp_path_factory.mktemp(name, numbered=False)
    recorder = Recorder(config)
    plugins.register(recorder)
    recorder.take()                                 # the first process's warnings so far
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):        # the first process has ended, too
        try:
            number = channel.recv()
            while number is not None:
                following = channel.recv()
                nextitem = None if following is None else session.items[following]
                config.hook.pytest_runtest_protocol(item=session.items[number], nextitem=nextitem)
                channel.send(recorder.take())
                number = following
        finally:
            session._setupstate.teardown_exact(None)
    os._exit(0)                                     # a thread that a test left does not delay the end
