"""The figures of one number of nodes: an idle time, a time of churn, a rack that fails, and a mass restart."""

import itertools
import time
from dataclasses import asdict, dataclass

from simulate.world import Failed

HOUR_S = 10.0                   # of the simulation: the churn of an hour happens in this time
CHURN_AN_HOUR = 0.01            # of the nodes is replaced
RACK = 40
RESTARTED = 200                 # the most agents that are restarted at the same time
JOIN_S = 120.0
SETTLED_S = 0.5


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure. idle_s, churn_s: seconds without and with churn. replaced: (fewest, most) nodes that churn
    replaces."""

    idle_s: float
    churn_s: float
    replaced: tuple[int, int]


QUICK, WHOLE = Pace(2.5, 3.0, (4, 8)), Pace(10.0, 15.0, (4, 20))


@dataclass(slots=True)
class Load:
    """The cost of an interval, in fields of a Row, for each second of the interval."""

    registry_cpu_ms_per_s: float
    requests_per_s: float
    kilobytes_per_s: float
    agent_cpu_ms_per_s: float


@dataclass(slots=True)
class Row:
    """The figures of a number of nodes, as in the file of --json."""

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
    """A mass restart: so many agents at the same time, of a cluster of `nodes`."""

    nodes: int
    agents: int
    seconds: float
    registry_cpu_ms_an_agent: float
    lists: int
    writes: int


@dataclass(slots=True)
class Measured:
    """row: idle and churn together. churn: scaled to the churn of an hour in HOUR_S. joins_ms: of nodes that joined
    alone, so without the nodes of the rack."""

    row: Row
    idle: Load
    churn: Load
    restart: Restart | None
    joins_ms: list[float]
    registry_mb: float


def measure(world, pace):
    """Return the Measured of a World. Raises Failed."""
    count = world.count
    present, fresh = list(range(1, count)), itertools.count(count)
    world.nodes.call("seed", numbers=present)
    world.start_agent()
    time.sleep(SETTLED_S)
    idle = during(world, pace.idle_s, lambda: None)

    # The churn of an hour is that of HOUR_S here. Few nodes would have none in churn_s, and thousands so much that this
    # machine could not follow. So another number of nodes is replaced, and the cost is scaled.
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
    """Call step(number) `steps` times, evenly in so many seconds. Return the Load."""
    before, began = counters(world), time.monotonic()
    for number in range(steps):
        time.sleep(max(0.0, began + seconds * number / steps - time.monotonic()))
        step(number)
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    took = time.monotonic() - began
    return Load(*((now - former) / took for now, former in zip(counters(world), before, strict=True)))


def counters(world):
    """Return (ms of the registry's processor time, the nodes' requests and kB, ms of the agent's processor time)."""
    traffic = world.nodes.call("figures")
    kilobytes = (traffic["bytes"] + traffic["received"]) / 1e3
    return world.registry.cpu_s() * 1e3, traffic["requests"], kilobytes, world.agent.cpu_s() * 1e3


def scaled(busy, idle, factor):
    """Return the load that churn has added to the idle load. factor: the wanted churn divided by the measured churn."""
    return Load(*(max(0.0, one - other) * factor for one, other in zip(
        asdict(busy).values(), asdict(idle).values(), strict=True)))


def replace(world, present, fresh, number):
    """Let so many nodes leave and others join at the same time. In a cluster of one node, no node leaves. present: the
    nodes' numbers. fresh: unused numbers. Return the ms from a join's begin until the agent's route is in the
    kernel."""
    old, new = present[:number] if world.count > 1 else [], list(itertools.islice(fresh, number))
    present[:] = present[len(old):] + new
    began = world.nodes.call("replace", old=old, new=new)["began"]
    world.routes.wait(lambda seen: all(each in seen for each in new), JOIN_S, world.agent)
    return [(world.routes.seen[each] - began[str(each)]) * 1e3 for each in new]


def mass_restart(world, numbers, count):
    """Return the Restart of these nodes' agents, or None if there are no nodes."""
    if not numbers:
        return None
    cpu, before = world.registry.cpu_s(), world.nodes.call("figures")
    seconds = world.nodes.call("restart", numbers=numbers)["seconds"]
    after = world.nodes.call("figures")
    return Restart(count, len(numbers), seconds, (world.registry.cpu_s() - cpu) * 1e3 / len(numbers),
                   after["lists"] - before["lists"], after["writes"] - before["writes"])


def percentile(values, share):
    """Return the percentile by the nearest rank. values: sorted."""
    return values[max(0, -(-len(values) * share // 100) - 1)]
