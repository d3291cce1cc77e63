"""Make tables of a run's measurements as text: medians, 99th percentiles, and ratios to the Go plugins and to the
floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from fastcni.bench.cases import ALONE, OWN_KEYS, SIDES, title

OURS = ("one-shot", "warm")
FLOOR = ("launcher", "requests")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts. labels: the number of columns on the left that are labels; the other columns are figures. note:
    how to read the table."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    labels: int
    note: str = ""


Data = dict[str, Any]


def p99(samples: Sequence[float]) -> float:
    """Return the 99th percentile of samples, interpolated between two samples."""
    return quantiles(samples, n=100, method="inclusive")[98] if len(samples) > 1 else samples[0]


def ms(value: float) -> str:
    """Return milliseconds as text with two or three significant digits: "0.53", "2.4", "1,200"."""
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def ratio(ours: float | None, theirs: float | None) -> str:
    """Return ours / theirs as text, "2.3x"; "" if one of the two values is missing."""
    if not ours or not theirs:
        return ""
    value = ours / theirs
    digits = 3 if value < 0.1 else 2 if value < 1 else 1 if value < 10 else 0
    return f"{value:.{digits}f}x"


def spread(samples: Sequence[float] | None) -> str:
    """Return the median and the 99th percentile as "p50 / p99", "" without samples."""
    return f"{ms(median(samples))} / {ms(p99(samples))}" if samples else ""


def middle(samples: Sequence[float] | None) -> float | None:
    """Return the median of samples, None without samples."""
    return median(samples) if samples else None


def present(data: Data) -> list[str]:
    """Return the names of the implementations that the run measured, in the usual order."""
    return [side for side in SIDES if side in data["sides"]]


def ratio_columns(data: Data) -> list[tuple[str, str]]:
    """Return the pairs of implementations, (ours, theirs), for which a table has a column with the ratio."""
    sides = present(data)
    ratios = [(ours, theirs) for ours in OURS for theirs in ("Go", "floor") if {ours, theirs} <= set(sides)]
    return ratios + [("warm", "before")] * ({"warm", "before"} <= set(sides))


def latency(data: Data) -> Table:
    """Return the table of the part latency: the times of calls, one at a time."""
    sides, ratios, rows = present(data), ratio_columns(data), []
    for case, series in data["latency"].items():
        for call in first(series):
            found = {side: series.get(side, {}).get(call) for side in (*sides, *FLOOR)}
            cells = [spread(found[side]) for side in sides]
            cells += [" + ".join(ms(median(found[part])) for part in FLOOR if found[part])] * ("floor" in sides)
            cells += [ratio(middle(found[ours]), middle(found[theirs])) for ours, theirs in ratios]
            rows.append([title(case), call, *cells])
    return Table("One at a time, ms: p50 / p99", ["case", "call", *sides, *[" + ".join(FLOOR)] * ("floor" in sides),
                                                  *(f"{a} : {b}" for a, b in ratios)], rows, 2,
                 "Ratios are of medians; below 1x is faster. The floor is a launcher that gets its answer immediately, "
                 "and the requests to the kernel.")


def idle(data: Data) -> Table:
    """Return the table of the part idle: the times of calls after a pause."""
    return situations_of(data, "idle", "After a pause, and in turn with another program, ms: p50 / p99", "in a row",
                         lambda situations, _: next(iter(situations)),
                         "Others between: the calls of the other sides, in the same second. In turn with another: "
                         "after each call of the first side, without a pause.")


def beside(data: Data) -> Table:
    """Return the table of the part beside: the times of calls while another program changes iptables."""
    return situations_of(data, "beside", "Beside a program that changes iptables, ms: p50 / p99", "no changes",
                         lambda _, situation: f"{situation.partition(',')[0]}, no changes",
                         "Table filter has 1,500 rules of the other program.")


def situations_of(data: Data, part: str, heading: str, base: str, base_of: Callable[[Any, str], str],
                  note: str) -> Table:
    """Return the table of the part idle or beside, which measure each case in several situations.

    base: the column's name for the situation with which a server's times are compared. base_of(situations, situation):
    the key of that situation.
    """
    sides, ratios, rows = present(data), ratio_columns(data), []
    servers = [side for side in ("warm", "before") if side in sides]
    for case, situations in data[part].items():
        for call in first(next(iter(situations.values()))):
            for situation, series in situations.items():
                if not series:
                    continue            # a run with one implementation does not measure "in turn"
                found = {side: series.get(side, {}).get(call) for side in sides}
                usual = situations[base_of(situations, situation)]
                cells = [spread(found[side]) for side in sides]
                cells += [ratio(middle(found[side]), middle(usual[side][call])) for side in servers]
                cells += [ratio(middle(found[a]), middle(found[b])) for a, b in ratios]
                rows.append([title(case), call, situation, *cells])
    return Table(heading, ["case", "call", "calls are", *sides, *(f"{side} : {base}" for side in servers),
                           *(f"{a} : {b}" for a, b in ratios)], rows, 3,
                 f"Ratios are of medians; below 1x is faster. {note}")


def first(series: dict[str, Any]) -> dict[str, Any]:
    """Return the first value of `series` that is not empty, because a failed case has no samples."""
    return next(filter(None, series.values()), {})


def rate(data: Data) -> Table:
    """Return the table of the part rate: calls per second, with many concurrent calls."""
    sides = [side for side in present(data) if side != "floor"]
    ratios = [(ours, theirs) for ours, theirs in ratio_columns(data) if theirs != "floor"]
    alone, rows = data["rate"].get(ALONE.name, {}), []
    for case, levels in data["rate"].items():
        for call in first(first(levels)):
            for at_once, found in levels.items():
                of = {side: found.get(side, {}).get(call) for side in (*sides, "floor")}
                own = speed(of["floor"] or alone.get(at_once, {}).get("floor", {}).get(ALONE.calls[0]))
                cells = [rate_cell(of[side]) for side in sides]
                cells += [rate_cell(of["floor"]) if case == ALONE.name else f"{own:,.0f}/s" if own else ""]
                cells += [ratio(speed(of[ours]), speed(of[theirs])) for ours, theirs in ratios]
                rows.append([title(case), call, at_once, *cells])
    return Table("Many at once: calls a second, and ms: p50 / p99 of each",
                 ["case", "call", "at once", *sides, "harness alone", *(f"{a} : {b}" for a, b in ratios)], rows, 3,
                 "Ratios are of rates; above 1x is faster. The harness alone starts launchers that get their "
                 "answer immediately. The start of processes limits a rate near it.")


def speed(found: dict[str, Any] | None) -> float | None:
    """Return the median of the calls per second over all repeats, None without samples."""
    if not found or not found["seconds"]:
        return None
    return len(found["ms"]) / len(found["seconds"]) / median(found["seconds"])


def rate_cell(found: dict[str, Any] | None) -> str:
    """Return calls per second and times as text, "rate  p50 / p99"; "" without samples."""
    return f"{speed(found):,.0f}/s  {spread(found['ms'])}" if found and found["seconds"] else ""


def cost(data: Data) -> Table:
    """Return the table of the part cost: processor time, processes and threads of one pod."""
    rows = []
    for case, sides in data["cost"].items():
        for side, found in sides.items():
            theirs = sides.get("Go", {})
            cells = []
            for key in ("cpu", "machine"):
                cells += [ms(found[key] * 1e3), ratio(found[key], theirs.get(key)) if side != "Go" else ""]
            rows.append([title(case), side, *cells, number(found["processes"]), number(found["threads"])])
    return Table("Cost of a pod: an ADD and a DEL", ["case", "side", "processor ms", ": Go", "whole machine ms", ": Go",
                                                     "processes", "threads"], rows, 2,
                 "Processor: time of the calls, of their children, and of the server. Whole machine: its busy time, "
                 "sampled at clock ticks, with the kernel's deferred work, this harness and other programs. Processes "
                 "and threads: started, counted by the kernel's process connector.")


def number(value: float | None) -> str:
    """Return a number with one decimal, "not counted" for None."""
    return "not counted" if value is None else f"{value:.1f}"


def density(data: Data) -> Table:
    """Return the table of the part density: the times of calls by the number of existing pods."""
    sides, ratios, rows = present(data), ratio_columns(data), []
    for case, levels in data["density"].items():
        for call in first(first(levels)):
            for level, series in levels.items():
                found = {side: series.get(side, {}).get(call) for side in sides}
                cells = [spread(found[side]) for side in sides]
                if case in [own.name for own in OWN_KEYS]:
                    # the Go plugins lack this case's key, so compare with Go's times of the case bridge
                    plain = data["density"].get("bridge", {}).get(level, {})
                    found["Go"] = plain.get("Go", {}).get(call)
                cells += [ratio(middle(found[ours]), middle(found.get(theirs))) for ours, theirs in ratios]
                rows.append([title(case), call, f"{int(level):,}", *cells])
    return Table("With existing pods, ms: p50 / p99",
                 ["case", "call", "pods", *sides, *(f"{a} : {b}" for a, b in ratios)], rows, 3,
                 "One at a time, on one bridge or in one routing table. Only fastcni has the keys disableIPv6 and "
                 "disableFlooding: their ratios are to the Go plugins on a bridge without the key.")


def memory(data: Data) -> Table:
    """Return the table of the part memory: the server's memory, threads and descriptors at several moments."""
    rows = [[it["when"], f"{it['kB'] / 1024:.1f}", str(it["threads"]), str(it["fds"])] for it in data["memory"]]
    return Table("The server's memory", ["", "resident MB", "threads", "descriptors"], rows, 1)


TABLES = {"latency": latency, "idle": idle, "rate": rate, "cost": cost, "density": density, "memory": memory,
          "beside": beside}
