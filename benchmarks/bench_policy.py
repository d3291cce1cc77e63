"""Measure network policies: the first load into the kernel, a pod's ADD, and changes of a label and of a policy.

    .venv/bin/python benchmarks/bench_policy.py                 # as root; 500 policies, 200 pods on the node
    .venv/bin/python benchmarks/bench_policy.py --policies 1000
    .venv/bin/python benchmarks/bench_policy.py --cluster-policies 20
    .venv/bin/python benchmarks/bench_policy.py --dense         # policy_density.py: 5,000 pods of one namespace
    .venv/bin/python benchmarks/bench_policy.py --enforced API --changes 100 --load 6      # policy_enforced.py

Prints a table of figures and wanted figures. The benchmark makes a network namespace, in which no pod has a link. The
figures are the times of compiling, of the kernel's transaction, and of the search for connections to end.

`make test` runs each part once, with small numbers, and asserts no time.
"""

import argparse
import gc
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import replace

import policy_density
import policy_enforced
import policy_packets
import pytest
from bench_cluster_ipam import Table

from fastcni.agent.policy.attached import AttachedCompiler, Attachment
from fastcni.agent.policy.cluster_policies import read_cluster_policy
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.objects import read_pod, read_policy
from fastcni.agent.policy.ports import Port
from fastcni.agent.policy.ruleset import see_bridged_traffic
from fastcni.agent.policy.service import Policies, Settings
from fastcni.agent.run import milliseconds
from fastcni.daemon import garbage
from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.kit.call.undo import Undo
from fastcni.plugins import policy as plugin
from fastcni.server.cpu_latency import LatencyRequest
from fastcni.spec.address import ip_text

NODE = "node-0"
APPS, NAMESPACES = 100, 20


def pod(number, app, node=NODE):
    addresses = [f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", f"fd00::{number:x}"]
    return read_pod({"metadata": {"name": f"pod-{number}", "namespace": f"ns-{number % NAMESPACES}",
                                  "labels": {"app": f"app-{app}", "tier": f"tier-{app % 3}"}},
                     "spec": {"nodeName": node, "containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]},
                     "status": {"podIPs": [{"ip": address} for address in addresses]}})


def policy_document(number, port=80):
    """Return a typical policy of a service: ingress to one app from another app and an address range, egress to a third
    app."""
    app = number % APPS
    return {"metadata": {"name": f"policy-{number}", "namespace": f"ns-{number % NAMESPACES}"}, "spec": {
        "podSelector": {"matchLabels": {"app": f"app-{app}"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": f"app-{(app + 20) % APPS}"}}},
                              {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}}],
                     "ports": [{"port": port}, {"port": "http"}, {"port": 9000 + number, "endPort": 9010 + number}]}],
        "egress": [{"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": f"app-{number % 7}"}}}]},
                   {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}]}]}}


def cluster_policy_document(number):
    """Return a cluster policy. Odd numbers select all pods, even numbers the pods of some apps. Every tenth policy is
    of tier Baseline, all other policies are of tier Admin. The rules have an address range, a namespace and ports."""
    subject = {"namespaces": {}} if number % 2 else {"pods": {"namespaceSelector": {}, "podSelector": {
        "matchLabels": {"tier": f"tier-{number % 3}"}}}}
    team = {"namespaces": {"matchLabels": {"team": f"team-{number % 4}"}}}
    ports = [{"tcp": {"destinationPort": {"number": 1000 + number}}}, {"udp": {"destinationPort": {"number": 53}}}]
    return {"metadata": {"name": f"cluster-{number}"}, "spec": {
        "tier": "Baseline" if number % 10 == 9 else "Admin", "priority": number, "subject": subject,
        "ingress": [{"action": "Deny", "from": [team], "protocols": ports[:1]}, {"action": "Pass", "from": [team]}],
        "egress": [{"action": "Accept", "to": [team], "protocols": ports},
                   {"action": "Deny", "to": [{"networks": [f"198.51.100.{number}/32", "169.254.169.254/32"]}]}]}}


def took_ms(function, *args):
    began = time.perf_counter()
    function(*args)
    return (time.perf_counter() - began) * 1e3


class Site:
    """An Engine, and the objects of the cluster."""

    def __init__(self, policies, pods, others, cluster_policies=0):
        self.cluster_policies = [read_cluster_policy(cluster_policy_document(number))
                                 for number in range(cluster_policies)]
        self.documents = [policy_document(number) for number in range(policies)]
        self.pods = [pod(number, number % APPS) for number in range(pods)]
        self.others = [pod(number, number % APPS, "node-1") for number in range(pods, pods + others)]
        self.engine = Engine(AttachedCompiler(NODE))

    def load(self):
        """Read and compile all objects, and write them to the kernel."""
        self.put_all(self.engine.compiler)
        self.engine.load()

    def put_all(self, compiler):
        for number in range(NAMESPACES):
            compiler.put_namespace(f"ns-{number}", {"team": f"team-{number % 4}"})
        for one in (*self.pods, *self.others):
            compiler.put_pod(one)
        for one in (*map(read_policy, self.documents), *self.cluster_policies):
            compiler.put_policy(one)

    def add(self, rounds):
        """Return [(ms that an ADD waits, ms until the pod's rules are written)]. Each added pod has the labels of
        existing pods, as a replica does."""
        first = len(self.pods) + len(self.others)
        found = []
        for number in range(first, first + rounds):
            one = pod(number, number % APPS)
            it = Attachment(("net", one.name, "eth0"), one.key, one.labels, one.addresses, number,
                            Port(f"port{number}", True, bytes(2) + number.to_bytes(4, "big")))
            waited = took_ms(self.engine.protect, it)
            found.append((waited, waited + took_ms(self.engine.commit)))
            self.engine.compiler.detach(it.id)
            self.engine.commit()
        return found

    def _commit(self, put, *args):
        put(*args)
        self.engine.commit()

    def relabel(self, rounds):
        """Return [ms to apply the change of a pod's label]. Other policies select the new label."""
        return [took_ms(self._commit, self.engine.compiler.put_pod, self._relabelled(number))
                for number in range(rounds)]

    def _relabelled(self, number, further=1):
        """Return a pod with another label, which policies of the pod's namespace select."""
        app = (number + further * NAMESPACES) % APPS
        return replace(self.pods[number % len(self.pods)], labels={"app": f"app-{app}"})

    def cut(self, rounds):
        """Return [ms of the search for connections to end, after a pod's label has changed]."""
        found = []
        for number in range(rounds):
            self._commit(self.engine.compiler.put_pod, self._relabelled(number, 2))
            found.append(took_ms(self._cut))
        return found

    def _cut(self):
        self.engine.begin_cut()
        self.engine.end_cut()

    def edit(self, rounds):
        """Return [ms to apply the change of a policy's port]."""
        return [took_ms(self._commit, self.engine.compiler.put_policy, read_policy(policy_document(
            number % len(self.documents), 1000 + number))) for number in range(rounds)]

    def close(self):
        self.engine.rules.remove()
        self.engine.close()


class Agent:
    """A process with the agent's policies and the objects of a Site."""

    def __init__(self, site, directory):
        self.socket = f"{directory}/policy.sock"
        os.mkdir(f"{directory}/policies")
        self.stop_reading, stop = os.pipe()
        ready, tell_ready = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(stop)
                self._serve(site, directory, tell_ready)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(tell_ready)
        self._stop = stop
        if not os.read(ready, 1):
            self.close()
            raise SystemExit("the agent has not started")
        os.close(ready)

    def _serve(self, site, directory, tell_ready):
        it = Policies(Settings(f"{directory}/policies", state=f"{directory}/pods", socket=self.socket), Silent())
        it.compiler.node = NODE
        site.put_all(it.compiler)
        it.attend()
        os.write(tell_ready, b"1")
        garbage.freeze()                # the agent also freezes its objects
        poll = select.poll()
        for fd in (it.fileno(), self.stop_reading):
            poll.register(fd, select.POLLIN)
        while self.stop_reading not in [fd for fd, _ in poll.poll(milliseconds(it.due))]:
            it.attend()
        it.close()

    def close(self):
        os.close(self._stop)
        os.waitpid(self.pid, 0)


class Silent:
    def info(self, *_, **__):
        return

    error = warning = info


def make_port():
    subprocess.run(["ip", "link", "add", "port", "type", "veth", "peer", "name", "peer"], check=True)


def ask(site, agent, rounds):
    """Return [ms of an ADD of the plugin policy, which asks the agent]. Add and delete one pod after another, with the
    latency request to the kernel that the server makes for each request."""
    first = len(site.pods) + len(site.others)
    found = []
    make_port()
    latency = LatencyRequest(3600, Silent())
    latency.hold()
    for number in range(first, first + rounds):
        found.append(add_and_delete(pod(number, number % APPS), agent))
        time.sleep(0.005)               # the agent writes the rules and searches for connections
    latency.close()
    return found


def add_and_delete(one, agent):
    """Add and delete a pod at the link `port`. Return the ms of the plugin's ADD."""
    previous = {"cniVersion": "1.1.0",
                "interfaces": [{"name": "port"}, {"name": "eth0", "sandbox": "/pod", "mac": "02:00:00:00:00:01"}],
                "ips": [{"address": f"{ip_text(packed)}/32", "interface": 1} for packed in one.addresses]}
    conf = {"cniVersion": "1.1.0", "name": "net", "type": "policy", "agentSocketPath": agent.socket,
            "prevResult": previous, "args": {"cni": {"labels": [
                {"key": key, "value": value} for key, value in one.labels.items()]}}}
    req = Request(Mode(), plugin="policy", command="ADD", conf=conf, version="1.1.0", name="net",
                  container_id=one.name, ifname="eth0", args=f"K8S_POD_NAMESPACE={one.namespace};"
                                                            f"K8S_POD_NAME={one.name}")
    with Undo() as undo:
        found = took_ms(lambda: plugin.add(req, plugin.read(req), undo))
    plugin.delete(req, plugin.read(req))
    return found


def measure(table, policies, pods, others, rounds, cluster_policies=0):
    loads = []
    for _ in range(1 if rounds < 10 else 3):
        site = Site(policies, pods, others, cluster_policies)
        gc.freeze()                     # the server also freezes its objects
        loads.append(took_ms(site.load))
        if len(loads) < 3 and rounds >= 10:
            site.close()
    state = site.engine.compiler.state
    table.add(f"first load, {policies} + {cluster_policies} policies x {pods} pods",
              f"{statistics.median(loads):.0f} ms", "1000 ms",
              statistics.median(loads) <= 1000)
    table.add("    sets, elements, chains, rules", f"{len(state.sets)}, {sum(map(len, state.elements.values()))}, "
              f"{len(state.chains)}, {sum(len(one.lines) + len(one.jumps) for one in state.chains.values())}")
    site.close()                        # removes the table, which only one agent at a time can own
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        agent = Agent(site, directory)
        try:
            asked = ask(site, agent, rounds)
        finally:
            agent.close()
    site = Site(policies, pods, others, cluster_policies)
    site.load()
    adds, protected = zip(*site.add(rounds), strict=True)
    for what, found, wanted in (("one pod's ADD", adds, 0.3), ("    and its rules are written", protected, None),
                                ("    the plugin's, with the agent in another process", asked, 0.3),
                                ("one label change", site.relabel(rounds), 5),
                                ("    and connections to cut", site.cut(rounds), None),
                                ("one policy's change", site.edit(rounds), None)):
        median, high = statistics.median(found), sorted(found)[len(found) * 95 // 100]
        table.add(what, f"{median:.2f} ms, 95 of 100 within {high:.2f} ms", f"{wanted} ms" if wanted else "",
                  median <= wanted if wanted else None)
    site.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policies", type=int, default=500)
    parser.add_argument("--cluster-policies", type=int, default=0)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--others", type=int, default=1000, help="number of pods of other nodes")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--enforced", choices=["files", "API"], help="measure only how long forbidden packets pass")
    parser.add_argument("--changes", type=int, default=100, help="rounds of --enforced")
    parser.add_argument("--load", type=int, default=0, help="processes that use processor time during --enforced")
    parser.add_argument("--packets", action="store_true", help="measure only the cost for packets, on ptp and a bridge")
    parser.add_argument("--before", default="", metavar="PYTHON",
                        help="with --packets: also measure the tables of another fastcni, installed in this Python")
    parser.add_argument("--dense", action="store_true", help="measure only one namespace of 5,000 pods")
    options = parser.parse_args()
    os.unshare(os.CLONE_NEWNET) if hasattr(os, "unshare") else unshare()
    table = Table()
    if options.enforced:
        measure_enforced(table, options.enforced, options.policies, options.pods, options.changes, options.load)
    elif options.packets:
        policy_packets.measure(table, options.rounds, options.before)
    elif options.dense:
        policy_density.measure(table, (500, 4500), 1000, pod, policy_document, NODE, APPS)
    else:
        measure(table, options.policies, options.pods, options.others, options.rounds, options.cluster_policies)
    print(table)


def measure_enforced(table, source, policies, pods, changes, load=0):
    found = sorted(policy_enforced.enforced(source, policies, pods, changes, load))
    median, high = (found[len(found) * percent // 100] for percent in (50, 99))
    table.add(f"until the last forbidden packet, by {source}, load {load}",
              f"{median[0]:.0f} ms, 99 of 100 within {high[0]:.0f} ms", "100 ms", high[0] <= 100)
    table.add("    the longest", f"{found[-1][0]:.0f} ms: {found[-1][1]}")


def unshare():
    """Call unshare(2), as os.unshare() of Python 3.12 does."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):
        raise SystemExit(f"make a network namespace: {os.strerror(ctypes.get_errno())}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a network namespace")
def test_the_cost_of_a_packet_is_measured(host_netns, monkeypatch):
    monkeypatch.setattr(policy_packets, "TIMES", dict.fromkeys(policy_packets.CASES, 5))
    table = Table()
    policy_packets.measure(table, 1, before=sys.executable)
    assert len(table.rows) == 6
    assert "of --before" in str(table)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a network namespace")
def test_each_part_of_the_benchmark_runs(host_netns):
    table = Table()
    measure(table, 20, 10, 10, 5, 4)
    assert "one label change" in str(table)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a network namespace")
def test_a_dense_node_is_measured(host_netns):
    table = Table()
    policy_density.measure(table, (5, 5), 10, pod, policy_document, NODE, APPS)
    assert "5 pods restart" in str(table)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
def test_changes_of_files_are_enforced_in_the_benchmark(host_netns):
    """tests/cluster/agent/test_policies.py tests changes in the API."""
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")
    table = Table()
    measure_enforced(table, "files", 5, 10, 3)
    assert "goes on" not in str(table)


if __name__ == "__main__":
    main()
