"""The listening socket: the users that can connect to it or replace it, and the errors when it is made."""

import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from unit.server.client import ANSWER_TIMEOUT_S, OFTEN_TIDY, Server

from fastcni.daemon import listening
from fastcni.daemon.listening import ListenError, Listening
from fastcni.daemon.stop_signals import UNUSED_SIGNALS
from fastcni.testing.witnesses import eventually

HAND_OVER = 'export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" "$@" 3<&0 0</dev/null'


@pytest.fixture
def umask():
    """Set the umask to 022 and yield os.umask(). After the test, restore the umask."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.fixture
def make():
    """Yield a function that calls listening.make(). After the test, its sockets are closed."""
    made = []

    def call(path, open_to_all=False):
        made.append(listening.make(str(path), open_to_all))
        return made[-1]

    yield call
    for each in made:
        each.sock.close()
        each.unlock()


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def connects(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as conn:
        return conn.connect_ex(str(path)) == 0


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_other_users_cannot_reach_the_socket_whatever_the_umask(make, umask, tmp_path, mask):
    umask(mask)
    make(tmp_path / "run" / "s")
    assert (mode(tmp_path / "run"), mode(tmp_path / "run" / "s")) == (0o700, 0o600)


@pytest.mark.parametrize("mask", [0, 0o077])
def test_other_users_reach_the_socket_if_some_are_allowed(make, umask, tmp_path, mask):
    """A service often has the umask 077. Once, the users that --allow-uid names could then not enter the directory."""
    umask(mask)
    make(tmp_path / "run" / "s", open_to_all=True)
    assert (mode(tmp_path / "run"), mode(tmp_path / "run" / "s")) == (0o711, 0o666)


@pytest.mark.parametrize("open_to", [0o777, 0o770])
def test_a_directory_that_others_can_change_is_refused(make, tmp_path, open_to):
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(open_to)
    with pytest.raises(ListenError, match="other users can write to"):
        make(tmp_path / "run" / "s")
    assert os.listdir(tmp_path / "run") == []


def test_a_sticky_directory_is_accepted(make, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o1777)
    make(tmp_path / "run" / "s")


def lock_by_another_user(path):
    """Start a process of another user that creates and locks this file. Return the process."""
    code = ("import fcntl, os, sys, time\nos.setuid(12345)\n"
            "fcntl.flock(os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o666), fcntl.LOCK_EX)\n"
            "print('locked', flush=True)\ntime.sleep(600)")
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    return process


@pytest.fixture
def sticky():
    """Yield a directory in which every user may create files, as in /tmp."""
    if os.geteuid() != 0:
        pytest.skip("needs root: files of another user")
    with tempfile.TemporaryDirectory(prefix="fastcni-") as directory:
        os.chmod(directory, 0o1777)
        yield Path(directory)


def test_another_users_lock_in_a_sticky_directory_prevents_no_start(make, sticky):
    """Once, the server took the other user's lock for the lock of another server."""
    process = lock_by_another_user(sticky / "s.lock")
    try:
        make(sticky / "s")
        assert connects(sticky / "s") and (mode(sticky / "s.lock"), (sticky / "s.lock").stat().st_uid) == (0o600, 0)
        with pytest.raises(ListenError, match="another fastcni server listens on"):
            make(sticky / "s")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", ["s", "s.lock"])
@pytest.mark.parametrize("kind", ["file", "pipe", "link", "hard link", "full directory"])
def test_no_file_of_another_user_in_a_sticky_directory_prevents_the_start(make, sticky, kind, name):
    path = sticky / name
    if kind == "file":
        path.touch()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/null")
    elif kind == "hard link":
        (sticky / "of root").touch(0o644)
        os.link(sticky / "of root", path)
    else:
        (path / "full").mkdir(parents=True)
    if kind != "hard link":
        os.chown(path, 12345, 12345, follow_symlinks=False)
    with open(sticky / "of root" if kind == "hard link" else os.devnull) as of_root:
        fcntl.flock(of_root, fcntl.LOCK_EX)
        make(sticky / "s")
    assert connects(sticky / "s")


def test_a_lock_that_is_replaced_while_it_is_taken_is_taken_again(make, tmp_path, monkeypatch):
    path, flock, replaced = tmp_path / "s", fcntl.flock, []

    def replace_first(fd, how):
        if not replaced:
            replaced.append(fd)
            (tmp_path / "s.lock").unlink()
        return flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", replace_first)
    made = make(path)
    assert replaced and os.fstat(made.lock).st_ino == (tmp_path / "s.lock").stat().st_ino


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a directory to another user")
def test_a_directory_of_another_user_is_refused(make, tmp_path):
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", 12345, 0)
    with pytest.raises(ListenError, match="other users can write to"):
        make(tmp_path / "run" / "s")


def test_a_second_server_on_a_path_is_refused_and_the_first_one_serves(make, tmp_path):
    path = tmp_path / "run" / "s"
    make(path)
    with pytest.raises(ListenError, match=f"another fastcni server listens on {path}"):
        make(path)
    assert connects(path)


def test_the_socket_of_a_dead_server_is_replaced(make, tmp_path):
    path = tmp_path / "run" / "s"
    first = make(path)
    first.sock.close()
    first.unlock()
    assert path.exists() and not connects(path)
    make(path)
    assert connects(path)


def test_a_stopping_server_frees_its_path_at_once_and_no_earlier(make, tmp_path):
    path = tmp_path / "run" / "s"
    first = make(path)
    first.unlink()
    assert not path.exists()
    with pytest.raises(ListenError):
        make(path)  # the first server's last requests still run, and a second server would not have their state
    first.unlock()
    make(path)
    first.unlock()
    assert connects(path)


def test_a_socket_is_lost_when_its_file_is_removed_or_replaced(make, tmp_path):
    path = tmp_path / "run" / "s"
    first = make(path)
    path.chmod(0o640)
    assert not first.lost
    path.rename(tmp_path / "elsewhere")
    assert first.lost
    path.touch()
    assert first.lost
    first.unlink()
    assert path.exists()                # the file belongs to another program now
    second = make(tmp_path / "other" / "s")
    second.unlink()
    assert not second.lost              # the server removed the file itself


@pytest.mark.parametrize(("path", "text"), [("missing/directory/s", "No such file or directory"),
                                             ("x" * 120, "too long"), ("directory", "directory")])
def test_a_path_that_is_not_possible_is_an_error(tmp_path, monkeypatch, path, text):
    monkeypatch.delenv("LISTEN_PID", raising=False)
    (tmp_path / "run" / "directory").mkdir(parents=True)
    with pytest.raises(ListenError, match=f"listen on .*: .*{text}"):
        listening.listen(str(tmp_path / "run" / path), False)


# -- handed over by systemd --------------------------------------------------------------------------------------

@pytest.mark.parametrize("env", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": "own"},
                                 {"LISTEN_PID": "own", "LISTEN_FDS": "x"}])
def test_a_socket_for_another_process_is_not_used(env):
    own = {"LISTEN_PID": str(os.getpid())} if env.get("LISTEN_PID") == "own" else {}
    assert listening.handed_over(env | own) is None


def test_more_than_one_socket_from_systemd_is_refused():
    with pytest.raises(ListenError, match="hands over 2 sockets, expected one"):
        listening.handed_over({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})


def serve_handed(listener):
    """Start a server that receives this socket in the way systemd passes it."""
    return subprocess.Popen(["sh", "-c", HAND_OVER, sys.executable, "-m", "fastcni", "serve"], stdin=listener,
                            stderr=subprocess.PIPE, text=True)


def test_a_request_between_two_servers_on_one_socket_is_answered_by_the_second(node, tmp_path):
    path, conf = tmp_path / "run" / "fastcni.sock", node.conf()
    path.parent.mkdir()
    caller = Server(tmp_path)  # this server is not started: its requests reach the process that listens on the path
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        for _ in range(2):
            waiting = caller.send("VERSION", conf)
            server = serve_handed(listener)
            try:
                assert waiting.answer().status == 0 and caller.call("VERSION", conf).status == 0
                server.terminate()
                assert server.wait(ANSWER_TIMEOUT_S) == 0 and path.exists()
            finally:
                server.kill()
                server.communicate()


# -- a server as a process ---------------------------------------------------------------------------------------

def test_a_second_process_on_a_path_ends_with_an_error(start, node):
    server = start()
    second = subprocess.run([sys.executable, "-m", "fastcni", "serve", "--socket", server.path], capture_output=True,
                            text=True, timeout=ANSWER_TIMEOUT_S)
    assert second.returncode == 1 and "another fastcni server listens on" in second.stderr
    assert "Traceback" not in second.stderr and server.ok("VERSION", node.conf())


def test_after_a_kill_callers_are_refused_and_a_new_server_takes_the_path(start, node, pod):
    server = start()
    first = server.ok("ADD", node.conf(isGateway=True), pod)
    server.process.kill()
    server.process.wait()
    with pytest.raises(ConnectionRefusedError):
        server.send("VERSION", node.conf())
    again = start()
    again.ok("CHECK", {**node.conf(isGateway=True), "prevResult": first}, pod)
    again.ok("DEL", node.conf(isGateway=True), pod)
    assert node.held() == {}


def test_the_socket_is_gone_before_the_last_requests_are_answered(start, node, pod_netns, slow, tmp_path):
    """A server that is stopping accepts no new connection, but answers each request that it has accepted."""
    (keys, env), server = slow(0.7), start("--workers", "1")
    under_way = server.send("ADD", node.conf(**keys), pod_netns(), env=env)
    assert slow.started()
    behind = [server.send("VERSION", node.conf()) for _ in range(20)]
    server.process.terminate()
    assert eventually(lambda: not server.path.exists()) and server.process.poll() is None
    assert [each.answer().status for each in (under_way, *behind)] == [0] * 21
    assert server.process.wait(ANSWER_TIMEOUT_S) == 0
    assert server.lines("event=server_stopped") and not server.lines("level=error")


def test_a_terminal_that_closes_ends_the_server_like_sigterm(start):
    """Once, SIGHUP killed the server: its requests got no answer, and the socket's file remained."""
    server = start(before=("env", "--default-signal=HUP"))
    server.process.send_signal(signal.SIGHUP)
    assert server.process.wait(ANSWER_TIMEOUT_S) == 0
    assert not server.path.exists() and server.lines("event=server_stopped")


def test_a_server_that_nohup_has_started_ignores_sighup(start, node):
    """sigwait() returns a blocked signal, even if the process ignores this signal."""
    server = start(before=("env", "--ignore-signal=HUP"))
    server.process.send_signal(signal.SIGHUP)
    assert not eventually(lambda: server.lines("event=server_stopping"), 0.5)
    assert server.ok("VERSION", node.conf()) and server.stop() == 0


@pytest.mark.parametrize("number", UNUSED_SIGNALS)
def test_a_signal_without_a_use_does_not_end_the_server(server, node, number):
    """Once, SIGUSR1, by which other daemons print statistics, killed the server."""
    server.process.send_signal(number)
    assert not eventually(lambda: server.process.poll() is not None, 0.5)
    assert server.ok("VERSION", node.conf()) and server.stop() == 0


def test_a_server_whose_sockets_directory_is_removed_ends_and_leaves_the_next_ones_socket(start, node):
    """Once, the first server kept running, although no caller could find it. It still restored rules, and when it
    ended, it removed the second server's socket."""
    first = start(program=("-c", OFTEN_TIDY))
    shutil.rmtree(first.path.parent)
    second = start()
    assert first.process.wait(ANSWER_TIMEOUT_S) == 1
    assert first.lines("event=socket_lost") and first.lines("event=server_stopped")
    assert second.ok("VERSION", node.conf())


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_server_with_closed_streams_listens(host_netns, tmp_path, closed):
    """Once, the server ended with status 1 and without a message. If stdin or stdout was closed, the descriptor of its
    lock file was 0 or 1."""
    path = tmp_path / "s"
    with subprocess.Popen(["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "fastcni", "serve",
                           "--socket", path]) as server:
        try:
            assert eventually(lambda: connects(path) or server.poll() is not None) and server.poll() is None
            opened = [os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in range(3)]
            assert {*opened} - {os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)} <= {os.devnull}
        finally:
            server.terminate()
    assert server.returncode == 0


def test_a_request_in_the_queue_of_a_server_that_stops_is_answered(start, node):
    """A stopped server (SIGSTOP) accepts no connection. When it continues, SIGTERM is pending."""
    server = start()
    os.kill(server.process.pid, 19)
    waiting = [server.send("VERSION", node.conf()) for _ in range(100)]
    server.process.terminate()
    os.kill(server.process.pid, 18)
    assert [each.answer().status for each in waiting] == [0] * 100
    assert server.process.wait(ANSWER_TIMEOUT_S) == 0


def test_a_socket_from_systemd_keeps_its_file(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(tmp_path / "s"))
        handed = Listening(sock)
        handed.unlink()
        handed.unlock()
        assert handed.handed_over and (tmp_path / "s").exists()
