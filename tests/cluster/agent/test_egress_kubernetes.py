"""Egress addresses on three nodes with the API mock: agents read documents and pods from the API, and claim by Lease
objects."""

import json
import signal
import sys

import pytest
from cluster.agent.egress_nodes import EGRESS, Outside, Pod, egress_address, holder
from cluster.agent.kubernetes_nodes import BOTH, node_object
from cluster.agent.test_agent import Node
from cluster.agent.test_egress import see_move
from cluster.kubernetes.api_server import Running, kubeconfig, resource

from fastcni.testing.namespaces import ip
from fastcni.testing.witnesses import eventually

pytestmark = pytest.mark.needs("root")
HOST = "192.0.2.254"
CRD = resource("policy.fastcni.dev", "v1alpha1", "egressaddresses")


class KubernetesNode(Node):
    """A Node whose agent reads its complete configuration from the API server."""

    def command(self, *more):
        return ["ip", "netns", "exec", self.netns, sys.executable, "-m", "fastcni", "agent", "--iface", "eth0",
                "--kubernetes", f"{self.directory}/kubeconfig", "--net-conf", f"{self.directory}/net-conf.json",
                "--node-name", f"n{self.number}", "--subnet-file", f"{self.directory}/subnet.env", "--conflist",
                f"{self.directory}/net.conflist", "--folder", f"{self.directory}/state", "--policies", "kubernetes",
                *more]


class Cluster:
    """Three nodes with one pod each."""

    def __init__(self, server, made, pod_netns):
        self.server, self.nodes = server, made
        server.do(lambda api: api.served.add(CRD))
        server.do(lambda api: api.put("namespaces", {"metadata": {"name": "shop"}}))
        for node in made:
            server.do(lambda api, number=node.number: api.put("nodes", node_object(number)))
            (node.directory / "kubeconfig").write_text(kubeconfig(server.url))
            (node.directory / "net-conf.json").write_text(json.dumps(BOTH))
            node.start()
        self.pods = []
        for node in made:
            assert eventually((node.directory / "net.conflist").exists, 30), node.log()
            self.pods.append(pod := Pod(node, pod_netns()))
            document = pod.document(f"p{node.number}") | {"spec": {"nodeName": f"n{node.number}", "containers": []}}
            server.do(lambda api, document=document: api.put("pods", document, "shop"))

    def put(self, document):
        self.server.do(lambda api: api.put("egressaddresses.policy.fastcni.dev", document, version="v1alpha1"))

    def lease(self):
        """Return the holder's name in the Lease."""
        return self.server.do(lambda api: [it["spec"]["holderIdentity"] for (kind, _, name), it in api.stored.items()
                                           if kind.plural == "leases" and name.startswith("fastcni-egress-")])

    def leave_by(self, address):
        """Return whether the outside host sees this address as the source of each pod."""
        return all(pod.source() == address for pod in self.pods)


@pytest.fixture
def cluster(host_netns, pod_netns, tmp_path):
    ip("link", "add", "wire", "up", "type", "bridge")
    ip("addr", "add", f"{HOST}/24", "dev", "wire")
    outside = Outside()
    made = [KubernetesNode(number, pod_netns(), [], tmp_path) for number in (1, 2, 3)]
    try:
        with Running(HOST) as server:
            for node in made:
                node.endpoints = [server.url]
            yield Cluster(server, made, pod_netns)
            for node in made:
                node.end(signal.SIGKILL)
    finally:
        for node in made:
            node.end(signal.SIGKILL)
        outside.close()


@pytest.mark.parametrize("failure", ["killed", "stopped", "cut off"])
def test_the_address_moves_when_its_node_fails_and_no_other_source_is_seen_meanwhile(cluster, failure):
    """The test takes some fifteen seconds: three agents start, and the failed agent returns after the end of its
    Lease."""
    cluster.put(egress_address(addresses=[EGRESS[4]]))
    first = holder(cluster.nodes)
    assert cluster.lease() == [f"n{first.number}"]
    see_move(cluster, failure)
    assert cluster.lease() == [f"n{holder(cluster.nodes).number}"]


def test_a_document_that_is_deleted_gives_pods_their_way_back(cluster):
    cluster.put(egress_address(addresses=[EGRESS[4]]))
    assert eventually(lambda: cluster.leave_by(EGRESS[4])), [node.log() for node in cluster.nodes]
    cluster.server.do(lambda api: api.drop("egressaddresses.policy.fastcni.dev", "shop", version="v1alpha1"))
    assert eventually(lambda: [pod.source() for pod in cluster.pods] == [f"192.0.2.{number}" for number in (1, 2, 3)])
