"""Measure the part memory: the resident memory of a fresh warm server, with pods and after many requests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fastcni.bench.cases import CASES
from fastcni.bench.churn import noting_failures
from fastcni.bench.node import Network
from fastcni.bench.sides import Plugins, serve

if TYPE_CHECKING:
    from fastcni.bench.bench import Bench

AT_ONCE = 32


def memory(bench: Bench) -> list[dict[str, Any]]:
    """Measure a fresh server at several moments. Return [{"when": the moment as text, "kB": resident memory, "threads":
    number, "fds": number}]."""
    plan, node = bench.plan, bench.node
    directory = f"{node.directory}/memory"
    os.mkdir(directory)
    data: list[dict[str, Any]] = []
    case = next(case for case in CASES if case.name == "bridge")
    rounds = plan.pairs // AT_ONCE
    with bench.steps("the server's memory", rounds + 2) as step, serve(directory) as server:
        side = Plugins("warm", bench.directory, server.sock, server)
        network = Network(node, "memory", case, subnet=40, bridge="br-memory")

        def sample(when: str) -> None:
            data.append({"when": when, **state_of(server.pid)})

        sample("at its start")
        with noting_failures(bench, "memory"):
            pods = node.pods(plan.memory_pods)
            side.flow("ADD", network, pods, AT_ONCE)
            sample(f"with {plan.memory_pods:,} pods added")
            step()
            side.flow("DEL", network, pods, AT_ONCE)
            sample("with all of them deleted")
            step()
            node.keep(AT_ONCE)
            for _ in range(rounds):
                side.flow("ADD", network, pods[:AT_ONCE], AT_ONCE)
                side.flow("DEL", network, pods[:AT_ONCE], AT_ONCE)
                step()
            sample(f"after {rounds * AT_ONCE:,} more pairs of ADD and DEL")
        bench.compare_with_log(side)
    return data


def state_of(pid: int) -> dict[str, int]:
    """Return {"kB": resident memory, "threads": number, "fds": number of descriptors} of a process."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        values = {name: value for name, _, value in (line.partition(":") for line in file)}
    return {"kB": int(values["VmRSS"].split()[0]), "threads": int(values["Threads"]),
            "fds": len(os.listdir(f"/proc/{pid}/fd"))}
