"""Fixed and sticky addresses of a cluster, on the local store."""


import pytest
from unit.kit.ipam.cluster.node import NET, pod
from unit.kit.ipam.cluster.watched import calls, store_of

from fastcni.kit.ipam.cluster.contract import HELD, KEPT, SHARED

STICKY = {"range": "10.0.0.0/24", "sticky": "pod"}


# -- fixed addresses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"args": "IP=10.0.0.77"}, {"args": "IP=10.0.0.077/24"},
                                 {"runtimeConfig": {"ips": ["10.0.0.77/24"]}}, {"cni": ["10.0.0.77"]}])
def test_a_requested_address_is_given(a, b, how):
    if "cni" in how:
        conf = a.conf(NET, args={"cni": {"ips": how["cni"]}})
        a.conf = lambda ipam, **top: conf
        how = {}
    assert a.add(NET, "c1", **how) == ["10.0.0.77"]
    e = b.refused("ADD", NET, "c2", args="IP=10.0.0.77")
    assert e.code == 11
    assert 'requested IP address 10.0.0.77 is not available: container c1 eth0 on node "a" has it since 20' in e.msg


def test_a_requested_address_of_an_own_block_needs_no_call(a):
    (first,) = a.add(NET, "c1", args=pod("web"))
    wanted = first.rpartition(".")[0] + "." + str(int(first.rpartition(".")[2]) + 1)
    calls(a)
    assert a.add(NET, "c2", args=f"IP={wanted}") == [wanted]
    e = a.refused("ADD", NET, "c3", args=f"IP={first}")
    assert calls(a) == []
    assert 'pod ns/web (container c1 eth0) on node "a" has it since 20' in e.msg


def test_a_fixed_address_is_free_for_all_nodes_after_its_pod(a, b):
    a.add(NET, "c1", args="IP=10.0.0.77")
    assert [(one.cidr, one.state) for one in store_of(a).blocks()] == [("10.0.0.64/28", SHARED)]
    a.delete(NET, "c1")
    assert store_of(a).ip_claims() == [] and a.files() == {}
    assert b.add(NET, "c2", args="IP=10.0.0.77") == ["10.0.0.77"]


def test_a_node_whose_server_does_not_answer_is_named(a, b, monkeypatch):
    monkeypatch.setattr("fastcni.kit.ipam.cluster.ip_claims.ANSWER_S", 0.1)
    (first,) = a.add(NET, "c1")
    wanted = first.rpartition(".")[0] + "." + str(int(first.rpartition(".")[2]) + 1)
    e = b.refused("ADD", NET, "c2", args=f"IP={wanted}")
    assert e.code == 11 and 'asked node "a"' in e.msg and "its server does not answer" in e.msg
    assert store_of(a).ip_claims() == []


@pytest.mark.parametrize("args, text", [
    ("IP=10.9.0.5", "IP=10.9.0.5 is in no range"), ("IP=10.0.0.0", "is excluded, or outside of the bounds"),
    ("IP=10.0.0.1", "is the gateway")])
def test_a_requested_address_that_cannot_be_given_is_refused(a, args, text):
    assert text in a.refused("ADD", NET | {"gateway": "10.0.0.1"}, "c1", args=args).msg


@pytest.mark.parametrize("ipam, more", [({"range": "10.0.0.0/30"}, {}), (NET, {"args": "IP=10.0.0.77"})])
def test_a_node_that_was_forgotten_joins_again_for_an_address_without_a_block(a, ipam, more):
    """Once, the ADD's error named a full range, or a block that changes all the time."""
    a.add(ipam, "c1", **more)
    a.delete(ipam, "c1", **more)
    with store_of(a).open() as doc:
        doc.drop("nodes", "a")
    assert len(a.add(ipam, "c2", **more)) == 1
    assert [(node.name, node.epoch) for node in store_of(a).nodes()] == [("a", 1)]


def test_an_address_of_no_range_goes_into_the_result(a):
    ips = a.call("ADD", NET, args="IP=192.168.7.5/24;GATEWAY=192.168.7.1")["ips"]
    assert ips[1] == {"address": "192.168.7.5/24", "gateway": "192.168.7.1"}


# -- sticky addresses ---------------------------------------------------------------------------------------


def test_a_pod_gets_its_address_on_another_node(a, b):
    first = a.add(STICKY, "c1", args=pod("db-0"))
    a.delete(STICKY, "c1")
    assert [(one.state, one.pod) for one in store_of(a).ip_claims()] == [(KEPT, "ns/db-0")]
    assert b.add(STICKY, "c2", args=pod("db-0")) == first
    assert first[0] not in [a.add(STICKY, f"d{i}", args=pod(f"x{i}"))[0] for i in range(20)]
    b.delete(STICKY, "c2")
    assert a.add(STICKY, "c3", args=pod("db-0")) == first
    assert [(one.node, one.state, one.container) for one in store_of(a).ip_claims(pod="ns/db-0")] == [("a", HELD, "c3")]
    a.call("CHECK", STICKY, "c3")


def test_a_pod_that_still_runs_elsewhere_is_named(a, b):
    a.add(STICKY, "c1", args=pod("db-0"))
    e = b.refused("ADD", STICKY, "c2", args=pod("db-0"))
    assert e.code == 11
    assert 'pod ns/db-0 (container c1 eth0) on node "a" has it since 20' in e.msg
    assert b.files() == {}


def test_another_sandbox_of_a_sticky_pod_takes_over(a):
    first = a.add(STICKY, "c1", args=pod("db-0"))
    assert a.add(STICKY, "c2", args=pod("db-0")) == first
    a.delete(STICKY, "c1")
    assert [(one.state, one.container) for one in store_of(a).ip_claims()] == [(HELD, "c2")]


def test_a_kept_address_is_given_to_no_other_pod(a):
    first = a.add(STICKY, "c1", args=pod("db-0"))
    a.delete(STICKY, "c1")
    assert first[0] not in [a.add(NET, f"d{i}")[0] for i in range(40)]
    assert "kept for pod ns/db-0" in a.refused("ADD", NET, "x", args=f"IP={first[0]}").msg
    a.call("GC", STICKY, **{"cni.dev/valid-attachments": []})
    assert first[0] in a.files()


def test_a_sticky_add_that_fails_keeps_the_address(a, b):
    first = a.add(STICKY, "c1", args=pod("db-0"))
    a.delete(STICKY, "c1")
    both = {"sticky": "pod", "ipRanges": [{"range": "10.0.0.0/24"}, {"range": "10.8.0.8/32"}]}
    a.add({"range": "10.8.0.8/32"}, "other")
    assert b.refused("ADD", both, "c2", args=pod("db-0")).code == 11
    assert [(one.state, one.container, one.node) for one in store_of(a).ip_claims(pod="ns/db-0")] == [(KEPT, "c1", "a")]
    assert b.files() == {} and first[0] in a.files()
    assert b.add(STICKY, "c3", args=pod("db-0")) == first


def test_sticky_needs_a_pod_name(a):
    assert a.add(STICKY, "c1") and store_of(a).ip_claims() == []
