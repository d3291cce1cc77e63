"""Who is called: directories of plugins, and the two servers that some of them find behind their socket."""

import json
import os
import socket
import subprocess
import sys
import time

from fastcni.bench.calls import Flow, Running, one
from fastcni.spec import errors
from fastcni.spec.errors import CniError

START_SECONDS = 20              # until a server listens
END_SECONDS = 90                # it finishes what it has begun
SUBNETS = {"Go": 21, "one-shot": 22, "warm": 23, "floor": 24, "before": 25}


class Plugins:
    """A side whose calls are processes: the plugin files of a folder, and the socket that they are to use ("" none).
    server: the Child that answers there, if any."""

    def __init__(self, name, folder, sock="", server=None):
        self.name, self.folder, self.server = name, folder, server
        self.env = {"CNI_IFNAME": "eth0", "CNI_PATH": folder, "PATH": os.environ.get("PATH", os.defpath),
                    "FASTCNI_SOCKET": sock}
        self.sent = 0

    def prepare(self, network):
        """A plugin makes what it needs."""

    def ready(self, command, network, pod, more=()):
        """A call: a function that starts it and returns the Running process. `more` are keys of its configuration.
        All that a clock need not see is done here."""
        env = {**self.env, "CNI_COMMAND": command, "CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path}
        kind = dict(more).get("type", network.case.type)
        own = network.case.ours.get(kind, {}) if self.name != "Go" else {}
        words = (f"{self.folder}/{kind}", env, network.stdin(pod, {**dict(more), **own}),
                 f"{kind} {command} of {self.name}")

        def start():
            self.sent += 1
            return Running(*words)

        return start

    def call(self, command, network, pod):
        """One call to its end: {this side: ms}. Raises CallFailed."""
        if network.case.chain:
            return {self.name: self._call_chain(command, network, pod)}
        took, _ = one(self.ready(command, network, pod))
        return {self.name: took}

    def _call_chain(self, command, network, pod):
        """A conflist's calls, as a runtime makes them: DEL goes backwards. Milliseconds of all processes."""
        took, chain = 0.0, network.case.chain
        for keys in chain if command == "ADD" else reversed(chain):
            known = {"prevResult": network.results[pod]} if pod in network.results else {}
            ms, said = one(self.ready(command, network, pod, {**keys, **known}))
            took += ms
            if command == "ADD":
                network.results[pod] = json.loads(said)
        if command == "DEL":
            del network.results[pod]
        return took

    def flow(self, command, network, pods, at_once):
        """A call for each pod, so many at once. Raises CallFailed, CniError for a server that died."""
        try:
            return Flow([self.ready(command, network, pod) for pod in pods], at_once)
        finally:
            self.check()

    def check(self):
        if self.server:
            self.server.check()


class Child:
    """`with Child(words, sock, log):` runs a server of ours in this namespace, from its first connection to SIGTERM.
    python: the interpreter that runs it, by default this one."""

    def __init__(self, words, sock, log, python=sys.executable):
        self.words, self.sock, self.log, self.python = words, sock, log, python

    def __enter__(self):
        with open(self.log, "wb") as log:
            # In a process group of its own: Ctrl-C is for the run, which then ends it in its turn.
            self.process = subprocess.Popen([self.python, *self.words], stdin=subprocess.PIPE, stdout=log,
                                            stderr=log, process_group=0)
        try:
            self._wait_until_it_listens()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _wait_until_it_listens(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                if not sock.connect_ex(self.sock):
                    return
            time.sleep(0.02)
        raise CniError(errors.INTERNAL, f"{' '.join(self.words)}: does not listen after {START_SECONDS} s{self.said()}")

    @property
    def pid(self):
        return self.process.pid

    @property
    def cpu(self):
        """Seconds of processor time, user and system, of all its threads that there ever were.

        clock_getcpuclockid(3) makes the same number: MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED).
        """
        return time.clock_gettime(~self.pid << 3 | 2)

    def check(self):
        """Raises CniError with the last lines of its log when it is dead: its callers would go on without it."""
        if self.process.poll() is not None:
            ended = f"{' '.join(self.words)}: ended with status {self.process.returncode}"
            raise CniError(errors.INTERNAL, f"{ended}{self.said()}")

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return "".join(f"\n    {line.rstrip()}" for line in file.readlines()[-10:])

    def answered(self):
        """How many requests its log says that it has done."""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return sum(" event=request_done " in line for line in file)


def serve(folder, python=sys.executable):
    """The warm server as a Child, listening below `folder`, as a user would start it."""
    sock = f"{folder}/fastcni.sock"
    return Child(["-Im", "fastcni", "serve", "--socket", sock], sock, f"{folder}/server.log", python)


def another(python, folder):
    """The warm server of another Python's fastcni, as a Child, and its plugins in `folder`/bin. Raises CniError."""
    words = [python, "-Im", "fastcni", "install", "--bin-dir", f"{folder}/bin"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as e:
        raise CniError(errors.INVALID_CONFIG, f"{python}: {e.strerror}") from e
    if done.returncode:
        raise CniError(errors.INVALID_CONFIG, f"{' '.join(words)}: {done.stderr.strip()[-500:]}")
    return serve(folder, python)


def echo(folder):
    """The server that does nothing, as a Child."""
    sock = f"{folder}/echo.sock"
    return Child(["-m", "fastcni.bench.echo", sock], sock, f"{folder}/echo.log")
