"""Network policies that the agent reads from the API mock with the rights of deploy/agent.yaml, and `fastcni agent
--policies`."""

import json
import os
import select
import socket
import subprocess
import time
from types import SimpleNamespace

import pytest
import yaml
from bench_cluster_ipam import Table
from bench_policy import measure_enforced
from click.testing import CliRunner
from cluster.agent.test_agent import joined, nodes  # noqa: F401 - a fixture
from cluster.kubernetes.api_server import ROOT, Running, kubeconfig
from lab.loggers import logger_to

from fastcni.agent.policy import attached, priority
from fastcni.agent.policy.attached import AttachedCompiler
from fastcni.agent.policy.in_kernel import decisions
from fastcni.agent.policy.ruleset import see_bridged_traffic
from fastcni.agent.policy.sources import events as unreadable_events
from fastcni.agent.policy.sources.events import UnreadableEvents
from fastcni.agent.policy.sources.kubernetes import Kubernetes
from fastcni.cli.commands import cli
from fastcni.clients.errors import Away, Invalid
from fastcni.clients.kubernetes import open_api
from fastcni.kit import policies as client
from fastcni.testing.namespaces import Inside
from fastcni.testing.witnesses import eventually

LABELS = {"app": "db"}
CLOSED = {"metadata": {"name": "closed", "namespace": "shop"}, "spec": {"podSelector": {"matchLabels": LABELS}}}


def pod(name, labels, address="", node="n1"):
    return {"metadata": {"name": name, "namespace": "shop", "labels": labels, "uid": f"uid-{name}"},
            "spec": {"nodeName": node}, "status": {"podIP": address} if address else {}}


@pytest.fixture
def server():
    with Running() as running:
        running.do(lambda api: api.put("nodes", {"metadata": {"name": "n1"}}))
        yield running


@pytest.fixture
def source(server, tmp_path):
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.url))
    it = Kubernetes(open_api(str(tmp_path / "kubeconfig")), AttachedCompiler("n1"))
    it.start()
    yield it
    it.close()


def until(source, condition):
    """Handle the source's events until the condition holds."""
    end = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < end, (source.errors, source.away)
        select.select([source], [], [], 0.1)
        source.attend()


def isolated(source):
    return {socket.inet_ntoa(packed) for packed in source.content.compiler.state.elements["in4"]}


def test_pods_namespaces_and_policies_are_listed_and_watched(server, source):
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "agent.yaml").read_text()))
    rules = next(it["rules"] for it in documents if it["kind"] == "ClusterRole")
    server.do(lambda api: setattr(api, "rules", rules))
    server.do(lambda api: setattr(api, "watch_s", 0.3))
    until(source, lambda: source.complete)
    server.do(lambda api: api.put("pods", pod("a", LABELS, "10.244.1.5"), "shop"))
    server.do(lambda api: api.put("pods", pod("b", LABELS, "10.244.2.5", "n2"), "shop"))
    server.do(lambda api: api.put("networkpolicies", CLOSED, "shop"))
    until(source, lambda: isolated(source) == {"10.244.1.5"})
    server.do(lambda api: api.put("pods", pod("a", {}, "10.244.1.5"), "shop"))
    until(source, lambda: not isolated(source))
    server.do(lambda api: api.put("pods", pod("a", LABELS, "10.244.1.5"), "shop"))
    until(source, lambda: isolated(source))
    server.do(lambda api: api.forget("networkpolicies", "closed"))   # without an event: the agent has to list again
    until(source, lambda: not isolated(source))
    assert not source.errors


def test_a_pod_that_has_ended_has_no_address(server, source):
    """The list leaves out pods that have ended. The watch reports such a pod as deleted."""
    ended = pod("ended", LABELS, "10.0.0.7")
    ended["status"]["phase"] = "Succeeded"
    server.do(lambda api: (api.put("pods", pod("web", LABELS, "10.0.0.1"), "shop"), api.put("pods", ended, "shop"),
                           api.put("networkpolicies", CLOSED, "shop")))
    until(source, lambda: source.complete and isolated(source) == {"10.0.0.1"})
    assert "shop/ended" not in source.content.compiler.said
    other = pod("web", LABELS, "10.0.0.1")
    other["status"]["phase"] = "Failed"
    server.do(lambda api: api.put("pods", other, "shop"))
    until(source, lambda: not isolated(source) and "shop/web" not in source.content.compiler.said)


def test_pods_of_other_nodes_are_read_when_a_policy_names_pods(server, source):
    from_db = CLOSED | {"metadata": {"name": "from-db", "namespace": "shop"},
                        "spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": LABELS}}]}]}}
    server.do(lambda api: (api.put("pods", pod("web", LABELS, "10.0.0.1"), "shop"),
                           api.put("pods", pod("far", LABELS, "10.0.0.9", "n2"), "shop"),
                           api.put("networkpolicies", CLOSED, "shop")))
    until(source, lambda: source.complete and isolated(source) == {"10.0.0.1"})
    assert source.content.compiler.said.keys() == {"shop/web"}
    server.do(lambda api: api.put("networkpolicies", from_db, "shop"))
    until(source, lambda: "shop/from-db" in source.content.compiler.cluster.policies)
    assert source.content.compiler.said.keys() == {"shop/web", "shop/far"}
    server.do(lambda api: api.put("pods", pod("far-2", LABELS, "10.0.0.8", "n2"), "shop"))
    until(source, lambda: "shop/far-2" in source.content.compiler.said)


def test_an_object_that_cannot_be_read_has_an_event(server, tmp_path):
    """Two nodes find the object unreadable, before and after a change of the object. The cluster has one Event."""
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "agent.yaml").read_text()))
    rules = next(it["rules"] for it in documents if it["kind"] == "ClusterRole")
    server.do(lambda api: setattr(api, "rules", rules + [{**rule, "namespace": "shop"} for rule in rules]))
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.url))
    wrong = {**CLOSED, "spec": {"podSelector": {}, "ingress": [{"since-v2": []}]}}
    server.do(lambda api: api.put("networkpolicies", wrong, "shop"))
    api = open_api(str(tmp_path / "kubeconfig"))
    lines = []
    sources = [Kubernetes(api, AttachedCompiler(node), None, UnreadableEvents(api, node, logger_to(lines.append)))
               for node in ("n1", "n2")]
    try:
        for source in sources:
            source.start()
            until(source, lambda source=source: source.complete and source.errors)
        assert eventually(lambda: not any(source.events._waiting for source in sources)), lines
        server.do(lambda api: api.put("networkpolicies", {**wrong, "extra": 1}, "shop"))
        good = {**CLOSED, "metadata": {"name": "good", "namespace": "shop"}}
        server.do(lambda api: api.put("networkpolicies", good, "shop"))
        for source in sources:
            until(source, lambda source=source: "shop/good" in source.content.compiler.cluster.policies)
        server.do(lambda api: setattr(api, "rules", None))
        (event,) = api.list_all("/apis/events.k8s.io/v1/namespaces/shop/events")
        assert event["note"].startswith("NetworkPolicy shop/closed: spec.ingress[0].since-v2: is not known")
        assert (event["regarding"]["kind"], event["regarding"]["name"], event["reason"], event["type"]) == (
            "NetworkPolicy", "closed", "PolicyUnreadable", "Warning")
        assert not lines
    finally:
        for source in sources:
            source.close()


def test_an_event_that_the_api_rejects_keeps_no_other_from_being_sent(monkeypatch):
    """Until the API accepted the first Event, the agent repeated this Event and sent no later Event."""
    monkeypatch.setattr(unreadable_events, "RETRY_S", 0.01)
    sent = []

    def create(path, event):
        if "/gone/" in path:
            raise Away("status 500: etcdserver: request timed out")
        sent.append(event["metadata"]["namespace"])

    events = UnreadableEvents(SimpleNamespace(create=create), "n1", logger_to())
    for namespace in ("gone", "shop"):
        events.report("NetworkPolicy", {"name": "web", "namespace": namespace}, "spec: expected an object")
    events.start()
    try:
        assert eventually(lambda: sent == ["shop"])
        events.report("NetworkPolicy", {"name": "db", "namespace": "shop"}, "spec: expected an object")
        assert eventually(lambda: sent == ["shop", "shop"])
    finally:
        events.close()


def test_an_event_that_the_api_finds_invalid_is_sent_once(monkeypatch):
    """The agent sent such an Event again every minute, without end."""
    monkeypatch.setattr(unreadable_events, "RETRY_S", 0.01)
    lines, sent = [], []

    def create(_, event):
        sent.append(event["metadata"]["name"].partition(".")[0])
        if sent[-1] == "bad":
            raise Invalid("status 422: note: too long")

    events = UnreadableEvents(SimpleNamespace(create=create), "n1", logger_to(lines.append))
    for name in ("bad", "good"):
        events.report("NetworkPolicy", {"name": name, "namespace": "shop"}, "spec: expected an object")
    events.start()
    try:
        assert eventually(lambda: "good" in sent)
        time.sleep(0.1)                 # ten times RETRY_S
    finally:
        events.close()
    assert sorted(sent) == ["bad", "good"]
    assert [line["event"] for line in lines] == ["kubernetes_event_unsent"]


def test_an_event_in_a_namespace_that_was_deleted_is_sent_once(server, tmp_path, monkeypatch):
    """The agent sent such an Event again every minute, without end."""
    monkeypatch.setattr(unreadable_events, "RETRY_S", 0.01)
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.url))
    server.do(lambda api: api.absent.add("gone"))
    lines = []
    events = UnreadableEvents(open_api(str(tmp_path / "kubeconfig")), "n1", logger_to(lines.append))
    for namespace in ("gone", "shop"):
        events.report("NetworkPolicy", {"name": "web", "namespace": namespace}, "spec: expected an object")
    events.start()
    try:
        assert eventually(lambda: events.api.list_all("/apis/events.k8s.io/v1/namespaces/shop/events"))
        time.sleep(0.1)                 # ten times RETRY_S
    finally:
        events.close()
    asked = server.do(lambda api: [path for method, path in api.log if method == "POST" and "/gone/" in path])
    assert len(asked) == 1
    assert ['namespaces "gone" not found' in line["why"] for line in lines] == [True]


def test_the_command_asks_the_api_too(server, tmp_path):
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.url))
    server.do(lambda api: api.put("pods", pod("a", LABELS, "10.244.1.5"), "shop"))
    server.do(lambda api: api.put("networkpolicies", CLOSED, "shop"))
    run = CliRunner().invoke(cli, ["policy", "test", "192.0.2.1", "shop/a", "80", "--json", "--kubernetes",
                                   str(tmp_path / "kubeconfig")])
    (found,) = json.loads(run.output)["connections"]
    assert (run.exit_code, found["ingress"]["policies"], found["by"]) == (1, ["shop/closed"], "policies")


def test_of_pods_of_this_node_the_command_asks_the_kernel(server, tmp_path, monkeypatch):
    """The pod runs on this node, whose kernel has no policy table, so nothing is denied. The command printed "denied",
    which is right only for a pod of another node."""
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.url))
    monkeypatch.setattr(decisions, "read", list)
    (tmp_path / "pods").mkdir()
    attached.keep(str(tmp_path / "pods"), attached.Attachment(("net", "c1", "eth0"), "shop/added", LABELS,
                                                              (socket.inet_aton("10.244.1.6"),)))
    for name, address, node in (("here", "10.244.1.5", "n1"), ("there", "10.244.2.5", "n2"), ("added", "", "n1")):
        document = pod(name, LABELS, address, node)
        server.do(lambda api, it=document: api.put("pods", it, "shop"))
    server.do(lambda api: api.put("networkpolicies", CLOSED, "shop"))
    for name, status, by in (("here", 3, "kernel"), ("added", 3, "kernel"), ("there", 1, "policies")):
        run = CliRunner().invoke(cli, ["policy", "test", "192.0.2.1", f"shop/{name}", "80", "--json", "--kubernetes",
                                       str(tmp_path / "kubeconfig"), "--agent-folder", str(tmp_path),
                                       "--node-name", "n1"])
        (found,) = json.loads(run.output)["connections"]
        assert (name, run.exit_code, found["by"]) == (name, status, by)


@pytest.mark.needs("root")
def test_the_agent_keeps_the_table_until_it_is_told_otherwise(nodes):  # noqa: F811
    (one,) = nodes(1)
    directory = one.directory / "policies"
    directory.mkdir()
    one.more = ["--policies", str(directory)]
    one.start()
    one.await_ready()
    assert '"policy"' in (one.directory / "net.conflist").read_text()
    with Inside(one.netns):
        assert client.ask(f"{one.directory}/state/policy.sock", {"do": "status"}) == {"folder": str(directory)}
    (directory / "new").write_text(yaml.safe_dump({"kind": "NetworkPolicy", **CLOSED}))
    (directory / "new").rename(directory / "closed.yaml")
    client.ask(f"{one.directory}/state/policy.sock", {
        "do": "protect", "id": ["net", "c1", "eth0"], "pod": "shop/a", "uid": "", "labels": LABELS,
        "addresses": ["10.244.9.9"]})
    assert eventually(lambda: "10.244.9.9" in table(one))
    assert one.end() == 0
    assert "10.244.9.9" in table(one)
    one.start()
    assert eventually(lambda: one.log().count("event=policies_ready") == 2), one.log()
    assert "10.244.9.9" in table(one)
    one.end()
    one.more = []
    one.start()
    assert eventually(lambda: "event=policies_removed" in one.log()), one.log()
    assert table(one) == ""
    assert eventually(lambda: '"policy"' not in (one.directory / "net.conflist").read_text())
    one.end()
    one.more = ["--policies", str(directory)]
    one.start()
    assert eventually(lambda: table(one))
    one.end()
    subprocess.run(one.command("--leave"), check=True)
    assert table(one) == ""


@pytest.mark.needs("root")
@pytest.mark.needs("nft-owned-tables")
def test_a_flush_while_the_agent_is_killed_and_restarted_leaves_the_table(nodes):  # noqa: F811
    """The kernel releases the ownership of a killed agent's table, and the next agent takes the table over. While an
    agent owns the table, no other process can change it."""
    (one,) = nodes(1)
    (one.directory / "policies").mkdir()
    one.more = ["--policies", str(one.directory / "policies")]
    one.start()
    one.await_ready()
    assert priority.NICE in nices(one.process.pid)
    for _ in range(2):
        refused = subprocess.run(one.command("--leave"), capture_output=True, text=True, check=False)
        assert refused.returncode and "belongs to another process (netlink port" in refused.stderr
        flush(one)
        assert table(one)
        one.process.kill()
        one.process.wait()
        assert table(one)
        one.start()
        assert eventually(lambda: "flags owner" in table(one)), one.log()
    one.end()
    flush(one)
    assert not table(one)


@pytest.mark.needs("root")
def test_policies_are_in_force_before_the_registry_answers(nodes):  # noqa: F811
    """The agent starts while etcd is unavailable, and pods are still added."""
    (one,) = nodes(1)
    directory = one.directory / "policies"
    directory.mkdir()
    (directory / "closed.yaml").write_text(yaml.safe_dump({"kind": "NetworkPolicy", **CLOSED}))
    one.more = ["--policies", str(directory)]
    one.etcd.members[0].kill()
    one.start()

    def protected():
        try:
            client.ask(f"{one.directory}/state/policy.sock", {
                "do": "protect", "id": ["net", "c1", "eth0"], "pod": "shop/a", "uid": "", "labels": LABELS,
                "addresses": ["10.244.9.9"]})
        except client.NoAgent:             # the agent's socket does not accept connections yet
            return False
        return True

    assert eventually(protected), one.log()
    assert "10.244.9.9" in table(one)
    assert not (one.directory / "net.conflist").exists()
    one.etcd.members[0].restart()
    one.await_ready()
    assert "10.244.9.9" in table(one)
    assert one.end() == 0


@pytest.mark.needs("root")
def test_changes_of_the_api_are_enforced_in_the_benchmark(host_netns):
    """benchmarks/bench_policy.py tests changes of policy files."""
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")
    found = Table()
    measure_enforced(found, "API", 5, 10, 2)
    assert "goes on" not in str(found)


def nices(pid):
    """Return the nice values of a process's threads."""
    return {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}


def flush(node):
    subprocess.run(["ip", "netns", "exec", node.netns, "nft", "flush", "ruleset"], check=True)


def table(node):
    return subprocess.run(["ip", "netns", "exec", node.netns, "nft", "list", "table", "inet", "fastcni-policy"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
