"""What a pod costs a node: processor time, and processes and threads started.

Processor time of calls is what wait4(2) says of each and of all that it has waited for; the server's is its own
clock's. Beside it, from /proc/stat, is what the whole machine was busy for, the kernel's deferred work and this
harness included.
"""

import os
import time

from fastcni.bench.cases import title
from fastcni.bench.churn import going_on, networks, warm_up
from fastcni.bench.density import processor_ticks
from fastcni.bench.forks import Forks

AT_ONCE = 8
TICKS = os.sysconf("SC_CLK_TCK")


def cost(bench):
    """{case: {side: {"cpu" and "machine": seconds, "processes" and "threads": number, None where they cannot be
    counted}}}, each for one pod: an ADD and a DEL."""
    data = {}
    programs = [side for side in bench.sides if side.name != "floor"]
    cases = [case for case in bench.crowds if not case.slow]
    with bench.steps("cost of a pod", len(cases) * len(programs)) as step:
        for case in cases:
            with networks(bench, case, programs) as made, going_on(bench, f"{title(case.name)}, cost"):
                for side in programs:
                    step(0, f"{title(case.name)}, {side.name}")
                    data.setdefault(case.name, {})[side.name] = cost_of(bench, side, made[side])
                    step()
    return data


def cost_of(bench, side, network):
    pods = bench.node.pods(bench.plan.pods)
    warm_up(side, network, pods[0])
    time.sleep(bench.plan.settle)
    of_server = side.server.cpu if side.server else 0.0
    ticks, _ = processor_ticks()
    with Forks(bench.outside, {os.getpid(), side.server.pid if side.server else 0}) as forks:
        calls = sum(side.flow(call, network, pods, AT_ONCE).cpu for call in network.case.calls)
        time.sleep(bench.plan.settle)
    of_server = side.server.cpu - of_server if side.server else 0.0
    per_pod = {"cpu": calls + of_server, "machine": (processor_ticks()[0] - ticks) / TICKS}
    per_pod |= {"processes": forks.processes, "threads": forks.threads}
    return {key: value if value is None else round(value / len(pods), 6) for key, value in per_pod.items()}
