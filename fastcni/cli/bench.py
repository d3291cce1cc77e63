"""The command `fastcni bench`: measure fastcni, the Go plugins and the kernel on this node."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from fastcni.bench.cases import CASES, OWN_KEYS, PARTS, QUICK, SIDES, Options, Plan
from fastcni.runtime.cni import DEFAULT_PLUGIN_DIRS


@click.command()
@click.option("--quick", is_flag=True, help="Measure for some seven minutes instead of forty: fewer rounds and pods.")
@click.option("--only", multiple=True, type=click.Choice([case.name for case in (*CASES, *OWN_KEYS)]),
              metavar="CASE",
              help=f"Measure only this case; may be repeated: {', '.join(case.name for case in CASES)}. If the part "
              f"density measures bridge, it also measures {' and '.join(it.name for it in OWN_KEYS)}, or only those of "
              "the two that --only names.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), metavar="PART",
              help=f"Measure only this part; may be repeated: {', '.join(PARTS)}.")
@click.option("--side", "sides", multiple=True, type=click.Choice(SIDES), metavar="SIDE",
              help=f"Measure only this side; may be repeated: {', '.join(SIDES)}.")
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="Rounds of the part latency. In each round, every "
              f"side adds and deletes {Plan().burst} pods, one at a time [{Plan().rounds}; at most "
              f"{Plan().slow_rounds} for cases whose calls take half a second].")
@click.option("--level", "levels", multiple=True, type=click.IntRange(0), metavar="N",
              help="Number of existing pods in the part density; may be repeated "
              f"[{', '.join(map(str, Plan().levels))}].")
@click.option("--rest", type=click.FloatRange(0), metavar="SECONDS",
              help=f"Pause after the calls of each side, in the part latency [{Plan().rest}].")
@click.option("--seed", type=int, metavar="N",
              help=f"Seed of the random order of the sides in each round [{Plan().seed}].")
@click.option("--peer", default="", envvar="PEER", show_envvar=True, metavar="DIR",
              help=f"The directory of the Go plugins [the first of {', '.join(DEFAULT_PLUGIN_DIRS)} that has Go "
              "plugins, or Go plugins that `fastcni install` replaced].")
@click.option("--before", metavar="PYTHON", help="Also measure the warm server of another fastcni, installed in this "
              "Python, as the side `before`.")
@click.option("--data-dir", type=click.Path(exists=True, file_okay=False), metavar="DIR", help="The directory of "
              "host-local's files. On a disk, the figures include the disk's time [/dev/shm, if it has free space].")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write one page with the verdict in "
              "words, plots and tables to FILE. The page loads no other file.")
@click.option("--report", metavar="DIR", help="Write samples (report.json), tables (report.md) and plots to DIR.")
@click.option("--replot", is_flag=True, help="Measure nothing. Write tables and plots, or --html, from the samples in "
              "--report.")
@click.option("--force", is_flag=True, help="Measure even if the node is busy, or if pods are added and deleted.")
def bench(quick: bool, only: Sequence[str], parts: Sequence[str], sides: Sequence[str], rounds: int | None,
          levels: Sequence[int], rest: float | None, seed: int | None, peer: str, before: str | None,
          data_dir: str | None, html: str | None, report: str | None, replot: bool, force: bool) -> None:
    """Measure fastcni, the Go plugins and the kernel on this node.

    The sides are: the Go plugins, fastcni one-shot, fastcni warm, and the floor (a launcher and the kernel's own
    part). The sides run in turn, in random order, in network namespaces that the benchmark makes and removes. The
    command needs root, first prints what it will change, and does not change the node's own networks.

    The command does not run on a busy node: if the processors are busy for more than 25% of two seconds, or if a pod
    was added or deleted in the last ten seconds. The exit status is then 75 (try again later).

    \b
        fastcni bench --quick --html bench.html      # then open bench.html
        fastcni bench --only bridge --part latency   # one plugin, one at a time
    """
    from rich.console import Console

    if replot:
        if not report:
            raise click.UsageError("--replot needs --report DIR, the directory of the samples")
        from fastcni.bench.report import replot as draw_again

        draw_again(report, html, Console())
        return
    from fastcni.bench.guard import Busy
    from fastcni.bench.run import run

    given: dict[str, Any] = {"rounds": rounds, "rest": rest, "seed": seed,
                             "levels": tuple(sorted({*levels})) or None}
    plan = replace(QUICK if quick else Plan(), **{name: value for name, value in given.items() if value is not None})
    options = Options(plan, peer, before, data_dir, report, tuple(only), tuple(parts), tuple(sides) or SIDES,
                      command_text(), html, force)
    try:
        status = run(options)
    except Busy as e:
        for reason in e.reasons:
            click.echo(f"This node is busy: {reason}", err=True)
        click.echo("Nothing was measured. Wait, or measure all the same: --force", err=True)
        status = os.EX_TEMPFAIL
    raise SystemExit(status)


def command_text() -> str:
    """Return the command line as the user typed it, with the environment variable PEER if it is set."""

    peer = os.environ.get("PEER")
    return shlex.join([*([f"PEER={peer}"] if peer else []), "fastcni", *sys.argv[1:]])
