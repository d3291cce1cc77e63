"""What was measured, as tables of text: medians, 99th percentiles, and ratios of medians to the Go plugins and to
the floor, all of one run."""

import statistics
from dataclasses import dataclass

from fastcni.bench.cases import ALONE, SIDES, WITHOUT_IPV6, title

OURS = ("one-shot", "warm")
FLOOR = ("launcher", "requests")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of words under columns, as many as `words` say what they are about; the rest are figures. note: how to
    read it."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    words: int
    note: str = ""


def median(samples):
    return statistics.median(samples)


def p99(samples):
    """The 99th percentile, interpolated between samples."""
    return statistics.quantiles(samples, n=100, method="inclusive")[98] if len(samples) > 1 else samples[0]


def ms(value):
    """Milliseconds in as many digits as they are good for."""
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def ratio(ours, theirs):
    """How many times as much, "" where one is missing."""
    if not ours or not theirs:
        return ""
    value = ours / theirs
    digits = 3 if value < 0.1 else 2 if value < 1 else 1 if value < 10 else 0
    return f"{value:.{digits}f}x"


def spread(samples):
    """p50 / p99, "" without samples."""
    return f"{ms(median(samples))} / {ms(p99(samples))}" if samples else ""


def middle(samples):
    return median(samples) if samples else None


def present(data):
    """The sides that took part, in their order."""
    return [side for side in SIDES if side in data["sides"]]


def ratio_columns(data):
    """(ours, theirs) for each ratio that there is."""
    sides = present(data)
    ratios = [(ours, theirs) for ours in OURS for theirs in ("Go", "floor") if {ours, theirs} <= set(sides)]
    return ratios + [("warm", "before")] * ({"warm", "before"} <= set(sides))


def latency(data):
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
                 "Ratios are of medians, below 1x is faster. The floor is a launcher that is answered at once, and the "
                 "requests to the kernel.")


def first(series):
    """Of several the first that is not empty: a case that failed has no samples."""
    return next(filter(None, series.values()), {})


def rate(data):
    sides = [side for side in present(data) if side != "floor"]
    ratios = [(ours, theirs) for ours, theirs in ratio_columns(data) if theirs != "floor"]
    alone, rows = data["rate"].get(ALONE.name, {}), []
    for case, levels in data["rate"].items():
        for call in first(first(levels)):
            for at_once, found in levels.items():
                of = {side: found.get(side, {}).get(call) for side in (*sides, "floor")}
                own = speed(of["floor"] or alone.get(at_once, {}).get("floor", {}).get(ALONE.calls[0]))
                cells = [flood(of[side]) for side in sides]
                cells += [flood(of["floor"]) if case == ALONE.name else f"{own:,.0f}/s" if own else ""]
                cells += [ratio(speed(of[ours]), speed(of[theirs])) for ours, theirs in ratios]
                rows.append([title(case), call, at_once, *cells])
    return Table("Many at once: calls a second, and ms: p50 / p99 of each",
                 ["case", "call", "at once", *sides, "harness alone", *(f"{a} : {b}" for a, b in ratios)], rows, 3,
                 "Ratios are of rates, above 1x is faster. The harness alone starts launchers that are answered at "
                 "once: a rate near it is limited by starting processes.")


def speed(found):
    """Calls a second, the median of the repeats; None without any."""
    if not found or not found["seconds"]:
        return None
    return len(found["ms"]) / len(found["seconds"]) / median(found["seconds"])


def flood(found):
    return f"{speed(found):,.0f}/s  {spread(found['ms'])}" if found and found["seconds"] else ""


def cost(data):
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
                 "Processor: of the calls, of all that they wait for, and of the server. Whole machine: all that it "
                 "was busy for, sampled at clock ticks: the kernel's deferred work, this harness and whatever else was "
                 "running included. Processes and threads started, as the kernel's process connector tells.")


def number(value):
    return "not counted" if value is None else f"{value:.1f}"


def density(data):
    sides, ratios, rows = present(data), ratio_columns(data), []
    for case, levels in data["density"].items():
        for call in first(first(levels)):
            for level, series in levels.items():
                found = {side: series.get(side, {}).get(call) for side in sides}
                cells = [spread(found[side]) for side in sides]
                if case == WITHOUT_IPV6.name:       # the Go plugins lack the key: theirs is the plain bridge
                    plain = data["density"].get("bridge", {}).get(level, {})
                    found["Go"] = plain.get("Go", {}).get(call)
                cells += [ratio(middle(found[ours]), middle(found.get(theirs))) for ours, theirs in ratios]
                rows.append([title(case), call, f"{int(level):,}", *cells])
    return Table("With pods there already, ms: p50 / p99",
                 ["case", "call", "pods", *sides, *(f"{a} : {b}" for a, b in ratios)], rows, 3,
                 "One at a time, on one bridge, or one routing table. disableIPv6 is fastcni's own key: its ratios are "
                 "to the Go plugins on a bridge without it.")


def memory(data):
    rows = [[it["when"], f"{it['kB'] / 1024:.1f}", str(it["threads"]), str(it["fds"])] for it in data["memory"]]
    return Table("The server's memory", ["", "resident MB", "threads", "descriptors"], rows, 1)


TABLES = {"latency": latency, "rate": rate, "cost": cost, "density": density, "memory": memory}
