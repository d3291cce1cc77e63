"""A running server, and a client of its protocol."""

import array
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from lab.forked import Forked

from fastcni.server.requests.protocol import HEAD, MAGIC, NETNS, VERSION
from fastcni.testing.witnesses import eventually

START_TIMEOUT_S = 60    # how long a server may take until it listens
ANSWER_TIMEOUT_S = 40   # how long one answer may take
PROGRAM = ("-m", "fastcni", "serve", "--socket")        # arguments of Python
# For python -c: `serve PATH` with a server that cleans up ten times a second
OFTEN_TIDY = """import sys; from fastcni.server.service import Options, serve
sys.exit(serve(sys.argv[1], Options(tidy_s=0.1)))"""


def block(plugin, env):
    return b"".join(os.fsencode(text) + b"\0" for text in (plugin, *(f"{key}={value}" for key, value in env.items())))


def packed(plugin, env, stdin=b"", descriptors=0, magic=MAGIC, version=VERSION):
    """Return the bytes of a request."""
    environment = block(plugin, env)
    return HEAD.pack(magic, version, descriptors, len(environment)) + environment + stdin


class Answer:
    """The answer to a request. status is None if the server closed the connection without an answer."""

    def __init__(self, data, fds=()):
        self.status, self.stdout, self.stderr = None, b"", b""
        if data:
            _, _, self.status, size = HEAD.unpack_from(data)
            both = data[HEAD.size:]
            if fds:
                both = os.pread(fds[0], 1 << 24, 0)
                os.close(fds[0])
            self.stderr, self.stdout = both[:size], both[size:]

    @property
    def document(self):
        return json.loads(self.stdout) if self.stdout else None


class Pending:
    """A request that was sent. answer() waits for the answer and returns it. close() closes the connection without
    one."""

    def __init__(self, path, data, fds):
        self.conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.conn.settimeout(ANSWER_TIMEOUT_S)
        self.conn.connect(path)
        self.conn.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])

    def answer(self):
        data, ancillary, _, _ = self.conn.recvmsg(1 << 18, socket.CMSG_SPACE(4))
        self.conn.close()
        fds = array.array("i")
        for _, _, rights in ancillary:
            fds.frombytes(rights)
        return Answer(data, fds)

    def close(self):
        self.conn.close()


class Server:
    """`with Server(directory, "--workers", "1") as server:` runs `fastcni serve` as a process in this thread's network
    namespace."""

    def __init__(self, directory, *options, env=None, before=(), program=()):
        """before: a command line that executes the server. program: the arguments of Python before the socket's
        path. Without both, the server is a fork, see lab/forked.py."""
        self.program = program
        self.path, self.log = Path(directory) / "run" / "fastcni.sock", Path(directory) / "log"
        self.options, self.env, self.before, self.cni_path = options, env or {}, before, "/nowhere"

    def __enter__(self):
        with open(self.log, "ab") as log:
            env = {**os.environ, **self.env}
            if self.before or self.program:
                command = [*self.before, sys.executable, *(self.program or PROGRAM), self.path, *self.options]
                self.process = subprocess.Popen(command, stderr=log, env=env)
            else:
                self.process = Forked(["serve", "--socket", self.path, *self.options], stderr=log, env=env)
        try:
            assert eventually(lambda: self.process.poll() is not None or self.listens(), START_TIMEOUT_S)
            assert self.process.poll() is None, self.log_text()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Stop the server by SIGTERM. Return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(ANSWER_TIMEOUT_S)

    def listens(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as conn:
            return conn.connect_ex(str(self.path)) == 0

    def log_text(self):
        return self.log.read_text() if self.log.exists() else ""

    def lines(self, *texts):
        """Return the log lines that contain all of these texts."""
        return [line for line in self.log_text().splitlines() if all(text in line for text in texts)]

    @property
    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def resident(self):
        """Return the server's resident memory in bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def send(self, command, conf, pod="", *, plugin=None, cid=None, ifname="eth0", env=None):
        """Send a request as the launcher does, from this thread's namespace. Return the Pending of this request."""
        path = pod if not pod or pod.startswith("/") else f"/run/netns/{pod}"
        variables = {"CNI_COMMAND": command, "CNI_CONTAINERID": cid or f"c-{os.path.basename(pod)}", "CNI_NETNS": path,
                     "CNI_IFNAME": ifname, "CNI_PATH": self.cni_path, **(env or {})}
        stdin = conf if isinstance(conf, bytes) else json.dumps(conf).encode()
        fds, mask = [], 0
        if path and os.path.exists(path):
            fds.append(os.open(path, os.O_RDONLY))
            mask |= NETNS
        try:
            return Pending(str(self.path), packed(plugin or conf["type"], variables, stdin, mask), fds)
        finally:
            for fd in fds:
                os.close(fd)

    def call(self, command, conf, pod="", **more):
        return self.send(command, conf, pod, **more).answer()

    def ok(self, command, conf, pod="", **more):
        answer = self.call(command, conf, pod, **more)
        assert answer.status == 0, f"{answer.status} {answer.stdout} {self.log_text()[-2000:]}"
        return answer.document

    def refused(self, command, conf, pod="", **more):
        answer = self.call(command, conf, pod, **more)
        assert answer.status == 1, answer.stdout
        return answer.document
