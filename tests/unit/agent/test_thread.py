"""The agent in a thread of the server: `fastcni serve --agent`."""

import signal
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from fastcni.agent import thread
from fastcni.agent.contract import ConfigurationError, NoSubnetLeft, SubnetLost
from fastcni.cli.commands import cli
from fastcni.clients.errors import Away
from fastcni.spec.errors import CniError
from fastcni.testing.witnesses import eventually


class StubAgent:
    """An agent whose first two instances fail. The next instance runs until stop()."""

    made: "list[StubAgent]" = []

    def __init__(self, options, log):
        self.stopped, self.closed = threading.Event(), False
        self.made.append(self)

    def run(self):
        if len(self.made) < 3:
            raise (OSError("no memory"), KeyError("a mistake"))[len(self.made) - 1]
        self.stopped.wait(20)

    def stop(self):
        self.stopped.set()

    def close(self):
        self.closed = True


def test_a_failure_does_not_end_the_server_and_the_agent_is_started_again(monkeypatch):
    monkeypatch.setattr(thread, "Agent", StubAgent)
    monkeypatch.setattr(thread, "AGAIN_S", 0.01)
    monkeypatch.setattr(StubAgent, "made", [])
    lines, noted = [], []

    def note(method, event, **fields):
        lines.append((method, event, fields["error"]))

    log = SimpleNamespace(error=partial(note, "error"), exception=partial(note, "exception"))
    it = thread.AgentThread(None, log, noted.append)
    it.start()
    assert eventually(lambda: len(StubAgent.made) == 3)
    it.join()
    assert lines == [("error", "agent_failed", "no memory"), ("exception", "agent_failed", "KeyError('a mistake')")]
    assert noted == StubAgent.made and all(each.closed for each in noted)
    assert not it.thread.is_alive()


def test_an_agent_that_is_stopped_before_it_starts_is_not_made(monkeypatch):
    monkeypatch.setattr(thread, "Agent", StubAgent)
    monkeypatch.setattr(StubAgent, "made", [])
    it = thread.AgentThread(None, None, None)
    it.join()
    it.start()
    it.join()
    assert StubAgent.made == []


@pytest.mark.parametrize(("words", "message"), [
    (["--agent", "--leave --etcd http://127.0.0.1:1"], "--leave is not an option of the agent in the server"),
    (["--agent", "--etcd http://127.0.0.1:1 --log-level debug"], "--log-level is not an option"),
    (["--agent", "--etcd 'http://127.0.0.1:1"], "--agent: No closing quotation"),
    (["--agent", ""], "say where the nodes' records are"),
    (["--agent", "--no-such-option"], "No such option"),
    (["--agent", "--etcd http://127.0.0.1:1", "--idle-exit", "5"], "the server must not end"),
])
def test_options_that_do_not_fit_are_refused(words, message):
    done = CliRunner().invoke(cli, ["serve", *words])
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.parametrize("error", [NoSubnetLeft("10.0.0.0/16 has no free subnet"), SubnetLost("taken"),
                                   ConfigurationError("no configuration"), Away("etcd")])
def test_a_node_that_cannot_leave_is_told_why(monkeypatch, error):
    """Once, if the network had no free subnet, the error was a traceback, and Ctrl-C did not end the command."""
    def leave(_):
        assert signal.getsignal(signal.SIGINT) is before
        raise error

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("fastcni.agent.run.Agent.leave", leave)
    done = CliRunner().invoke(cli, ["agent", "--leave", "--nodes", "/none.json"])
    assert isinstance(done.exception, CniError)
    assert str(error) in str(done.exception)
