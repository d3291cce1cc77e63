"""The curve of ADD and DEL against pods that are there already: routes of ptp, and the ports of one bridge."""

import time
from contextlib import ExitStack

from fastcni.bench.cases import CASES, WITHOUT_IPV6, title
from fastcni.bench.churn import going_on, pods_of, turn
from fastcni.bench.node import Network

WARM_UP = 1
SUBNETS = {"ptp": 30, "bridge": 31, WITHOUT_IPV6.name: 32}
QUIET_SECONDS, QUIET_SHARE = 20, 0.15


def density(bench):
    """{case: {pods there: {series: {call: [ms]}}}}

    All sides add to the same bridge (or routing table) of pods that the floor's requests have put there; each has
    host-local files for all of them.
    """
    data = {}
    kinds = [case for case in CASES if case.grows and case in bench.cases]
    if any(case.type == "bridge" for case in kinds) and any(side.name != "Go" for side in bench.sides):
        kinds.append(WITHOUT_IPV6)
    rounds = WARM_UP + bench.plan.density_rounds
    with bench.steps("density", len(kinds) * len(bench.plan.levels) * rounds) as step:
        for case in kinds:
            with going_on(bench, f"{title(case.name)}, density"):
                data[case.name] = {}
                curve(bench, case, data[case.name], step)
    return data


def curve(bench, case, data, step):
    """One case at each level."""
    sides = [side for side in bench.sides if case is not WITHOUT_IPV6 or side.name != "Go"]
    bench.node.keep(len(sides))             # the namespaces of pods are a part of what is there
    with ExitStack() as stack:
        def network(name):
            made = Network(bench.node, f"density-{case.name}-{name.lower()}", case, subnet=SUBNETS[case.name],
                           bridge=f"dense-{SUBNETS[case.name]}")
            stack.callback(made.remove)
            return made

        shared, own, there = network("there"), {side: network(side.name) for side in sides}, []
        shared.first = -len(sides)
        bench.floor.prepare(shared)
        stack.callback(lambda: bench.floor.empty(shared, there))
        for level in bench.plan.levels:
            step(0, f"{title(case.name)}, {level} pods there")
            mine = pods_of(bench, sides)
            own_pods = len(sides) * bench.plan.burst
            for pod in bench.node.pods(own_pods + level)[own_pods + len(there):]:
                bench.floor.put(shared, pod)
                there.append(pod)
            for made in own.values():
                made.hold(level)
            wait_until_quiet()
            found = data.setdefault(str(level), {})
            for n in range(-WARM_UP, bench.plan.density_rounds):
                for side in bench.shuffled(sides):
                    turn(bench, found if n >= 0 else {}, side, own[side], mine[side])
                    side.check()
                step()


def wait_until_quiet():
    """Each new pod on a bridge sends IPv6 multicast for seconds, flooded to all others: wait until that is over."""
    deadline = time.monotonic() + QUIET_SECONDS
    busy, total = processor_ticks()
    while time.monotonic() < deadline:
        time.sleep(0.5)
        before = busy, total
        busy, total = processor_ticks()
        if busy - before[0] <= QUIET_SHARE * (total - before[1]):
            return


def processor_ticks():
    """(busy, all) ticks of all processors so far: proc_stat(5), user nice system idle iowait irq softirq."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:8]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
