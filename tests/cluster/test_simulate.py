"""`make simulate`: the simulated nodes make the same requests as agents, and the simulation writes all figures and
leaves nothing behind."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cluster.kubernetes.api_server import Running, kubeconfig
from cluster_nodes import Etcd
from simulate import etcd_nodes, kubernetes_nodes, wire
from simulate.addresses import AGENT, NETWORK, mac_of, public_of, subnet_of
from simulate.etcd_nodes import EtcdNodes, record_of
from simulate.kubernetes_nodes import KubernetesNodes
from simulate.kubernetes_registry import NET_CONF
from simulate.wire import Traffic

from fastcni.agent.contract import Node
from fastcni.agent.registries import etcd as etcd_registry
from fastcni.agent.registries import flannel_records, open_registry
from fastcni.clients.etcd import Client, put
from fastcni.clients.http import Http
from fastcni.daemon import log
from fastcni.testing.witnesses import eventually

ROOT = Path(__file__).parents[2]
NUMBER = 7
FIGURES = {"nodes", "registry_cpu_ms_per_s", "requests_per_s", "kilobytes_per_s", "join_p50_ms", "join_p99_ms",
           "agent_mb", "agent_cpu_ms_per_s"}


def asked(method, path, body, accept=""):
    """Return a request without the parts that differ between runs: leases, revisions and times."""
    body = body if body is None or isinstance(body, dict) else json.loads(body)
    path = re.sub(r"(resourceVersion=[1-9]|timeoutSeconds=)\d+", r"\1", path)
    body = re.sub(r'"(lease|ID|start_revision|min_mod_revision)": "?\d+"?|"(last\w+Time)": "[^"]*"', r'"\1\2": 0',
                  json.dumps(body, sort_keys=True))
    return method, path, body, accept


def requests_of_agent(open_registry, me, monkeypatch):
    """Return the requests that the agent's registry makes when the node `me` joins, and when the node's agent
    restarts."""
    found = []
    original = Http._ask

    def ask(self, endpoint, deadline, method, path, body, headers, whole):
        found.append(asked(method, path, body, (headers or {}).get("Accept", "")))
        return original(self, endpoint, deadline, method, path, body, headers, whole)

    monkeypatch.setattr(Http, "_ask", ask)
    lives = []
    for _ in range(2):
        stopped = threading.Event()
        registry = open_registry(stopped.wait)
        joined = registry.join(registry.conf(), Node("", {}, me.public, me.backend, me.data))
        watching = threading.Thread(target=registry.watch, args=(lambda nodes: None, stopped.is_set))
        watching.start()
        try:
            assert eventually(lambda: found and "watch" in found[-1][1], 30)
            registry.keep(joined)
            registry.keep(joined)
            registry.ready(joined)
        finally:
            stopped.set()
            watching.join()
            registry.close()
        lives.append(list(found))
        found.clear()
    monkeypatch.undo()
    return lives


def requests_of_simulated(module, open_nodes, monkeypatch):
    """Return the requests of a simulated node when it joins, and when its agent restarts. module: the module of the
    simulated nodes."""
    found, lives = [], []
    original = wire.compose

    def compose(method, path, body, host, headers="", *words):
        found.append(asked(method, path, body, re.sub(r"(?s)(.*Accept: (.*)\r\n|.*)", r"\2", headers, count=1)))
        return original(method, path, body, host, headers, *words)

    monkeypatch.setattr(wire, "compose", compose)
    monkeypatch.setattr(module, "compose", compose)

    async def live():
        nodes = open_nodes(Traffic())
        for each in (nodes.join, nodes.restart):
            nodes.streams.close(await each(NUMBER))
            lives.append(list(found))
            found.clear()

    asyncio.run(live())
    monkeypatch.undo()
    return lives


def test_a_simulated_node_asks_etcd_what_an_agent_asks(etcd_alone, tmp_path, monkeypatch):
    with_conf = Client(etcd_alone.conf())
    with_conf.txn([], [put(f"{etcd_registry.PREFIX}/config", json.dumps({"Network": str(NETWORK), "SubnetLen": 24}))])
    key, value = record_of(NUMBER)
    monkeypatch.setattr(etcd_registry.subnets, "choose_one", lambda family, former, taken: subnet_of(NUMBER))
    wanted = requests_of_agent(
        lambda wait: etcd_registry.Etcd({"endpoints": etcd_alone.endpoints, "kept": str(tmp_path / "nodes")},
                                        log.make("debug", "logfmt"), wait),
        flannel_records.read(key.removeprefix(etcd_nodes.DIRECTORY), value), monkeypatch)
    for key in etcd_alone.keys(etcd_nodes.DIRECTORY):
        with_conf.txn([], [etcd_registry.etcd_client.delete(key)])
    with_conf.close()
    host, _, port = etcd_alone.endpoints[0].removeprefix("http://").partition(":")
    assert requests_of_simulated(etcd_nodes, lambda traffic: EtcdNodes(host, port, traffic), monkeypatch) == wanted


def test_a_simulated_node_asks_kubernetes_what_an_agent_asks(tmp_path, monkeypatch):
    me = Node("", {}, {4: public_of(NUMBER)}, "vxlan", {4: {"VNI": 1, "VtepMAC": mac_of(NUMBER)}})
    (tmp_path / "net-conf.json").write_text(NET_CONF)
    with Running() as running:
        (tmp_path / "kubeconfig").write_text(kubeconfig(running.url))
        running.do(lambda api: api.put("nodes", kubernetes_nodes.node_of(NUMBER)))
        wanted = requests_of_agent(lambda wait: open_registry("kubernetes", {
            "kubeconfig": str(tmp_path / "kubeconfig"), "node": kubernetes_nodes.name_of(NUMBER),
            "net_conf": str(tmp_path / "net-conf.json"), "kept": str(tmp_path / "nodes")},
            log.make("debug", "logfmt"), wait), me, monkeypatch)
        running.do(lambda api: api.drop("nodes", kubernetes_nodes.name_of(NUMBER)))
        scheme, _, place = running.url.partition("://")
        made, *first = (lives := requests_of_simulated(kubernetes_nodes, lambda traffic: KubernetesNodes(
            scheme, *place.split(":"), "token", traffic), monkeypatch))[0]
    assert made[0] == "POST"            # the kubelet creates the Node
    assert [first, lives[1]] == wanted


def simulate(*words):
    return subprocess.Popen([sys.executable, "-m", "simulate", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")})


def left_of(pid):
    """Return the namespaces and directories of a simulation that still exist."""
    return [*Path("/run/netns").glob(f"simulate-{pid}"), *Path("/dev/shm").glob(f"fastcni-simulate-{pid}-*")]


@pytest.mark.needs("root")
def test_a_simulation_writes_all_figures_and_how_each_grows(tmp_path):
    """The simulation takes some 25 s: three clusters, each measured without and with churn."""
    file = tmp_path / "figures.json"
    running = simulate("--quick", "--nodes", "6", "12", "--json", str(file))
    shown, errors = running.communicate(timeout=170)
    assert running.returncode == 0, errors
    document = json.loads(file.read_text())
    assert [row["nodes"] for row in document["rows"]] == [6, 12]
    for row in document["rows"]:
        assert row.keys() == FIGURES
        assert all(value > 0 for value in row.values()), row
        assert row["join_p50_ms"] <= row["join_p99_ms"]
    for figure in FIGURES - {"nodes"}:
        assert re.search(rf"^{figure}: (flat|linear|quadratic)\b", shown, re.MULTILINE), shown
    assert not left_of(running.pid)


@pytest.mark.needs("root")
def test_a_simulation_runs_on_the_kubernetes_api(tmp_path):
    """The test simulates one number of nodes without pods, which takes some 15 s."""
    file = tmp_path / "figures.json"
    running = simulate("--quick", "--nodes", "6", "--pods", "0", "--registry", "kubernetes", "--json", str(file))
    _, errors = running.communicate(timeout=170)
    assert running.returncode == 0, errors
    document = json.loads(file.read_text())
    (row,), (restart,) = document["rows"], document["restarts"]
    assert row.keys() == FIGURES and all(value > 0 for value in row.values()), row
    assert (document["registry"], restart["lists"], restart["writes"]) == ("kubernetes", 0, 0)
    assert not left_of(running.pid)


@pytest.mark.needs("root")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_simulation_that_is_interrupted_leaves_nothing(number):
    running = simulate("--quick", "--nodes", "6")
    try:
        assert eventually(lambda: len(left_of(running.pid)) == 2, 60)
        assert eventually(lambda: agents_beside(running.pid), 60)
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert "interrupted" in errors
    assert running.returncode == 1
    assert not left_of(running.pid)
    assert not agents_beside(running.pid)


def agents_beside(pid):
    """Return the processes whose command lines name the simulation's directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"fastcni-simulate-{pid}-".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:                 # the process has ended
            continue
    return found


def test_an_etcd_that_is_interrupted_while_it_starts_is_ended(tmp_path, monkeypatch):
    """A benchmark that was interrupted while etcd started left etcd running, with its data."""
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Etcd, "_wait", interrupt)
    etcd = Etcd(directory=tmp_path)
    with pytest.raises(KeyboardInterrupt), etcd:
        pass
    try:
        assert etcd.process.poll() is not None
        assert not list(tmp_path.iterdir())
    finally:
        etcd.process.kill()
        etcd.process.wait()


def test_the_node_of_the_agent_has_an_address_that_no_simulated_node_has():
    assert AGENT not in {etcd_nodes.public_of(number) for number in range(60_000)}
