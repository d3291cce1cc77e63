"""Run programs until they end: input, output and exit status."""

import errno
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from _thread import interrupt_main
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastcni.kernel import process, waiting
from fastcni.testing.witnesses import eventually

SH = "/bin/sh"


def sh(script, stdin=b"", env=None, **how):
    env = {"PATH": "/usr/bin:/bin"} if env is None else env
    return process.run(SH, env, stdin, (SH, "-c", script), **{"timeout": None, **how})


def test_both_streams_are_complete_and_separate():
    ended = sh("cat; echo oops >&2", b"in\0put\n")
    assert (ended.status, ended.stdout, ended.stderr, ended.cause) == (0, b"in\0put\n", b"oops\n", "")


def test_megabytes_in_and_out_do_not_block():
    data = os.urandom(1 << 20) * 3
    assert sh("tee /proc/self/fd/2", data).stdout == data


def test_the_child_has_exactly_the_given_environment():
    ended = process.run("/usr/bin/env", {"ONE": "1", "TWO": "z\u00e9"}, b"", timeout=60)
    assert sorted(ended.stdout.decode().split()) == ["ONE=1", "TWO=z\u00e9"]


def test_the_argument_list_is_just_the_path():
    ended = process.run("/bin/cat", {}, b"x", timeout=60)
    assert ended.stdout == b"x"


@pytest.mark.parametrize("script, status, cause", [
    ("exit 3", 3, "exit status 3"),
    ("kill -9 $$", -9, "signal: killed"),
    ("kill -15 $$", -15, "signal: terminated"),
    ("kill -13 $$", -13, "signal: broken pipe"),
])
def test_the_cause_names_the_exit_status_or_the_signal(script, status, cause):
    ended = sh(script)
    assert (ended.status, ended.cause) == (status, cause)


def test_a_core_dump_is_reported():
    # wait(2): seven bits are the signal, and the eighth bit says that the kernel wrote a core
    dumped = process.read_wait_status(signal.SIGSEGV | 0x80)
    assert dumped == (-11, "signal: segmentation fault (core dumped)")
    assert process.read_wait_status(40) == (-40, "signal: signal 40")


def test_after_the_timeout_the_program_is_killed():
    start = time.monotonic()
    ended = sh("exec sleep 60", timeout=0.1)
    assert ended.cause == "signal: killed"
    assert time.monotonic() - start < 10


def test_a_program_that_ends_in_time_is_left_alone():
    assert sh("echo done", timeout=60).stdout == b"done\n"


def test_a_grandchild_that_holds_the_streams_does_not_hold_us(tmp_path):
    start = time.monotonic()
    ended = sh(f"sleep 30 & echo $! > {tmp_path}/pid; echo out")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert ended.stdout == b"out\n"
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("make, number", [
    (lambda file: None, errno.ENOENT),
    (lambda file: file.write_text("#!/bin/sh\n"), errno.EACCES),
    (lambda file: (file.write_text("no program\n"), file.chmod(0o755)), errno.ENOEXEC),
])
def test_what_cannot_be_started_is_an_oserror(tmp_path, make, number):
    file = tmp_path / "program"
    make(file)
    with pytest.raises(OSError) as caught:
        process.run(str(file), {}, b"", timeout=60)
    assert caught.value.errno == number


def test_a_nul_in_the_environment_is_refused():
    with pytest.raises(ValueError):
        process.run("/bin/true", {"A": "b\0c"}, b"", timeout=60)


def test_more_output_than_the_bound_is_refused(monkeypatch):
    monkeypatch.setattr(process, "MAX_OUTPUT", 10)
    assert sh("printf 0123456789").stdout == b"0123456789"
    with pytest.raises(OSError, match="wrote 11 bytes to stdout"):
        sh("printf 0123456789a")


def test_signals_that_python_ignores_work_in_the_child():
    ended = process.run("/bin/cat", {}, b"", ("/bin/cat", "/proc/self/status"), timeout=60)
    ignored = next(line for line in ended.stdout.splitlines() if line.startswith(b"SigIgn:"))
    assert not int(ignored.split()[1], 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_it_works_if_this_process_has_no_standard_streams(tmp_path):
    # memfd_create(2) then returns 0, 1 or 2. A dup2(2) to the same number leaves FD_CLOEXEC set, so exec would close
    # the descriptor.
    code = textwrap.dedent(f"""
        import os
        os.closerange(0, 3)
        from fastcni.kernel import process
        ended = process.run("/bin/sh", {{}}, b"in", ("/bin/sh", "-c", "/bin/cat; echo err >&2"), timeout=60)
        with open({str(tmp_path / "out")!r}, "wb") as file:
            file.write(ended.stdout + ended.stderr)
    """)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert (tmp_path / "out").read_bytes() == b"inerr\n"


def test_no_descriptor_is_left_open(collector_off):
    before = len(os.listdir("/proc/self/fd"))
    sh("true", timeout=5)
    with pytest.raises(OSError):
        process.run("/nonexistent", {}, b"", timeout=60)
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_threads_may_run_programs_at_once():
    seen = {}

    def work(number):
        seen[number] = sh("cat", b"%d" % number).stdout

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {number: b"%d" % number for number in range(16)}


# -- no process remains -----------------------------------------------------------------------------------------------

STARTS_ANOTHER = "echo $$ > {0}/pids; sleep 1000 & echo $! >> {0}/pids; wait"


def pids(directory, count=2):
    """Wait until STARTS_ANOTHER has written `count` pids, and return the pids."""
    file = directory / "pids"
    assert eventually(lambda: file.exists() and len(file.read_text().split()) == count)
    return [int(word) for word in file.read_text().split()]


def runs(pid):
    """Return whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_after_the_timeout_the_process_group_is_killed(tmp_path):
    ended = sh(STARTS_ANOTHER.format(tmp_path), timeout=1)
    assert ended.late and ended.cause == "signal: killed"
    assert eventually(lambda: not any(map(runs, pids(tmp_path))))


def test_when_the_caller_leaves_the_process_group_is_killed(tmp_path):
    sock, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = waiting.Request()
    request.caller = sock.fileno()
    left = threading.Thread(target=lambda: (pids(tmp_path), peer.close()))
    left.start()
    waiting.here.request = request
    try:
        with pytest.raises(waiting.CallerGone), sock:
            sh(STARTS_ANOTHER.format(tmp_path))
    finally:
        del waiting.here.request
        left.join()
    assert eventually(lambda: not any(map(runs, pids(tmp_path))))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_does_not_outlive_the_process_that_runs_it(tmp_path, number):
    code = f"""
from fastcni.kernel import process
process.run("/bin/sh", {{}}, b"", ("/bin/sh", "-c", "echo $$ > {tmp_path}/pids; while :; do /bin/sleep 1; done"),
            timeout=None)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        (program,) = pids(tmp_path, 1)
        parent.send_signal(number)
    assert eventually(lambda: not runs(program))


def test_a_program_has_no_signal_blocked():
    """A server blocks SIGTERM and SIGINT. Once, its programs inherited the blocked signals, and these signals did not
    end them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        status = process.run("/bin/cat", {}, b"", ("/bin/cat", "/proc/self/status"), timeout=60).stdout
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert b"SigBlk:\t0000000000000000" in status


def test_a_signal_during_the_start_leaves_no_program_running():
    """The handler raises when spawn() returns. Once, the program went on, so the ADD of an interrupted
    self-test could go on after its DEL."""
    def children():
        return set(filter(runs, Path("/proc/thread-self/children").read_text().split()))

    # spawn() reads the environment, here empty, and runs no Python code from there to its return
    env = SimpleNamespace(items=lambda: filter(interrupt_main, (signal.SIGINT,)))
    former, before = signal.signal(signal.SIGINT, signal.default_int_handler), children()
    try:
        with pytest.raises(KeyboardInterrupt):
            sh("exec sleep 60", env=env)
    finally:
        signal.signal(signal.SIGINT, former)
    assert children() <= before


@pytest.mark.parametrize("timeout, cause", [(60, ""), (None, ""), (0.2, "signal: killed")])
def test_it_works_where_the_kernel_has_no_pidfd(monkeypatch, timeout, cause):
    def pidfd_open(pid):
        raise OSError(errno.ENOSYS, "")

    monkeypatch.setattr(process.posix, "pidfd_open", pidfd_open)
    assert sh("exec sleep 1000" if cause else "exit 0", timeout=timeout).cause == cause


def test_a_killed_program_that_had_not_ended_in_time_is_reaped_later():
    started = []
    with open("/dev/null", "r+") as null:
        process.spawn("/bin/true", ("/bin/true",), {}, started, *[null.fileno()] * 3)
    (pid,) = started
    process.strays.append(pid)
    assert eventually(lambda: not runs(pid)) and os.path.exists(f"/proc/{pid}")
    sh("exit 0")
    assert process.strays == [] and not os.path.exists(f"/proc/{pid}")
