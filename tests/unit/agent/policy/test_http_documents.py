"""Documents of kind CiliumNetworkPolicy: what they allow together with other policies, and what an unreadable document
closes."""

import json

import pytest
from unit.agent.policy.http_pods import http, policy

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.evaluate import Connection, evaluate
from fastcni.agent.policy.http.documents import HttpRule, Request, read_cilium_policy
from fastcni.agent.policy.http.patterns import PatternError, read_pattern
from fastcni.agent.policy.interpret import allows
from fastcni.agent.policy.objects import Block, Group, Pod, PolicyError, Rule, RulePort, Selector, read_policy
from fastcni.agent.policy.sources.content import Content
from fastcni.agent.policy.sources.documents import encode, read_entry, reduced
from fastcni.spec.address import read_ip

TCP, UDP, SCTP = 6, 17, 132
WEB = {"matchLabels": {"k8s:app": "web"}}


def read(**spec):
    return read_cilium_policy(policy(**spec))


def test_a_rule_has_the_peers_of_its_item_and_the_ports_and_requests_of_each_item_of_toPorts():
    found = read(ingress=[{"fromEndpoints": [WEB], "toPorts": [
        {"ports": [{"port": "80"}, {"port": "web", "protocol": "TCP"}],
         "rules": {"http": [{"method": "GET|HEAD", "path": "/a.*", "host": "b", "headers": ["X-A: 1 2", "X-B"]}]}},
        {"ports": [{"port": "8000", "endPort": 8010, "protocol": "UDP"}]}]}])
    assert found.key == "default/web (Cilium)" and found.egress is None
    first, second = found.ingress
    group = Group("default", Selector(first.peers[0].pods.requirements))
    assert first == HttpRule((group,), (RulePort(TCP, 80, 80), RulePort(TCP, name="web")), (
        Request("GET|HEAD", "/a.*", "b", (("x-a", "1 2"), ("x-b", ""))),))
    assert second == Rule((group,), (RulePort(UDP, 8000, 8010),))
    assert [one.key for one in group.pods.requirements] == ["app"]


@pytest.mark.parametrize("items, rules", [
    ([], ()), ([{}], ()), ([{"fromEndpoints": []}], ()),
    ([{"fromEndpoints": [{}]}], (Rule((Group("default", Selector()),)),)),
    ([{"toPorts": [{"ports": [{"port": "53"}]}]}],
     (Rule((), tuple(RulePort(each, 53, 53) for each in (TCP, UDP, SCTP))),)),
    ([{"fromEndpoints": [{"matchLabels": {"k8s:io.kubernetes.pod.namespace": "shop"}}]}],
     (Rule((Group("shop", Selector()),)),))])
def test_an_item_without_peers_and_ports_allows_nothing(items, rules):
    """In a NetworkPolicy such an item would allow everything."""
    assert read(ingress=items).ingress == rules


def test_a_block_is_a_network():
    assert read(egress=[{"toCIDR": ["10.0.0.0/8"]}]).egress == (Rule((Block((read_ip("10.0.0.0"), 8)),)),)


UNREADABLE = {
    "ingress[0].fromEntities": {"ingress": [{"fromEntities": ["world"]}]},
    "ingressDeny": {"ingress": [], "ingressDeny": [{}]},
    "egress[0].toFQDNs": {"egress": [{"toFQDNs": [{"matchName": "a.b"}]}]},
    "egress[0].toPorts[0].rules.dns": {"egress": [{"toPorts": [{"ports": [{"port": "53"}], "rules": {"dns": [{}]}}]}]},
    "ingress[0].toPorts[0].rules.http[0].headerMatches": {"ingress": [http({"headerMatches": []})]},
    "ingress[0].toPorts[0].rules.http[0].path": {"ingress": [http({"path": "(a+)+"})]},
    "ingress[0].toPorts[0].rules.http[0].headers": {"ingress": [http({"headers": ["X-A: 1\r\nX: 2"]})]},
    "ingress[0].toPorts[0].rules.http: expected 1": {"ingress": [http()]},
    "ingress[0].toPorts[0].ports[0].protocol": {"ingress": [{"toPorts": [
        {"ports": [{"port": "80", "protocol": "UDP"}], "rules": {"http": [{}]}}]}]},
    "ingress[0].toPorts[0].ports[0].port": {"ingress": [http({}, port="0")]},
    "ingress[0].toPorts[0].terminatingTLS": {"ingress": [{"toPorts": [{"terminatingTLS": {}}]}]},
    "egress[0]: toEndpoints and toCIDR": {"egress": [{"toEndpoints": [{}], "toCIDR": ["10.0.0.0/8"]}]},
    "expected ingress or egress": {},
}


@pytest.mark.parametrize("said", UNREADABLE)
def test_another_key_is_an_error_that_names_it(said):
    with pytest.raises(PolicyError) as raised:
        read(**UNREADABLE[said])
    assert said in str(raised.value)


@pytest.mark.parametrize("said", UNREADABLE)
def test_a_document_with_another_key_closes_what_it_selects(said):
    """An unreadable document closes the directions that it names, or both directions if it names none."""
    spec = UNREADABLE[said]
    line = encode(reduced(policy(**spec)))
    entry = read_entry(line)
    (closed,) = entry.records.values()
    assert entry.error and closed.key == "default/web (Cilium)"
    assert [one.values for one in closed.pods.pods.requirements] == [frozenset({"web"})]
    directions = {key for key in ("ingress", "egress") if key in spec} or {"ingress", "egress"}
    assert {key for key in ("ingress", "egress") if getattr(closed, key) == ()} == directions


def test_a_document_that_names_no_pods_closes_its_namespace():
    document = policy(ingress=[])
    document["spec"]["endpointSelector"] = {"matchLabels": {"reserved:host": ""}}
    (closed,) = read_entry(encode(reduced(document))).records.values()
    assert closed.key == "default/web (Cilium) (unreadable)" and closed.pods == Group("default", Selector())


def test_a_list_of_specs_closes_and_documents_of_other_versions_are_passed_over():
    assert read_entry(encode(reduced({**policy(ingress=[]), "specs": [{}]}))).error
    assert reduced({**policy(), "apiVersion": "projectcalico.org/v3"}) is None


def test_a_cilium_policy_and_a_network_policy_of_one_name_both_count():
    content = Content(Compiler())
    documents = [policy(ingress=[http({})]), {"kind": "NetworkPolicy", "metadata": {"name": "web"}, "spec": {}}]
    for _ in content.replace("a.yaml", [("", encode(reduced(json.loads(json.dumps(each))))) for each in documents]):
        pass
    assert set(content.compiler.cluster.policies) == {"default/web", "default/web (Cilium)"}


@pytest.mark.parametrize("text", ["", "a" * 513, "é", "a\nb", "(?i)a", "(?=a)", "a++", "a*?", r"\1(a)", r"\Qa", r"\K",
                                  "(", "[a", "(a*)*", "((a|b)+c?)*", "(a{2,})+", "a{9999}", "[[:alpha:]]", "(*FAIL)",
                                  "*a"])
def test_patterns_that_dialects_read_in_different_ways_or_that_take_long_are_refused(text):
    with pytest.raises(PatternError):
        read_pattern(text)


@pytest.mark.parametrize("text", ["GET|HEAD", "/v[0-9]+/(a|b)?/.*", r"api\.shop(:80)?", "[^/]+", "(ab+)?", r"\d{1,3}",
                                  "it's"])
def test_usual_patterns_are_accepted(text):
    assert read_pattern(text) == text


CLIENT, SERVER = read_ip("10.0.0.1"), read_ip("10.0.0.2")


@pytest.mark.parametrize("others, direct, proxied", [
    ([], False, True),
    ([{"kind": "NetworkPolicy", "metadata": {"name": "a"}, "spec": {"podSelector": {}, "ingress": [{}]}}], True, True),
    ([{"kind": "NetworkPolicy", "metadata": {"name": "z"}, "spec": {"podSelector": {}}}], False, True)])
def test_only_what_rules_by_requests_alone_allow_has_to_go_through_the_proxy(others, direct, proxied):
    """If a rule without requests allows a connection, the connection does not pass through the proxy. Connections that
    already pass through the proxy continue."""
    it = Compiler()
    it.put_pod(Pod("default", "web", {"app": "web"}, (SERVER,)))
    for each in (read(ingress=[http({"method": "GET"})]), *map(read_policy, others)):
        it.put_policy(each)
    asked = Connection(CLIENT, SERVER, TCP, 80)
    assert (allows(it.state, asked), allows(it.state, asked, proxied=True)) == (direct, proxied)
    found = evaluate(it.cluster, asked)
    assert found.allowed and found.ingress.by_request == (not direct)
    other = Connection(CLIENT, SERVER, TCP, 81)
    assert (allows(it.state, other), allows(it.state, other, proxied=True)) == (direct, direct)
