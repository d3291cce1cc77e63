"""Estimate, before a run, how long the run takes and how many pods it makes. The estimate uses the options and the
usual time of a call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastcni.bench.beside import CALLS_A_ROUND, KINDS, PAUSE_S
from fastcni.bench.beside import USUAL as BESIDE
from fastcni.bench.cases import CASES, OWN_KEYS, Case
from fastcni.bench.churn import WARM_UP
from fastcni.bench.cost import AT_ONCE
from fastcni.bench.density import WARM_UP as DENSITY_WARM_UP
from fastcni.bench.idle import USUAL

if TYPE_CHECKING:
    from fastcni.bench.cases import Options

CALL_S = {"Go": 0.025, "one-shot": 0.013, "warm": 0.002, "before": 0.002, "floor": 0.001}       # seconds, from README
SLOW_S = 0.6                    # seconds of a call of the Go plugins in a slow case
HELD_S = 0.00003                # seconds to write one address file
SETUP_S = 0.1                   # seconds to make a case's networks
POD_S = 0.01                    # seconds to make an existing pod and its namespace
SETTLED_S = 1.0                 # seconds at each density until the multicast of new pods has ended
PAIR_S = 0.003                  # seconds of an ADD and a DEL in the part memory, which runs many at the same time

BUSY = 2.0                      # in the part beside, with 1,500 rules, a call takes so many times as long


def seconds(options: Options) -> dict[str, float]:
    """Return {part: estimated seconds} of the parts that the options ask for, in the order of the run."""
    parts = {"latency": latency, "idle": idle, "rate": rate, "cost": cost, "density": density, "memory": memory,
             "beside": beside}
    return {part: of(options) for part, of in parts.items() if options.wants(part)}


def pair(options: Options, case: Case, without: str = "") -> float:
    """Return the estimated seconds of a case's ADD and DEL by all implementations except `without`, one after the
    other."""
    calls = len(case.calls) * len(case.chain or (case,))
    return calls * sum(SLOW_S if case.slow and side == "Go" else CALL_S[side]
                       for side in options.sides if side != without)


def latency(options: Options) -> float:
    plan, sides = options.plan, len(options.sides)
    return sum(SETUP_S + sides * case.held * HELD_S
               + (WARM_UP + min(plan.rounds, plan.slow_rounds if case.slow else plan.rounds))
               * (plan.burst * pair(options, case) + sides * plan.rest) for case in options.cases)


def idle(options: Options) -> float:
    plan, sides = options.plan, len(options.sides)
    cases = [case for case in options.cases if "ADD" in case.calls and case.name in (*USUAL, *options.only)]
    return sum(SETUP_S + plan.idle_rounds * (3 * plan.burst * pair(options, case) + 2 * sides * plan.rest
                                             + len(case.calls) * plan.pause * (sides + 1)) for case in cases)


def spread(work: float) -> float:
    """Return the seconds that `work`, in seconds of one processor, takes if all processors share it."""
    return work / min(os.cpu_count() or 1, AT_ONCE)


def rate(options: Options) -> float:
    plan, sides, total = options.plan, len(options.sides), 0.0
    for case in options.parallel_cases:
        for at_once in plan.slow_at_once if case.slow else plan.at_once:
            pods, repeats = (at_once, 1) if case.slow else (max(plan.pods, at_once), plan.repeats)
            work = spread(pods * pair(options, case, "floor"))
            total += SETUP_S + sides * case.held * HELD_S + repeats * (work + sides * len(case.calls) * plan.settle)
    return total


def cost(options: Options) -> float:
    plan, sides = options.plan, len(options.sides)
    return sum(SETUP_S + spread(plan.pods * pair(options, case, "floor")) + 2 * sides * plan.settle
               for case in options.parallel_cases if not case.slow)


def density(options: Options) -> float:
    plan, sides = options.plan, len(options.sides)
    cases = [case for case in CASES if case.grows and case in options.cases]
    cases += OWN_KEYS if any(case.type == "bridge" for case in cases) else ()
    rounds = DENSITY_WARM_UP + plan.density_rounds
    return sum(max(plan.levels, default=0) * POD_S + len(plan.levels) * (
        SETTLED_S + rounds * (2 * plan.burst * pair(options, case) + sides * plan.rest)) for case in cases)


def memory(options: Options) -> float:
    return (options.plan.memory_pods + options.plan.pairs) * PAIR_S + options.plan.memory_pods * POD_S


def beside(options: Options) -> float:
    plan, cases = options.plan, [case for case in options.cases if case.name in BESIDE]
    return sum(len(KINDS) * 2 * (SETUP_S + plan.idle_rounds * CALLS_A_ROUND * (
        BUSY * pair(options, case) + len(options.sides) * len(case.calls) * PAUSE_S)) for case in cases)


def pods(options: Options) -> int:
    """Return the largest number of pods that exist at the same time in a run."""
    plan, own = options.plan, len(options.sides) * options.plan.burst
    most = {"rate": max(plan.pods, *plan.at_once, *plan.slow_at_once), "cost": plan.pods,
            "density": own + max(plan.levels, default=0), "memory": plan.memory_pods}
    return max(own, *(count for part, count in most.items() if options.wants(part)), 0)


def at_once(options: Options) -> int:
    """Return the largest number of plugins that run at the same time in a run."""
    plan = options.plan
    most = {"rate": max(1, *plan.at_once, *plan.slow_at_once), "cost": AT_ONCE, "memory": 32}
    return max((count for part, count in most.items() if options.wants(part)), default=1)
