"""A server that is replaced or killed while real plugin files call it. The tests cover the answers that its callers
get, and the state that remains. The test has the listening socket that systemd would have, and starts one server after
the other with it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from lab.node import Inside, addresses, elements, links

from fastcni.testing.witnesses import eventually

LIMIT = 60                  # seconds for one plugin file: longer than a server takes to start
THREADS = 4
# LISTEN_PID must be the server's own pid, so the shell executes the server
HAND_OVER = 'export LISTEN_PID=$$; exec "$0" "$@" 3<&0 0</dev/null'
needs_activate = pytest.mark.skipif(not shutil.which("systemd-socket-activate"),
                                    reason="needs systemd-socket-activate (Debian: systemd)")


class Notifications:
    """The socket whose address is in NOTIFY_SOCKET. It receives the messages that services send to systemd."""

    def __init__(self, path):
        self.path = str(path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)

    def next(self, seconds=20.0):
        """Return the next message, or "" if no message arrives in time."""
        self.sock.settimeout(seconds)
        try:
            return self.sock.recv(4096).decode()
        except (BlockingIOError, TimeoutError):
            return ""


class Unit:
    """Is in the place of systemd. `with Unit(directory) as unit:` has a listening socket, and at most one server at a
    time."""

    def __init__(self, directory):
        self.directory, self.path, self.process = directory, str(directory / "handed.sock"), None

    def __enter__(self):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(128)
        self.notifications = Notifications(self.directory / "notify")
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()
        self.listener.close()
        self.notifications.sock.close()

    def begin(self):
        env = {**os.environ, "LISTEN_FDS": "1", "NOTIFY_SOCKET": self.notifications.path}
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(["sh", "-c", HAND_OVER, sys.executable, "-I", "-m", "fastcni", "serve"],
                                            stdin=self.listener, stderr=log, env=env)

    def start(self):
        self.begin()
        assert self.notifications.next() == "READY=1", self.log()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.notifications.next() == "STOPPING=1"
        assert self.process.wait(LIMIT) == 0, self.log()

    def log(self):
        return (self.directory / "log").read_text()


class Callers:
    """`with Callers(...) as callers:` adds and deletes each of THREADS pods repeatedly until the end of the block.
    Afterwards, all pods are deleted.

    failed: (command, error document) of each call that failed. added: the number of ADDs that succeeded.
    """

    def __init__(self, call, pods):
        self.call, self.pods = call, pods
        self.failed, self.added, self.over = [], 0, threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._go_on, args=(pod,)) for pod in pods]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def wait_for(self, more):
        """Wait until this number of further ADDs has succeeded."""
        wanted = self.added + more
        assert eventually(lambda: self.added >= wanted, LIMIT), self.failed

    def _go_on(self, pod):
        while not self.over.is_set():
            for command in ("ADD", "DEL"):
                status, stdout = self.call(command, pod)
                with self.lock:
                    if status:
                        self.failed.append((command, read_error(stdout)))
                    elif command == "ADD":
                        self.added += 1


def read_error(stdout):
    try:
        return json.loads(stdout)
    except ValueError:
        return {"code": None, "msg": stdout.decode("utf-8", "replace")}


@pytest.fixture
def conf(node):
    return node.conf(isGateway=True, ipMasq=True)


@pytest.fixture
def plugin(node, plugins, conf):
    """Return a function plugin(path of a socket). It returns a function call(command, pod) that runs the installed
    plugin file as a runtime does, and returns (status, stdout)."""
    def at(path):
        def call(command, pod):
            env = {"CNI_COMMAND": command, "CNI_CONTAINERID": f"c-{pod}", "CNI_NETNS": f"/run/netns/{pod}",
                   "CNI_IFNAME": "eth0", "CNI_PATH": plugins, "PATH": os.environ["PATH"], "FASTCNI_SOCKET": str(path)}
            with Inside(node.name):
                done = subprocess.run([f"{plugins}/bridge"], input=json.dumps(conf).encode(), capture_output=True,
                                      env=env, timeout=LIMIT)
            return done.returncode, done.stdout
        return call
    return at


@pytest.fixture
def pods(pod_netns):
    return [pod_netns() for _ in range(THREADS)]


def assert_nothing_is_left(node, pods):
    assert node.held() == {} and elements("pods4") == []
    assert eventually(lambda: not [name for name in links() if name.startswith("veth")])
    assert not [pod for pod in pods if "eth0" in links(pod)]


def test_a_restart_by_systemd_costs_no_request(node, plugin, pods, tmp_path):
    with Unit(tmp_path) as unit:
        unit.start()
        with Callers(plugin(unit.path), pods) as callers:
            for _ in range(3):
                callers.wait_for(20)
                unit.stop()
                unit.start()
            callers.wait_for(20)
        unit.stop()
        log = unit.log()
    assert callers.failed == []
    assert_nothing_is_left(node, pods)
    # No request runs one-shot here: the socket always exists, and requests wait in it between two servers.
    added = [line for line in log.splitlines() if "event=request_done" in line and "command=ADD" in line]
    assert len(added) == callers.added and "level=error" not in log


def test_a_plain_restart_costs_no_request(node, plugin, pods, start):
    server = start()
    with Callers(plugin(server.path), pods) as callers:
        for _ in range(3):
            callers.wait_for(20)
            assert server.stop() == 0
            callers.wait_for(2)             # no server runs meanwhile
            server = start()
        callers.wait_for(20)
    assert server.stop() == 0
    assert callers.failed == []
    assert_nothing_is_left(node, pods)
    warm = len(server.lines("event=request_done", "command=ADD"))
    assert 0 < warm < callers.added and not server.lines("level=error")


def test_the_request_after_a_kill_gets_its_network_one_shot(node, plugin, pod, server):
    call = plugin(server.path)
    assert call("ADD", pod)[0] == call("DEL", pod)[0] == 0
    # the server writes a request's line after its answer
    assert eventually(lambda: len(server.lines("event=request_done")) == 2)
    server.process.kill()
    server.process.wait()
    assert os.path.exists(server.path)      # nobody has removed the killed server's socket
    status, stdout = call("ADD", pod)
    assert status == 0 and addresses("eth0", pod) == [json.loads(stdout)["ips"][0]["address"]]
    assert call("DEL", pod)[0] == 0 and len(server.lines("event=request_done")) == 2
    assert_nothing_is_left(node, [pod])


def test_kills_under_load_fail_adds_with_code_11_and_no_del(node, plugin, pods, start):
    server = start("--log-level", "warning")
    call = plugin(server.path)
    with Callers(call, pods) as callers:
        for _ in range(5):
            callers.wait_for(10)
            server.process.kill()
            server.process.wait()
            callers.wait_for(2)             # no server runs meanwhile
            server = start("--log-level", "warning")
    assert {(command, error["code"]) for command, error in callers.failed} <= {("ADD", 11)}, callers.failed
    assert all("server was lost" in error["msg"] for _, error in callers.failed)
    assert [call("DEL", pod)[0] for pod in pods] == [0] * len(pods)
    assert_nothing_is_left(node, pods)


def test_a_server_whose_socket_directory_was_removed_ends_with_status_0(start, tmp_path):
    """Once, the server ended with a traceback and did not send its last answers."""
    server = start()
    shutil.rmtree(tmp_path / "run")
    assert server.stop() == 0 and not server.lines("Traceback")


def test_systemd_gets_ready_before_the_first_answer_and_stopping_at_the_end(pod, plugin, tmp_path):
    with Unit(tmp_path) as unit:
        received, answers = [], []
        call = plugin(unit.path)

        def ask():
            answers.append(call("VERSION", pod))
            received.append(unit.notifications.next(0))

        waiting = threading.Thread(target=ask)
        waiting.start()
        time.sleep(0.1)  # the request waits in the socket, as it does when systemd starts the server for it
        unit.begin()
        waiting.join()
        assert answers[0][0] == 0 and received == ["READY=1"]
        unit.stop()
        assert unit.notifications.next(0.1) == ""


@pytest.mark.parametrize("kind, msg", [(socket.SOCK_STREAM, "ListenSequentialPacket="), (None, "descriptor 3")])
def test_an_unsuitable_descriptor_is_refused_with_a_message(tmp_path, kind, msg):
    with socket.socket(socket.AF_UNIX, kind) if kind else open(os.devnull) as thing:
        done = subprocess.run(["sh", "-c", HAND_OVER, sys.executable, "-m", "fastcni", "serve"], stdin=thing,
                              capture_output=True, text=True, env={**os.environ, "LISTEN_FDS": "1"}, timeout=LIMIT)
    assert done.returncode == 1
    assert msg in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@needs_activate
def test_the_tool_of_systemd_passes_its_socket(node, plugin, pod, tmp_path):
    path, env = tmp_path / "activated.sock", {"PATH": os.environ["PATH"]}
    with open(tmp_path / "log", "wb") as log:
        tool = subprocess.Popen(["systemd-socket-activate", "--seqpacket", "-l", path, sys.executable, "-I", "-m",
                                 "fastcni", "serve"], stderr=log, env=env)
    try:
        assert eventually(path.exists)
        call = plugin(path)

        def server_did_both():              # until the server runs, the plugin file handles both requests itself
            assert [call(command, pod)[0] for command in ("ADD", "DEL")] == [0, 0]
            return (tmp_path / "log").read_text().count("event=request_done") >= 2

        assert eventually(server_did_both)
        assert 'socket="handed over"' in (tmp_path / "log").read_text()
    finally:
        tool.terminate()
        assert tool.wait(LIMIT) == 0
    assert_nothing_is_left(node, [pod])
