"""Inject one fault into one request: a system call fails with an errno that the kernel can return, or a kill.

    one-shot  the call is one of the plugin file's own process
    launcher  the call is one of a plugin file that asks a server
    server    the call is one of the server's, while it works on the request

After each fault stdout has one error document or a valid result, a DEL without faults succeeds, and nothing is left.
"""

import contextlib
import json
import os
import random
import time
from collections import Counter
from pathlib import Path

from faults.cases import Case
from faults.injector import KILL, LAUNCHER, NOTHING, PLUGIN, TIME_LIMIT, Injector, compiled, errors, kills
from faults.world import Request, World, descriptors, held_locks, left_behind
from lab.node import eventually, run

from fastcni.launcher.install import install

COMMANDS = ("ADD", "DEL", "CHECK")
MODES = ("one-shot", "launcher", "server")
MAX_KEPT = 12  # descriptors of one kind that may stay open, because workers keep them for later requests
# The kinds for which MAX_KEPT applies, also as deleted files
KEPT = ("socket", "/proc/sys/net/ipv6/conf", ".cluster/blocks.json")
IDLE_S = 0.02                   # a server that makes no system call for this time has finished its deferred work
STARTED_S = 0.2                 # a new server that makes no system call for this time has imported all modules
MAX_SPARE = 5                   # faults to try in place of chosen calls that requests do not reach
# After this fault DEL succeeds, and the daemon releases the lease at its next start
NO_DAEMON = ("dhcp", "connect ECONNREFUSED")
KEEPS_FILE = b"are not restored"         # tuning's DEL prints this warning and keeps its file
BAD_ERRORS = {                  # texts that no error after one fault may contain
    "this is a fault of fastcni": "an unexpected exception", "while undoing": "the rollback failed",
}


def document_of(request, command):
    """Return what is wrong with the answer of a request, or "". The request was not killed."""
    if request.status is None:
        return "no answer within the time limit"
    try:
        answer = json.loads(request.stdout) if request.stdout else None
    except ValueError:
        return f"stdout is not one JSON document: {request.stdout[:200]!r} {request.stderr[-200:]!r}"
    if request.status == 0:
        if command == "ADD" and not (isinstance(answer, dict) and answer.get("cniVersion")):
            return f"status 0 without a result: {request.stdout[:200]!r}"
        return f"output of a {command}: {request.stdout[:200]!r}" if command != "ADD" and answer is not None else ""
    if request.status != 1 or not isinstance(answer, dict):
        return f"status {request.status}, stdout {request.stdout[:200]!r}, stderr {request.stderr[-300:]!r}"
    text = f"{answer.get('code')} {answer.get('msg')!r} {answer.get('details', '')!r}"
    if not (isinstance(answer.get("code"), int) and answer["code"] > 0 and answer.get("msg")):
        return f"an error without code or msg: {text}"
    return next((f"{what}: {text}" for part, what in BAD_ERRORS.items() if part in text), "")


class Tools:
    """The installed plugins and the compiled injector in `directory`, which all cases share."""

    def __init__(self, directory):
        self.bin_dir = Path(directory, "bin")
        install(self.bin_dir)
        self.injector = compiled(directory)


class Steps:
    """One case in one mode on a new node. failed(text): called for each failure."""

    def __init__(self, world, injector, name, mode, failed):
        self.world, self.mode, self.failed, self.node = world, mode, failed, world.node
        self.case, self.pod = Case(name, world.node, world.closing), world.pod()
        self.injector, self.server, self.open = Injector(injector, world.directory), None, None
        self.history, self.dirty = [], False            # earlier faults on this node
        self.case.prepare(self.pod)
        if self.case.chained:
            self.node.add(self.case.configuration(self.pod), self.pod)      # the first ADD makes the tables, which stay
            self.node.delete(self.case.configuration(self.pod), self.pod)
        self.case.finish(self.pod)
        self.base = self.node.left(self.pod)

    # -- one request ------------------------------------------------------------------------------------------------

    def clean(self, command, conf):
        """Make a request without faults in this mode. Return the Request."""
        if self.mode == "one-shot":
            reply = self.node.call(command, conf, self.pod)
            return Request(reply.status, reply.stdout)
        self.start()
        return self.world.call(command, conf, self.pod, self.server.path, TIME_LIMIT)

    def start(self):
        """Start the server if it does not run yet."""
        if self.mode == "one-shot" or (self.server and self.server.process.poll() is None):
            return
        self.stop()
        self.injector.disarm()
        self.open = None
        if self.mode == "launcher":
            self.server = self.world.server(program=())         # a fork, because no fault meets this server
        else:
            self.server = self.world.server(before=self.injector.command_line())
            self.injector.arm()                         # the server imports some modules after its start
            self.world.call("VERSION", self.case.conf, self.pod, self.server.path, TIME_LIMIT)
            self._wait_until_idle(STARTED_S)
            self.injector.disarm()

    def stop(self):
        """Kill the injector, which traces the server. Wait until the kernel has also ended the server."""
        if self.server:
            self.server.__exit__()
            eventually(lambda: not self.server.listens())

    def faulty(self, command, conf, at, variant):
        """Make a request with a fault at call number `at`. Return (Request, calls, the call that failed)."""
        self.start()
        if self.mode == "server":
            self.injector.arm(at, variant)
            request = self.world.call(command, conf, self.pod, self.server.path, TIME_LIMIT)
            if request.status is None:
                self.stop()                         # a hanging server would let each later request wait
            self._wait_until_idle()
            self.injector.disarm()
            return request, self.injector.calls(), self.injector.hit()
        socket = self.server.path if self.server else ""
        env = self.world.environment(command, self.pod, socket)
        run_ = self.injector.run([str(self.world.bin_dir / conf["type"])], env, json.dumps(conf).encode(), at, variant)
        return run_, run_.calls, run_.hit

    def _wait_until_idle(self, seconds=IDLE_S):
        count, deadline = -1, time.monotonic() + TIME_LIMIT
        while count != self.injector.control.count or not asleep(self.injector.control.pid):
            count = self.injector.control.count
            time.sleep(seconds)
            if self.server.process.poll() is not None or time.monotonic() > deadline:
                return

    # -- one round: prepare, make the request with its fault, do DEL, search for residue
    # --------------------------------------------

    def round(self, command, at, variant):
        """Inject one fault. Return (the call that failed, [what is wrong], the calls)."""
        wrong = []
        if self.mode == "one-shot" and not self.case.conf.get("backend"):
            run("nft", "flush", "ruleset")          # so that each ADD makes the tables
        self.case.prepare(self.pod)
        result = None
        if command != "ADD":
            added = self.clean("ADD", self.case.configuration(self.pod))
            if added.status:
                wrong.append(f"an ADD without faults fails: {added.status} {added.stdout!r}")
            else:
                result = json.loads(added.stdout)
        conf = self.case.configuration(self.pod, result)
        before = self.node.left(self.pod) if command == "CHECK" or self.case.chained else self.base
        request, calls, hit = self.faulty(command, conf, at, variant)
        killed = variant == KILL and hit
        # The failed write lost the answer: the launcher writes nothing else
        mute = self.mode == "launcher" and hit.startswith("write")
        if not mute and not (killed and self.mode != "server") and (text := document_of(request, command)):
            wrong.append(text)
        if not mute and not killed:
            wrong += self._effects(command, request, before, hit)
        self._delete(wrong)
        self.case.finish(self.pod)
        if killed:
            self._remove_torn_files()
        if text := left_behind(self.node, self.base, self.pod):
            wrong.append(f"left after DEL: {text}")
        wrong += self._of_processes()
        return hit, wrong, calls

    def _effects(self, command, request, before, hit):
        """Check that a failed ADD and a CHECK changed nothing, and that a successful DEL left nothing. hit: the call
        that failed."""
        if command == "CHECK" or (command == "ADD" and request.status):
            text = left_behind(self.node, before, self.pod)
            return [f"a failed ADD left: {text} (its error: {request.stdout!r})" if command == "ADD"
                    else f"CHECK changed: {text}"] if text else []
        if (command == "DEL" and request.status == 0 and not self.case.chained and (self.case.name, hit) != NO_DAEMON
                and KEEPS_FILE not in request.stderr):
            self.case.finish(self.pod)
            text = left_behind(self.node, self.base, self.pod)
            return [f"DEL said success and left: {text}"] if text else []
        return []

    def _delete(self, wrong):
        deleted = self.clean("DEL", self.case.configuration(self.pod))
        if deleted.status or deleted.stdout:
            wrong.append(f"the DEL without faults: status {deleted.status} {deleted.stdout!r} {deleted.stderr!r}")

    def _remove_torn_files(self):
        """Remove the address file that a kill left empty. Otherwise the next ADD would take this address by other
        system calls."""
        for path in (self.world.directory / "networks").glob("*/*[.:]*"):
            if path.is_file() and not path.stat().st_size and path.name.strip("0123456789abcdef.:") == "":
                path.unlink()

    def _of_processes(self):
        directory = self.world.directory / "networks"
        # The server's maintenance of cluster-wide addresses locks an address space for a moment
        locked = held_locks(directory)
        free = not locked or eventually(lambda: not held_locks(directory), 2)
        wrong = [] if free else [f"still locked: {path}" for path in locked]
        if self.mode == "server" and self.server and self.server.process.poll() is None:
            pid = self.injector.control.pid
            if self.open is None:           # in the first round the server opens the descriptors that it keeps
                self.open = kinds(descriptors(pid))
            elif not eventually(lambda: not grown(self.open, kinds(descriptors(pid))), 2):
                now = kinds(descriptors(pid))
                wrong.append(f"the server keeps descriptors: {grown(self.open, now)}")
                self.open = now
        return wrong

    # -- all faults ------------------------------------------------------------------------------------------------

    def ways(self, command):
        """Return [(number of the call, variant)]: each way in which this request can fail, kills last.

        In mode server each kill needs a new server, whose first request makes more calls than later requests."""
        _, wrong, calls = first = self.round(command, 0, NOTHING)
        if self.mode == "server":
            _, again, calls = self.round(command, 0, NOTHING)
            wrong += again
        for text in wrong:
            self.report(command, "no fault", text)
        phases = (LAUNCHER, PLUGIN) if self.mode != "server" else (0, LAUNCHER)
        return errors(calls, phases) + kills(first[2], phases, each=self.mode == "launcher")

    def try_one(self, command, at, variant):
        """Inject one fault. Return whether the request reached its call. Set `dirty` if something is wrong."""
        hit, wrong, _ = self.round(command, at, variant)
        for text in wrong:
            late = "without faults" in text or "left after" in text         # an earlier fault may be the cause
            before = ", ".join(self.history[-3:]) if late else ""
            self.report(command, f"call {at} {hit or 'not reached'}", text, before)
        self.history.append(f"{command} call {at} {hit}")
        self.dirty = bool(wrong)
        return bool(hit)

    def report(self, command, what, text, before=""):
        before = f" (before: {before})" if before else ""
        self.failed(f"{self.case.name}: {command} {self.mode}, {what}{before}: {text}")


def asleep(pid):
    """Return whether no thread of a process runs or is ready to run."""
    with contextlib.suppress(FileNotFoundError):            # the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):              # the thread has ended
                stat = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
                if stat.rpartition(")")[2].split()[0] != "S":
                    return False
    return True


def kinds(found):
    """Return descriptors by kind: {"socket": 9, "net": 2, "/run/x": 1}."""
    return Counter(what.split(":")[0] for what in found.values())


def grown(before, now):
    """Return {kind: number} of the descriptors that remain, without those that a server keeps."""
    return {what: count - before[what] for what, count in now.items()
            if count > before[what] + (MAX_KEPT if what.removesuffix(" (deleted)").endswith(KEPT) else 0)}


def run_case(tools, name, mode, command, failed, *, limit=None, seed=0, running=lambda: True, tried=lambda *_: None):
    """Try the faults of one command of one case in one mode. Return the number of possible faults.

    limit: how many faults to try, chosen by `seed`. The number of a request's calls varies. If a request does not reach
    its call, another fault is tried, up to MAX_SPARE. running(): if it returns false, the case ends after the current
    fault. tried(number, of, hit): called for each fault; hit is false if the request did not reach the call. After
    residue the case continues on a new node, so that the residue is not blamed on later faults."""
    chosen, possible, number, hits = None, 0, 0, 0

    def wanted():
        return running() and (chosen is None or (number < len(chosen) and (not limit or hits < limit)))

    while wanted():
        with World(tools.bin_dir) as world:
            steps = Steps(world, tools.injector, name, mode, failed)
            if chosen is None:
                chosen = steps.ways(command)
                possible = len(chosen)
                if limit:
                    rng = random.Random(f"{seed} {name} {mode} {command}")
                    chosen = rng.sample(chosen, min(limit + MAX_SPARE, possible))
            while wanted() and not steps.dirty:
                hit = steps.try_one(command, *chosen[number])
                number, hits = number + 1, hits + hit
                tried(number, len(chosen), hit)
    return possible


def count(tools, name, mode, command, failed):
    """Return, for one command of one case, (the number of faults, how many of them kill a server, the seconds of a
    round, the seconds of a server's start)."""
    with World(tools.bin_dir) as world:
        steps = Steps(world, tools.injector, name, mode, failed)
        started = time.monotonic()
        steps.start()
        start_s = time.monotonic() - started
        found = steps.ways(command)
        started = time.monotonic()
        steps.round(command, 0, NOTHING)
        round_s = time.monotonic() - started
    return len(found), sum(variant == KILL for _, variant in found) if mode == "server" else 0, round_s, start_s
