"""`fastcni top` in a real terminal: tmux."""

import json
import os
import shlex
import subprocess
import sys

import pytest
from unit.server.client import Server

from fastcni.testing.witnesses import eventually

STATUS = {"cniVersion": "1.1.0", "name": "net-a", "type": "loopback"}
WRONG = {"cniVersion": "1.1.0", "name": "net-wrong", "type": "bridge", "bridge": 7}
TIMEOUT_S = 40


class Tmux:
    """A separate tmux server, with a shell in a window of 80x24."""

    def __init__(self, directory):
        self.socket, self.directory = str(directory / "tmux"), directory

    def __call__(self, *words):
        return subprocess.run(["tmux", "-S", self.socket, "-f", "/dev/null", *words], capture_output=True, text=True,
                              check=True, timeout=TIMEOUT_S).stdout

    def __enter__(self):
        self("new-session", "-d", "-x", "80", "-y", "24", "env", "PS1=ready$ ", "bash", "--norc", "--noprofile")
        self.sees("ready$")
        return self

    def __exit__(self, *_):
        self("kill-server")

    @property
    def screen(self):
        return self("capture-pane", "-p")

    def sees(self, *texts):
        assert eventually(lambda: all(text in self.screen for text in texts), TIMEOUT_S), f"{texts}\n{self.screen}"
        return self.screen

    def keys(self, *names):
        self("send-keys", *names)

    def run(self, line):
        self.keys(line, "Enter")

    def assert_restored(self):
        """Check that the terminal shows the shell's prompt on its first screen, and has its previous settings."""
        self.sees("ready$")
        assert eventually(lambda: self("display", "-p", "#{alternate_on} #{cursor_flag}") == "0 1\n", TIMEOUT_S)
        self.run("echo restored:$(stty -a | grep -c 'icanon.* echo ')")
        self.sees("restored:1")


@pytest.fixture
def server(host_netns, tmp_path):
    with Server(tmp_path, "--cache-dir", str(tmp_path)) as it:
        yield it


@pytest.fixture
def line(server, tmp_path):
    return shlex.join([sys.executable, "-m", "fastcni", "top", "--socket", str(server.path), "--conf-dir",
                       str(tmp_path), "--cache-dir", str(tmp_path), "--interval", "0.2"])


@pytest.fixture
def tmux(tmp_path):
    with Tmux(tmp_path) as it:
        yield it


def load(server):
    for _ in range(3):
        server.ok("STATUS", STATUS)
    server.refused("ADD", WRONG, "/nowhere", cid="web-1")
    server.refused("ADD", {**WRONG, "name": "net-other"}, "/nowhere", cid="db-1")


def test_the_screen_of_80x24_shows_the_load(server, line, tmux):
    load(server)
    tmux.run(line)
    screen = tmux.sees("fastcni top", f"pid {server.process.pid}", "2 failed", "queue 0 of 1024", "ERRORS", "NETWORK",
                       "net-wrong", "SLOWEST", "web-1", "q quit").rstrip("\n").split("\n")
    assert len(screen) == 24
    assert screen[-1].startswith(" q quit")
    load(server)
    tmux.sees("4 failed")


def test_keys_sort_filter_freeze_and_explain(server, line, tmux):
    load(server)
    tmux.run(line)
    tmux.sees("web-1", "db-1", "s sort: requests")
    tmux.keys("s")
    tmux.sees("s sort: failed")
    tmux.keys("/", "w", "e", "x", "BSpace")
    tmux.sees("filter (network or container): we_")
    tmux.keys("b", "Enter")
    assert "db-1" not in tmux.sees("filter: web", "web-1", "1 failed")
    tmux.keys("Escape")
    tmux.sees("db-1")
    tmux.keys("Space")
    tmux.sees("FROZEN", "space go on")
    load(server)
    tmux.keys("Up", "s")                # an arrow key does nothing
    assert "2 failed" in tmux.sees("s sort: p99", "FROZEN")
    tmux.keys("Space")
    assert "FROZEN" not in tmux.sees("4 failed")
    tmux.keys("?")
    tmux.sees("freeze the figures")
    tmux.keys("?")
    tmux.sees("SLOWEST")
    tmux.keys("q")
    tmux.assert_restored()


def test_a_resized_terminal_is_filled(server, line, tmux):
    load(server)
    tmux.run(line)
    tmux.sees("q quit")
    for columns, lines in ((110, 40), (60, 12), (40, 10), (80, 24)):
        tmux("resize-window", "-x", str(columns), "-y", str(lines))

        def fits(columns=columns, lines=lines):
            rows = tmux.screen.rstrip("\n").split("\n")
            return len(rows) == lines and rows[-1].startswith(" q quit") and rows[0].startswith("fastcni top") \
                and ("too small" in tmux.screen) == (columns < 60)
        assert eventually(fits, TIMEOUT_S), (columns, lines, len(tmux.screen.rstrip("\n").split("\n")), tmux.screen)


@pytest.mark.parametrize("end", ["C-c", "TERM", "HUP"])
def test_a_signal_leaves_the_terminal_as_it_was(server, line, tmux, end):
    tmux.run(f"{line} & echo $! > {tmux.directory}/pid; fg")
    tmux.sees("q quit")
    assert tmux("display", "-p", "#{alternate_on} #{cursor_flag}") == "1 0\n"
    if end == "C-c":
        tmux.keys("C-c")
    else:
        pid = (tmux.directory / "pid").read_text().strip()
        subprocess.run(["kill", f"-{end}", pid], check=True)
    tmux.assert_restored()


def test_suspended_and_continued(server, line, tmux):
    tmux.run(line)
    tmux.sees("q quit")
    tmux.keys("C-z")
    tmux.assert_restored()
    tmux.run("fg")
    tmux.sees("fastcni top", "q quit")
    tmux.keys("q")
    tmux.assert_restored()


def test_a_fault_leaves_the_terminal_as_it_was(server, line, tmux, tmp_path):
    (tmp_path / "fault.py").write_text("from fastcni.cli import top\ntop.frame = lambda *_: 1 / 0\n"
                                       "from fastcni.cli import main\nmain()\n")
    tmux.run(line.replace("-m fastcni", str(tmp_path / "fault.py")))
    tmux.sees("ZeroDivisionError")
    tmux.assert_restored()


def test_a_server_that_ends_is_waited_for(server, line, tmux, tmp_path):
    load(server)
    tmux.run(line)
    tmux.sees("2 failed")
    first = server.process.pid
    assert server.stop() == 0
    tmux.sees("no server listens", "Figures of ", "net-wrong")
    with server:
        load(server)
        assert "no server" not in tmux.sees(f"pid {server.process.pid}", "4 failed")
        assert server.process.pid != first


def test_scripts_get_a_frame_or_a_document(server, line):
    load(server)

    def top(*words):
        return subprocess.run([*shlex.split(line), *words], capture_output=True, text=True, timeout=TIMEOUT_S,
                              env={**os.environ, "COLUMNS": "80"})

    frame = top("--once")
    assert frame.returncode == 0 and "SLOWEST" in frame.stdout and "q quit" not in frame.stdout
    assert max(map(len, frame.stdout.splitlines())) <= 80
    assert top().stdout.splitlines()[-3:] == top("--once").stdout.splitlines()[-3:]
    for words in (("--json",), ("--once", "--json")):
        found = json.loads(top(*words).stdout)
        assert (found["requests"], found["failed"]) == (5, 2)
        assert found["server"]["pid"] == server.process.pid
    assert json.loads(top("--json", "--filter", "web").stdout)["requests"] == 1
    server.stop()
    refused = top("--once")
    assert refused.returncode == 1 and "no server listens at" in refused.stderr
