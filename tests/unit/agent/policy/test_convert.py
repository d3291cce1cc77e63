"""`fastcni policy convert`: Calico's selectors, rejected keys, AdminNetworkPolicies, exit statuses."""

import json

import pytest
import yaml
from click.testing import CliRunner

from fastcni.agent.policy.cluster_policies import read_cluster_policy
from fastcni.agent.policy.convert import convert
from fastcni.agent.policy.convert.selectors import SelectorError, alternatives, label_selector
from fastcni.cli.commands import cli

ANYWHERE = {"action": "Allow"}
LABEL = {"matchLabels": {"app": "web"}}


def selector(text, **how):
    return [label_selector(each) for each in alternatives(text, **how)]


def expression(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


@pytest.mark.parametrize("text, found", [
    ("", [{}]), ("all()", [{}]), ("app == 'web'", [LABEL]), ('app=="web"', [LABEL]),
    ("app != 'web'", [expression("app", "NotIn", "web")]), ("has(a/b.c)", [expression("a/b.c", "Exists")]),
    ("!has(a)", [expression("a", "DoesNotExist")]), ("a in {'x', \"y\"}", [expression("a", "In", "x", "y")]),
    ("a not in {'x'}", [expression("a", "NotIn", "x")]), ("app == 'web' || has(a)", [LABEL, expression("a", "Exists")]),
    ("has(a) && (app == 'web' || b == 'c')", [{**LABEL, **expression("a", "Exists")},
                                              {"matchLabels": {"b": "c"}, **expression("a", "Exists")}]),
    ("!(a == 'b' || has(c))", [{"matchExpressions": [
        {"key": "a", "operator": "NotIn", "values": ["b"]}, {"key": "c", "operator": "DoesNotExist"}]}]),
    ("!(a == 'b' && has(c))", [expression("a", "NotIn", "b"), expression("c", "DoesNotExist")]),
    ("!!all()", [{}]), ("!all()", []), ("app == 'web' && app == 'db'", [{**LABEL, **expression("app", "In", "db")}])])
def test_a_selector_of_calico_becomes_selectors_of_kubernetes(text, found):
    assert selector(text) == found


def test_a_negated_selector_is_its_complement():
    assert selector("a == 'b' || has(c)", negated=True) == selector("a != 'b' && !has(c)")


@pytest.mark.parametrize("text, why", [
    ("a contains 'b'", "a contains"), ("a starts with 'b'", "starts with"), ("global()", r"global\(\)"),
    ("a = 'b'", "from"),
    ("a == b", "a value in quotes"), ("a == 'b", "from"), ("has(a", r"expected \)"), ("has(a) has(b)", "&&"),
    ("a like 'b'", "is not known"),
    ("(" * 99 + "all()" + ")" * 99, "deeper than 32"), ("!" * 99 + "all()", "deeper"), ("a" * 5000, "4096 characters"),
    (" && ".join(f"(has(a{number}) || has(b{number}))" for number in range(30)), "25 alternatives"),
    ("a in {}", "value")])
def test_a_selector_that_kubernetes_cannot_express_is_refused(text, why):
    with pytest.raises(SelectorError, match=why):
        alternatives(text)


def calico(kind="GlobalNetworkPolicy", **spec):
    return {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": "p"}, "spec": spec}


def of_namespace(*ingress, **spec):
    return calico("NetworkPolicy", ingress=list(ingress), **spec)


def egress(*rules, **spec):
    return calico(**{"order": 10, "types": ["Egress"], "egress": list(rules), "namespaceSelector": "all()", **spec})


def converted(*documents):
    return convert((f"file: document {number}", each) for number, each in enumerate(documents))


def deny(**destination):
    return {"action": "Deny", "destination": destination}


@pytest.mark.parametrize("document, key", [
    (egress(ANYWHERE, tier="security"), "spec.tier"), (egress(ANYWHERE, order=1.5), "spec.order"),
    (egress(ANYWHERE, order=2000), "spec.order"), (egress(ANYWHERE, order=True), "spec.order"),
    (egress(ANYWHERE, doNotTrack=True), "spec.doNotTrack"), (egress(ANYWHERE, preDNAT=True), "spec.preDNAT"),
    (egress(ANYWHERE, applyOnForward=True), "spec.applyOnForward"), (egress(ANYWHERE, later=1), "spec.later"),
    (egress(ANYWHERE, serviceAccountSelector="all()"), "spec.serviceAccountSelector"),
    (egress(ANYWHERE, selector="a == 'b' || c == 'd'"), "spec.selector"),
    (egress(ANYWHERE, selector="!all()"), "spec.selector"),
    (egress(ANYWHERE, selector="a"), "spec.selector"), (egress(ANYWHERE, types=["ingress"]), "spec.types"),
    (egress(ANYWHERE, selector="pcsa.role == 'x'"), "selector"), (egress(deny(services={"name": "x"})), "services"),
    (egress(deny(serviceAccounts={"names": ["x"]})), "serviceAccounts"),
    (egress(deny(notSelector="has(a)")), "notSelector"),
    (egress(deny(selector="has(a)", nets=["10.0.0.0/8"])), "destination"), (egress(deny(nets=["10.0.0.0/99"])), "nets"),
    (egress(deny(notPorts=[80])), "notPorts"), (egress({"action": "Pass"}), "action"),
    (egress({"action": "deny"}), "action"),
    (egress({"action": "Deny", "protocol": "ICMP"}), "protocol"),
    (egress({"action": "Deny", "notProtocol": "TCP"}), "notProtocol"),
    (egress({"action": "Deny", "icmp": {"type": 8}}), "icmp"), (egress({"action": "Deny", "http": {}}), "http"),
    (egress({"action": "Deny", "protocol": "TCP", "destination": {"ports": [0]}}), "destination.ports"),
    (egress({"action": "Deny", "protocol": "TCP", "destination": {"ports": ["9:8"]}}), "destination.ports"),
    (egress({"action": "Deny", "protocol": "TCP", "destination": {"ports": ["http"]}}), "spec.egress[0]"),
    (egress({"action": "Deny", "destination": {"ports": [80]}}), "protocol"),
    (egress({"action": "Deny", "source": {"nets": ["10.0.0.1/32"]}}), "source.nets"),
    (egress({"action": "Deny", "protocol": "TCP", "source": {"ports": [80]}}), "source.ports"),
    (egress({"action": "Deny", "ipVersion": 5}), "ipVersion"), (egress({"action": "Deny", "ipVersion": 4,
        "destination": {"selector": "has(a)"}}), "destination"),
    (calico(ingress=[]), "spec.ingress"), (calico(ingress=[{"action": "Deny"}, ANYWHERE]), "spec.ingress[0]"),
    (calico(ingress=[{"action": "Deny", "source": {"nets": ["192.0.2.0/24"]}}, ANYWHERE]), "spec.ingress[0]"),
    (of_namespace({"action": "Deny", "source": {"nets": ["192.0.2.0/24"]}}), "spec.ingress[0]"),
    ({**egress(ANYWHERE), "apiVersion": "projectcalico.org/v2"}, "apiVersion"),
    ({**egress(ANYWHERE), "spec": None}, "spec"),
    ({**egress(ANYWHERE), "kind": "GlobalNetworkSet"}, "apiVersion"),
    ({"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": "p"}}, "apiVersion")])
def test_what_would_open_is_refused_with_its_key_and_converts_nothing(document, key):
    found = converted(document)
    (error,) = found.errors
    assert found.documents == []
    assert error.startswith(f"file: document 0: {document['kind']} ") and "not converted" in error
    assert f"{key}: " in error


@pytest.mark.parametrize("rule, key", [
    ({"action": "Allow", "protocol": "ICMP"}, "protocol"),
    ({"action": "Allow", "source": {"ports": [80]}}, "source.ports"),
    ({"action": "Allow", "source": {"notSelector": "has(a)"}}, "source.notSelector")])
def test_an_allowing_rule_that_cannot_be_expressed_is_left_out_and_named(rule, key):
    found = converted(of_namespace(rule, {"action": "Allow", "source": {"selector": "has(a)"}}))
    (error,), (document,) = found.errors, found.documents
    assert f"spec.ingress[0].{key}: " in error and error.endswith("the rule allows nothing")
    assert document["spec"]["ingress"] == [{"from": [{"podSelector": expression("a", "Exists")}]}]


def test_one_direction_is_converted_although_the_other_one_is_not():
    found = converted(calico(order=1, types=["Ingress", "Egress"], namespaceSelector="all()"))
    assert [error.endswith("the direction Ingress is not converted") for error in found.errors] == [True]
    (end,) = found.documents
    assert end["spec"]["egress"] == [{"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "::/0"]}]}]
    assert end["spec"]["tier"] == "Baseline" and "ingress" not in end["spec"]


def test_more_networks_than_a_peer_may_have_become_several_peers_and_rules():
    nets = [f"10.{number}.0.0/16" for number in range(0, 60, 2)]
    (admin, end) = converted(egress(deny(nets=nets))).documents
    (rule,) = admin["spec"]["egress"]
    assert [len(peer["networks"]) for peer in rule["to"]] == [25, 5] and rule["action"] == "Deny"
    assert sorted(text for peer in rule["to"] for text in peer["networks"]) == sorted(nets)
    assert end["metadata"]["name"] == "p-end"


def test_deny_without_an_order_leaves_open_what_a_network_policy_of_kubernetes_allows():
    """Calico evaluates NetworkPolicies, whose order is 1000, before a policy without an order."""
    admin, end = converted(calico(types=["Egress"], egress=[deny(nets=["10.0.0.0/8"])])).documents
    assert (admin["spec"]["priority"], admin["spec"]["egress"][0]["action"]) == (1000, "Pass")
    assert (end["spec"]["tier"], end["spec"]["egress"][0]["action"]) == ("Baseline", "Deny")


def test_a_network_policy_allows_nothing_that_deny_without_an_order_comes_before():
    """In the converted policy, Pass would continue with the NetworkPolicy. That would open connections that Calico's
    deny rule closes."""
    found = converted(of_namespace({"action": "Deny", "source": {"selector": "has(a)"}},
                                   {"action": "Allow", "source": {"nets": ["10.0.0.0/8"]}}))
    assert ["spec.ingress[1]: " in error and "give the policy an order" in error for error in found.errors] == [True]
    assert found.documents[1]["spec"]["ingress"] == []


def test_a_network_that_is_excluded_as_a_whole_allows_nothing():
    (document,) = converted(of_namespace({"action": "Allow", "source": {
        "nets": ["10.1.0.0/16"], "notNets": ["10.0.0.0/8"]}})).documents
    assert document["spec"]["ingress"] == []


def of_calico(kind, name, namespace=None, **spec):
    return {"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "spec": spec,
            "metadata": {"name": name, **({"namespace": namespace} if namespace else {})}}


def test_an_empty_text_is_no_selector_of_namespaces():
    peers = {"namespaceSelector": "", "selector": "app == 'web'"}
    found = convert([("f", of_calico("NetworkPolicy", "web", "prod", order=10, selector="all()", types=["Ingress"],
                                     ingress=[{"action": "Allow", "source": peers}]))])
    (it,) = found.documents
    assert it["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]


@pytest.mark.parametrize("excepted, found", [
    (["10.0.0.0/8"], ["0.0.0.0/0"]), (["0.0.0.0/0"], []), (["fd00::/8"], ["::/0"]),
    (["10.0.0.0/8", "fd00::/8"], ["0.0.0.0/0", "::/0"])])
def test_a_rule_that_excepts_networks_of_one_version_is_of_this_version(excepted, found):
    (it,) = convert([("f", of_calico("NetworkPolicy", "out", "prod", order=10, selector="all()", types=["Egress"],
                                     egress=[{"action": "Allow", "destination": {"notNets": excepted}}]))]).documents
    assert [peer["ipBlock"]["cidr"] for rule in it["spec"]["egress"] for peer in rule["to"]] == found


def test_no_document_takes_the_name_of_another_one():
    """Two documents need two names. With one name, the API server would keep only the last document, and the pods of
    the first document would be open."""
    ends = {"selector": "all()", "types": ["Egress"]}
    allow, deny = ({"action": action, "destination": {"nets": [net]}} for action, net in (
        ("Allow", "10.0.0.0/8"), ("Deny", "1.0.0.0/8")))
    found = convert([
        ("f", of_calico("GlobalNetworkPolicy", "x", order=10, egress=[allow], **ends)),
        ("g", of_calico("GlobalNetworkPolicy", "x-end", order=11, egress=[deny, {"action": "Allow"}], **ends))])
    names = [it["metadata"]["name"] for it in found.documents]
    assert "x-end" in names and len(names) == len(set(names))
    assert [text for text in found.errors if text.startswith("g: ") and "ClusterNetworkPolicy x-end exists" in text]
    own = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}},
           "metadata": {"name": "d", "namespace": "prod"}}
    it = of_calico("NetworkPolicy", "d", "prod", order=10, selector="all()", types=["Ingress"])
    found = convert([("f", it), ("g", own)])
    assert not found.documents and "NetworkPolicy prod/d exists already" in found.errors[0]


def test_log_is_left_out_with_a_note():
    found = converted(egress({"action": "Log"}, ANYWHERE))
    assert found.errors == [] and any("spec.egress[0]: Log is left out" in note for note in found.notes)


def test_the_name_of_a_namespace_is_selected_by_its_own_label():
    (admin, *_) = converted(egress(deny(nets=["10.0.0.0/8"]),
                                   selector="projectcalico.org/namespace == 'shop' && app == 'web'"
                                   " && projectcalico.org/orchestrator == 'k8s'")).documents
    assert admin["spec"]["subject"]["pods"] == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}, "podSelector": LABEL}


# -- AdminNetworkPolicy ------------------------------------------------------------------------------------------------

def admin_policy(kind="AdminNetworkPolicy", **spec):
    return {"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "default"},
            "spec": {"subject": {"namespaces": {}}, **spec}}


def admin_rule(action="Allow", **more):
    return {"name": "x", "action": action, "from": [{"namespaces": {}}], **more}


def test_an_admin_network_policy_is_converted_rule_by_rule():
    ports = [{"portNumber": {"port": 80}}, {"portRange": {"protocol": "UDP", "start": 5, "end": 9}},
             {"namedPort": "web"},
             {"portRange": {"protocol": "SCTP", "start": 7, "end": 7}}]
    found = converted(admin_policy(priority=7, ingress=[admin_rule(ports=ports), admin_rule("Deny"),
                                                        admin_rule("Pass")],
                                   egress=[{"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}, {"nodes": {}}]}]))
    assert found.errors == [] and found.notes == []
    (document,) = found.documents
    assert document["apiVersion"] == "policy.networking.k8s.io/v1alpha2" and document["kind"] == "ClusterNetworkPolicy"
    spec = document["spec"]
    assert (spec["tier"], spec["priority"], spec["subject"]) == ("Admin", 7, {"namespaces": {}})
    assert [rule["action"] for rule in spec["ingress"]] == ["Accept", "Deny", "Pass"]
    assert spec["ingress"][0]["protocols"] == [
        {"tcp": {"destinationPort": {"number": 80}}}, {"udp": {"destinationPort": {"range": {"start": 5, "end": 9}}}},
        {"destinationNamedPort": "web"}, {"sctp": {"destinationPort": {"number": 7}}}]
    assert spec["egress"] == [{"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}, {"nodes": {}}]}]
    read_cluster_policy(document)


def test_a_baseline_admin_network_policy_is_the_last_of_tier_baseline():
    (document,) = converted(admin_policy("BaselineAdminNetworkPolicy", ingress=[admin_rule("Deny")])).documents
    assert (document["spec"]["tier"], document["spec"]["priority"]) == ("Baseline", 1000)


@pytest.mark.parametrize("document, key", [
    (admin_policy(ingress=[admin_rule()]), "priority"), (admin_policy(priority=1, ingress=[admin_rule("Accept")]),
                                                         "action"),
    (admin_policy("BaselineAdminNetworkPolicy", ingress=[admin_rule("Pass")]), "action"),
    (admin_policy("BaselineAdminNetworkPolicy", priority=1), "priority"), (admin_policy(priority=1, later=1), "later"),
    (admin_policy(priority=1, ingress=[admin_rule(ports=[])]), "ports"),
    (admin_policy(priority=1, subject={}), "subject"),
    (admin_policy(priority=1, ingress=[admin_rule()] * 26), "ingress"),
    (admin_policy(priority=1, ingress=[admin_rule(ports=[{"portNumber": {"port": 80, "protocol": "ICMP"}}])]),
     "protocol"),
    (admin_policy(priority=1, ingress=[admin_rule(ports=[{"portNumber": {"port": 0}}])]), "number"),
    (admin_policy(priority=1, ingress=[admin_rule(ports=[{"portNumber": {"port": 1}, "namedPort": "a"}])]),
     "ports[0]")])
def test_an_admin_network_policy_that_cannot_be_converted_is_named(document, key):
    found = converted(document)
    (error,) = found.errors
    assert found.documents == [] and key in error and error.startswith("file: document 0: ")


def test_a_peer_that_closes_here_is_in_a_note():
    found = converted(admin_policy(priority=1, ingress=[{"action": "Deny", "from": [{"later": {}}]}]))
    assert found.errors == [] and ["the rule denies everything" in note for note in found.notes] == [True]


def test_a_policy_of_calico_never_comes_before_an_admin_network_policy():
    """Calico evaluates all AdminNetworkPolicies first, so a Calico policy's order is not their priority."""
    admin, before, behind = (admin_policy(priority=10, ingress=[admin_rule("Deny")]), egress(ANYWHERE),
                             egress(ANYWHERE))
    behind["spec"]["order"], behind["metadata"]["name"] = 11, "behind"
    found = converted(before, admin, behind)
    assert ["GlobalNetworkPolicy p of Calico: spec.order: priority 10" in error for error in found.errors] == [True]
    assert [each["metadata"]["name"] for each in found.documents] == ["default", "behind"]


# -- the command `fastcni policy convert` -----------------------------------------------------------------------------

def run(*words, **more):
    return CliRunner().invoke(cli, ["policy", "convert", *words], **more)


def test_the_exit_status_says_whether_all_is_converted(tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(egress(deny(nets=["10.0.0.0/8"]))))
    bad.write_text(json.dumps({"kind": "List", "items": [egress(deny(nets=["10.0.0.0/8"])), calico(ingress=[])]}))
    done = run(str(good))
    assert done.exit_code == 0 and done.stderr == ""
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(done.stdout)] == ["p", "p-end"]
    done = run(str(bad))
    assert done.exit_code == 1
    assert f"not converted: {bad}: items[1]: GlobalNetworkPolicy p of Calico: spec.ingress" in done.stderr
    assert len(list(yaml.safe_load_all(done.stdout))) == 2
    assert run().exit_code == 2
    assert run(str(tmp_path / "none")).exception.exit_status == 2  # `fastcni` exits with the exception's exit_status


def test_a_document_that_cannot_be_parsed_is_not_converted(tmp_path):
    (tmp_path / "a.yaml").write_text("kind: [\n---\nkind: Pod\n")
    done = run(str(tmp_path / "a.yaml"))
    assert done.exit_code == 1 and done.stdout == "" and done.stderr.startswith("not converted: ")


def test_documents_that_need_no_conversion_are_passed_over_and_stdin_is_read():
    others = [{"apiVersion": "v1", "kind": "Pod"}, {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"},
              {"apiVersion": "projectcalico.org/v3", "kind": "IPPool"}]
    done = run("-", input=yaml.safe_dump_all(others))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
