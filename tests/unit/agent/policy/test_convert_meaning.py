"""The policies that `fastcni policy convert` writes give Calico's verdicts, or an error names the part that was not
converted."""

import pytest
from unit.agent.policy import calico

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.convert import convert
from fastcni.agent.policy.evaluate import Connection, evaluate
from fastcni.agent.policy.objects import PROTOCOLS, read_pod
from fastcni.agent.policy.sources.content import Content
from fastcni.agent.policy.sources.documents import encode, reduced
from fastcni.agent.policy.sources.files import run
from fastcni.spec.address import read_ip

EXACT_NOTES = ("selectors match pods only", "without an order",
               "port 0")       # for the packets of this test, these notes change no verdict
ICMP = 1


def cluster_of(documents):
    content = Content(Compiler())
    for name, labels in calico.NAMESPACES.items():
        content.compiler.put_namespace(name, {**labels, "kubernetes.io/metadata.name": name})
    for number, (address, (namespace, labels)) in enumerate(calico.PODS.items()):
        content.compiler.put_pod(read_pod({
            "metadata": {"name": f"pod{number}", "namespace": namespace, "labels": labels},
            "status": {"podIP": address},
            "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 80}]}]}}))
    run(content.replace("all", [("", encode(reduced(each))) for each in documents]))
    assert not content.errors
    return content.compiler.cluster


def kubernetes_policy(calicos):
    """Return the NetworkPolicy of calico.cluster() as a Kubernetes document."""
    return [{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": each["metadata"], "spec": {
        "podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": [{"port": 80}]}], "egress": [{"ports": [{"port": 80}]}]}}
        for each in calicos if each["apiVersion"] == "networking.k8s.io/v1"]


def judged(seed):
    """Return (Calico's documents, the result of convert(), different), where `different` lists (packet, Calico's
    verdict, fastcni's verdict) if the two verdicts differ."""
    documents = calico.cluster(seed)
    found = convert((f"document {number}", each) for number, each in enumerate(documents))
    cluster = cluster_of([*found.documents, *kubernetes_policy(documents)])
    different = []
    for packet in calico.packets():
        by_calico = calico.allowed(documents, packet)
        connection = Connection(read_ip(packet.source), read_ip(packet.destination),
                                PROTOCOLS.get(packet.protocol, ICMP),
                                packet.port)
        if evaluate(cluster, connection).allowed != by_calico:
            different.append((packet, by_calico, not by_calico))
    return documents, found, different


@pytest.mark.parametrize("begin", range(0, 400, 100))
def test_a_conversion_without_errors_opens_nothing_and_without_notes_changes_nothing(begin):
    """If the conversion lost a deny rule or the end of a policy, pods would be open."""
    complete = exact = 0
    for seed in range(begin, begin + 100):
        documents, found, different = judged(seed)
        if not any("is not converted" in text for text in found.errors):
            complete += 1
            assert [each for each in different if not each[1]] == [], (seed, documents, found.documents)
        if not found.errors and all(any(known in note for known in EXACT_NOTES) for note in found.notes):
            exact += 1
            assert different == [], (seed, documents, found.documents)
    assert complete > 30 and exact > 5    # else too few of the random policies were converted
