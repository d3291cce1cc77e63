"""The server's thread for cluster-wide addresses handles IPClaims. An IPClaim is a claim of a single address in a block
of this node."""

import itertools
import json
import time

from unit.server.cluster import ready

from fastcni.kit.ipam.cluster import claims, hold
from fastcni.kit.ipam.cluster.contract import ASKED, HELD, KEPT, REFUSED, IPClaim
from fastcni.testing.witnesses import eventually


def asked(node, address, me, container="x1", **more):
    """Make an IPClaim for an address of another node's block, as an ADD with a fixed address does."""
    [cidr] = node.blocks
    ip_claim = IPClaim(space="default", address=address, block=cidr, state=ASKED, container=container, ifname="eth0",
                       pod="ns/p", network="net", since=time.time(), sticky=False, **more)
    return node.store.claim_address(me, ip_claim)


def free_address(node):
    [cidr] = node.blocks
    base, last = cidr.partition("/")[0].rsplit(".", 1)
    return f"{base}.{int(last) + 9}"


def test_an_address_that_another_node_asks_for_is_given_and_not_given_again(cluster_node):
    a = cluster_node(list_s=0.1)        # the watch of a local store polls, so it can miss an IPClaim that ends soon
    a.add("c1")
    ready(a)
    address = free_address(a)
    b = a.store.join("b", "boot")
    asked(a, address, b)
    assert eventually(lambda: a.store.ip_claim("default", address).state == HELD)
    assert a.held[address].startswith("fastcni:single")
    assert a.logged("cluster_address_asked")["answer"] == HELD
    assert address not in {a.add(f"d{i}") for i in range(12)}
    a.store.release_ip_claim(a.store.ip_claim("default", address))
    assert eventually(lambda: address not in a.held)


def test_an_address_that_a_pod_has_is_refused_with_the_holder(cluster_node):
    a = cluster_node()
    address = a.add("c1", args="K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0")
    ready(a)
    asked(a, address, a.store.join("b", "boot"))
    assert eventually(lambda: a.store.ip_claim("default", address).state == REFUSED)
    reason = a.store.ip_claim("default", address).reason
    assert "shop/web-0" in reason and 'node "a"' in reason and "c1 eth0" in reason


def test_an_add_with_a_fixed_address_of_another_node_gets_it(cluster_node):
    a, b = cluster_node("a"), cluster_node("b")
    a.add("c1")
    ready(a)
    address = free_address(a)
    assert b.add("x1", args=f"IP={address}") == address
    status, document = b.call("ADD", "x2", args=f"IP={a.add('c2')}")
    assert status == 1 and document["code"] == 11 and "c2" in document["msg"]
    b.delete("x1")
    assert eventually(lambda: address not in a.held)


def test_a_kept_address_is_given_to_no_other_pod(cluster_node):
    a = cluster_node()
    a.add("c1")
    member = ready(a)
    address = free_address(a)
    [cidr] = a.blocks
    ip_claim = a.store.claim_address(member.node, IPClaim(
        space="default", address=address, block=cidr, state=HELD, container="gone", ifname="eth0", pod="shop/db-0",
        network="net", since=time.time(), sticky=True))
    a.store.change_ip_claim(ip_claim, state=KEPT, node="b")
    assert eventually(lambda: a.held.get(address, "").startswith("fastcni:single shop/db-0"))


def test_a_missed_change_of_an_ip_claim_is_found_by_the_next_look(cluster_node, monkeypatch):
    """The watch was not connected when the IPClaim was removed. The server finds the removal when it next lists the
    IPClaims."""
    a = cluster_node(list_s=0.05)
    a.add("c1")
    ready(a)
    address = free_address(a)
    monkeypatch.setattr(next(iter(a.cluster.members.values())), "_wanted", lambda event: False)
    next(iter(a.cluster.members.values())).watch.wanted = lambda event: False
    asked(a, address, a.store.join("b", "boot"))
    assert eventually(lambda: a.held.get(address))
    a.store.release_ip_claim(a.store.ip_claim("default", address))
    assert eventually(lambda: address not in a.held)


def test_after_a_restore_an_address_is_held_for_another_nodes_pod_until_the_pause_is_over(
        cluster_node, edit, monkeypatch):
    """The restored store lacks the IPClaim. The pod's node has to make the claim again before the pause ends."""
    a = cluster_node(confirm_s=0.02, list_s=0.05, apart_s=0.05)
    a.add("c1")
    member = ready(a)
    address, b = free_address(a), a.store.join("b", "boot")
    with edit() as data:
        backup = json.dumps(data)
    asked(a, address, b)
    assert eventually(lambda: address in a.held and a.store.ip_claim("default", address).state == HELD)
    with edit() as data:
        data["revision"] += 1000
    assert eventually(lambda: member.history[1] > 1000)
    looks, real = [], claims.held
    monkeypatch.setattr(claims, "held", lambda *args, **more: looks.append(real(*args, **more)) or looks[-1])
    with edit() as data:
        data.clear()
        data |= json.loads(backup)
    assert eventually(lambda: len(looks) > 3) and all(looks) and address in a.held
    times = itertools.count(hold.boottime(), 100)
    monkeypatch.setattr(hold, "boottime", lambda: next(times))
    assert eventually(lambda: address not in a.held)
