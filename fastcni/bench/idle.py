"""Measure the part idle: calls after a pause, as on a usual node, and calls in turn with those of another program.

The other parts call one plugin many times in a row, with its code and data in the processor's caches, and no processor
in an idle state. On a usual node a pod is added from time to time, and other programs run in between.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastcni.bench.cases import title
from fastcni.bench.churn import measure_side, networks, noting_failures, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastcni.bench.bench import Bench
    from fastcni.bench.cases import Case
    from fastcni.bench.node import Network
    from fastcni.bench.sides import Side

    Samples = dict[str, dict[str, list[float]]]         # {series: {call: [ms]}}

USUAL = ("host-local-5000", "bridge", "bridge-ipmasq", "ptp")
ROW, PAUSED, BETWEEN, TURN = "in a row", "each second", "each second, others between", "in turn with another"


def idle(bench: Bench) -> dict[str, Any]:
    """Measure the usual cases, and those that --only names: {case: {situation: {series: {call: [ms]}}}}."""
    data: dict[str, Any] = {}
    cases = [case for case in bench.cases if "ADD" in case.calls and case.name in (*USUAL, *bench.options.only)]
    cases = [case for case in cases if bench.has_kind(case)]
    with bench.steps("after a pause", len(cases) * len(SITUATIONS)) as step:
        for case in cases:
            sides = bench.sides_of(case)
            with networks(bench, case, sides) as made, noting_failures(bench, f"{title(case.name)}, after a pause"):
                calls = Calls(bench, case, sides, made)
                for situation, measure in SITUATIONS.items():
                    step(0, f"{title(case.name)}, {situation}")
                    data.setdefault(case.name, {})[situation] = measure(calls)
                    step()
    return data


class Calls:
    """The calls of one case. sides: the implementations in their usual order. pods: the pods of each
    implementation."""

    def __init__(self, bench: Bench, case: Case, sides: Sequence[Side], made: dict[Side, Network]) -> None:
        self.bench, self.plan, self.case, self.sides, self.networks = bench, bench.plan, case, sides, made
        burst, pods = self.plan.burst, bench.node.pods(len(sides) * self.plan.burst)
        self.pods = {side: pods[n * burst:(n + 1) * burst] for n, side in enumerate(sides)}
        for side in sides:
            made[side].make_links(self.pods[side])
            warm_up(side, made[side], self.pods[side][0])

    def shuffled(self) -> list[Side]:
        """Return the implementations in random order."""
        return self.bench.shuffled(self.sides)

    def make(self, found: Samples, call: str, side: Side, pod: int = 0) -> None:
        """Make one call for the implementation's pod of this number. Add the call's times to `found`."""
        for series, ms in side.call(call, self.networks[side], self.pods[side][pod]).items():
            found.setdefault(series, {}).setdefault(call, []).append(round(ms, 3))
        side.check()


def in_a_row(calls: Calls) -> Samples:
    """Make the calls as in the part latency. The other situations are compared with these."""
    found: Samples = {}
    for _ in range(calls.plan.idle_rounds):
        for side in calls.shuffled():
            measure_side(calls.bench, found, side, calls.networks[side], calls.pods[side])
    return found


def each_second(calls: Calls) -> Samples:
    """Make one call each second: all calls of an implementation, then all calls of the next."""
    found: Samples = {}
    for side in calls.shuffled():
        for _ in range(calls.plan.idle_rounds):
            for call in calls.case.calls:
                time.sleep(calls.plan.pause)
                calls.make(found, call, side)
    return found


def others_between(calls: Calls) -> Samples:
    """Make one call of each side each second. For each side, the calls of the other sides stand for other programs'
    work."""
    found: Samples = {}
    for _ in range(calls.plan.idle_rounds):
        for call in calls.case.calls:
            for side in calls.shuffled():
                time.sleep(calls.plan.pause / len(calls.sides))
                calls.make(found, call, side)
    return found


def in_turn(calls: Calls) -> Samples:
    """Make each call of a side directly after the same call of the first side. The first side is Go, unless
    --side leaves it out. Without a second side there is nothing to measure."""
    found: Samples = {}
    busy = calls.sides[0]
    for _ in range(calls.plan.idle_rounds):
        for side in calls.shuffled():
            if side is busy:
                continue
            for call in calls.case.calls:
                for pod in range(calls.plan.burst):
                    calls.make(found, call, busy, pod)
                    calls.make(found, call, side, pod)
            time.sleep(calls.plan.rest)
    return found


SITUATIONS: dict[str, Callable[[Calls], Samples]] = {
    ROW: in_a_row, PAUSED: each_second, BETWEEN: others_between, TURN: in_turn}
