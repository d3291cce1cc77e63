"""Run the benchmark part by part, and print each table after its part."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console

from fastcni.bench import beside, churn, cost, density, estimate, guard, idle, isolation, memory, peer, report, tables
from fastcni.bench.bench import Bench
from fastcni.bench.calls import CallFailed, one
from fastcni.bench.cases import ALONE, PARTS, Options
from fastcni.bench.echo import ANSWER
from fastcni.bench.floor import Floor
from fastcni.bench.node import Network, Node
from fastcni.bench.sides import Plugins, another, echo, serve
from fastcni.daemon import listening
from fastcni.kernel import netns
from fastcni.launcher.install import InstallError, install
from fastcni.spec import errors
from fastcni.spec.errors import CniError

MEASURE = {"latency": churn.latency, "idle": idle.idle, "rate": churn.rate, "cost": cost.cost,
           "density": density.density, "memory": memory.memory, "beside": beside.beside}
WIDTH = 180                     # columns of the tables if stdout is no terminal
STOPPED = 128 + signal.SIGINT       # the exit status that a shell shows after Ctrl-C
MEMORY = "/dev/shm"
FILE_BYTES, SPARE_FILES = 4096, 10_000      # bytes that an address file takes in memory; the number of other files


def run(options: Options) -> int:
    """Measure all parts, print the tables, and write the files of --report and --html. Return the exit status. Raise
    CniError, or Busy on a busy node.

    If a signal stops the run, write the report of the complete parts, and return STOPPED. If no part is complete, raise
    KeyboardInterrupt.
    """
    check_machine(options)
    busy = guard.busy_share()
    if not options.force and (reasons := list(guard.reasons(busy, os.environ.get("FASTCNI_SOCKET") or listening.PATH))):
        raise guard.Busy(reasons)
    started, given, options = time.time(), options, available(options)
    bench = Bench(options, estimate.seconds(options))
    if "Go" in given.sides and not options.peer:
        bench.note(peer.missing(given.peer))
    data: dict[str, Any] = {"machine": report.machine(options, busy), "command": options.command,
                            "plan": asdict(options.plan), "peer": options.peer, "busy": round(busy, 3)}
    out = Console(width=None if sys.stdout.isatty() else WIDTH)
    out.print(f"{options.command}  (shuffled with seed {options.plan.seed})", highlight=False, markup=False)
    status = 0
    with Signals() as signals, ExitStack() as stack:
        try:
            where = data_dir(bench)
            bench.progress.print(guard.touches(options, where), highlight=False, markup=False,
                                 soft_wrap=not bench.progress.is_terminal)
            set_up(bench, stack, where)
            data["machine"]["host-local's files"] = f"in {where}"
            data["sides"] = [side.name for side in bench.sides]
            for part in filter(options.wants, PARTS):
                with bench.meter.of_part(part):
                    data[part] = MEASURE[part](bench)
                out.print(report.to_rich(tables.TABLES[part](data)))
            for side in bench.sides:
                if isinstance(side, Plugins) and side.name == "warm":
                    bench.compare_with_log(side)
        except KeyboardInterrupt:
            missing = [part for part in filter(options.wants, PARTS) if part not in data]
            if not any(part in data for part in PARTS):
                raise
            bench.note(f"the run was stopped: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
            status = STOPPED
        finally:
            signals.ignore()            # a second Ctrl-C must not stop the removal of the namespaces
    if guard.last_pod() > started:
        bench.note("pods of this node were added or deleted during the run, so the figures are less sure")
    data["notes"] = bench.notes
    report.finish(options, data, out)
    return status or int(bench.failed)


def available(options: Options) -> Options:
    """Return the options, with the directory of the Go plugins as `peer`, and without the implementations that this
    node does not have."""
    found = peer.find(options.peer)
    there = {"Go": found, "before": options.before}
    return replace(options, peer=found, sides=tuple(side for side in options.sides if there.get(side, side)))


def check_machine(options: Options) -> None:
    """Raise CniError if the benchmark cannot run on this machine, or cannot write its page."""
    if os.geteuid():
        raise CniError(errors.INTERNAL, "fastcni bench makes network namespaces: run it as root")
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux")):
        if not shutil.which(program):
            raise CniError(errors.INTERNAL, f"fastcni bench needs {program}; Debian, Ubuntu: apt-get install {package}")
    isolation.check_data_dir(options.data_dir or "")
    if options.html:
        report.check_directory(options.html)


def set_up(bench: Bench, stack: ExitStack, data_dir: str) -> None:
    """Make the benchmark's node, install the implementations' plugins, and start their servers. stack: at its end, it
    removes the node and the plugins, and ends the servers."""
    wanted = bench.options.sides
    bench.outside = netns.open_own()
    stack.callback(os.close, bench.outside)
    bench.node = node = stack.enter_context(Node(data_dir))
    bench.directory = f"{node.directory}/bin"
    try:
        install(bench.directory)
    except InstallError as e:
        raise CniError(errors.INTERNAL, str(e)) from e
    if "Go" in wanted:
        bench.sides.append(Plugins("Go", bench.options.peer))
    if "one-shot" in wanted:
        bench.sides.append(Plugins("one-shot", bench.directory))
    if "warm" in wanted:
        server = stack.enter_context(serve(node.directory))
        bench.sides.append(Plugins("warm", bench.directory, server.sock, server))
    if "before" in wanted and bench.options.before:
        server = stack.enter_context(another(bench.options.before, f"{node.directory}/before"))
        bench.sides.append(Plugins("before", f"{node.directory}/before/bin", server.sock, server))
    if "floor" in wanted or bench.options.wants("density"):        # the part density needs the floor
        child = stack.enter_context(echo(node.directory))
        launcher = Plugins("floor", bench.directory, child.sock, child)
        check_launcher(bench, launcher)
        bench.floor = stack.enter_context(Floor(launcher))
        bench.sides += [bench.floor] * ("floor" in wanted)


def data_dir(bench: Bench) -> str:
    """Return the parent directory of the networks' files, by default a directory in memory.

    A disk's file system would disturb the figures: when ext4 without a journal creates a file, it reads each inode that
    was freed in the last minutes."""
    if bench.options.data_dir:
        return bench.options.data_dir
    needed = len(bench.options.sides) * max((case.held for case in bench.cases), default=0) + SPARE_FILES
    try:
        found = os.statvfs(MEMORY)
        free = min(found.f_bavail * found.f_frsize // FILE_BYTES, found.f_favail)
    except OSError as e:
        free, why = 0, e.strerror
    else:
        why = f"it has room for {free:,} files of {needed:,}"
    if free >= needed:
        return MEMORY
    bench.note(f"host-local's files are in {tempfile.gettempdir()}, not in {MEMORY}: {why}")
    return tempfile.gettempdir()


def check_launcher(bench: Bench, launcher: Plugins) -> None:
    """Raise CniError if the installed launcher does not send its request to the socket of echo.py."""
    (pod,) = bench.node.pods(1)
    network = Network(bench.node, "check", ALONE, subnet=40, bridge="none")
    try:
        _, output = one(launcher.ready("VERSION", network, pod))
    except CallFailed as e:
        raise CniError(errors.INTERNAL, str(e)) from e
    if output != ANSWER:
        raise CniError(errors.INTERNAL, "the installed launcher does not use the socket in FASTCNI_SOCKET",
                       f"it printed {output.decode('utf-8', 'replace')}")


class Signals:
    """The signal handlers of a run. In the body of `with Signals() as signals:`, SIGTERM and SIGHUP (from an ended ssh
    session) raise KeyboardInterrupt like Ctrl-C. An ignored signal stays ignored, for example under nohup(1)."""

    def __enter__(self) -> Signals:
        self.before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        for number, handler in self.before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler)
        return self

    def ignore(self) -> None:
        """Ignore SIGINT, SIGTERM and SIGHUP from now on."""
        for number in self.before:
            signal.signal(number, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
