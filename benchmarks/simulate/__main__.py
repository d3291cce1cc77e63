"""`python -m simulate`: run a real node and many simulated nodes, and print which figures grow with the nodes.

    make simulate                                   100, 1,000 and 5,000 nodes on etcd; root
    make simulate SIMULATE="--quick --json FILE"    50 and 200 nodes, in less than 40 s
    make simulate SIMULATE="--quick --registry kubernetes"

The simulation makes the churn of an hour (1% of the nodes is replaced) in 10 s, while the real node adds and deletes 30
pods a second. Then a rack of 40 nodes fails and 40 other nodes join. Then up to 200 agents restart at the same time.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from simulate.growth import growth, plot
from simulate.kubernetes_registry import ApiServer
from simulate.measure import HOUR_S, QUICK, WHOLE, measure
from simulate.world import REGISTRIES, Failed, World

COUNTS = {True: [50, 200], False: [100, 1000, 5000]}            # numbers of nodes with --quick (True) and without
# Required programs of each registry, besides ip
PROGRAMS = {"etcd": ("etcd",), "kubernetes": (), "api_server": ("etcd", "openssl")}
CHANGES = "N nodes make the changes, and the registry sends each of them to N watches"
RACK_JOINS = "for a rack of 40 the registry sends 80 changes to N watches, and all N records to each node that joins"
# {figure: (meaning, smallest growth that counts, the cause if the growth is quadratic)}
FIGURES = {
    "registry_cpu_ms_per_s": ("registry's CPU, ms/s", 2.0, CHANGES),
    "requests_per_s": ("requests/s", 0.2, "the number of requests of a join grows with the number of nodes"),
    "kilobytes_per_s": ("kB/s", 1.0, CHANGES),
    "join_p50_ms": ("join, p50, ms", 20.0, RACK_JOINS),
    "join_p99_ms": ("join, p99, ms", 40.0, RACK_JOINS),
    "agent_mb": ("agent, MB", 2.0, "the agent keeps more than one entry for each node"),
    "agent_cpu_ms_per_s": ("agent's CPU, ms/s", 2.0, "N nodes make the changes, and the agent computes N entries for "
                           "each of them"),
}

def main():
    parser = argparse.ArgumentParser(prog="python -m simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="simulate 50 and 200 nodes, for shorter times")
    parser.add_argument("--nodes", type=int, nargs="+", metavar="N", help="simulate these numbers of nodes, from 2")
    parser.add_argument("--registry", choices=REGISTRIES, default="etcd", help="kubernetes: the tests' API mock")
    parser.add_argument("--api-server", metavar="PROGRAM", help="a real kube-apiserver, in place of the mock")
    parser.add_argument("--pods", type=float, default=30.0, metavar="RATE", help="pods a second; 0: without a server")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    options = parser.parse_args()
    options.registry = "kubernetes" if options.api_server else options.registry
    counts = sorted(set(options.nodes or COUNTS[options.quick]))
    if counts[0] < 2:
        parser.error("--nodes: from 2")
    if os.geteuid() != 0:
        sys.exit("simulate needs root, to make a network namespace")
    for program in ("ip", *PROGRAMS["api_server" if options.api_server else options.registry]):
        if not shutil.which(program):
            sys.exit(f"simulate needs {program}: apt-get install etcd-server iproute2 openssl")
    allow_descriptors(counts[-1] + 1000)        # one socket for each node's watch
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        run(options, counts)
    except Failed as e:
        sys.exit(f"simulate: {e}")
    except KeyboardInterrupt:
        sys.exit("simulate: interrupted; everything was removed")


def allow_descriptors(wanted):
    """Raise the limit of open files of this process and its children to at least `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        sys.exit(f"simulate: {wanted} open files are needed, and the limit is {hard}: ulimit -n {wanted}")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def interrupt(*_):
    """Raise an exception that ends the simulation, so that everything is removed. Ignore further signals, which would
    interrupt the removal."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def run(options, counts):
    pace = QUICK if options.quick else WHOLE
    open_registry = partial(ApiServer, options.api_server) if options.api_server else REGISTRIES[options.registry]
    print(f"registry {options.registry}; the churn of an hour happens in {HOUR_S:.0f} s: {3600 / HOUR_S:.0f} times as "
          f"fast; {options.pods:g} pods a second", flush=True)
    print(header(), flush=True)
    found, alone = [], None
    for count in [1, *counts]:
        with World(open_registry, count, options.pods) as world:
            measured = measure(world, pace)
        if count == 1:
            alone = measured
        else:
            found.append(measured)
            print(line(measured.row), flush=True)
    print_restarts(found)
    kinds = {name: kind_of(name, found, alone) for name in FIGURES} if len(found) > 1 else {}
    if not kinds:
        print("growth: not known; it needs two numbers of nodes")
    if options.json:
        Path(options.json).write_text(json.dumps({
            "rows": [asdict(each.row) for each in found], "growth": kinds, "registry": options.registry,
            "one_node": asdict(alone.row), "restarts": [asdict(each.restart) for each in found if each.restart]},
            indent=1) + "\n")
    for name, kind in kinds.items():
        why = f": {FIGURES[name][2]}" if kind == "quadratic" else ""
        print(f"\n{name}: {kind}{why}\n{plot([(each.row.nodes, getattr(each.row, name)) for each in found])}")


def header():
    titles = ["nodes", *(title for title, _, _ in FIGURES.values())]
    return "  ".join(titles)


def line(row):
    titles = header().split("  ")
    values = asdict(row).values()
    return "  ".join(f"{value:>{len(title)},.0f}" if title == "nodes" else f"{value:>{len(title)},.1f}"
                     for title, value in zip(titles, values, strict=True))


def print_restarts(found):
    for restart in (each.restart for each in found if each.restart):
        print(f"{restart.agents} of {restart.nodes:,} agents started again at the same time: {restart.seconds:.1f} s, "
              f"{restart.lists} lists, {restart.writes} writes, {restart.registry_cpu_ms_an_agent:.1f} ms of the "
              f"registry's CPU an agent")


def kind_of(name, found, alone):
    """Return how a figure grows with the number of nodes: "flat", "linear" or "quadratic". Only its growth over the
    figure of a cluster of one node counts. Idle load counts only if it clearly grows, because between runs it varies by
    more than the churn of few nodes costs."""
    noise = FIGURES[name][1]
    counts = [each.row.nodes for each in found]
    if not hasattr(alone.idle, name):
        floor = statistics.median(alone.joins_ms) if name.startswith("join") else getattr(alone.row, name)
        return growth([(each.row.nodes, getattr(each.row, name)) for each in found], floor, noise)
    idle, churn = ([getattr(getattr(each, part), name) for each in found] for part in ("idle", "churn"))
    floor = getattr(alone.idle, name)
    if growth(list(zip(counts, idle, strict=True)), floor, noise) != "flat":
        churn = [one + other - floor for one, other in zip(idle, churn, strict=True)]
    return growth(list(zip(counts, churn, strict=True)), 0.0, noise)


if __name__ == "__main__":
    main()
