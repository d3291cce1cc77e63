"""The import of whereabouts' addresses. Each address is imported once, no node gets a block, and a second import
changes nothing."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcni.kit.ipam.cluster.contract import ACTIVE, HELD, SHARED, IPClaim, Node
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.kit.ipam.cluster.stores.whereabouts_pools import Allocation, Pool, Reservation, Whereabouts
from fastcni.node.cluster import site
from fastcni.node.cluster.import_whereabouts import apply, blocks_to_share, make_plan
from fastcni.node.cluster.survey import survey
from fastcni.node.cluster.whereabouts import Source, ranges_of, read_given


def pool(range_, given, network=""):
    """Return an IPPool. given: {offset of the address: (container, pod)}."""
    first = ipaddress.ip_interface(range_).ip
    return Pool(f"{network}-{range_}".strip("-").replace("/", "-"), range_, network, "", [
        Allocation(str(first + offset), container, pod, "net1") for offset, (container, pod) in given.items()])


def reservation(ip, pod, container="c1", network=""):
    return Reservation(f"{network}-{ip}".strip("-"), network, ip, container, pod, "net1")


def source_of(*pools, reservations=(), pods=None, unreadable=()):
    return Source(Whereabouts(list(pools), list(reservations), [], list(unreadable)), PODS if pods is None else pods)


PODS = {"ns/a": "node-1", "ns/b": "node-2", "ns/c": "node-1"}
POOL = pool("10.5.0.0/24", {1: ("c1", "ns/a"), 20: ("c2", "ns/b")})


@pytest.fixture
def store(tmp_path):
    return open_store({"type": "local", "path": str(tmp_path / "store")})


def run(store, *pools, headroom=1, **more):
    """Import the pools. Return (plan, texts about addresses that another node took in the meantime)."""
    source = source_of(*pools, **more)
    grids = site.grids(store, ranges_of(source), dry_run=False)
    plan = make_plan(source, survey(store), grids, 1000.0, headroom)
    return plan, apply(store, plan)


def test_addresses_become_ip_claims_of_their_pods_nodes_in_shared_blocks(store):
    plan, lost = run(store, POOL)
    assert (lost, plan.conflicts, plan.gone) == ([], [], [])
    assert [(it.address, it.pod, it.container, it.node, it.state, it.block) for it in store.ip_claims()] == [
        ("10.5.0.1", "ns/a", "c1", "node-1", HELD, "10.5.0.0/28"), ("10.5.0.20", "ns/b", "c2", "node-2", HELD,
                                                                    "10.5.0.16/28")]
    # the last block is free. whereabouts may give its addresses, so no node may claim the block
    assert [(it.cidr, it.state) for it in store.blocks()] == [
        ("10.5.0.0/28", SHARED), ("10.5.0.16/28", SHARED), ("10.5.0.32/28", SHARED)]


def test_a_second_import_takes_over_what_is_new_only(store):
    run(store, POOL)
    before = store.history()
    plan, lost = run(store, POOL)
    assert (plan.ip_claims, plan.blocks, plan.known, lost) == ([], [], 2, [])
    assert store.history() == before
    plan, _ = run(store, pool("10.5.0.0/24", {1: ("c1", "ns/a"), 20: ("c2", "ns/b"), 2: ("c3", "ns/c")}))
    assert [it.address for it in plan.ip_claims] == ["10.5.0.2"] and plan.known == 2


def test_a_second_import_releases_addresses_of_pods_that_ended(store):
    """The pools may still have entries of pods that ended. whereabouts deleted such entries, but it no longer runs."""
    run(store, POOL)
    plan, _ = run(store, POOL, pods={"ns/a": "node-1"})
    assert [it.address for it in plan.ended] == ["10.5.0.20"]
    assert [it.address for it in store.ip_claims()] == ["10.5.0.1"]


def test_pods_that_are_gone_are_left_out(store):
    plan, _ = run(store, POOL, pods={"ns/a": "node-1"})
    assert [str(it.address) for it in plan.gone] == ["10.5.0.20"]
    assert [it.address for it in store.ip_claims()] == ["10.5.0.1"]


def test_a_pod_without_a_node_is_a_conflict(store):
    plan, _ = run(store, POOL, pods=PODS | {"ns/a": ""})
    (text,) = plan.conflicts
    assert "10.5.0.1 (IPPool 10.5.0.0-24): pod ns/a has no node" in text


def test_a_reservation_without_an_entry_counts(store):
    """whereabouts may fail to write its pool, and the pod still gets the address (whereabouts issue 712)."""
    run(store, POOL, reservations=[reservation("10.5.0.9", "ns/c", "c9"), reservation("10.5.0.1", "ns/a")])
    assert [(it.address, it.pod) for it in store.ip_claims()] == [
        ("10.5.0.1", "ns/a"), ("10.5.0.9", "ns/c"), ("10.5.0.20", "ns/b")]


def test_two_pools_that_gave_one_address_are_a_conflict(store):
    plan, _ = run(store, POOL, pool("10.5.0.0/23", {1: ("c9", "ns/c")}))
    assert plan.conflicts == ["10.5.0.1: whereabouts has given it twice, to pod ns/a and to pod ns/c"]
    assert len(store.ip_claims()) == 2


def test_a_block_of_a_node_is_a_conflict_and_stays(store):
    me = store.join("node-9", "boot")
    store.grid("default", {"4": 28})
    store.claim(me, [("default", "10.5.0.16/28")])
    plan, _ = run(store, POOL)
    assert plan.conflicts == ["10.5.0.20 (pod ns/b): its block 10.5.0.16/28 is active, of node node-9"]
    assert [it.node for it in store.blocks() if it.state == ACTIVE] == ["node-9"]
    assert [it.address for it in store.ip_claims()] == ["10.5.0.1"]


def test_an_address_of_another_pod_is_a_conflict(store):
    run(store, POOL)
    plan, _ = run(store, pool("10.5.0.0/24", {1: ("c7", "ns/c")}))
    assert plan.conflicts == ["10.5.0.1 (pod ns/c): pod ns/a on node node-1 has it"]


class Racing:
    """A store in which a node claims the block `cidr` after the plan is made and before the import."""

    def __init__(self, store, node, cidr):
        self.store, self.node, self.cidr = store, node, cidr

    def __getattr__(self, name):
        return getattr(self.store, name)

    def share(self, space, cidr):
        if cidr == self.cidr and not any(it.cidr == cidr for it in self.store.blocks()):
            self.store.claim(self.node, [(space, cidr)])
        return self.store.share(space, cidr)


def test_a_block_that_a_node_claims_meanwhile_is_named_and_nothing_is_given_twice(store):
    racing = Racing(store, store.join("node-9", "boot"), "10.5.0.16/28")
    _, lost = run(racing, POOL)
    assert lost == ["block 10.5.0.16/28 of space default: node node-9 has claimed it since",
                    "10.5.0.20 (pod ns/b): node node-9 has claimed it since"]
    assert [it.address for it in store.ip_claims()] == ["10.5.0.1"]


def test_a_dry_run_writes_nothing(store):
    source = source_of(POOL)
    grids = site.grids(store, ranges_of(source), dry_run=True)
    assert make_plan(source, survey(store), grids, 1.0).blocks[0] == ("default", "10.5.0.0/28")
    assert store.blocks() == [] and store.grid("default", {}) == {}


def test_headroom_ends_with_the_range(store):
    run(store, pool("10.5.0.0/24", {250: ("c1", "ns/a")}), headroom=3)
    assert [it.cidr for it in store.blocks()] == ["10.5.0.240/28"]


def test_a_network_name_is_a_space(store):
    run(store, POOL, pool("10.5.0.0/24", {1: ("c3", "ns/c")}, "blue"), reservations=[
        reservation("10.5.0.9", "ns/b", "c2", "blue")])
    assert [(it.space, it.address, it.pod) for it in store.ip_claims()] == [
        ("blue", "10.5.0.1", "ns/c"), ("blue", "10.5.0.9", "ns/b"), ("default", "10.5.0.1", "ns/a"),
        ("default", "10.5.0.20", "ns/b")]


def test_what_cannot_be_read_is_a_conflict(store):
    plan, _ = run(store, POOL, unreadable=["IPPool odd: its name does not end with its range"])
    assert plan.conflicts == ["IPPool odd: its name does not end with its range; it was left out"]


def test_ipv6_blocks(store):
    run(store, pool("fd00:5::/64", {5: ("c1", "ns/a")}))
    assert [(it.address, it.block) for it in store.ip_claims()] == [("fd00:5::5", "fd00:5::/122")]


@given(st.lists(st.tuples(st.integers(1, 2000), st.sampled_from(sorted(PODS))), max_size=30), st.integers(0, 3))
def test_every_address_is_in_a_shared_block_or_a_conflict(given_, headroom):
    """For all addresses that whereabouts may have given: the import claims each pod's address once, in a block that no
    node owns."""
    source = source_of(pool("10.5.0.0/20", dict.fromkeys((at for at, _ in given_), ("c", "ns/a"))),
                       pool("10.5.0.0/22", {at: ("c", pod) for at, pod in given_ if at < 1000}))
    grids = {"default": {"4": 26}}
    empty = survey(Empty())
    plan = make_plan(source, empty, grids, 1.0, headroom)
    addresses = [it.address for it in plan.ip_claims]
    assert len(set(addresses)) == len(addresses)
    assert {(it.space, it.block) for it in plan.ip_claims} <= set(plan.blocks)
    assert {str(it.address) for it in read_given(source)} == set(addresses)
    assert len(set(plan.blocks)) == len(plan.blocks)
    assert blocks_to_share([], ranges_of(source), None, headroom) == []


class Empty:
    """A store without records."""

    def nodes(self) -> list[Node]:
        return []

    def blocks(self, space=""):
        return []

    def ip_claims(self, space="") -> list[IPClaim]:
        return []

    uses = blocks
