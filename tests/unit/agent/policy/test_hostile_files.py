"""Policy files with hostile content, written while the agent runs. The agent closes the pods that they select, and no
request waits."""

import json
import time
from types import SimpleNamespace

import pytest
from unit.agent.policy.pods import ADDRESSES
from unit.agent.policy.test_service import DB, WEB_ONLY, allowed, node, running  # noqa: F401 - fixtures

from fastcni.node import pod_policies
from fastcni.node.checks import policy as checks_policy
from fastcni.runtime import parse
from fastcni.testing.witnesses import eventually

ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{each}: &a{each} [{', '.join([f'*a{each - 1}'] * 9)}]\n" for each in range(1, 12)) + "kind: NetworkPolicy\n"
HOSTILE = {
    "brackets": "[" * 2000, "aliases": ALIASES, "a selector of aliases": f"{ALIASES}spec: {{podSelector: *a11}}\n",
    "many documents": "---\n" * 100_000, "merges": "x: &x {a: 1}\n" + "y: {<<: [*x, *x]}\n" * 9999,
    "a harmless list": "kind: List\nitems:\n" + "".join(
        f"- {{kind: ConfigMap, metadata: {{name: c{each}, labels: {{app: web, tier: front}}}}}}\n"
        for each in range(6000))}
WAIT_S = 5.0  # far more than 50 ms, the time on an idle machine; before the fix, each of these files took longer


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_add_and_no_other_policy_waits_for_a_file(running, node, text):  # noqa: F811
    """Once, 2,000 brackets took 0.9 s of the policies' thread, and 2 KB of aliases took 700 MB of memory."""
    running.add("b", app="db")
    (running.directory / "hostile.yaml").write_text(text)
    running.write(WEB_ONLY)
    began = time.monotonic()
    running.add("a", app="web")
    assert eventually(lambda: allowed(node, "a"))
    assert time.monotonic() - began < WAIT_S
    assert eventually(lambda: not running.it.source.busy)
    readable = text in (HOSTILE["a harmless list"], HOSTILE["many documents"])
    assert list(running.it.errors) == ([] if readable else [str(running.directory / "hostile.yaml")])


@pytest.mark.parametrize("name, text", [
    ("x.json", json.dumps({"kind": "NetworkPolicyList", "items": [{"metadata": {"name": "x"}, "spec": DB}]})),
    ("x.json", json.dumps({**WEB_ONLY, "spec": {**DB, "ingress": "X"}}).replace('"X"', "[" * 3000 + "]" * 3000)),
    ("x.json", json.dumps({**WEB_ONLY, "spec": {**DB, "ingress": [{"ports": [{"port": "X"}]}]}}).replace(
        '"X"', "8" * 4400)),
    ("x.yaml", "kind: NetworkPolicy\nmetadata: {name: x}\nspec: {podSelector: {matchLabels: {app: null}}}\n"),
    ("x.yaml", "kind: NetworkPolicy\nmetadata: {name: x}\nspec: null\n"), ("x.yaml", "kind: NetworkPolicy\nspec: {}\n"),
    ("x.yaml", "kind: NetworkPolicy\nmetadata: {name: x}\nspec: {podSelector: {matchlabels: {app: web}}, "
               "policyTypes: [Ingress]}\n")])
def test_what_a_policy_selects_is_closed_also_if_it_cannot_be_read(running, node, name, text):  # noqa: F811
    running.add("b", app="db")
    (running.directory / name).write_text(text)
    assert eventually(lambda: len(running.it.compiler.cluster.policies) == 1)
    assert eventually(lambda: allowed(node))


def test_the_log_metrics_and_doctor_name_file_document_and_key(running):  # noqa: F811
    (running.directory / "x.yaml").write_text("kind: Namespace\nmetadata: {name: shop}\n---\nkind: NetworkPolicy\n"
                                           "metadata: {name: web, namespace: shop}\nspec: {podSelector: 5}\n")
    where = f"{running.directory}/x.yaml: document 2: NetworkPolicy shop/web: spec.podSelector: expected a mapping"
    assert eventually(lambda: {"event": "policy_unreadable", "error": where} in running.log)
    assert running.it.figures()["unreadable_documents"] == 1
    network = parse.parse_list(json.dumps({"name": "net", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge"}, {"type": "policy", "agentSocketPath": running.settings.socket}]}).encode())
    (finding,) = checks_policy.agent(SimpleNamespace(networks=[network], agent_folder=""))
    assert finding.what == f"network policies: {where}" and finding.severity == "warning"
    running.call("STATUS")                              # STATUS reports that pods can be added
    running.add("a")
    assert list(pod_policies.texts_on([network], ADDRESSES["a"][0]))
    (running.directory / "x.yaml").unlink()
    assert eventually(lambda: list(checks_policy.agent(SimpleNamespace(networks=[network], agent_folder=""))) == [])
    assert running.it.figures()["unreadable_documents"] == 0


def test_the_log_metrics_and_doctor_name_a_policy_of_another_program(running):  # noqa: F811
    """Once, the agent skipped the document without a message, so the operator believed that the policy applied."""
    (running.directory / "x.yaml").write_text("kind: AdminNetworkPolicy\n"
                                              "apiVersion: policy.networking.k8s.io/v1alpha1\n"
                                           "metadata: {name: all}\nspec: {}\n")
    where = (f"{running.directory}/x.yaml: AdminNetworkPolicy all of policy.networking.k8s.io/v1alpha1 "
             "is not enforced; "
             "fastcni policy convert makes policies of it that are")
    assert eventually(lambda: {"event": "policy_unreadable", "error": where} in running.log)
    assert running.it.figures()["unreadable_documents"] == 1
    assert [each.what for each in findings(running)] == [f"network policies: {where}"]
    running.add("a")


def findings(running):  # noqa: F811
    """Return the findings of `fastcni doctor` on the agent."""
    network = parse.parse_list(json.dumps({"name": "net", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge"}, {"type": "policy", "agentSocketPath": running.settings.socket}]}).encode())
    return list(checks_policy.agent(SimpleNamespace(networks=[network], agent_folder="")))


def test_a_file_with_hundreds_of_mistakes_does_not_fill_the_log(running):  # noqa: F811
    (running.directory / "x.json").write_text(json.dumps({"kind": "List", "items": [
        {"kind": "NetworkPolicy", "metadata": {"name": f"p{number}"}, "spec": number} for number in range(300)]}))
    assert eventually(lambda: running.it.figures()["unreadable_documents"] == 300)
    found = findings(running)
    assert found[-1].what == "network policies: 280 more documents" and len(found) == 21
    assert running.events().count("policy_unreadable") == 20
