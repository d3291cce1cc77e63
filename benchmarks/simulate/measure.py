"""Measure one number of nodes: while idle, with churn, after the failure of a rack, and during a mass restart."""

import itertools
import time
from dataclasses import asdict, dataclass

from simulate.world import Failed

HOUR_S = 10.0                   # the simulation makes the churn of an hour in this time
CHURN_AN_HOUR = 0.01            # the share of the nodes that is replaced in an hour
RACK = 40
RESTARTED = 200                 # the most agents that restart at the same time
JOIN_S = 120.0
SETTLED_S = 0.5


@dataclass(frozen=True, slots=True)
class Pace:
    """The durations of the measurements. idle_s, churn_s: seconds without and with churn. replaced: (fewest, most)
    nodes that churn replaces."""

    idle_s: float
    churn_s: float
    replaced: tuple[int, int]


QUICK, WHOLE = Pace(2.5, 3.0, (4, 8)), Pace(10.0, 15.0, (4, 20))


@dataclass(slots=True)
class Load:
    """The costs of an interval for each second of the interval, as fields of a Row."""

    registry_cpu_ms_per_s: float
    requests_per_s: float
    kilobytes_per_s: float
    agent_cpu_ms_per_s: float


@dataclass(slots=True)
class Row:
    """The figures of one number of nodes, as in the file of --json."""

    nodes: int
    registry_cpu_ms_per_s: float
    requests_per_s: float
    kilobytes_per_s: float
    join_p50_ms: float
    join_p99_ms: float
    agent_mb: float
    agent_cpu_ms_per_s: float


@dataclass(slots=True)
class Restart:
    """The figures of a mass restart: `agents` agents restart at the same time in a cluster of `nodes` nodes."""

    nodes: int
    agents: int
    seconds: float
    registry_cpu_ms_an_agent: float
    lists: int
    writes: int


@dataclass(slots=True)
class Measured:
    """All measurements of one number of nodes. row: idle load and churn together. churn: the load, scaled to an hour's
    churn in HOUR_S. joins_ms: the ms of each join, without those of the rack's nodes."""

    row: Row
    idle: Load
    churn: Load
    restart: Restart | None
    joins_ms: list[float]
    registry_mb: float


def measure(world, pace):
    """Run the simulated cluster `world`, and return the figures. Raises Failed."""
    count = world.count
    present, fresh = list(range(1, count)), itertools.count(count)
    world.nodes.call("seed", numbers=present)
    world.start_agent()
    time.sleep(SETTLED_S)
    idle = during(world, pace.idle_s, lambda: None)

    # `due` nodes would be replaced in churn_s. With few nodes this is none, and with thousands more than this machine
    # can replace. So replace another number of nodes, and scale the cost.
    due = count * CHURN_AN_HOUR * pace.churn_s / HOUR_S
    replaced = max(pace.replaced[0], min(round(due), pace.replaced[1]))
    joins = []

    def churn(_):
        joins.extend(replace(world, present, fresh, 1))

    busy = during(world, pace.churn_s, churn, replaced)
    churned = scaled(busy, idle, due / replaced)
    joins += replace(world, present, fresh, min(RACK, count - 1) or RACK)
    restart = mass_restart(world, present[-RESTARTED:], count)
    if world.pods and world.pods.failure:
        raise Failed(world.pods.failure)
    total = {name: value + getattr(churned, name) for name, value in asdict(idle).items()}
    ordered = sorted(joins)
    row = Row(count, join_p50_ms=percentile(ordered, 50), join_p99_ms=percentile(ordered, 99),
              agent_mb=world.agent.memory_mb(), **total)
    return Measured(row, idle, churned, restart, joins[:replaced], world.registry.memory_mb())


def during(world, seconds, step, steps=0):
    """Call step(number) `steps` times, at equal intervals within `seconds`. Return the Load."""
    before, began = counters(world), time.monotonic()
    for number in range(steps):
        time.sleep(max(0.0, began + seconds * number / steps - time.monotonic()))
        step(number)
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    took = time.monotonic() - began
    return Load(*((now - former) / took for now, former in zip(counters(world), before, strict=True)))


def counters(world):
    """Return (the registry's processor time in ms, the nodes' requests, the nodes' traffic in kB, the agent's processor
    time in ms) so far."""
    traffic = world.nodes.call("figures")
    kilobytes = (traffic["bytes"] + traffic["received"]) / 1e3
    return world.registry.cpu_s() * 1e3, traffic["requests"], kilobytes, world.agent.cpu_s() * 1e3


def scaled(busy, idle, factor):
    """Return the load that the wanted churn adds to the idle load. factor: the wanted churn divided by the measured
    churn."""
    return Load(*(max(0.0, one - other) * factor for one, other in zip(
        asdict(busy).values(), asdict(idle).values(), strict=True)))


def replace(world, present, fresh, number):
    """Let `number` nodes leave and as many new nodes join at the same time. In a cluster of one node, no node leaves.
    present: the numbers of the nodes. fresh: unused numbers. Return, for each join, the ms from its begin until the
    kernel has the agent's route to the node."""
    old, new = present[:number] if world.count > 1 else [], list(itertools.islice(fresh, number))
    present[:] = present[len(old):] + new
    began = world.nodes.call("replace", old=old, new=new)["began"]
    world.routes.wait(lambda seen: all(each in seen for each in new), JOIN_S, world.agent)
    return [(world.routes.seen[each] - began[str(each)]) * 1e3 for each in new]


def mass_restart(world, numbers, count):
    """Restart the agents of these nodes at the same time. Return the Restart, or None if there are no nodes."""
    if not numbers:
        return None
    cpu, before = world.registry.cpu_s(), world.nodes.call("figures")
    seconds = world.nodes.call("restart", numbers=numbers)["seconds"]
    after = world.nodes.call("figures")
    return Restart(count, len(numbers), seconds, (world.registry.cpu_s() - cpu) * 1e3 / len(numbers),
                   after["lists"] - before["lists"], after["writes"] - before["writes"])


def percentile(values, share):
    """Return a percentile by the nearest rank. values: sorted values. share: for example 0.99."""
    return values[max(0, -(-len(values) * share // 100) - 1)]
