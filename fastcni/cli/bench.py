"""The command that measures: fastcni against the Go plugins and against the kernel, on this node."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace

import click

from fastcni.bench.cases import CASES, PARTS, QUICK, SIDES, Options, Plan


@click.command()
@click.option("--quick", is_flag=True, help="A few minutes instead of thirty: fewer of everything.")
@click.option("--only", multiple=True, type=click.Choice([case.name for case in CASES]), metavar="CASE",
              help=f"Only this case; may be repeated: {', '.join(case.name for case in CASES)}.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), metavar="PART",
              help=f"Only this part; may be repeated: {', '.join(PARTS)}.")
@click.option("--side", "sides", multiple=True, type=click.Choice(SIDES), metavar="SIDE",
              help=f"Only this side; may be repeated: {', '.join(SIDES)}.")
@click.option("--rounds", type=click.IntRange(1), metavar="N", help=f"Turns of each side, of {Plan().burst} pods, one "
              f"at a time [{Plan().rounds}; of cases that take half a second, {Plan().slow_rounds} at most].")
@click.option("--rest", type=click.FloatRange(0), metavar="SECONDS",
              help=f"Between two turns, one at a time [{Plan().rest}].")
@click.option("--seed", type=int, metavar="N",
              help=f"Of the order in which the sides have their turns [{Plan().seed}].")
@click.option("--peer", default="/usr/lib/cni", show_default=True, envvar="PEER", show_envvar=True, metavar="DIR",
              help="The Go plugins.")
@click.option("--before", metavar="PYTHON", help="A Python with another fastcni: its warm server is measured, too, as "
              "the side `before`.")
@click.option("--data-dir", type=click.Path(exists=True, file_okay=False), metavar="DIR", help="Where host-local's "
              "files go: what a disk takes is measured, too [in memory: /dev/shm, if it has room].")
@click.option("--report", metavar="DIR", help="Write samples (report.json), tables (report.md) and plots there.")
@click.option("--replot", is_flag=True, help="Measure nothing: write tables and plots of the samples in --report.")
def bench(quick: bool, only: Sequence[str], parts: Sequence[str], sides: Sequence[str], rounds: int | None,
          rest: float | None, seed: int | None, peer: str, before: str | None, data_dir: str | None, report: str | None,
          replot: bool) -> None:
    """Measure fastcni on this node: against the Go plugins, and against what the kernel itself takes.

    The Go plugins, fastcni one-shot, fastcni with a server, and the floor have their turns, shuffled, in network
    namespaces made for it: nothing of the node's own is touched. Needs root. An idle node gives better figures.
    """
    from rich.console import Console

    if replot and not report:
        raise click.UsageError("--replot needs --report DIR, where the samples are")
    if replot:
        from fastcni.bench.report import replot as draw_again

        draw_again(report, Console())
        return
    from fastcni.bench.run import run

    given = {"rounds": rounds, "rest": rest, "seed": seed}
    plan = replace(QUICK if quick else Plan(), **{name: value for name, value in given.items() if value is not None})
    status = run(Options(plan, peer, before, data_dir, report, tuple(only), tuple(parts), tuple(sides) or SIDES,
                         words()))
    raise SystemExit(status)


def words() -> str:
    """The command as it was typed, with PEER where that was set."""
    peer = os.environ.get("PEER")
    return shlex.join([*([f"PEER={peer}"] if peer else []), "fastcni", *sys.argv[1:]])
