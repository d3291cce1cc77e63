"""The load of a campaign: threads that act as runtimes. Each adds, checks and deletes its pod repeatedly."""

import contextlib
import json
import os
import subprocess
import threading
import time
from pathlib import Path

from faults.rounds import document_of
from faults.world import ANSWER, Request, left_behind
from lab.node import Inside

TRY_AGAIN = 11                  # the error code of an ADD whose server ended before the answer
BEFORE = 4                      # earlier requests of the pod that a failure lists


def pod_conf(node, **keys):
    """Return the configuration of a bridge with masquerade and one address of each family, with `keys`."""
    return node.conf("10.22.0.0/24", "fd00:22::/64", isGateway=True, ipMasq=True, **keys)


class Runtime:
    """The runtime of one pod, in a thread.

    sockets: server sockets from which each request chooses, "" for one-shot. killed(): returns the seconds after which
    a request's process is killed, None for never. flushed: another thread flushes the pod's rules, so a CHECK may
    fail."""

    def __init__(self, world, row, conf, pod, number, sockets, killed=lambda rng: None, *, flushed=False):
        self.world, self.row, self.conf, self.pod, self.flushed = world, row, conf, pod, flushed
        self.rng, self.sockets, self.killed = row.rng(number), sockets, killed
        self.before: list[str] = []     # the latest requests, each with its mode and outcome
        self.killed_add = False  # whether the pod's last ADD was killed, so that a server may still roll the ADD back

    def loop(self):
        with Inside(self.world.name):
            while self.row.running:
                self.pod_lives()

    def pod_lives(self):
        """Do ADD, usually CHECK, then DEL. Each request may be killed. After a killed DEL, do a DEL that is not
        killed."""
        added = self.request("ADD", self.conf)
        if added and added.status == 0 and self.rng.random() < 0.7:
            self.request("CHECK", {**self.conf, "prevResult": json.loads(added.stdout)})
        if self.request("DEL", self.conf) is None:
            self.request("DEL", self.conf, may_die=False)

    def request(self, command, conf, *, may_die=True):
        """Make a request. Return its Request, or None if it was killed."""
        after = self.killed(self.rng) if may_die else None
        socket = self.rng.choice(self.sockets)
        self.row.attempt()
        request = self._request(command, conf, socket, after)
        if command == "ADD":
            self.killed_add = request is None
        self.before = [*self.before[-BEFORE:], f"{command} {'warm' if socket else 'one-shot'} "
                       f"{'killed' if request is None else request.status}"]
        return request

    def _request(self, command, conf, socket, after):
        with subprocess.Popen([self.world.bin_dir / conf["type"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=self.world.environment(command, self.pod, socket)) as process:
            if after is not None:
                threading.Timer(after, process.kill).start()
            try:
                stdout, stderr = process.communicate(json.dumps(conf).encode(), ANSWER)
            except subprocess.TimeoutExpired:
                process.kill()
                self.row.failed(f"{command} of {self.pod} ({socket or 'one-shot'}): no answer in {ANSWER} s")
                return None
            except BrokenPipeError:                 # the plugin was killed before it read stdin
                stdout, stderr = b"", b""
        if process.returncode == -9 and after is not None:
            return None
        request = Request(process.returncode, stdout, stderr)
        wrong = document_of(request, command)
        if not wrong and request.status and not self.allows(command, json.loads(stdout)):
            wrong = f"status {request.status}: {stdout.decode()}"
        if wrong:
            mode, before = socket or 'one-shot', ', '.join(self.before)
            self.row.failed(f"{command} of {self.pod} ({mode}), after {before}: {wrong}")
        return request

    def allows(self, command, error):
        """Return whether the command may fail with this error."""
        if command == "ADD":
            return error["code"] == TRY_AGAIN or (self.killed_add and "already exists" in error["msg"])
        return command == "CHECK" and self.flushed


def together(targets, row, meanwhile):
    """Run each target in a thread. In this thread call meanwhile() repeatedly, until the row's time is over."""
    threads = [threading.Thread(target=guarded, args=(target, row), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    while row.running:
        meanwhile()
    for thread in threads:
        thread.join(ANSWER * 3)
        if thread.is_alive():
            row.failed("a thread of the load did not end")


def guarded(target, row):
    try:
        target()
    except Exception as e:
        row.failed(f"a thread of the load: {type(e).__name__}: {e}")


def clean_up(world, row, conf, pods, base, socket=""):
    """Delete each pod. Report failed DELs, and all objects of the node that are not in `base`."""
    for pod in pods:
        done = world.call("DEL", conf, pod, socket)
        if done.status or done.stdout:
            row.failed(f"the last DEL of {pod}: {done.status} {done.stdout!r} {done.stderr[-300:]!r}")
    for name in ("br0", "br1"):
        subprocess.run(["ip", "link", "del", name], capture_output=True)
    row.left(left_behind(world.node, base, *pods, seconds=5))
    for pid in plugin_processes(world, seconds=5):
        row.left(f"a process still runs: {pid}")


def plugin_processes(world, seconds):
    """Wait until the processes of this node's plugin files have ended. Return the command lines of those that still run
    after `seconds`."""
    deadline = time.monotonic() + seconds
    while (found := _plugin_processes(world)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _plugin_processes(world):
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(world.bin_dir) in (directory / "environ").read_bytes():
                command = (directory / "cmdline").read_bytes()
                if command and b"serve" not in command and int(directory.name) != os.getpid():
                    found.append(f"{directory.name} {command[:80]!r}")
    return found
