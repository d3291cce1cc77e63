"""The command `fastcni trace` with a running server."""

import json
import re
import signal
import socket
import subprocess
import sys

import pytest

from fastcni.cli import entry_point
from fastcni.server import control
from fastcni.testing.witnesses import eventually

LOOPBACK = {"cniVersion": "1.1.0", "name": "lo-net", "type": "loopback"}
TIMEOUT_S = 30


@pytest.fixture
def trace(server, capfd):
    """Return a function trace(*words) that runs the command for this server. It returns (status, lines of stdout,
    stderr)."""
    def call(*words):
        capfd.readouterr()
        status = entry_point.run(["trace", "--socket", str(server.path), *words])
        out, err = capfd.readouterr()
        return status, out.splitlines(), err
    return call


@pytest.fixture
def pods(server, node, pod):
    """Make a successful ADD of a bridge, one of loopback, and one ADD that fails. Return the bridge's configuration."""
    conf = node.conf(isGateway=True)
    server.ok("ADD", LOOPBACK, pod, cid="web-1", ifname="lo")
    server.ok("ADD", conf, pod, cid="web-1")
    server.refused("ADD", conf, pod, cid="db-1", ifname="lo")
    return conf


class Following:
    """A `fastcni trace` that follows the server, in a separate process."""

    def __init__(self, server, directory, *words):
        self.out, self.err = directory / "trace.out", directory / "trace.err"
        with open(self.out, "w") as out, open(self.err, "w") as err:
            self.process = subprocess.Popen([sys.executable, "-m", "fastcni", "trace", "--socket", str(server.path),
                                             *words], stdout=out, stderr=err)
        assert self.told("following the server")

    def told(self, text):
        return eventually(lambda: text in self.err.read_text(), TIMEOUT_S)

    def printed(self, text):
        return eventually(lambda: text in self.out.read_text(), TIMEOUT_S), self.out.read_text()

    def close(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def follow(server, tmp_path):
    running = []

    def make(*words):
        running.append(Following(server, tmp_path, *words))
        return running[-1]

    yield make
    for it in running:
        it.close()


def headlines(lines):
    return [line.partition(" ")[2].partition(":")[0] for line in lines if not line.startswith(" ")]


def test_past_requests_are_printed_with_their_phases_and_errors(trace, pods):
    status, lines, _ = trace("--past")
    assert status == 0
    assert headlines(lines) == ["ADD loopback lo-net web-1/lo", "ADD bridge net-a web-1/eth0",
                                "ADD bridge net-a db-1/lo"]
    assert any(re.fullmatch(r"  netlink +\d+\.\d\d \|[ =]{48}\|", line) for line in lines)
    assert any("lo already exists" in line or "EEXIST" in line for line in lines), lines


CHOICES = (
    (2, ["web"]), (1, ["web-1", "--filter", "plugin=bridge"]), (1, ["--filter", "code=failed"]),
    (1, ["--filter", "network=lo"]), (3, ["--filter", "network=lo", "--filter", "network=net-a"]),
    (1, ["--filter", "ifname=eth0"]), (2, ["--filter", "command=add", "-n", "2"]), (0, ["--slower", "60000"]),
    (0, ["nobody"]))


def test_requests_are_chosen(trace, pods):
    for expected, words in CHOICES:
        status, lines, err = trace("--past", *words)
        assert (status, len(headlines(lines))) == (0, expected), words
        assert ("stored no request that matches" in err) == (not expected)


@pytest.mark.parametrize("text", ["colour=red", "network", "=x"])
def test_a_filter_that_is_none_is_refused(capfd, text):
    assert entry_point.run(["trace", "--past", "--filter", text]) != 0
    assert "KEY=VALUE" in capfd.readouterr().err


def test_messages_to_the_kernel_and_the_input_are_printed(trace, pods):
    _, lines, _ = trace("--past", "db-1", "--netlink", "--input")
    assert '    "bridge": "br0",' in lines and "  CNI_COMMAND=ADD" in lines
    assert any(re.search(r"> RTM_\w+ ", line) for line in lines) and any("rollback" in line for line in lines)


def test_the_plugin_of_a_chain_that_failed_is_named(trace, server, node, pod):
    chain = {"cniVersion": "1.0.0", "name": "net-a", "type": "chain", "plugins": [
        {key: value for key, value in node.conf(isGateway=True).items() if key not in ("cniVersion", "name")},
        {"type": "bandwidth", "ingressRate": -1}]}
    server.refused("ADD", chain, pod, cid="web-1")
    _, lines, _ = trace("--past")
    assert "ADD chain (bandwidth) net-a web-1/eth0" in headlines(lines)


def test_json_is_a_line_for_each_request(trace, pods):
    _, lines, _ = trace("--past", "--json")
    found = [json.loads(line) for line in lines]
    assert [it["container"] for it in found] == ["web-1", "web-1", "db-1"]
    steps = [step for step in found[-1]["story"]["steps"] if "data" in step]
    assert steps and all(step["messages"] for step in steps)


def test_a_name_of_a_caller_cannot_write_to_the_terminal(trace, server):
    server.refused("ADD", {**LOOPBACK, "name": "x\x1b[2Jy"}, "/nowhere", cid="c1")
    assert "\x1b" not in "\n".join(trace("--past")[1])


def test_requests_are_followed_with_their_messages(follow, server, node, pod):
    following = follow("--netlink", "-n", "1", "--filter", "plugin=bridge")
    server.ok("ADD", LOOPBACK, pod, cid="web-1", ifname="lo")
    server.ok("ADD", node.conf(isGateway=True), pod, cid="web-1")
    assert following.process.wait(TIMEOUT_S) == 0
    text = following.out.read_text()
    assert headlines(text.splitlines()) == ["ADD bridge net-a web-1/eth0"]
    assert "> RTM_NEWLINK" in text and "< done" in text


def test_a_restarted_server_is_followed(follow, server, start, pod):
    following = follow()
    server.ok("ADD", LOOPBACK, pod, cid="web-1", ifname="lo")
    assert following.printed("web-1")[0]
    server.stop()
    assert following.told("waiting for one")
    start().ok("ADD", LOOPBACK, pod, cid="web-2", ifname="lo")
    found, text = following.printed("web-2")
    assert found and text.count("web-1") == 1


def test_following_ends_by_sigint_without_an_error(follow):
    following = follow()
    assert following.told("Ctrl-C ends")
    following.process.send_signal(signal.SIGINT)
    assert following.process.wait(TIMEOUT_S) == 0 and "rror" not in following.err.read_text()


def test_without_a_server_the_error_says_what_to_do(capfd, tmp_path):
    assert entry_point.run(["trace", "--past", "--socket", str(tmp_path / "none")]) == 1
    assert "no server listens" in capfd.readouterr().err


@pytest.mark.parametrize("words", [("trace", "--past"), ("flows",), ("top", "--once")])
def test_a_server_that_does_not_answer_is_named(capfd, tmp_path, monkeypatch, words):
    ask = control.ask
    monkeypatch.setattr(control, "ask", lambda path, name, variables, *_: ask(path, name, variables, 0.1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(path := str(tmp_path / "s.sock"))
        silent.listen()
        assert entry_point.run([*words, "--socket", path]) == 1
    assert f"the server at {path} does not answer; if it hangs, restart it: " in capfd.readouterr().err


def test_a_server_without_a_history_is_named(capfd, start):
    server = start("--history", "0")
    assert entry_point.run(["trace", "--past", "--socket", str(server.path)]) == 1
    assert "--history 0" in capfd.readouterr().err
