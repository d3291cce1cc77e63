"""Measure the part cost: the processor time, and the numbers of started processes and threads, of one pod's ADD and
DEL.

wait4(2) returns the processor time of a call and its children. The server's process clock has the server's processor
time. The busy time of the whole machine, from /proc/stat, also includes the kernel's deferred work and the benchmark's
own work.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from fastcni.bench.cases import title
from fastcni.bench.churn import networks, noting_failures, warm_up
from fastcni.bench.density import processor_ticks
from fastcni.bench.forks import Forks
from fastcni.bench.sides import Plugins

if TYPE_CHECKING:
    from fastcni.bench.bench import Bench
    from fastcni.bench.node import Network

AT_ONCE = 8
TICKS = os.sysconf("SC_CLK_TCK")        # ticks of /proc/stat in a second


def cost(bench: Bench) -> dict[str, Any]:
    """Measure and return {case: {side: costs}} of the ADD and DEL of one pod.

    costs: {"cpu": seconds of calls and server, "machine": busy seconds, "processes": number, "threads": number}; a
    number is None if it cannot be counted.
    """
    data: dict[str, Any] = {}
    programs = [side for side in bench.sides if isinstance(side, Plugins)]
    cases = [case for case in bench.options.parallel_cases if not case.slow]
    with bench.steps("cost of a pod", len(cases) * len(programs)) as step:
        for case in cases:
            with networks(bench, case, programs) as made, noting_failures(bench, f"{title(case.name)}, cost"):
                for side in programs:
                    step(0, f"{title(case.name)}, {side.name}")
                    data.setdefault(case.name, {})[side.name] = cost_of(bench, side, made[side])
                    step()
    return data


def cost_of(bench: Bench, side: Plugins, network: Network) -> dict[str, Any]:
    """Run the calls for many pods, and return the mean costs of one pod, as cost() describes."""
    pods = bench.node.pods(bench.plan.pods)
    warm_up(side, network, pods[0])
    time.sleep(bench.plan.settle)
    of_server = side.server.cpu if side.server else 0.0
    ticks, _ = processor_ticks()
    with Forks(bench.outside, {os.getpid(), side.server.pid if side.server else 0}) as forks:
        calls = sum(side.flow(call, network, pods, AT_ONCE).cpu for call in network.case.calls)
        time.sleep(bench.plan.settle)
    of_server = side.server.cpu - of_server if side.server else 0.0
    per_pod: dict[str, float | None] = {"cpu": calls + of_server, "machine": (processor_ticks()[0] - ticks) / TICKS}
    per_pod |= {"processes": forks.processes, "threads": forks.threads}
    return {key: value if value is None else round(value / len(pods), 6) for key, value in per_pod.items()}
