"""Draw the plots of a report as SVG files. The same samples give the same bytes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

import matplotlib
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from fastcni.bench.cases import ALONE, UNFLOODED, WITHOUT_IPV6, title
from fastcni.bench.tables import present, speed

STYLE: dict[Any, Any] = {
    # The SVG has text as text, which is small and searchable
    "svg.hashsalt": "fastcni", "svg.fonttype": "none",
    "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 10, "axes.grid": True, "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888",
    "axes.axisbelow": True, "path.simplify": False,
}
COLORS = {"Go": "#0072b2", "one-shot": "#e69f00", "warm": "#d55e00", "before": "#009e73",
          "floor": "#777777"}           # colours that colour-blind readers can distinguish
OWN_LINES = ((WITHOUT_IPV6, "--"), (UNFLOODED, ":"))
LINES = {"--": "dashed", ":": "dotted"}
FAMILIAR = ("loopback", "host-local-1000", "bridge", "bridge-ipmasq", "ptp")
CALLS = ("ADD", "DEL")
SHARES = (*range(0, 96, 5), 97, 98, 99, 100)            # percent at which a distribution's line has points


def write(directory: str, data: dict[str, Any]) -> list[str]:
    """Write the plots of the parts latency, rate and density to a directory, if they were measured. Return the files'
    names."""
    written = []
    for part, draw, usual in (("latency", latency, FAMILIAR), ("rate", rate, FAMILIAR),
                              ("density", density, ("ptp", "bridge"))):
        if cases := [case for case in usual if data.get(part, {}).get(case)]:
            with matplotlib.rc_context(STYLE):
                figure = draw(data, cases)
                figure.set_facecolor("white")           # keeps the plot readable on a dark page
                FigureCanvasSVG(figure).print_svg(f"{directory}/{part}.svg", metadata={"Date": None, "Creator": None})
                written.append(f"{part}.svg")
    return written


def latency(data: dict[str, Any], cases: Sequence[str]) -> Figure:
    """Draw the distribution of the calls' times for each of these cases."""
    figure, panels = grid(cases, "Latency, one call at a time", sharex="all")
    for case, call, axes in panels:
        for side in present(data):
            samples = data["latency"][case].get(side, {}).get(call)
            if samples:
                axes.plot(*distribution(samples), color=COLORS[side], label=side)
        axes.set_xscale("log")
        axes.set_ylim(0, 100)
        axes.set_yticks([0, 50, 99])
        plain(axes.xaxis)
    label(figure, panels, "milliseconds", "% of calls\ntook at most")
    return figure


def distribution(samples: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return (milliseconds, percent of the calls) for points of the cumulative distribution."""
    samples = sorted(samples)
    at = sorted({round((len(samples) - 1) * share / 100) for share in SHARES})
    return [samples[n] for n in at], [100 * (n + 1) / len(samples) for n in at]


def rate(data: dict[str, Any], cases: Sequence[str]) -> Figure:
    """Draw the calls per second for each of these cases, one at a time and with many concurrent calls."""
    figure, panels = grid(cases, "Calls a second")
    alone = {level: found["floor"][ALONE.calls[0]] for level, found in data["rate"].get(ALONE.name, {}).items()
             if "floor" in found}
    ticks = {1}
    for case, call, axes in panels:
        levels = data["rate"][case]
        ticks |= {int(level) for level in levels}
        for side in present(data):
            points = {int(level): speed(found.get(side, {}).get(call)) for level, found in levels.items()}
            one = data.get("latency", {}).get(case, {}).get(side, {}).get(call)
            points = {1: 1000 / median(one) if one and side != "floor" else None, **points}
            points = {level: value for level, value in points.items() if value}
            if points:
                axes.plot(points.keys(), points.values(), "o-", markersize=3, color=COLORS[side])
        if alone:
            axes.plot([int(level) for level in alone], [speed(found) for found in alone.values()], ":",
                      color=COLORS["floor"])
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        plain(axes.yaxis)
    for _, _, axes in panels:
        axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    label(figure, panels, "calls at once", "calls a second", floor="the harness alone")
    return figure


def density(data: dict[str, Any], cases: Sequence[str]) -> Figure:
    """Draw the median time of each of these cases by the number of existing pods, with the range from the first to the
    third quartile."""
    figure, panels = grid(cases, "Latency with existing pods, median and middle half", wide=3.6)
    for case, call, axes in panels:
        curves = [(data["density"][case], "-")]
        own = {each.name: line for each, line in OWN_LINES if case == "bridge" and each.name in data["density"]}
        curves += [(data["density"][name], line) for name, line in own.items()]
        for (levels, line), side in itertools.product(curves, present(data)):
            found = {int(level): series.get(side, {}).get(call) for level, series in levels.items()}
            found = {level: samples for level, samples in found.items() if samples}
            if not found:
                continue
            axes.plot(found.keys(), [median(samples) for samples in found.values()], line, color=COLORS[side])
            quarters = [quantiles(samples, n=4) if len(samples) > 1 else samples * 3
                        for samples in found.values()]
            axes.fill_between(list(found), [q[0] for q in quarters], [q[2] for q in quarters], color=COLORS[side],
                              alpha=0.15, linewidth=0)
        if len(curves) > 1:
            lines = ", ".join(f"{LINES[line]}: {title(name)}" for name, line in own.items())
            axes.set_title(f"{axes.get_title()}\n({lines})", fontsize="small")
        axes.set_yscale("log")
        plain(axes.yaxis)
    label(figure, panels, "existing pods", "milliseconds")
    return figure


Panels = list[tuple[str, str, Any]]         # (case, call, matplotlib's Axes)


def grid(cases: Sequence[str], heading: str, wide: float = 2.3, sharex: Any = "col") -> tuple[Figure, Panels]:
    """Return (figure, panels). The figure has a column for each case, in which ADD is above DEL on the same scale."""
    figure = Figure(figsize=(1.2 + wide * len(cases), 4.6), layout="constrained")
    figure.suptitle(heading, fontsize=11)
    rows = figure.subplots(2, len(cases), sharex=sharex, sharey="all", squeeze=False)
    panels = []
    for row, call in zip(rows, CALLS, strict=True):
        for case, axes in zip(cases, row, strict=True):
            axes.set_title(f"{title(case)} {call}")
            panels.append((case, call, axes))
    return figure, panels


def label(figure: Figure, panels: Panels, x: str, y: str, floor: str = "floor") -> None:
    """Label the axes of a figure, and add a legend of the implementations."""
    columns = len(panels) // 2
    for at, (_, _, axes) in enumerate(panels):
        axes.set_ylabel(y if at % columns == 0 else "")
        axes.set_xlabel(x if at >= columns else "")
        axes.tick_params(length=0)
    lines: dict[Any, Any] = {}
    for _, _, axes in panels:
        for line in axes.get_lines():
            lines.setdefault(line.get_color(), line)
    shown = [(lines[color], floor if side == "floor" else side) for side, color in COLORS.items() if color in lines]
    figure.legend(*zip(*shown, strict=True), loc="outside lower center", ncols=len(shown), frameon=False)


def plain(axis: Axis) -> None:
    """Label a logarithmic axis by 1, 3, 10, 30."""
    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
