"""The memory of a warm server that serves many pods, and goes on."""

import os

from fastcni.bench import sides as doors
from fastcni.bench.cases import CASES
from fastcni.bench.churn import going_on
from fastcni.bench.node import Network

AT_ONCE = 32


def memory(bench):
    """[{"when": words, "kB": resident, "threads": number, "fds": number}] of a fresh server."""
    plan, node = bench.plan, bench.node
    folder = f"{node.folder}/memory"
    os.mkdir(folder)
    data = []
    case = next(case for case in CASES if case.name == "bridge")
    rounds = plan.pairs // AT_ONCE
    with bench.steps("the server's memory", rounds + 2) as step, doors.serve(folder) as server:
        side = doors.Plugins("warm", bench.folder, server.sock, server)
        network = Network(node, "memory", case, subnet=40, bridge="br-memory")

        def look(when):
            data.append({"when": when, **state_of(server.pid)})

        look("at its start")
        with going_on(bench, "memory"):
            pods = node.pods(plan.crowd)
            side.flow("ADD", network, pods, AT_ONCE)
            look(f"with {plan.crowd:,} pods added")
            step()
            side.flow("DEL", network, pods, AT_ONCE)
            look("with all of them deleted")
            step()
            node.keep(AT_ONCE)
            for _ in range(rounds):
                side.flow("ADD", network, pods[:AT_ONCE], AT_ONCE)
                side.flow("DEL", network, pods[:AT_ONCE], AT_ONCE)
                step()
            look(f"after {rounds * AT_ONCE:,} more pairs of ADD and DEL")
        bench.compare_with_log(side)
    return data


def state_of(pid):
    """Of a process: resident memory, threads and descriptors."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        words = {name: value for name, _, value in (line.partition(":") for line in file)}
    return {"kB": int(words["VmRSS"].split()[0]), "threads": int(words["Threads"]),
            "fds": len(os.listdir(f"/proc/{pid}/fd"))}
