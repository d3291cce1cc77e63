"""Measure the part density: the times of ADD and DEL for growing numbers of existing pods, which are ptp routes of the
node or ports of one bridge."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from fastcni.bench.cases import CASES, OWN_KEYS, UNFLOODED, WITHOUT_IPV6, title
from fastcni.bench.churn import measure_side, noting_failures, pods_of
from fastcni.bench.node import Network
from fastcni.kit.bridge.bridges import MAX_PORTS

if TYPE_CHECKING:
    from fastcni.bench.bench import Bench
    from fastcni.bench.cases import Case
    from fastcni.bench.node import Pod

WARM_UP = 1
SUBNETS = {"ptp": 30, "bridge": 31, WITHOUT_IPV6.name: 32, UNFLOODED.name: 33}
MAX_IDLE_WAIT_S, IDLE_SHARE = 20, 0.15          # a lower share of busy time counts as idle


def density(bench: Bench) -> dict[str, Any]:
    """Measure and return {case: {existing pods: {series: {call: [ms]}}}}.

    The floor makes the existing pods. All implementations add pods to the same bridge or routing table, and each
    implementation has its own host-local files for all existing pods.
    """
    data: dict[str, Any] = {}
    kinds = [case for case in CASES if case.grows and case in bench.cases]
    if any(case.type == "bridge" for case in kinds) and any(side.name != "Go" for side in bench.sides):
        named = [case for case in OWN_KEYS if case.name in bench.options.only]
        kinds += named or OWN_KEYS
    rounds = WARM_UP + bench.plan.density_rounds
    with bench.steps("density", len(kinds) * len(bench.plan.levels) * rounds) as step:
        for case in kinds:
            with noting_failures(bench, f"{title(case.name)}, density"):
                data[case.name] = {}
                curve(bench, case, data[case.name], step)
    return data


def curve(bench: Bench, case: Case, data: dict[str, Any], step: Callable[..., None]) -> None:
    """Measure one case at each number of existing pods, and add the times to `data`. Call step() after each round."""
    sides = [side for side in bench.sides if case not in OWN_KEYS or side.name != "Go"]
    bench.node.keep(len(sides))             # only the pods of this case may have namespaces
    with ExitStack() as stack:
        def network(name: str) -> Network:
            made = Network(bench.node, f"density-{case.name}-{name.lower()}", case, subnet=SUBNETS[case.name],
                           bridge=f"dense-{SUBNETS[case.name]}")
            stack.callback(made.remove)
            return made

        shared, own = network("there"), {side: network(side.name) for side in sides}
        there: list[Pod] = []
        shared.first = -len(sides)
        bench.floor.prepare(shared)
        stack.callback(lambda: bench.floor.empty(shared, there))
        for level in bench.plan.levels:
            if case.type == "bridge" and level + bench.plan.burst > MAX_PORTS:
                bench.note(f"{title(case.name)} with {level} existing pods is left out: "
                           f"a bridge has {MAX_PORTS:,} ports")
                continue
            step(0, f"{title(case.name)}, {level} pods there")
            mine = pods_of(bench, sides)
            own_pods = len(sides) * bench.plan.burst
            for pod in bench.node.pods(own_pods + level)[own_pods + len(there):]:
                bench.floor.put(shared, pod)
                there.append(pod)
            for made in own.values():
                made.hold(level)
            wait_until_idle()
            found = data.setdefault(str(level), {})
            for n in range(-WARM_UP, bench.plan.density_rounds):
                for side in bench.shuffled(sides):
                    measure_side(bench, found if n >= 0 else {}, side, own[side], mine[side])
                    side.check()
                step()


def wait_until_idle() -> None:
    """Wait until the processors are idle: for seconds, a bridge floods the IPv6 multicast packets of new pods to all
    pods."""
    deadline = time.monotonic() + MAX_IDLE_WAIT_S
    busy, total = processor_ticks()
    while time.monotonic() < deadline:
        time.sleep(0.5)
        before = busy, total
        busy, total = processor_ticks()
        if busy - before[0] <= IDLE_SHARE * (total - before[1]):
            return


def processor_ticks() -> tuple[int, int]:
    """Return (busy ticks, all ticks) of all processors since boot, from proc_stat(5): user nice system idle iowait irq
    softirq."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:8]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
