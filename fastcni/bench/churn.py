"""Measure the part latency, which adds and deletes pods one at a time, and the part rate, which makes many concurrent
calls."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from fastcni.bench.calls import CallFailed
from fastcni.bench.cases import ALONE, title
from fastcni.bench.node import Network
from fastcni.bench.sides import SUBNETS

if TYPE_CHECKING:
    from fastcni.bench.bench import Bench
    from fastcni.bench.cases import Case, Plan
    from fastcni.bench.node import Pod
    from fastcni.bench.sides import Side

AGAIN = "DEL again"             # the repeated DEL has no prevResult
WARM_UP = 2                     # rounds that fill the caches and are not measured


@contextmanager
def networks(bench: Bench, case: Case, sides: Iterable[Side]) -> Iterator[dict[Side, Network]]:
    """Make a Network for each implementation, with the addresses that the case holds, and yield {side: Network}. Remove
    the networks at the end."""
    with ExitStack() as stack:
        made = {}
        for side in sides:
            name = f"{case.name}-{side.name.lower()}"
            network = Network(bench.node, name, case, subnet=SUBNETS[side.name], bridge=f"br-{side.name.lower()}")
            stack.callback(network.remove)
            network.hold(case.held if case.held and side.name != "floor" else 0)
            side.prepare(network)
            made[side] = network
        yield made


def measure_side(bench: Bench, samples: dict[str, Any], side: Side, network: Network, pods: Sequence[Pod]) -> None:
    """Make the case's calls of an implementation for `pods`, one call at a time. Append the times to `samples`,
    {series: {call: [ms]}}."""
    network.make_links(pods)
    for call in network.case.calls:
        for pod in pods:
            for series, ms in side.call(call, network, pod).items():
                samples.setdefault(series, {}).setdefault(call, []).append(round(ms, 3))
    time.sleep(bench.plan.rest)


def pods_of(bench: Bench, sides: Sequence[Side]) -> dict[Side, list[Pod]]:
    """Return {side: the pods of this implementation}, Plan.burst pods for each implementation."""
    burst, made = bench.plan.burst, bench.node.pods(len(sides) * bench.plan.burst)
    return {side: made[n * burst:(n + 1) * burst] for n, side in enumerate(sides)}


@contextmanager
def noting_failures(bench: Bench, what: str) -> Iterator[None]:
    """If a call in the body fails, add a note to the report and leave the body. what: the case as text. The benchmark
    then goes on with the next case."""
    try:
        yield
    except CallFailed as e:
        bench.failed = True
        bench.note(f"{what}: {e}")
        bench.node.renew()


def latency(bench: Bench) -> dict[str, Any]:
    """Measure the part latency, and return {case: {series: {call: [ms]}}}. In each round all implementations run, in a
    new random order."""
    data: dict[str, Any] = {}
    pods = pods_of(bench, bench.sides)
    plan, cases = bench.plan, [case for case in bench.cases if bench.has_kind(case)]
    with bench.steps("one at a time", sum(WARM_UP + rounds_of(plan, case) for case in cases)) as step:
        for case in cases:
            step(0, title(case.name))
            sides = bench.sides_of(case)
            with networks(bench, case, sides) as made, noting_failures(bench, title(case.name)):
                counted: dict[str, Any] = {}
                for n in range(-WARM_UP, rounds_of(plan, case)):
                    for side in bench.shuffled(sides):
                        measure_side(bench, counted if n >= 0 else {}, side, made[side], pods[side])
                        side.check()
                    step()
                data[case.name] = counted
    return data


def rounds_of(plan: Plan, case: Case) -> int:
    """Return the number of rounds of a case in the part latency."""
    return min(plan.rounds, plan.slow_rounds) if case.slow else plan.rounds


def rate(bench: Bench) -> dict[str, Any]:
    """Measure the part rate: many concurrent calls. Return {case: {number of concurrent calls: {name of the
    implementation: {call: {"seconds": [of each repeat], "ms": [of each call]}}}}}.

    One more case, ALONE, measures the limit of the benchmark itself, with launchers that echo.py answers immediately.
    """
    data: dict[str, Any] = {}
    plan = bench.plan
    programs = [side for side in bench.sides if side.name != "floor"]
    alone = [side for side in bench.sides if side.name == "floor"]
    cases = ([(ALONE, alone)] if alone else []) + [(case, programs) for case in bench.options.parallel_cases]
    work = [(case, sides, at_once) for case, sides in cases
            for at_once in (plan.slow_at_once if case.slow else plan.at_once)]
    with bench.steps("many at once", len(work)) as step:
        for case, sides, at_once in work:
            step(0, f"{title(case.name)}, {at_once} at once")
            pods = bench.node.pods(at_once if case.slow else max(plan.pods, at_once))
            with networks(bench, case, sides) as made, noting_failures(bench, f"{title(case.name)}, {at_once} at once"):
                found = data.setdefault(case.name, {}).setdefault(str(at_once), {})
                for side in sides:
                    warm_up(side, made[side], pods[0])
                for _ in range(1 if case.slow else plan.repeats):
                    for side in bench.shuffled(sides):
                        measure_many(found.setdefault(side.name, {}), side, made[side], pods, at_once, plan.settle)
            step()
    return data


def warm_up(side: Side, network: Network, pod: Pod) -> None:
    """Make each call once without measuring the call, so that the bridge and fastcni's index of held addresses
    exist."""
    for call in network.case.calls:
        side.flow(call, network, [pod], 1)


def measure_many(found: dict[str, Any], side: Side, network: Network, pods: Sequence[Pod], at_once: int,
          settle: float) -> None:
    """Make each of the case's calls for all pods, `at_once` at a time. Append the times to `found`, and pause for
    `settle` seconds after each call. For a chain, repeat DEL for the deleted pods, as some runtimes do."""
    for call in (*network.case.calls, *[AGAIN] * bool(network.case.chain)):
        flow = side.flow(call.split()[0], network, pods, at_once)
        of_call = found.setdefault(call, {"seconds": [], "ms": []})
        of_call["seconds"].append(round(flow.seconds, 4))
        of_call["ms"] += [round(ms, 2) for ms in flow.ms]
        time.sleep(settle)
