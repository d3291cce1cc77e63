"""A pytest plugin that records which test runs which line, and for how long each test runs: `-p mutants.recorder`.

coverage starts in every Python process of the tests by COVERAGE_PROCESS_START. Its context is the test's name: in
pytest's own processes by switch_context(), in the programs that a test starts by the variable COVERED_BY.
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
        if not hasattr(session.config, "workerinput"):          # with xdist, the controller has all reports
            pathlib.Path(os.environ["COVERED_SECONDS"]).write_text(json.dumps(self.seconds))


def pytest_configure(config):
    config.pluginmanager.register(Recorder())
