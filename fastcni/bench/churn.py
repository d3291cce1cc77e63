"""Pods that come and go: one at a time, each side in its turn, and as many at once as a node sees."""

import time
from contextlib import ExitStack, contextmanager

from fastcni.bench.calls import CallFailed
from fastcni.bench.cases import ALONE, title
from fastcni.bench.node import Network
from fastcni.bench.sides import SUBNETS

WARM_UP = 2                     # rounds that find cold caches, and are not counted


@contextmanager
def networks(bench, case, sides):
    """{side: a Network of its own}, with what the case holds."""
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


def turn(bench, samples, side, network, pods):
    """A side's calls for these pods, one at a time; {series: {call: [ms]}} gets them."""
    network.make_links(pods)
    for call in network.case.calls:
        for pod in pods:
            for series, ms in side.call(call, network, pod).items():
                samples.setdefault(series, {}).setdefault(call, []).append(round(ms, 3))
    time.sleep(bench.plan.rest)


def pods_of(bench, sides):
    """{side: the pods of its turns}"""
    burst, made = bench.plan.burst, bench.node.pods(len(sides) * bench.plan.burst)
    return {side: made[n * burst:(n + 1) * burst] for n, side in enumerate(sides)}


@contextmanager
def going_on(bench, what):
    """A call that fails ends its case, not the run."""
    try:
        yield
    except CallFailed as e:
        bench.failed = True
        bench.note(f"{what}: {e}")
        bench.node.renew()


def latency(bench):
    """{case: {series: {call: [ms]}}}: in each round every side has its turn, in another order."""
    data = {}
    pods = pods_of(bench, bench.sides)
    plan, cases = bench.plan, [case for case in bench.cases if bench.has_kind(case)]
    with bench.steps("one at a time", sum(WARM_UP + rounds_of(plan, case) for case in cases)) as step:
        for case in cases:
            step(0, title(case.name))
            sides = bench.sides_of(case)
            with networks(bench, case, sides) as made, going_on(bench, title(case.name)):
                counted = {}
                for n in range(-WARM_UP, rounds_of(plan, case)):
                    for side in bench.shuffled(sides):
                        turn(bench, counted if n >= 0 else {}, side, made[side], pods[side])
                        side.check()
                    step()
                data[case.name] = counted
    return data


def rounds_of(plan, case):
    return min(plan.rounds, plan.slow_rounds) if case.slow else plan.rounds


def rate(bench):
    """{case: {at once: {side: {call: {"seconds": [of each repeat], "ms": [of each call]}}}}}

    The harness is a case of its own: launchers that are answered at once.
    """
    data = {}
    plan = bench.plan
    programs = [side for side in bench.sides if side.name != "floor"]
    alone = [side for side in bench.sides if side.name == "floor"]
    cases = ([(ALONE, alone)] if alone else []) + [(case, programs) for case in bench.crowds]
    work = [(case, sides, at_once) for case, sides in cases
            for at_once in (plan.slow_at_once if case.slow else plan.at_once)]
    with bench.steps("many at once", len(work)) as step:
        for case, sides, at_once in work:
            step(0, f"{title(case.name)}, {at_once} at once")
            pods = bench.node.pods(at_once if case.slow else max(plan.pods, at_once))
            with networks(bench, case, sides) as made, going_on(bench, f"{title(case.name)}, {at_once} at once"):
                found = data.setdefault(case.name, {}).setdefault(str(at_once), {})
                for side in sides:
                    warm_up(side, made[side], pods[0])
                for _ in range(1 if case.slow else plan.repeats):
                    for side in bench.shuffled(sides):
                        flood(found.setdefault(side.name, {}), side, made[side], pods, at_once, plan.settle)
            step()
    return data


def warm_up(side, network, pod):
    """Each call once, not counted: it makes the bridge, and fastcni's index of the addresses held."""
    for call in network.case.calls:
        side.flow(call, network, [pod], 1)


def flood(found, side, network, pods, at_once, settle):
    """Each call for all pods."""
    for call in network.case.calls:
        flow = side.flow(call, network, pods, at_once)
        of_call = found.setdefault(call, {"seconds": [], "ms": []})
        of_call["seconds"].append(round(flow.seconds, 4))
        of_call["ms"] += [round(ms, 2) for ms in flow.ms]
        time.sleep(settle)
