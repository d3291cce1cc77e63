"""A pytest plugin (`-p mutants.recorder`) that records which test runs which line, and how long each test runs.

COVERAGE_PROCESS_START starts coverage in every Python process of the tests. The test's name is coverage's context:
switch_context() sets it in pytest's own processes, the variable COVERED_BY in programs that a test starts.
"""

import json
import os
import pathlib

import coverage
import pytest


class Recorder:
    def __init__(self):
        self.seconds = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        os.environ["COVERED_BY"] = item.nodeid
        if (measured := coverage.Coverage.current()) is not None:
            measured.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self, session):
        if not hasattr(session.config, "workerinput"):          # with pytest-xdist, only the controller has all reports
            pathlib.Path(os.environ["COVERED_SECONDS"]).write_text(json.dumps(self.seconds))


def pytest_configure(config):
    config.pluginmanager.register(Recorder())
