"""Define the measured implementations ("sides"). Each has a directory of plugin files; a warm implementation also has a
server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from fastcni.bench import isolation
from fastcni.bench.calls import Flow, Running, one
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.bench.floor import Floor
    from fastcni.bench.node import Network, Pod

START_SECONDS = 20              # seconds after which a server must listen
END_SECONDS = 90                # seconds that a server has to answer its running requests and end
Side: TypeAlias = "Plugins | Floor"
SUBNETS = {"Go": 21, "one-shot": 22, "warm": 23, "floor": 24, "before": 25}


class Plugins:
    """An implementation whose calls start plugin files as processes. directory: the directory of the plugin files.
    sock: the socket at which the plugin files ask a server, "" without a server. server: the Child that listens at the
    socket, or None."""

    def __init__(self, name: str, directory: str, sock: str = "", server: Child | None = None) -> None:
        self.name, self.directory, self.server = name, directory, server
        self.env = {"CNI_IFNAME": "eth0", "CNI_PATH": directory, "PATH": os.environ.get("PATH", os.defpath),
                    "FASTCNI_SOCKET": sock, **isolation.NO_BUS}
        self.sent = 0

    def prepare(self, network: Network) -> None:
        """Do nothing: plugins make their bridge and their firewall tables themselves."""

    def ready(self, command: str, network: Network, pod: Pod,
              more: Iterable[tuple[str, Any]] = ()) -> Callable[[], Running]:
        """Prepare a call before its time is measured. Return a function that starts the process.

        more: further keys of the configuration."""
        env = {**self.env, "CNI_COMMAND": command, "CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path}
        kind = dict(more).get("type", network.case.type)
        own = network.case.ours.get(kind, {}) if self.name != "Go" else {}
        stdin = network.stdin(pod, {**dict(more), **own}.items())

        def start() -> Running:
            self.sent += 1
            return Running(f"{self.directory}/{kind}", env, stdin, f"{kind} {command} of {self.name}")

        return start

    def call(self, command: str, network: Network, pod: Pod) -> dict[str, float]:
        """Make one call. Return {name of this implementation: ms}; for a conflist, ms is the sum of its plugins' calls.
        Raise CallFailed."""
        took, _ = one(self._first(command, network, pod))
        return {self.name: took}

    def flow(self, command: str, network: Network, pods: Sequence[Pod], at_once: int) -> Flow:
        """Make a call for each pod, `at_once` at a time. Raise CallFailed if a call fails, CniError if the server has
        ended."""
        try:
            return Flow([self._first(command, network, pod) for pod in pods], at_once)
        finally:
            self.check()

    def _first(self, command: str, network: Network, pod: Pod) -> Callable[[], Running]:
        """Return a function that starts the first process of a pod's call. For a conflist, `then` of each process
        starts the next process, as a runtime does, for DEL in reverse order. If the case is fused, the conflist has
        only the plugin `chain`."""
        if not network.case.chain:
            return self.ready(command, network, pod)
        fused = network.case.fused and os.path.exists(f"{self.directory}/chain")
        chain = (network.fused(pod),) if fused else network.case.chain
        left = iter(chain if command == "ADD" else reversed(chain))

        def following(output: bytes = b"") -> Callable[[], Running] | None:
            if command == "ADD" and output:
                network.results[pod] = json.loads(output)
            keys = next(left, None)
            if keys is None:
                if command == "DEL":
                    network.results.pop(pod, None)
                return None
            known = {"prevResult": network.results[pod]} if pod in network.results else {}
            ready = self.ready(command, network, pod, {**keys, **known}.items())

            def start() -> Running:
                running = ready()
                running.then = following
                return running

            return start

        first = following()
        assert first
        return first

    def check(self) -> None:
        """Raise CniError if this implementation has a server that has ended."""
        if self.server:
            self.server.check()


class Child:
    """A server process. `with Child(arguments, sock, log):` starts the server in this network namespace. The server
    listens when the body begins, and gets SIGTERM when the body ends.

    arguments: the arguments of the Python interpreter. sock, log: the paths of the server's socket and log. python: the
    path of the interpreter, by default this process's."""

    def __init__(self, arguments: Sequence[str], sock: str, log: str, python: str = sys.executable) -> None:
        self.arguments, self.sock, self.log, self.python = arguments, sock, log, python

    def __enter__(self) -> Child:
        with open(self.log, "wb") as log:
            # The server is in its own process group, because the run, not Ctrl-C, must end the server.
            self.process = subprocess.Popen(isolation.isolated([self.python, *self.arguments]), stdin=subprocess.PIPE,
                                            stdout=log, stderr=log, env=isolation.environment(), process_group=0)
        try:
            self._wait_until_it_listens()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                if not sock.connect_ex(self.sock):
                    return
            time.sleep(0.02)
        raise CniError(errors.INTERNAL,
                       f"{' '.join(self.arguments)}: does not listen after {START_SECONDS} s{self.last_log()}")

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        return self.process.pid

    @property
    def cpu(self) -> float:
        """Return the seconds of processor time, user and system, that all threads of the server have used.

        The clock id is computed as in clock_getcpuclockid(3): MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED).
        """
        return time.clock_gettime(~self.pid << 3 | 2)

    def check(self) -> None:
        """If the server has ended, raise CniError with the last lines of the server's log. Without the server, the
        plugins would run one-shot."""
        if self.process.poll() is not None:
            ended = f"{' '.join(self.arguments)}: ended with status {self.process.returncode}"
            raise CniError(errors.INTERNAL, f"{ended}{self.last_log()}")

    def last_log(self) -> str:
        """Return the last ten lines of the server's log, each indented and after a newline."""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return "".join(f"\n    {line.rstrip()}" for line in file.readlines()[-10:])

    def answered(self) -> int:
        """Return the number of requests that the server's log shows as answered."""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return sum(" event=request_done " in line for line in file)


def serve(directory: str, python: str = sys.executable) -> Child:
    """Return a Child that runs the warm server, with its socket and log in `directory`."""
    sock = f"{directory}/fastcni.sock"
    return Child(["-Im", "fastcni", "serve", "--socket", sock], sock, f"{directory}/server.log", python)


def another(python: str, directory: str) -> Child:
    """Install the plugins of another Python's fastcni in `directory`/bin. Return a Child that runs the server of that
    fastcni. Raise CniError."""
    command = [python, "-Im", "fastcni", "install", "--bin-dir", f"{directory}/bin"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as e:
        raise CniError(errors.INVALID_CONFIG, f"{python}: {e.strerror}") from e
    if done.returncode:
        raise CniError(errors.INVALID_CONFIG, f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return serve(directory, python)


def echo(directory: str) -> Child:
    """Return a Child that runs echo.py, with its socket and log in `directory`."""
    sock = f"{directory}/echo.sock"
    return Child(["-m", "fastcni.bench.echo", sock], sock, f"{directory}/echo.log")
