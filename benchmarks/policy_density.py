"""Measure the cost of policies for the agent of a node with many pods: a part of bench_policy.py.

One namespace has 5,000 pods, of which 500 are on this node, and 1,000 policies. Each policy selects every hundredth
pod. A change is one event of the source, which the agent compiles and writes to the kernel in one transaction.
"""

import gc
import os
import statistics
import time
from dataclasses import replace

from bench_agent import memory_mb

from fastcni.agent.policy.attached import AttachedCompiler
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.objects import read_policy

NAMESPACE = "dense"


def measure(table, pods, policies, pod, document, node, apps):
    """Add rows to the table: memory, the first load, the change of a label, and the restart of all pods of the node one
    after another.

    pods: (number of pods of this node, of other nodes). pod, document: functions of a number that make a pod and a
    policy."""
    here, elsewhere = pods

    def made(number, address=0):
        return replace(pod(number, number % apps, node if number < here else "other"), namespace=NAMESPACE,
                       name=f"pod-{number}", addresses=pod(address or number, 0).addresses)

    before = memory_mb(os.getpid())
    compiler = AttachedCompiler(node)
    engine = Engine(compiler)
    compiler.put_namespace(NAMESPACE, {"team": "team-1"})
    began = time.perf_counter()
    for number in range(here + elsewhere):
        compiler.put_pod(made(number))
    for number in range(policies):
        one = document(number)
        compiler.put_policy(read_policy({**one, "metadata": {**one["metadata"], "namespace": NAMESPACE}}))
    engine.load()
    table.add(f"first load, {policies} policies, {here} + {elsewhere} pods of one namespace",
              f"{(time.perf_counter() - began) * 1e3:.0f} ms")
    gc.collect()
    gc.freeze()
    table.add("    memory for these", f"{memory_mb(os.getpid()) - before:.0f} MB")
    elements = sum(map(len, compiler.state.elements.values()))
    table.add("    elements, chains", f"{elements}, {len(compiler.state.chains)}")
    for where, numbers in (("of this node", range(min(here, 100))),
                           ("elsewhere", range(here, here + min(elsewhere, 100)))):
        relabelled = [replace(made(number), labels={"app": f"app-{(number + 7) % apps}"}) for number in numbers]
        spans = [commit_ms(engine, compiler.put_pod, one) for one in relabelled]
        table.add(f"one label of a pod {where}", f"{statistics.median(spans):.2f} ms, the longest {max(spans):.2f} ms")
    used = time.process_time()
    spans = [commit_ms(engine, compiler.put_pod, made(number, 1 + number + here + elsewhere)) for number in range(here)]
    table.add(f"{here} pods restart with other addresses",
              f"{(time.process_time() - used) * 1e3:.0f} ms of processor time, {statistics.median(spans):.2f} ms each")
    engine.rules.remove()
    engine.close()


def commit_ms(engine, put, *args):
    began = time.perf_counter()
    put(*args)
    engine.commit()
    return (time.perf_counter() - began) * 1e3
