"""Fork processes from a parent that has imported their modules. So a server takes 0.05 s of a processor, not 0.27 s,
a process of the agent takes 0.01 s, not 0.07 s, a command saves 0.25 s, and firewalld 0.17 s.

    process = Forked(["serve", "--socket", path], stderr=log, env=env)
    process = ForkedPython([sys.executable, "-I", "-c", code], pass_fds=[number])
    done = run_command(["selftest", "net", "--json"])       # as subprocess.run()

The process runs in the network namespace of the calling thread. Tests of the start itself start another Python, see
client.Server.
"""

import ctypes
import fcntl
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading

MAIN = ("import sys; {path}; from lab import forked; forked.{load}(); forked.fork_processes({fd})")
TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMAND = "from fastcni.cli import main; main()"
FIREWALLD = """
import runpy, subprocess, sys
from lab import forked
assert forked.libc.unshare(forked.CLONE_NEWNS) == 0
subprocess.run(["sh", "-c", sys.argv[1]], check=True)
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
COMMAND_S = 60                  # how long a command may take
MAX_BYTES, MAX_FDS = 1 << 17, 32
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000         # linux/sched.h
libc = ctypes.CDLL(None)
lock = threading.Lock()


class Forked:
    """A server with the methods of subprocess.Popen that tests use."""

    load = "load_server"        # the function that imports the modules
    python, path = sys.executable, f"sys.path[:] = {sys.path!r}"        # of the parent

    def __init__(self, argv, *, stderr, env):
        self._start(COMMAND, argv, env, [1, stderr.fileno()])

    def _start(self, code, argv, env, fds, descriptors=()):
        """Start a process. argv: the process's sys.argv[1:]. fds: its stdout and stderr. descriptors: further
        descriptors, which keep their numbers."""
        self.returncode = None
        with open("/proc/thread-self/ns/net", "rb") as netns:
            question = {"code": code, "argv": [str(word) for word in argv], "env": env, "directory": os.getcwd(),
                        "descriptors": [*descriptors]}
            self.pid = ask(type(self), question, [netns.fileno(), *fds, *descriptors])
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self):
        return self._wait(0)

    def wait(self, timeout=None):
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired(f"server {self.pid}", timeout)
        return self.returncode

    def _wait(self, seconds):
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._pidfd, select.POLLIN)
            if ended.poll(None if seconds is None else 1000 * seconds):
                self.returncode = os.waitstatus_to_exitcode(ask(type(self), {"ended": self.pid}))
                os.close(self._pidfd)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)           # the process id is not reused before _wait()

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class ForkedPython(Forked):
    """A process of the agent, with the signature of subprocess.Popen."""

    load = "load_agent"

    def __init__(self, command, *, pass_fds, stdin=None, stdout=None, start_new_session=True):
        assert command[:3] == [sys.executable, "-I", "-c"] and start_new_session
        self._start(command[3], (), dict(os.environ), [1, 2], pass_fds)


class ForkedCommand(Forked):
    """A command of `fastcni`. stdout, stderr: files. code: what runs the command."""

    load = "load_commands"

    def __init__(self, argv, *, stdout, stderr, env=None, code=COMMAND):
        self._start(code, argv, {**os.environ, **(env or {})}, [stdout.fileno(), stderr.fileno()])


class ForkedFirewalld(Forked):
    """The program firewalld in its own mount namespace. prepare: shell commands in this namespace, before the program
    starts. log: the file for stdout and stderr."""

    load = "load_firewalld"
    python, path = "/usr/bin/python3", f"sys.path.append({TESTS!r})"    # the Python with firewalld's modules

    def __init__(self, program, *options, prepare, env, log):
        self._start(FIREWALLD, (prepare, program, *options), env, [log.fileno(), log.fileno()])


def run_command(argv, **more):
    """Run a command of `fastcni`. Return its subprocess.CompletedProcess, with text. more: as for ForkedCommand."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = ForkedCommand(argv, stdout=stdout, stderr=stderr, **more)
        try:
            process.wait(COMMAND_S)
        finally:
            process.kill()
            process.wait()
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(argv, process.returncode, stdout.read(), stderr.read())


def ask(kind, question, fds=()):
    """Send a question to the parent of a class, and return its answer, a number. See fork_processes()."""
    with lock:
        sock, _ = parent(kind)
        socket.send_fds(sock, [json.dumps(question).encode()], fds)
        return int(sock.recv(100))


@functools.cache
def parent(kind):
    """Start the parent of a class, which ends with this process. Return (the socket to it, its Popen)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [kind.python, "-c", MAIN.format(path=kind.path, load=kind.load, fd=theirs.fileno())]
        return ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)


# -- in the parent of the processes ------------------------------------------------------------------------------------

def load_server():
    from fastcni.cli.serve import serve  # noqa: F401 - the server imports these modules
    from fastcni.node.served import Served  # noqa: F401
    from fastcni.server.requests.workers import preload

    preload()


def load_agent():
    import dns.rdata

    from fastcni.agent.policy.names import forwarder  # noqa: F401
    from fastcni.agent.policy.sources.parse import parse

    dns.rdata.load_all_types()
    list(parse("warm.yaml", b"kind: Pod\nmetadata: {name: a}\n"))


def load_commands():
    from fastcni.cli import entry_point, flows, selftest  # noqa: F401 - the command imports these modules
    from fastcni.flows import collector  # noqa: F401
    from fastcni.selftest import run  # noqa: F401


def load_firewalld():
    import dbus  # noqa: F401
    from firewall.server import server  # noqa: F401


def fork_processes(fd):
    """Fork a process for each question of Forked._start(). The process sends its process id. The question {"ended":
    process id} gets the wait status of that process."""
    gc.freeze()
    assert libc.unshare(CLONE_NEWNET) == 0      # the namespace of the first test is no longer needed
    with socket.socket(fileno=fd) as sock:
        while True:
            data, fds, *_ = socket.recv_fds(sock, MAX_BYTES, MAX_FDS)
            if not data:
                return
            question = json.loads(data)
            if "ended" in question:
                sock.send(b"%d" % os.waitpid(question["ended"], 0)[1])
            elif not os.fork():
                with sock:
                    become(question, *fds[:3])
                    sock.send(b"%d" % os.getpid())
                place(fds[3:], question["descriptors"])
                exec(question["code"], {"__name__": "__main__"})        # the code of Forked
                sys.exit()
            for each in fds:
                os.close(each)


def become(question, netns, stdout, stderr):
    """Give this process a session, and the arguments, environment, directory, network namespace, stdout and stderr of
    the question."""
    os.setsid()
    assert libc.setns(netns, CLONE_NEWNET) == 0
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for each in (netns, stdout, stderr):
        os.close(each)
    os.chdir(question["directory"])
    os.environ.clear()
    os.environ.update(question["env"])
    sys.argv[:] = ["-c", *question["argv"]]


def place(fds, numbers):
    """Give these descriptors these numbers."""
    above = 1 + max(numbers, default=0)
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, above) for each in fds]
    for each in fds:
        os.close(each)
    for each, number in zip(moved, numbers, strict=True):
        os.dup2(each, number)
        os.close(each)
