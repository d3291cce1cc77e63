"""The server's thread for cluster-wide addresses, after failures of the store, this node, another node or a pod."""

import errno
import json
import threading
import time

import pytest
from unit.server.cluster import ready

from fastcni.clients.errors import Away
from fastcni.kit.ipam.cluster.contract import ACTIVE, ALIVE, DEAD, KEPT
from fastcni.kit.ipam.cluster.stores.local import LocalStore
from fastcni.node.cluster import state as cluster_state
from fastcni.testing.witnesses import eventually

OTHER = "10.0.0.128/28"         # a block that a test uses


def declare_dead(node, edit):
    with edit() as data:
        data["nodes"][node.name]["seen"] -= 1000
        data["revision"] += 1
    [found] = [one for one in node.store.nodes() if one.name == node.name]
    return node.store.declare_dead(found)


# -- this node -------------------------------------------------------------------------------------------


def test_a_node_that_was_declared_dead_adopts_its_blocks(cluster_node, edit):
    a = cluster_node()
    a.add("c1")
    ready(a)
    declare_dead(a, edit)
    assert eventually(lambda: [block.state for block in a.store.blocks()] == [ACTIVE])
    [block] = a.store.blocks()
    assert (block.epoch, a.store.nodes()[0].state) == (2, ALIVE)
    a.logged("cluster_block_adopted")
    assert a.logged("cluster_node_returned")["epoch"] == 2
    assert eventually(lambda: a.store.uses() and a.add("c2"))


def test_a_block_that_was_freed_and_taken_meanwhile_is_given_up(cluster_node, edit):
    """The cluster forgot the node while it was unavailable, and another node claimed its block. The running pod keeps
    its address."""
    a = cluster_node()
    address = a.add("c1")
    ready(a)
    [cidr] = a.blocks
    with edit() as data:
        del data["nodes"]["a"]
        data["nodes"]["b"] = {"name": "b", "epoch": 1, "boot_id": "x", "state": "alive", "seen": time.time(),
                              "revision": 1000}
        [block] = data["blocks"].values()
        block |= {"node": "b", "revision": 1001}
        data["revision"] = 1002
    lost = a.logged("cluster_block_lost")
    assert lost["block"] == cidr and "node b" in lost["by"] and lost["addresses_in_use"] == address
    assert a.cluster.status()[0]["spaces"][0]["conflicts"] == [cidr]
    assert cidr not in a.blocks and a.held[address] == "c1"
    assert a.add("c2") and a.store.blocks(node="a")[0].cidr != cidr
    a.delete("c1")


def test_a_claim_whose_answer_was_lost_is_found(cluster_node):
    a = cluster_node(list_s=0.05)
    a.add("c1")
    member = ready(a)
    a.store.claim(member.node, [("default", OTHER)])
    assert eventually(lambda: OTHER in a.blocks)


# -- the store ---------------------------------------------------------------------------------------------


class Broken:
    """Makes the store that requests and the server share fail or hang."""

    def __init__(self, node, monkeypatch):
        self.store = next(iter(node.cluster.stores.values()))
        self.monkeypatch, self.calls, self.hang = monkeypatch, 0, threading.Event()

    def away(self):
        for name in ("keep_alive", "join", "blocks", "claim", "write_uses", "nodes", "ip_claims", "history", "watch"):
            self.monkeypatch.setattr(self.store, name, self._fail)

    def _fail(self, *_, **__):
        self.calls += 1
        raise Away("no route to host")

    def stuck(self):
        for name in ("keep_alive", "join", "blocks", "claim", "write_uses", "nodes", "ip_claims", "history"):
            self.monkeypatch.setattr(self.store, name, self._hang)

    def _hang(self, *_, **__):
        self.calls += 1
        self.hang.wait(60)
        raise Away("timed out")

    def back(self):
        self.monkeypatch.undo()


def test_a_store_that_is_away_is_logged_once_and_requests_go_on(cluster_node, monkeypatch):
    a = cluster_node(confirm_s=0.01)
    a.add("c1")
    ready(a)
    store = Broken(a, monkeypatch)
    store.away()
    assert "no route" in a.logged("cluster_store_away")["why"]
    a.add("c2")
    assert eventually(lambda: store.calls > 10)
    assert a.cluster.status()[0]["why"] == "no route to host"
    assert a.cluster.status()[0]["awaySeconds"] >= 0
    store.back()
    assert a.logged("cluster_store_back")["away_s"] >= 0
    assert [event for event, _ in a.log.lines].count("cluster_store_away") == 1
    assert eventually(lambda: {one["container"] for use in a.store.uses() for one in use.holders} == {"c1", "c2"})


def test_a_store_that_hangs_holds_up_no_request_and_no_stop(cluster_node, monkeypatch):
    a = cluster_node(confirm_s=0.01, stop_s=0.2)
    a.add("c1")
    ready(a)
    store = Broken(a, monkeypatch)
    store.stuck()
    assert eventually(lambda: store.calls)
    began = time.monotonic()
    for i in range(2, 6):
        a.add(f"c{i}")
        a.delete(f"c{i}")
    a.cluster.stop()
    took = time.monotonic() - began
    store.hang.set()
    assert took < 5
    assert eventually(lambda: not a.cluster.thread.is_alive())


def test_after_a_restore_the_node_claims_its_own_blocks_again_and_no_others(cluster_node, edit):
    a = cluster_node(confirm_s=0.02)
    a.add("c0")
    member = ready(a)
    with edit() as data:
        backup = json.dumps(data)
    for i in range(1, 60):
        a.add(f"c{i}")
    with edit() as data:
        data["revision"] += 1000
    assert eventually(lambda: member.history[1] > 1000 and a.stored == a.blocks)
    mine = a.blocks
    with edit() as data:
        data.clear()
        data |= json.loads(backup)
    why = a.logged("cluster_store_restored")["why"]
    assert "revision" in why or "is missing" in why  # the server may list its blocks before it reads the revision
    assert eventually(lambda: mine <= a.stored and a.stored == a.blocks)
    answers = [a.call("ADD", f"d{i}") for i in range(50)]
    assert "the store was restored" in answers[-1][1]["msg"]


def test_a_block_that_the_store_has_lost_is_claimed_again(cluster_node, edit):
    """If etcd is restored and then reaches a higher revision, only the missing block shows the restore."""
    a = cluster_node()
    a.add("c1")
    ready(a)
    [cidr] = a.blocks
    with edit() as data:
        data["blocks"].clear()
        data["revision"] += 1
    assert a.logged("cluster_store_restored")["why"] == f"block {cidr} of this node is missing"
    assert eventually(lambda: a.stored == {cidr})
    assert a.logged("cluster_block_regained")["block"] == cidr


def test_a_block_that_another_node_claimed_after_the_backup_is_given_back_to_it(cluster_node, edit):
    """In the backup, node a has a block that it returned later and that node b then claimed. Node a must not give out
    the addresses of this block."""
    a, b = cluster_node("a", confirm_s=0.02), cluster_node("b", confirm_s=0.02)
    a.add("c1")
    address = b.add("x1")
    members = [ready(a), ready(b)]
    [mine], [theirs] = a.blocks, b.blocks
    with edit() as data:
        backup = json.loads(json.dumps(data))
        backup["blocks"][f"default {theirs}"]["node"] = "a"
        data["revision"] += 1000
    assert eventually(lambda: all(member.history[1] > 1000 for member in members))
    with edit() as data:
        data.clear()
        data |= backup
    assert eventually(lambda: (a.stored, b.stored) == ({mine}, {theirs}))
    a.logged("cluster_store_restored")
    assert a.blocks == {mine} and b.held[address] == "x1"
    assert eventually(lambda: b.blocks == {theirs})


# -- pods -------------------------------------------------------------------------------------------------------


def test_the_address_of_a_pod_that_is_gone_is_released_after_two_looks(cluster_node):
    states = {"/run/netns/c1": "alive", "/run/netns/c2": "alive"}
    a = cluster_node(states=states, reconcile_s=0.02, apart_s=0.2)
    first, second = a.add("c1"), a.add("c2")
    ready(a)
    time.sleep(0.05)
    states["/run/netns/c1"] = "gone"
    began = time.monotonic()
    values = a.logged("cluster_address_released")
    assert (values["address"], values["container"], values["ifname"]) == (first, "c1", "eth0")
    assert time.monotonic() - began >= 0.15
    assert eventually(lambda: set(a.held) == {second})


def test_an_attachment_that_is_made_again_between_the_looks_stays(cluster_node):
    states = {"/run/netns/c1": "alive", "/run/netns/c2": "alive"}
    a = cluster_node(states=states, reconcile_s=0.02, apart_s=0.3)
    address, _ = a.add("c1"), a.add("c2")
    ready(a)
    time.sleep(0.05)
    states["/run/netns/c1"] = "gone"
    time.sleep(0.1)
    a.delete("c1")
    states["/run/netns/c1"] = "alive"
    again = a.add("c1")
    assert not eventually(lambda: again not in a.held, 0.5)
    assert address not in a.held or again == address


def test_the_last_network_namespace_of_an_attachment_counts(cluster_node):
    states = dict.fromkeys(("/run/netns/c1", "/run/netns/new", "/run/netns/c2"), "alive")
    a = cluster_node(states=states, reconcile_s=0.01, apart_s=0.02)
    a.add("c2")
    ready(a)
    address = a.add("c1", netns="new")
    assert a.add("c1") == address and a.add("c1", netns="new") == address
    states["/run/netns/c1"] = "gone"
    assert not eventually(lambda: address not in a.held, 0.2)
    states["/run/netns/new"] = "gone"
    assert a.logged("cluster_address_released")["address"] == address


def test_nothing_is_released_if_no_namespace_can_be_seen(cluster_node):
    """In a container without the node's /run/netns, the server cannot see whether a pod exists."""
    a = cluster_node(states={"/run/netns/c1": "unknown", "/run/netns/c2": "unknown"}, reconcile_s=0.01, apart_s=0.02)
    pods = {a.add("c1"), a.add("c2")}
    ready(a)
    assert not eventually(lambda: set(a.held) != pods, 0.3)


def test_a_sticky_address_of_a_pod_that_is_gone_is_kept(cluster_node):
    states = {"/run/netns/c1": "alive", "/run/netns/c2": "alive"}
    a = cluster_node(states=states, reconcile_s=0.02, apart_s=0.02, ipam={"sticky": "pod"})
    address = a.add("c1", args="K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0")
    a.add("c2", args="K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-1")
    ready(a)
    time.sleep(0.05)
    states["/run/netns/c1"] = "gone"
    assert eventually(lambda: a.store.ip_claim("default", address).state == KEPT)
    assert a.held[address].startswith("fastcni:single shop/db-0")


# -- at the start and the end --------------------------------------------------------------------------------


def test_a_server_looks_after_the_spaces_that_it_finds(cluster_node):
    first = cluster_node()
    first.add("c1", one_shot=True)
    second = cluster_node(configured=[first.keys], confirm_s=0.02)
    assert second.store.uses() == []
    second.cluster.learn()
    assert eventually(lambda: [use for use in second.store.uses() if use.holders])
    ready(second)


def test_a_server_finds_the_spaces_of_networks_that_no_file_configures(cluster_node, tmp_path):
    """Multus reads its configurations from the API server. Once, such a node sent no heartbeat after a restart until
    the next request, so other nodes declared it dead although its pods ran."""
    first = cluster_node()
    first.add("c1", one_shot=True)
    found = [*cluster_state.used([str(tmp_path / "a")], [])]
    assert [(keys.space, keys.node, keys.store, keys.ranges) for keys in found] == [
        ("default", "a", first.keys.store, ())]
    second = cluster_node(configured=found, confirm_s=0.02)
    seen = second.store.nodes()[0].seen
    second.cluster.learn()
    assert eventually(lambda: [use for use in second.store.uses() if use.holders])
    assert eventually(lambda: second.store.nodes()[0].seen > seen)
    assert second.add("c2") and len(second.cluster.members) == 1
    ready(second)


def test_a_configured_network_without_a_pod_asks_nothing(cluster_node, tmp_path):
    first = cluster_node()
    second = cluster_node("b", configured=[first.keys])
    second.cluster.learn()
    assert eventually(lambda: second.cluster.members)
    assert not eventually((tmp_path / "store").exists, 0.2)


def test_what_was_given_out_is_written_at_the_end(cluster_node):
    a = cluster_node(write_s=3600.0)
    a.add("c1")
    ready(a)
    a.add("c2")
    a.stop()
    assert {one["container"] for use in a.store.uses() for one in use.holders} == {"c1", "c2"}


def test_a_dead_node_is_declared_by_the_servers_of_others(cluster_node, edit):
    a = cluster_node(nodes_s=0.02, grace_s=0.1)
    a.add("c1")
    ready(a)
    LocalStore({"path": str(a.directory / "store")}).join("b", "boot")
    with edit() as data:
        data["nodes"]["b"]["seen"] -= 1000
    assert eventually(lambda: [one.state for one in a.store.nodes() if one.name == "b"] == [DEAD])


@pytest.mark.parametrize("where", ["_take_noted", "members"])
def test_a_server_without_descriptors_reports_no_fault_of_fastcni(cluster_node, monkeypatch, where):
    """Once, EMFILE was logged as server_fault, with a traceback and a request to report the fault."""
    a = cluster_node(away_s=0.01)
    a.add("c1")
    assert eventually(lambda: a.cluster.members)
    refused = OSError(errno.EMFILE, "Too many open files")

    def refuse(*_):
        raise refused

    if where == "members":
        for member in a.cluster.members.values():
            monkeypatch.setattr(member, "run", refuse)
    else:
        monkeypatch.setattr(a.cluster, where, refuse)
    a.cluster.event.set()
    assert eventually(lambda: a.faults)
    assert a.faults[0]["error"] == str(refused)
    assert not [event for event, _ in a.log.lines if event == "server_fault"]
    a.log.lines.clear()
    monkeypatch.undo()
