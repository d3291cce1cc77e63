"""Put the result of a run into words: how many times as fast as the Go plugins fastcni is, and how certain this factor
is.

In each round all implementations run, so each round has its own ratio. The range of the rounds' ratios shows how
certain the result is. If 1 is in the range, the implementations are "about as fast".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from fastcni.bench.cases import title
from fastcni.bench.idle import BETWEEN
from fastcni.bench.tables import OURS, ms, speed

LEADING = ("bridge", "bridge-ipmasq", "ptp", "host-local-1000", "portmap", "kubernetes")
CALLS = ("ADD", "DEL")
ALIKE = 1.05                    # a smaller ratio counts as "about as fast", because nobody would notice the difference
FASTER, SLOWER, SAME = "faster", "slower", "same"
NAMED = 4                       # how many slower calls a sentence names
COST = ("less than", "more than", "about as much as")
MODES = {"warm": "With its server (warm)", "one-shot": "Without a server (one-shot)"}


@dataclass(frozen=True, slots=True)
class Ratio:
    """A comparison of two implementations, ours and theirs. times: how many times as fast ours is. low, high: the range
    of `times` in nine of ten rounds. rounds: the number of rounds. phrases: the texts for FASTER, SLOWER and SAME."""

    times: float
    low: float
    high: float
    rounds: int
    phrases: tuple[str, str, str] = ("as fast as", "as long as", "about as fast as")

    @property
    def tone(self) -> str:
        """Return FASTER, SLOWER or SAME, for ours compared with theirs."""
        if self.low <= 1 <= self.high or 1 / ALIKE < self.times < ALIKE:
            return SAME
        return FASTER if self.times > 1 else SLOWER

    @property
    def sentence(self) -> str:
        """Return a phrase such as "2.4 times as fast as" and "1.3 times as long as"."""
        faster, slower, same = self.phrases
        if self.tone == SAME:
            return same
        return f"{times(self.times)} {faster}" if self.times > 1 else f"{times(1 / self.times)} {slower}"

    @property
    def words(self) -> str:
        """Return `sentence` without its last "as", such as "2.4 times as fast"."""
        return self.sentence.rpartition(" ")[0]

    @property
    def range(self) -> str:
        """Return the range of the rounds' ratios, such as "rounds: 2.1 to 2.8"; "" for one round. If ours is slower,
        the ratios say how many times as long ours takes."""
        low, high = (1 / self.high, 1 / self.low) if self.tone == SLOWER else (self.low, self.high)
        return f"rounds: {figure(low)} to {figure(high)}" if self.rounds > 1 else ""


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def times(value: float) -> str:
    """Return a factor as text, such as "2.4 times"."""
    return f"{value:,.0f} times" if value >= 10 else f"{value:.1f} times"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the verdict. group, label: the kind of measurement, and the measured call. cells: {implementation: (its
    time as text, Ratio to the Go plugins or None)}."""

    group: str
    label: str
    cells: dict[str, tuple[str, Ratio | None]]


Data = dict[str, Any]


def ratio_of(theirs: Sequence[float], ours: Sequence[float], burst: int) -> Ratio:
    """Return the Ratio of two series of times. Each round has `burst` consecutive samples of a series."""
    rounds = [median(a) / median(b) for a, b in zip(chunks(theirs, burst), chunks(ours, burst), strict=False)]
    return of_rounds(median(theirs) / median(ours), rounds)


def of_rounds(value: float, rounds: Sequence[float]) -> Ratio:
    if len(rounds) < 2:
        return Ratio(value, value, value, len(rounds))
    twentieths = quantiles(rounds, n=20, method="inclusive")
    return Ratio(value, twentieths[0], twentieths[-1], len(rounds))


def chunks(samples: Sequence[float], size: int) -> list[Sequence[float]]:
    return [samples[at:at + size] for at in range(0, len(samples), size)]


def rows(data: Data) -> list[Row]:
    """Return the rows of the verdict, from each part that was measured."""
    return [*one_at_a_time(data), *many_at_once(data), *crowded(data), *after_a_pause(data), *processor_time(data)]


def times_row(group: str, label: str, series: dict[str, Any], burst: int) -> Row:
    """Return the Row of one call. series: {side: [ms]}. burst: see ratio_of()."""
    theirs = series.get("Go")
    return Row(group, label, {side: (f"{ms(median(samples))} ms", ratio_of(theirs, samples, burst)
                                     if theirs and side != "Go" else None)
                              for side, samples in series.items() if samples})


def calls_of(series: dict[str, Any], call: str) -> dict[str, list[float]]:
    """Return {side: samples} of one call, for Go and fastcni."""
    return {side: series[side][call] for side in ("Go", *OURS) if series.get(side, {}).get(call)}


def leading(measured: dict[str, Any]) -> list[str]:
    """Return the names of the cases in the verdict: the measured cases of LEADING, otherwise the first NAMED measured
    cases."""
    return [name for name in LEADING if measured.get(name)] or [name for name in measured if measured[name]][:NAMED]


def one_at_a_time(data: Data) -> Iterator[Row]:
    measured, burst = data.get("latency", {}), burst_of(data)
    for name in leading(measured):
        for call in [call for call in (*CALLS, "VERSION") if calls_of(measured[name], call)]:
            yield times_row("One call at a time", f"{title(name)} {call}", calls_of(measured[name], call), burst)


def many_at_once(data: Data) -> Iterator[Row]:
    measured = {name: levels for name, levels in data.get("rate", {}).items() if name in LEADING}
    for name in leading(measured)[:2]:
        level, sides = list(measured[name].items())[-1]
        for call in CALLS:
            found = {side: sides[side][call] for side in ("Go", *OURS) if speed(sides.get(side, {}).get(call))}
            if found:
                theirs = found.get("Go")
                yield Row("Many calls at once", f"{title(name)} {call}, {level} at once", {
                    side: (f"{speed(it):,.0f}/s", rate_ratio(theirs, it) if theirs and side != "Go" else None)
                    for side, it in found.items()})


def rate_ratio(theirs: dict[str, Any], ours: dict[str, Any]) -> Ratio:
    pairs = zip(theirs["seconds"], ours["seconds"], strict=False)
    return of_rounds((speed(ours) or 0) / (speed(theirs) or 1), [a / b for a, b in pairs])


def crowded(data: Data) -> Iterator[Row]:
    measured = data.get("density", {})
    for name in [name for name in ("bridge", "ptp") if measured.get(name)]:
        level, series = list(measured[name].items())[-1]
        for call in [call for call in CALLS if int(level) and calls_of(series, call)]:
            yield times_row("With existing pods", f"{title(name)} {call}, {int(level):,} pods",
                            calls_of(series, call), burst_of(data))


def after_a_pause(data: Data) -> Iterator[Row]:
    measured = data.get("idle", {})
    for name in [name for name in LEADING if measured.get(name)][:1]:
        for call in CALLS:
            series = calls_of(measured[name].get(BETWEEN, {}), call)
            if series:
                yield times_row("After a pause, with other programs between", f"{title(name)} {call}", series, 1)


def processor_time(data: Data) -> Iterator[Row]:
    measured = data.get("cost", {})
    for name in leading(measured)[:3]:
        cpu = {side: measured[name][side]["cpu"] * 1e3 for side in ("Go", *OURS) if side in measured[name]}
        cpu = {side: value for side, value in cpu.items() if value}
        yield Row("Processor time of a pod, ADD and DEL", title(name), {
            side: (f"{ms(value)} ms", Ratio(cpu["Go"] / value, cpu["Go"] / value, cpu["Go"] / value, 1, COST)
                   if "Go" in cpu and side != "Go" else None) for side, value in cpu.items()})


def burst_of(data: Data) -> int:
    """Return how many samples of a call an implementation has in a round."""
    return int(data["plan"].get("burst", 1))


def found_in(data: Data) -> str:
    """Return a text such as "the Go plugins found in /opt/cni/bin"."""
    return f"the Go plugins found in {data['peer']}" if data.get("peer") else "the Go plugins"


def headline(data: Data) -> str:
    """Return the verdict in one sentence, from the first row that compares fastcni with Go. A row with the server has
    priority over a row without the server."""
    cells = [(row, *row.cells[side]) for side in ("warm", "one-shot") for row in rows(data) if side in row.cells]
    for row, _, ratio in cells:
        if ratio:
            how = row.group[0].lower() + row.group[1:]
            takes = "takes " if ratio.tone == SLOWER and ratio.phrases != COST else ""
            return f"{row.label}: {takes}{ratio.sentence} {found_in(data)}, {how}"
    if cells:
        row, text, _ = cells[0]
        return f"{row.label}: {text}, fastcni alone"
    return "No call of fastcni was measured"


def summary(data: Data) -> list[str]:
    """Return the sentences after the headline. These sentences say in how many of all calls, one at a time, fastcni is
    faster or slower."""
    said = []
    if "Go" not in data["sides"]:
        said.append(f"No Go plugins were {'measured' if data.get('peer') else 'found on this node'}, so these are the "
                    "figures of fastcni alone.")
    for side in [side for side in ("warm", "one-shot") if side in data["sides"]]:
        tones: dict[str, list[str]] = {FASTER: [], SAME: [], SLOWER: []}
        for name, series in data.get("latency", {}).items():
            for call in series.get(side, {}):
                if samples := series.get("Go", {}).get(call):
                    ratio = ratio_of(samples, series[side][call], burst_of(data))
                    what = title(name) if call in title(name) else f"{title(name)} {call}"
                    tones[ratio.tone].append(what)
        if any(tones.values()):
            said.append(counted(MODES[side], tones))
    if data.get("memory"):
        states = [f"{it['kB'] / 1024:.0f} MB {it['when']}" for it in data["memory"][:2]]
        said.append(f"The server's memory: {', '.join(states)}.")
    return said


def counted(mode: str, tones: dict[str, list[str]]) -> str:
    """Return a sentence such as "With its server (warm), fastcni is faster in 30 of 38 calls, and slower in 8: ..."."""
    faster, same, slower = (len(tones[tone]) for tone in (FASTER, SAME, SLOWER))
    total = faster + same + slower
    if faster == total:
        return f"{mode}, fastcni is faster in all {total} calls that were compared." if total > 1 else \
            f"{mode}, fastcni is faster."
    parts = [f"faster in {faster} of {total} calls"]
    parts += [f"about as fast in {same}"] * bool(same)
    if slower:
        more = f"; and {slower - NAMED} more" if slower > NAMED else ""
        parts.append(f"slower in {slower} ({'; '.join(tones[SLOWER][:NAMED])}{more})")
    return f"{mode}, fastcni is {', '.join(parts)}."


def spread(data: Data) -> dict[str, float]:
    """Return {side: how much the rounds differ} in the part latency. The difference of one call is the range of the
    medians of nine in ten rounds, divided by the median of all rounds. The result is the median of all calls."""
    shares: dict[str, list[float]] = {}
    for series in data.get("latency", {}).values():
        for side, calls in series.items():
            for samples in calls.values():
                rounds = [median(it) for it in chunks(samples, burst_of(data))]
                if len(rounds) > 1 and side in data["sides"]:
                    found = of_rounds(0, rounds)
                    shares.setdefault(side, []).append((found.high - found.low) / median(rounds))
    return {side: median(shares[side]) for side in data["sides"] if side in shares}
