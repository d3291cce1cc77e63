"""Fork servers from one process that has imported their modules: a server takes 0.05 s of a processor, not 0.27 s.

    process = Forked(["serve", "--socket", path], stderr=log, env=env)

The server runs in the network namespace of the calling thread. Tests of the start itself start `python -m fastcni`, see
client.Server.
"""

import ctypes
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading

MAIN = "import sys; sys.path[:] = {path!r}; from unit.server.forked import fork_servers; fork_servers({fd})"
MAX_BYTES = 1 << 17
CLONE_NEWNET = 0x40000000       # linux/sched.h
libc = ctypes.CDLL(None)
lock = threading.Lock()


class Forked:
    """A server with the methods of subprocess.Popen that tests use."""

    def __init__(self, argv, *, stderr, env):
        self.returncode = None
        with open("/proc/thread-self/ns/net", "rb") as netns:
            self.pid = ask({"argv": [str(word) for word in argv], "env": env, "directory": os.getcwd()},
                           [stderr.fileno(), netns.fileno()])
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
                self.returncode = os.waitstatus_to_exitcode(ask({"ended": self.pid}))
                os.close(self._pidfd)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)           # the process id is not reused before _wait()

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def ask(question, fds=()):
    """Send a question to the parent of the servers, and return its answer, a number. See fork_servers()."""
    with lock:
        sock, _ = parent()
        socket.send_fds(sock, [json.dumps(question).encode()], fds)
        return int(sock.recv(100))


@functools.cache
def parent():
    """Start the parent of the servers, which ends with this process. Return (the socket to it, its Popen)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-c", MAIN.format(path=sys.path, fd=theirs.fileno())]
        return ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)


# -- in the parent of the servers --------------------------------------------------------------------------------------

def fork_servers(fd):
    """Fork a server for each question {"argv", "env", "directory"}, and answer its process id. Answer the wait status
    of a server to {"ended": its process id}."""
    from fastcni.cli import entry_point
    from fastcni.cli.serve import serve  # noqa: F401 - the server imports these modules
    from fastcni.node.served import Served  # noqa: F401
    from fastcni.server.requests.workers import preload

    preload()
    gc.freeze()
    assert libc.unshare(CLONE_NEWNET) == 0      # the namespace of the first test is no longer needed
    with socket.socket(fileno=fd) as sock:
        while True:
            data, fds, *_ = socket.recv_fds(sock, MAX_BYTES, 2)
            if not data:
                return
            question = json.loads(data)
            if "ended" in question:
                sock.send(b"%d" % os.waitpid(question["ended"], 0)[1])
                continue
            if not (pid := os.fork()):
                sock.close()
                become(question, *fds)
                sys.exit(entry_point.run(question["argv"]))
            for each in fds:
                os.close(each)
            sock.send(b"%d" % pid)


def become(question, stderr, netns):
    """Give this process the environment, directory, stderr and network namespace of the question."""
    assert libc.setns(netns, CLONE_NEWNET) == 0
    os.dup2(stderr, 2)
    for each in (stderr, netns):
        os.close(each)
    os.chdir(question["directory"])
    os.environ.clear()
    os.environ.update(question["env"])
