"""`fastcni explain` and `fastcni doctor`: their output for egress addresses. The test supplies the agent's answers."""

import json
from types import SimpleNamespace

from fastcni.kit import policies
from fastcni.node import pod_policies
from fastcni.node.checks import policy
from fastcni.runtime import parse_list

NETWORK = parse_list(json.dumps({
    "cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "ptp"}, {"type": "policy"}]}).encode())
POD = {"pod": "shop/a", "ingress": [], "egress": []}


def test_explain_names_the_egress_address_and_its_holder(monkeypatch):
    found = {"name": "billing", "address": "192.0.2.50", "node": "192.0.2.7"}
    monkeypatch.setattr(policies, "ask", lambda path, request: {"pods": [{**POD, "egress_address": found}]})
    assert list(pod_policies.texts_on([NETWORK], "10.244.1.5"))[1:] == [
        "10.244.1.5 leaves the cluster from 192.0.2.50 of EgressAddress billing, which the node 192.0.2.7 holds"]
    found["address"] = ""
    assert list(pod_policies.texts_on([NETWORK], "10.244.1.5"))[1:] == [
        "10.244.1.5 does not leave the cluster: no node holds an address of EgressAddress billing"]


def test_doctor_names_an_address_that_no_node_holds(monkeypatch):
    monkeypatch.setattr(policies, "ask", lambda path, request: {"folder": "", "unheld": ["192.0.2.50"]})
    (finding,) = policy.agent(SimpleNamespace(networks=[NETWORK], unseen=[], agent_folder=""))
    assert "no node holds the egress address 192.0.2.50" in str(finding)
