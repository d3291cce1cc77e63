"""The whole run, part by part; each table is printed as soon as it is there."""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fastcni.bench import churn, cost, density, memory, report, tables
from fastcni.bench import sides as doors
from fastcni.bench.calls import CallFailed
from fastcni.bench.cases import ALONE, PARTS
from fastcni.bench.echo import ANSWER
from fastcni.bench.floor import Floor
from fastcni.bench.node import Network, Node
from fastcni.kernel import netns, wire
from fastcni.kit.links.devices import has_kind
from fastcni.launcher.install import InstallError, install
from fastcni.spec import errors
from fastcni.spec.errors import CniError

MEASURE = {"latency": churn.latency, "rate": churn.rate, "cost": cost.cost, "density": density.density,
           "memory": memory.memory}
WIDTH = 180                     # of tables in a pipe
REFRESH_SECONDS = 0.5
LOG_SECONDS = 2
MEMORY = "/dev/shm"
FILE_BYTES, SPARE_FILES = 4096, 10_000      # of a file in memory; more than those held


class Bench:
    """What all parts share: node, sides, floor, folder (of fastcni's plugins), outside (a descriptor of the namespace
    that we come from), plan, cases, and the ways to shuffle, to show progress and to note what went wrong."""

    def __init__(self, options):
        self.options, self.plan, self.cases = options, options.plan, options.cases
        self.random = random.Random(options.plan.seed)
        self.progress = Console(stderr=True)
        self.notes, self.failed = [], False
        self.node = self.sides = self.floor = self.folder = self.outside = None

    @property
    def crowds(self):
        """The cases that are measured with many calls at once."""
        return [case for case in self.cases if "ADD" in case.calls and not case.single]

    def has_kind(self, case):
        """Does this kernel have the kind of link that the case is about? Else it is left out, and a note says so."""
        with closing(wire.open_socket()) as sock:
            there = not case.kind or has_kind(sock, case.kind)
        if not there:
            self.note(f"{case.name} is left out: this kernel has no {case.kind} links")
        return there

    def sides_of(self, case):
        """The sides that can do it: no floor where the case is single, and old Go plugins may lack its plugin."""
        found = []
        for side in self.sides:
            if side.name == "floor":
                found += [] if case.single else [side]
            elif os.path.exists(f"{side.folder}/{case.type}"):
                found.append(side)
            else:
                self.note(f"{case.name} is without {side.name}: there is no {case.type} in {side.folder}")
        return found

    def shuffled(self, sides):
        return self.random.sample(sides, len(sides))

    def note(self, text):
        """Something that a reader of the figures has to know."""
        self.notes.append(text)
        self.progress.print(f"Note: {text}", markup=False, highlight=False)

    @contextmanager
    def steps(self, what, total):
        """`with bench.steps("density", 10) as step:` shows how far it is; step() after each, step(0, "ptp") to say
        what comes now. Drawn only here, never while something is measured."""
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        if not self.progress.is_terminal:
            self.progress.print(f"{what}: {total} steps", highlight=False)
        with Progress(*columns, console=self.progress, auto_refresh=False, transient=True,
                      disable=not self.progress.is_terminal) as progress:
            task, drawn = progress.add_task(what, total=total), 0.0

            def step(count=1, words=None):
                nonlocal drawn
                progress.update(task, advance=count, **({"description": f"{what}: {words}"} if words else {}))
                if time.monotonic() - drawn > REFRESH_SECONDS:
                    progress.refresh()
                    drawn = time.monotonic()

            yield step

    def compare_with_log(self, side):
        """A warm call that found no server did its work one-shot: then the figures are not what they are called."""
        deadline = time.monotonic() + LOG_SECONDS
        while (answered := side.server.answered()) < side.sent and time.monotonic() < deadline:
            time.sleep(0.1)             # the line comes after the answer
        if answered < side.sent:
            self.note(f"{side.sent - answered} of {side.sent} warm calls were not done by the server, says its log")


def run(options):
    """Measure, print, and write the report if one is asked for. Returns the exit status. Raises CniError."""
    check_machine()
    bench = Bench(options)
    data = {"machine": report.machine(options), "command": options.command, "plan": asdict(options.plan)}
    out = Console(width=None if sys.stdout.isatty() else WIDTH)
    out.print(f"{options.command}  (shuffled with seed {options.plan.seed})", highlight=False, markup=False)
    with Signals() as signals, ExitStack() as stack:
        try:
            set_up(bench, stack)
            data["machine"]["host-local's files"] = f"in {bench.node.data_dir}"
            data["sides"] = [side.name for side in bench.sides]
            for part in PARTS:
                if not options.wants(part) or (part == "memory" and "warm" not in options.sides):
                    continue
                data[part] = MEASURE[part](bench)
                table = tables.TABLES[part](data)
                out.print(report.to_rich(table))
            for side in bench.sides:
                if side.name == "warm":
                    bench.compare_with_log(side)
        finally:
            signals.ignore()            # what was made is removed, however impatient somebody gets
    data["notes"] = bench.notes
    report.finish(options, data, out)
    return 1 if bench.failed else 0


def check_machine():
    """Raises CniError where nothing can be measured."""
    if os.geteuid():
        raise CniError(errors.INTERNAL, "fastcni bench makes network namespaces: run it as root")
    if not shutil.which("ip"):
        raise CniError(errors.INTERNAL, "fastcni bench needs ip(8); Debian, Ubuntu: apt-get install iproute2")


def set_up(bench, stack):
    """The node, the plugins and the servers that the sides need."""
    wanted, peer = bench.options.sides, bench.options.peer
    bench.outside = netns.open_own()
    stack.callback(os.close, bench.outside)
    bench.node = node = stack.enter_context(Node(data_dir(bench)))
    bench.folder = f"{node.folder}/bin"
    try:
        install(bench.folder)
    except InstallError as e:
        raise CniError(errors.INTERNAL, str(e)) from e
    bench.sides = []
    if "Go" in wanted and os.path.exists(f"{peer}/bridge"):
        bench.sides.append(doors.Plugins("Go", peer))
    elif "Go" in wanted:
        bench.note(f"no Go plugins in {peer}: no ratio to them. Debian, Ubuntu: apt-get install "
                   "containernetworking-plugins; --peer or PEER names another folder")
    if "one-shot" in wanted:
        bench.sides.append(doors.Plugins("one-shot", bench.folder))
    if "warm" in wanted:
        server = stack.enter_context(doors.serve(node.folder))
        bench.sides.append(doors.Plugins("warm", bench.folder, server.sock, server))
    if bench.options.before and "before" in wanted:
        server = stack.enter_context(doors.another(bench.options.before, f"{node.folder}/before"))
        bench.sides.append(doors.Plugins("before", f"{node.folder}/before/bin", server.sock, server))
    if "floor" in wanted or bench.options.wants("density"):        # it puts the pods there
        child = stack.enter_context(doors.echo(node.folder))
        launcher = doors.Plugins("floor", bench.folder, child.sock, child)
        check_launcher(bench, launcher)
        bench.floor = stack.enter_context(Floor(launcher))
        bench.sides += [bench.floor] * ("floor" in wanted)


def data_dir(bench):
    """Where the networks' files go: by default in memory. A disk's file system has moods of its own: ext4 without a
    journal looks at each inode that was freed in the last minutes whenever a file is created."""
    if bench.options.data_dir:
        return bench.options.data_dir
    most = len(bench.options.sides) * max((case.held for case in bench.cases), default=0) + SPARE_FILES
    try:
        found = os.statvfs(MEMORY)
        room = min(found.f_bavail * found.f_frsize // FILE_BYTES, found.f_favail)
    except OSError as e:
        room, why = 0, e.strerror
    else:
        why = f"it has room for {room:,} files of {most:,}"
    if room >= most:
        return MEMORY
    bench.note(f"host-local's files are in {tempfile.gettempdir()}, not in {MEMORY}: {why}")
    return tempfile.gettempdir()


def check_launcher(bench, launcher):
    """Does the installed launcher hand its request to a socket? Raises CniError."""
    (pod,) = bench.node.pods(1)
    network = Network(bench.node, "check", ALONE, subnet=40, bridge="none")
    running = launcher.ready("VERSION", network, pod)()
    _, status = os.waitpid(running.pid, 0)
    said = os.pread(running.out, 4096, 0)
    try:
        running.close(status)
    except CallFailed as e:
        raise CniError(errors.INTERNAL, str(e)) from e
    if said != ANSWER:
        raise CniError(errors.INTERNAL, "the installed launcher does not use the socket in FASTCNI_SOCKET",
                       f"it printed {said.decode('utf-8', 'replace')}")


class Signals:
    """`with Signals() as signals:` makes SIGTERM an interrupt as Ctrl-C is one; ignore() ignores both."""

    def __enter__(self):
        self.before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def ignore(self):
        for number in self.before:
            signal.signal(number, signal.SIG_IGN)

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)
