"""Measure the part idle: calls after a pause, as on a usual node, and calls directly after a call of another
implementation.

The other parts call one plugin many times in a row. The plugin's code and data are then in the processor's caches, and
no processor is in an idle state. On a usual node, runtimes add pods from time to time, and other programs run between
two calls.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastcni.bench.cases import title
from fastcni.bench.churn import measure_side, networks, noting_failures, pods_of, warm_up

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
    """Measure the cases USUAL and the cases that --only names. Return {case: {situation: {series: {call: [ms]}}}}."""
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
    """The calls of one case. sides: the implementations in their usual order. pods: {side: pods of this
    implementation}."""

    def __init__(self, bench: Bench, case: Case, sides: Sequence[Side], made: dict[Side, Network]) -> None:
        self.bench, self.plan, self.case, self.sides, self.networks = bench, bench.plan, case, sides, made
        self.pods = pods_of(bench, sides)
        for side in sides:
            made[side].make_links(self.pods[side])
            warm_up(side, made[side], self.pods[side][0])

    def make(self, found: Samples, call: str, side: Side, pod: int = 0) -> None:
        """Make one call of `side` for its pod number `pod`. Append the call's times to `found`."""
        for series, ms in side.call(call, self.networks[side], self.pods[side][pod]).items():
            found.setdefault(series, {}).setdefault(call, []).append(round(ms, 3))
        side.check()


def in_a_row(calls: Calls) -> Samples:
    """Make the calls in a row, as the part latency does. The tables compare the other situations with this
    situation."""
    found: Samples = {}
    for _ in range(calls.plan.idle_rounds):
        for side in calls.bench.shuffled(calls.sides):
            measure_side(calls.bench, found, side, calls.networks[side], calls.pods[side])
    return found


def each_second(calls: Calls) -> Samples:
    """Make one call each second (Plan.pause): first all calls of an implementation, then all calls of the next
    implementation."""
    found: Samples = {}
    for side in calls.bench.shuffled(calls.sides):
        for _ in range(calls.plan.idle_rounds):
            for call in calls.case.calls:
                time.sleep(calls.plan.pause)
                calls.make(found, call, side)
    return found


def others_between(calls: Calls) -> Samples:
    """Make one call of each implementation each second. For an implementation, the other implementations' calls stand
    for the work of other programs."""
    found: Samples = {}
    for _ in range(calls.plan.idle_rounds):
        for call in calls.case.calls:
            for side in calls.bench.shuffled(calls.sides):
                time.sleep(calls.plan.pause / len(calls.sides))
                calls.make(found, call, side)
    return found


def in_turn(calls: Calls) -> Samples:
    """Make each call of an implementation directly after the same call of the first implementation, which is Go unless
    --side leaves Go out. A run with one implementation measures nothing here."""
    found: Samples = {}
    busy = calls.sides[0]
    for _ in range(calls.plan.idle_rounds):
        for side in calls.bench.shuffled(calls.sides):
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
