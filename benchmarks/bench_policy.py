"""Network policies in the kernel: the first load, one pod's ADD, one change of a label, one policy's change.

    .venv/bin/python benchmarks/bench_policy.py                 # as root; 500 policies, 200 pods of the node
    .venv/bin/python benchmarks/bench_policy.py --policies 1000

Prints a table with the figure wanted beside each. It makes a network namespace, in which no pod has a link: the figures
are those of compiling, of the kernel's transaction, and of looking for connections to cut.

`make test` runs each part once, with small numbers, and asserts no time.
"""

import argparse
import gc
import os
import statistics
import time
from dataclasses import replace

import pytest
from bench_cluster_ipam import Table

from fastcni.agent.policy.attached import AttachedCompiler, Attachment
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.objects import read_pod, read_policy

NODE = "node-0"
APPS, NAMESPACES = 100, 20


def pod(number, app, node=NODE):
    addresses = [f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", f"fd00::{number:x}"]
    return read_pod({"metadata": {"name": f"pod-{number}", "namespace": f"ns-{number % NAMESPACES}",
                                  "labels": {"app": f"app-{app}", "tier": f"tier-{app % 3}"}},
                     "spec": {"nodeName": node, "containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]},
                     "status": {"podIPs": [{"ip": address} for address in addresses]}})


def policy_document(number, port=80):
    """Ingress of one app from another one and a network, egress to a third one: what a cluster has for each service."""
    app = number % APPS
    return {"metadata": {"name": f"policy-{number}", "namespace": f"ns-{number % NAMESPACES}"}, "spec": {
        "podSelector": {"matchLabels": {"app": f"app-{app}"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": f"app-{(app + 20) % APPS}"}}},
                              {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}}],
                     "ports": [{"port": port}, {"port": "http"}, {"port": 9000 + number, "endPort": 9010 + number}]}],
        "egress": [{"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": f"app-{number % 7}"}}}]},
                   {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}]}]}}


def took_ms(function, *args):
    began = time.perf_counter()
    function(*args)
    return (time.perf_counter() - began) * 1e3


class Site:
    """An Engine, and what the cluster has."""

    def __init__(self, policies, pods, others):
        self.documents = [policy_document(number) for number in range(policies)]
        self.pods = [pod(number, number % APPS) for number in range(pods)]
        self.others = [pod(number, number % APPS, "node-1") for number in range(pods, pods + others)]
        self.engine = Engine(AttachedCompiler(NODE))

    def load(self):
        """Read, compile and write all."""
        compiler = self.engine.compiler
        for number in range(NAMESPACES):
            compiler.put_namespace(f"ns-{number}", {"team": f"team-{number % 4}"})
        for one in (*self.pods, *self.others):
            compiler.put_pod(one)
        for document in self.documents:
            compiler.put_policy(read_policy(document))
        self.engine.load()

    def add(self, rounds):
        """[ms of what an ADD waits for]. Each pod has labels that others have, as a replica does."""
        first = len(self.pods) + len(self.others)
        found = []
        for number in range(first, first + rounds):
            one = pod(number, number % APPS)
            it = Attachment(("net", one.name, "eth0"), one.key, one.labels, one.addresses)
            found.append(took_ms(self.engine.protect, it))
            self.engine.compiler.detach(it.id)
            self.engine.commit()
        return found

    def _commit(self, put, *args):
        put(*args)
        self.engine.commit()

    def relabel(self, rounds):
        """[ms of a pod's other label], to one that other policies select"""
        return [took_ms(self._commit, self.engine.compiler.put_pod, self._relabelled(number))
                for number in range(rounds)]

    def _relabelled(self, number, further=1):
        """The next pod, with a label that policies of its namespace select."""
        app = (number + further * NAMESPACES) % APPS
        return replace(self.pods[number % len(self.pods)], labels={"app": f"app-{app}"})

    def cut(self, rounds):
        """[ms of looking for connections to end, after another label]"""
        found = []
        for number in range(rounds):
            self._commit(self.engine.compiler.put_pod, self._relabelled(number, 2))
            found.append(took_ms(self.engine.cut))
        return found

    def edit(self, rounds):
        """[ms of a policy's other port]"""
        return [took_ms(self._commit, self.engine.compiler.put_policy, read_policy(policy_document(
            number % len(self.documents), 1000 + number))) for number in range(rounds)]

    def close(self):
        self.engine.rules.remove()
        self.engine.close()


def measure(table, policies, pods, others, rounds):
    loads = []
    for _ in range(1 if rounds < 10 else 3):
        site = Site(policies, pods, others)
        gc.freeze()                     # as the server does
        loads.append(took_ms(site.load))
        if len(loads) < 3 and rounds >= 10:
            site.close()
    state = site.engine.compiler.state
    table.add(f"first load, {policies} policies x {pods} pods", f"{statistics.median(loads):.0f} ms", "1000 ms",
              statistics.median(loads) <= 1000)
    table.add("    sets, elements, chains, rules", f"{len(state.sets)}, {sum(map(len, state.elements.values()))}, "
              f"{len(state.chains)}, {sum(len(one.lines) + len(one.jumps) for one in state.chains.values())}")
    for what, found, wanted in (("one pod's ADD", site.add(rounds), 0.3), ("one label change", site.relabel(rounds), 5),
                                ("    and connections to cut", site.cut(rounds), None),
                                ("one policy's change", site.edit(rounds), None)):
        median, high = statistics.median(found), sorted(found)[len(found) * 95 // 100]
        table.add(what, f"{median:.2f} ms, 95 of 100 within {high:.2f} ms", f"{wanted} ms" if wanted else "",
                  median <= wanted if wanted else None)
    site.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policies", type=int, default=500)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--others", type=int, default=1000, help="pods of other nodes")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    os.unshare(os.CLONE_NEWNET) if hasattr(os, "unshare") else unshare()
    table = Table()
    measure(table, options.policies, options.pods, options.others, options.rounds)
    print(table)


def unshare():
    """os.unshare() of Python 3.12."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):
        raise SystemExit(f"make a network namespace: {os.strerror(ctypes.get_errno())}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a network namespace")
def test_each_part_of_the_benchmark_runs(host_netns):
    table = Table()
    measure(table, 20, 10, 10, 5)
    assert "one label change" in str(table)


if __name__ == "__main__":
    main()
