"""Run tests in several processes that are forks of the process that collects the tests: `pytest --forks 8`.

With pytest-xdist, each process collects all tests, which takes 3.5 s of processor time. With this plugin, one process
collects the tests. Each fork begins with a range of the tests. A fork whose range is empty takes the second half of the
longest range. If a fork crashes, its test fails, and a new fork continues with the range.
"""

import contextlib
import fcntl
import mmap
import os
import sys
import traceback
import warnings
from multiprocessing.connection import Pipe, wait

import pytest


def pytest_addoption(parser):
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the tests in N forks of this process")


def pytest_configure(config):
    if count := config.getoption("forks", 0):
        config.pluginmanager.register(Forks(count))


class Ranges:
    """The numbers of the tests that no fork has begun: a range for each fork, in memory that all forks share.

    first, end: the first number of each range, and the number after its last one. running: the test that each fork
    runs, or -1 before its first test.
    """

    def __init__(self, forks, tests):
        self.fd = os.memfd_create("ranges")
        os.ftruncate(self.fd, 3 * forks * 8)
        numbers = memoryview(mmap.mmap(self.fd, 0)).cast("q")
        self.first, self.end, self.running = numbers[:forks], numbers[forks:2 * forks], numbers[2 * forks:]
        for fork in range(forks):
            self.first[fork], self.end[fork] = tests * fork // forks, tests * (fork + 1) // forks
            self.running[fork] = -1

    @contextlib.contextmanager
    def lock(self):
        fcntl.lockf(self.fd, fcntl.LOCK_EX)         # the kernel releases it if the process ends
        yield
        fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def take(self, fork):
        """Return the number of the next test for a fork, or None if no test is left."""
        with self.lock():
            if self.first[fork] == self.end[fork]:
                longest = max(range(len(self.end)), key=lambda other: self.end[other] - self.first[other])
                if self.first[longest] == self.end[longest]:
                    return None
                middle = (self.first[longest] + self.end[longest]) // 2
                self.first[fork], self.end[fork], self.end[longest] = middle, self.end[longest], middle
            self.first[fork] += 1
            return self.first[fork] - 1

    def give_back(self, fork):
        """Return the test that a crashed fork took but did not run: run() takes the next test before it runs one."""
        with self.lock():
            if self.first[fork] - 1 != self.running[fork]:
                self.first[fork] -= 1


class Reporter:
    """A plugin of pytest in a fork, which sends the reports and warnings of each test to the main process."""

    def __init__(self, config, pipe):
        self.config, self.pipe, self.reports, self.warnings = config, pipe, [], []

    def pytest_runtest_logreport(self, report):
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        text = warnings.WarningMessage(str(warning_message.message), warning_message.category,
                                       warning_message.filename, warning_message.lineno)
        self.warnings.append({"warning_message": text, "when": when, "nodeid": nodeid, "location": location})

    def send(self, item):
        self.pipe.send((item.nodeid, item.location, self.reports, self.warnings))
        self.reports, self.warnings = [], []


class Forks:
    """A plugin of pytest in the main process, which starts `count` forks and passes on their reports."""

    def __init__(self, count):
        self.count, self.running = count, {}        # running: {pipe: (the number of its fork, the process)}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config):
        if terminal := config.pluginmanager.getplugin("terminalreporter"):
            terminal.showfspath = False             # the files are mixed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        if session.testsfailed or session.config.option.collectonly:
            return None                             # for pytest's own function
        self.session, self.hook = session, session.config.hook
        self.ranges = Ranges(self.count, len(session.items))
        self.directory = session.config._tmp_path_factory.getbasetemp()
        try:
            for fork in range(self.count):
                self.start(fork)
            while self.running:
                for pipe in wait(list(self.running)):
                    self.receive(pipe)
                    if session.shouldfail:
                        raise session.Failed(session.shouldfail)
                    if session.shouldstop:
                        raise session.Interrupted(session.shouldstop)
        finally:
            for pipe, (_, process) in self.running.items():
                pipe.close()                        # the fork ends its fixtures when it cannot report its test
                os.waitpid(process, 0)
        return True

    def start(self, fork):
        reading, writing = Pipe(duplex=False)
        sys.stdout.flush()
        process = os.fork()
        if not process:
            for pipe in (reading, *self.running):
                pipe.close()
            run(self.session, self.ranges, fork, writing, self.directory / f"pytest-{fork}")
        writing.close()
        self.running[reading] = fork, process

    def receive(self, pipe):
        """Pass on the reports of one test, or the end of a fork."""
        fork, process = self.running[pipe]
        try:
            nodeid, location, reports, recorded = pipe.recv()
        except EOFError:
            del self.running[pipe]
            pipe.close()
            if status := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
                self.crashed(fork, status)
            return
        for warning in recorded:
            self.hook.pytest_warning_recorded.call_historic(kwargs=warning)
        for data in reports:
            report = self.hook.pytest_report_from_serializable(config=self.session.config, data=data)
            self.hook.pytest_runtest_logreport(report=report)
        self.hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)

    def crashed(self, fork, status):
        if self.ranges.running[fork] < 0:
            raise RuntimeError(f"a fork ended before its first test, with status {status}")
        item = self.session.items[self.ranges.running[fork]]
        self.hook.pytest_runtest_logreport(report=pytest.TestReport(
            item.nodeid, item.location, {}, "failed", f"the process of this test ended with status {status}", "call"))
        self.ranges.give_back(fork)
        self.ranges.running[fork] = -1
        self.start(fork)


def run(session, ranges, fork, pipe, directory):
    """Run tests in this fork until no test is left. The process ends then."""
    status = 1
    try:
        os.register_at_fork(after_in_child=pipe.close)          # the pipe ends with this process, not with its forks
        plugins, hook = session.config.pluginmanager, session.config.hook
        plugins.unregister(name="terminalreporter")
        plugins.register(reporter := Reporter(session.config, pipe))
        if capture := plugins.getplugin("capturemanager"):
            capture.stop_global_capturing()                     # its files are those of the main process
            capture.start_global_capturing()
            capture.suspend_global_capture()
        directory.mkdir(mode=0o700, exist_ok=True)
        session.config._tmp_path_factory._basetemp = directory
        number = ranges.take(fork)
        while number is not None:
            following = ranges.take(fork)
            ranges.running[fork] = number
            hook.pytest_runtest_protocol(item=session.items[number],
                                         nextitem=None if following is None else session.items[following])
            reporter.send(session.items[number])
            number = following
        status = 0
    except BrokenPipeError:
        session._setupstate.teardown_exact(None)                # the main process needs no more reports
    except BaseException:
        traceback.print_exc()
        session._setupstate.teardown_exact(None)
    finally:
        os._exit(status)
