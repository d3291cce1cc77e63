"""Count ended requests, and keep histograms of their times. Counts and histograms are plain numbers, which a request
updates in microseconds.

The numbers become metrics only when Prometheus scrapes them. Each label has a limited number of values; all further
values become "other".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from threading import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.server.records.ended import Ended

# Upper ends of the histograms' buckets, in seconds
BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.5, 5.0,
          10.0, 60.0)
COMMANDS = ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "UPDATE")
OTHER = "other"
MAX_NETWORKS, MAX_PLUGINS, MAX_CODES = 100, 40, 40
MAX_COUNTS = 2000               # limit of the counts: combinations of (command, plugin, network, code)
MAX_HISTOGRAMS = 200            # limit of the histograms: pairs of (command, plugin)
MAX_NAME = 128                  # limit of a label in characters


class Labels:
    """The texts of one label. labels(value) returns the text for a value. After `most` different values it returns
    OTHER for each further value."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.known: dict[str, str] = {}

    def __call__(self, value: str) -> str:
        known = self.known.get(value)
        if known is None:
            if len(self.known) >= self.most:
                return OTHER
            known = self.known[value] = text(value)
        return known


class Histogram:
    """A histogram. counts: the count of each bucket; the last bucket has no upper end. total: the sum in seconds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts, self.total = [0] * (len(BOUNDS) + 1), 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def copy(self) -> Histogram:
        it = Histogram()
        it.counts, it.total = [*self.counts], self.total
        return it

    def buckets(self) -> list[tuple[str, float]]:
        """Return [(upper end as text, cumulative count)]."""
        found, below = [], 0
        for bound, count in zip((*map(repr, BOUNDS), "+Inf"), self.counts, strict=True):
            below += count
            found.append((bound, float(below)))
        return found


class Requests:
    """The counts and histograms. note(ended) adds a request. Any thread may call any method."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.networks, self.plugins, self.codes = Labels(MAX_NETWORKS), Labels(MAX_PLUGINS), Labels(MAX_CODES)
        self.counts: dict[tuple[str, str, str, str], int] = {}
        self.times: defaultdict[tuple[str, str], Histogram] = defaultdict(Histogram)
        self.phases: defaultdict[tuple[str, str], Histogram] = defaultdict(Histogram)

    def note(self, ended: Ended) -> None:
        call = ended.call
        command = call.command if call.command in COMMANDS else OTHER
        spent = ended.phases.totals()
        with self.lock:
            plugin = self.plugins(call.message.plugin)
            key = command, plugin, self.networks(call.network), self.codes(ended.outcome)
            if key not in self.counts and len(self.counts) >= MAX_COUNTS:
                key = command, OTHER, OTHER, OTHER
            self.counts[key] = self.counts.get(key, 0) + 1
            if ended.took and ended.outcome.isdecimal():
                pair = command, plugin
                if pair not in self.times and len(self.times) >= MAX_HISTOGRAMS:
                    pair = command, OTHER
                self.times[pair].observe(ended.queued + ended.took)
            self.phases[command, "queue"].observe(ended.queued)
            for name, nanoseconds in spent.items():
                self.phases[command, name].observe(nanoseconds * 1e-9)

    def copy(self) -> tuple[dict[tuple[str, str, str, str], int], dict[tuple[str, str], Histogram],
                            dict[tuple[str, str], Histogram]]:
        """Return copies of counts, times and phases."""
        with self.lock:
            return (dict(self.counts), {key: it.copy() for key, it in self.times.items()},
                    {key: it.copy() for key, it in self.phases.items()})


def text(value: str) -> str:
    """Return a name as the text of a label: short, and UTF-8."""
    return value[:MAX_NAME].encode("utf-8", "replace").decode()
