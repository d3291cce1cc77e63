"""Egress addresses on three nodes with a real etcd: pods' connections leave from the egress address, which moves to
another node when its node fails."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cluster.agent.egress_nodes import (
    EGRESS,
    FAMILIES,
    Outside,
    Pod,
    addresses_of,
    egress_address,
    holder,
    put,
    table,
)
from cluster.agent.test_agent import nodes  # noqa: F401 - a fixture
from stopping import stop

from fastcni.kit import policies as client
from fastcni.testing.namespaces import Inside, ip, run
from fastcni.testing.witnesses import eventually

pytestmark = pytest.mark.needs("root")


class Cluster:
    """Three nodes with one pod each, and the directory of policies that all three agents read."""

    def __init__(self, found, pod_netns, directory):
        self.nodes, self.directory = found, directory
        directory.mkdir()
        for node in found:
            node.more = ["--policies", str(directory)]
            ip("-6", "route", "add", "default", "via", "2001:db8::254", netns=node.netns)
            node.start()
        for node in found:
            assert eventually((node.directory / "net.conflist").exists, 30), node.log()
        self.pods = [Pod(node, pod_netns()) for node in found]
        put(directory, "pods.yaml", *(pod.document(f"p{number}", app="web") for number, pod in enumerate(self.pods)))

    def leave_by(self, address, family=4):
        """Return whether the outside host sees this address as the source of each pod."""
        return all(pod.source(family) == address for pod in self.pods)


@pytest.fixture
def cluster(nodes, pod_netns, tmp_path, request):  # noqa: F811
    made = nodes(3, **getattr(request, "param", {}))
    outside = Outside()
    try:
        yield Cluster(made, pod_netns, tmp_path / "policies")
    finally:
        for node in made:
            node.end(signal.SIGKILL)
        outside.close()


@pytest.mark.parametrize("cluster", [{"backend": "vxlan"}, {"backend": "host-gw"}], indirect=True)
def test_pods_of_the_subject_leave_from_the_address_that_one_node_holds(cluster):
    put(cluster.directory, "egress.yaml", egress_address())
    for family, address in EGRESS.items():
        one = holder(cluster.nodes, address)
        assert eventually(lambda family=family, address=address: cluster.leave_by(address, family)), (
            [node.log() for node in cluster.nodes], [pod.source(family) for pod in cluster.pods])
        assert addresses_of(one.netns)[address] <= 2


def test_other_pods_and_destinations_inside_keep_their_way(cluster):
    put(cluster.directory, "egress.yaml", egress_address(pods={
        "namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}))
    put(cluster.directory, "pods.yaml", *(pod.document(f"p{number}", app="web" if number else "db")
                                       for number, pod in enumerate(cluster.pods)))
    plain, *chosen = cluster.pods
    for family, address in EGRESS.items():
        assert eventually(lambda family=family, address=address: all(
            pod.source(family) == address for pod in chosen)), [node.log() for node in cluster.nodes]
        own = {4: f"192.0.2.{plain.node.number}", 6: f"2001:db8::{plain.node.number}"}[family]
        assert plain.source(family) == own
        with Echo(plain, family) as echo:           # pods and nodes of the network see the pod's own address
            assert [pod.source(family, plain.addresses[family], echo.port) for pod in chosen] == [
                pod.addresses[family] for pod in chosen]
        with Echo(plain.node, family) as echo:
            assert all(pod.source(family, own, echo.port) for pod in chosen)


def test_a_connection_from_outside_to_a_pod_of_the_subject_is_answered_on_its_way(cluster):
    put(cluster.directory, "egress.yaml", egress_address())
    holder(cluster.nodes)
    assert eventually(lambda: cluster.leave_by(EGRESS[4]))
    pod = next(pod for pod in cluster.pods if EGRESS[4] not in addresses_of(pod.node.netns))
    ip("route", "add", f"{pod.addresses[4]}/32", "via", f"192.0.2.{pod.node.number}")
    with Echo(pod, 4) as echo, socket.create_connection((pod.addresses[4], echo.port), timeout=10) as sock:
        assert sock.recv(64)


def test_pods_are_closed_while_no_node_holds_the_address_and_open_again_without_the_document(cluster):
    """No node has a link in that network. A pod's IPv6 traffic leaves as before, because the document has no IPv6
    address."""
    put(cluster.directory, "egress.yaml", egress_address(addresses=["203.0.113.9"]))
    own = [f"192.0.2.{pod.node.number}" for pod in cluster.pods]
    for pod in cluster.pods:
        assert eventually(lambda pod=pod: pod.source() == ""), pod.node.log()
    time.sleep(0.5)
    assert [pod.source() for pod in cluster.pods] == ["", "", ""]
    assert cluster.pods[0].source(6) == "2001:db8::1"
    put(cluster.directory, "egress.yaml")
    assert eventually(lambda: [pod.source() for pod in cluster.pods] == own)
    assert all(table(node) == "" for node in cluster.nodes)


@pytest.mark.parametrize("failure", ["killed", "stopped", "cut off"])
def test_the_address_moves_when_its_node_fails_and_no_other_source_is_seen_meanwhile(cluster, failure):
    """The address moves within 3 s; on a busy machine the test allows 10 s. Two nodes have the address for at most half
    a second."""
    put(cluster.directory, "egress.yaml", egress_address(addresses=[EGRESS[4]]))
    see_move(cluster, failure)


def test_an_agent_that_ends_gives_the_address_to_another_node_and_leaves_its_pods_a_way(cluster):
    put(cluster.directory, "egress.yaml", egress_address(addresses=[EGRESS[4]]))
    first = holder(cluster.nodes)
    assert eventually(lambda: cluster.leave_by(EGRESS[4]))
    assert first.end() == 0
    assert holder(cluster.nodes) is not first
    assert eventually(lambda: cluster.leave_by(EGRESS[4])), table(first)
    subprocess.run(first.command("--leave"), check=True)
    assert table(first) == ""
    assert "fwmark" not in ip("rule", netns=first.netns)


def test_a_pod_is_closed_before_its_add_answers(cluster):
    """Until the agent has written the pod's route, the pod's packets would leave with the node's own address."""
    put(cluster.directory, "egress.yaml", egress_address(addresses=["203.0.113.9"], namespaces={
        "matchLabels": {"kubernetes.io/metadata.name": "late"}}))
    one, pod = cluster.nodes[0], cluster.pods[0]
    assert eventually(lambda: "203.0.113.9" in str(ask(one, {"do": "status"}))), one.log()
    assert pod.source() == "192.0.2.1"
    assert ask(one, {"do": "protect", "id": ["net", "c1", "eth0"], "pod": "late/a", "uid": "", "labels": {},
                     "addresses": [pod.addresses[4]]}) == {}
    assert pod.source() == ""


def test_another_programs_flush_is_repaired(cluster):
    put(cluster.directory, "egress.yaml", egress_address(addresses=[EGRESS[4]]))
    holder(cluster.nodes)
    assert eventually(lambda: cluster.leave_by(EGRESS[4]))
    pod = next(pod for pod in cluster.pods if EGRESS[4] not in addresses_of(pod.node.netns))
    run("nft", "delete", "table", "inet", "fastcni-egress", check=False, netns=pod.node.netns)
    for line in ip("rule", netns=pod.node.netns).splitlines():
        if "fwmark" in line:
            ip("rule", "del", "priority", line.partition(":")[0], netns=pod.node.netns)
    assert eventually(lambda: pod.source() == EGRESS[4]), pod.node.log()
    assert table(pod.node)                  # since Linux 6.9 no other program can delete the table


def test_explain_names_the_address_and_its_holder(cluster):
    put(cluster.directory, "egress.yaml", egress_address(addresses=[EGRESS[4]]))
    pod = cluster.pods[0]

    def told():
        found = ask(pod.node, {"do": "explain", "address": pod.addresses[4]})["pods"]
        return found and found[0].get("egress_address")         # None or [] until the agent has read the pods' files

    def expected():
        number = holder(cluster.nodes).number       # on a busy machine the address may move
        return {"name": "shop", "address": EGRESS[4], "node": f"192.0.2.{number} 2001:db8::{number}"}

    assert eventually(lambda: told() == expected()), told()
    assert eventually(lambda: "unheld" not in ask(pod.node, {"do": "status"}))


def test_the_benchmark_measures_each_failure_and_leaves_nothing_behind():
    bench = Path(__file__).parents[3] / "benchmarks" / "bench_egress.py"
    printed = run(sys.executable, bench, "--rounds", "1", "--adds", "3")
    assert [line.split("  ")[0] for line in printed.splitlines()[1:]] == ["killed", "stopped", "cut off", "protect"]
    assert "fceg" not in run("ip", "netns", "list")


class Echo:
    """A server in a pod's or node's namespace that answers with the caller's address."""

    def __init__(self, it, family):
        with Inside(it.netns):
            self.sock = socket.create_server(("::", 0) if family == 6 else ("0.0.0.0", 0), family=FAMILIES[family])
        self.port = self.sock.getsockname()[1]
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        with contextlib.suppress(OSError):      # __exit__() closes the socket
            while True:
                one, (host, *_) = self.sock.accept()
                with one:
                    one.sendall(host.encode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.sock.close()


def ask(node, request):
    with Inside(node.netns):
        return client.ask(f"{node.directory}/state/policy.sock", request)


def see_move(cluster, failure):
    """Let the agent that holds the address fail and recover, while pods ask the outside host for their source
    address."""
    first = holder(cluster.nodes)
    assert eventually(lambda: cluster.leave_by(EGRESS[4]))
    failed_pod = next(pod for pod in cluster.pods if pod.node is first)
    others = [pod for pod in cluster.pods if pod.node is not first]
    fail(first, failure)
    seen, both = set(), 0.0
    began = before = time.monotonic()
    while time.monotonic() < began + 10.0:
        held = [node for node in cluster.nodes if EGRESS[4] in addresses_of(node.netns)]
        now = time.monotonic()
        both, before = both + (now - before if len(held) > 1 else 0.0), now
        found = {pod.source() for pod in cluster.pods}
        seen |= found
        if held and first not in held and {pod.source() for pod in others} == {EGRESS[4]}:
            break
    assert holder(cluster.nodes) is not first
    assert {pod.source() for pod in others} == {EGRESS[4]}
    assert seen <= {EGRESS[4], ""}, seen
    assert both < 2.0
    recover(first, failure)
    assert eventually(lambda: failed_pod.source() == EGRESS[4]), (first.log(), table(first))
    assert holder(cluster.nodes) is not first


def fail(node, failure):
    if failure == "killed":
        node.end(signal.SIGKILL)
    elif failure == "stopped":
        stop(node.process.pid)
    else:                               # cut the node off from etcd, but not from the other nodes
        port = node.endpoints[0].rpartition(":")[2]
        rule = f"type filter hook output priority 0\ntcp dport {port} drop\n"
        run("nft", "-f", "-",
            stdin=f"table inet egress-test {{\nchain out {{\n{rule}}}\n}}", netns=node.netns)


def recover(node, failure):
    if failure == "killed":
        node.start()
    elif failure == "stopped":
        node.process.send_signal(signal.SIGCONT)
    else:
        run("nft", "delete", "table", "inet", "egress-test", netns=node.netns)
