"""Prepare the plots of the HTML page from the samples of each part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from fastcni.bench import svg
from fastcni.bench.cases import ALONE, UNFLOODED, WITHOUT_IPV6, title
from fastcni.bench.tables import ms, present, speed
from fastcni.bench.verdict import CALLS, LEADING, figure, leading

OWN_CURVES = ((WITHOUT_IPV6.name, "disableIPv6", "dashed"), (UNFLOODED.name, "disableFlooding", "dotted"))
PROGRAMS = ("Go", "one-shot", "warm", "before")


@dataclass(frozen=True, slots=True)
class Figure:
    """A group of plots with a common title. plots: [(heading, <svg>)]. note: how to read the plots. sides: the names in
    the legend, in order, such as "Go" and "warm"."""

    heading: str
    note: str
    plots: list[tuple[str, str]]
    sides: list[str]


def figures(data: dict[str, Any]) -> Iterator[Figure]:
    """Yield a group of plots for each part that has data."""
    for group in (latency, rate, density, cost):
        found = group(data)
        if found.plots:
            yield found


def latency(data: dict[str, Any]) -> Figure:
    """Plot a row of marks for each case: the medians of all implementations, one call at a time."""
    medians: dict[str, list[tuple[str, dict[str, float], str]]] = {}
    for name, series in data.get("latency", {}).items():
        for call in CALLS:
            found = {side: median(series[side][call]) for side in present(data) if series.get(side, {}).get(call)}
            if found:
                medians.setdefault(call, []).append((title(name), found, times(found)))
    every = [value for rows in medians.values() for _, found, _ in rows for value in found.values()]
    plots = [(call, svg.log_dots(f"latency-{call}", f"{call}, one at a time: medians", rows, (min(every), max(every))))
             for call, rows in medians.items()]
    compared = " At the right: how many times as fast warm is as Go." if {"Go", "warm"} <= set(data["sides"]) else ""
    return Figure("How long a call takes", "Medians in ms, one call at a time. Further left is faster; each step of "
                  f"the axis is about three times as much.{compared}", plots, present(data))


def times(found: dict[str, float]) -> str:
    """Return Go's time divided by warm's time, such as "5.9x"; "" if one of the two is missing. found: {side: ms}."""
    return f"{figure(found['Go'] / found['warm'])}x" if {"Go", "warm"} <= set(found) else ""


def rate(data: dict[str, Any]) -> Figure:
    """Plot the calls per second by the number of concurrent calls."""
    measured = {name: levels for name, levels in data.get("rate", {}).items() if name != ALONE.name}
    plots = []
    for name in leading({name: levels for name, levels in measured.items() if name in LEADING} or measured)[:3]:
        for call in CALLS:
            drawn = []
            for side in [side for side in present(data) if side in PROGRAMS]:
                points = [(float(level), speed(found.get(side, {}).get(call)) or 0.0)
                          for level, found in measured[name].items()]
                points = [(x, y) for x, y in points if y]
                if points:
                    drawn.append(svg.Curve(side, points, f"{side} {points[-1][1]:,.0f}"))
            if drawn:
                what = f"{title(name)} {call}"
                plots.append((what, svg.curves(f"rate-{name}-{call}", f"{what}: calls a second", drawn,
                                               ("calls at once", "calls a second"), True)))
    return Figure("How many calls a second", "With many calls at once, as when a node starts its pods. Higher is "
                  "better.", plots, [side for side in present(data) if side in PROGRAMS])


def density(data: dict[str, Any]) -> Figure:
    """Plot the median times by the number of existing pods."""
    measured, plots = data.get("density", {}), []
    for name in [name for name in ("bridge", "ptp") if measured.get(name)]:
        for call in CALLS:
            drawn = [curve for side in present(data) if (curve := by_pods(measured[name], side, call, side))]
            for own, key, line in OWN_CURVES if name == "bridge" else ():
                curve = by_pods(measured.get(own, {}), "warm", call, key, line)
                drawn += [curve] if curve else []
            if any(len(curve.points) > 1 for curve in drawn):
                what = f"{title(name)} {call}"
                plots.append((what, svg.curves(f"density-{name}-{call}", f"{what}: medians by the number of pods",
                                               drawn, ("existing pods", "ms"), False)))
    keys = [f" {line.capitalize()}: warm, with {key}." for own, key, line in OWN_CURVES if measured.get(own)]
    return Figure("On a full node", "Medians in ms, by the number of pods that are on the network already. Lower is "
                  f"better.{''.join(keys)}", plots, present(data))


def by_pods(levels: dict[str, Any], side: str, call: str, name: str, line: str = "") -> svg.Curve | None:
    """Return the curve of one implementation's medians, None if the run did not measure the implementation. line: see
    Curve. If `line` is not "", `name` alone is the curve's label."""
    points = [(float(level), median(series[side][call])) for level, series in levels.items()
              if series.get(side, {}).get(call)]
    if not points:
        return None
    return svg.Curve(side, points, name if line else f"{name} {ms(points[-1][1])}", line)


def cost(data: dict[str, Any]) -> Figure:
    """Plot the processor time of one pod's ADD and DEL."""
    measured, plots = data.get("cost", {}), []
    for name in leading(measured)[:3]:
        values = {side: found["cpu"] * 1e3 for side, found in measured[name].items() if found["cpu"]}
        if values:
            plots.append((title(name), svg.bars(f"cost-{name}", f"{title(name)}: processor time of a pod", values,
                                                "ms")))
    return Figure("What a pod costs", "Processor time of an ADD and a DEL: the calls, the programs that they start, "
                  "and the server. Shorter is better.", plots, [])
