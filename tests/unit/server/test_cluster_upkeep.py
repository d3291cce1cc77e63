"""The server's thread for cluster-wide addresses claims blocks, writes uses and sends heartbeats."""

import contextlib
from ipaddress import ip_network

import pytest

from fastcni.clients.errors import Away
from fastcni.kernel.presence import GONE
from fastcni.kit.ipam.cluster import upkeep
from fastcni.kit.ipam.cluster.contract import ALIVE, HELD, KEPT, IPClaim, Node
from fastcni.server.cluster import local
from fastcni.server.cluster.times import NEVER
from fastcni.spec.errors import CniError
from fastcni.testing.witnesses import eventually


def test_the_next_block_is_claimed_before_an_add_needs_it(cluster_node):
    a = cluster_node()
    pods = [a.add(f"c{i}") for i in range(8)]
    assert eventually(lambda: a.store.uses() and len(a.store.uses()[0].holders) == 8)
    assert len(a.stored) == 1
    pods += [a.add(f"c{i}") for i in range(8, 13)]  # less than a quarter of the block's 16 addresses is free
    assert len(set(pods)) == 13
    assert eventually(lambda: len(a.blocks) == 2)
    assert a.logged("cluster_block_claimed")["space"] == "default"
    assert a.stored == a.blocks


def test_a_node_without_a_server_request_asks_nothing(cluster_node):
    a = cluster_node()
    a.add("c1", one_shot=True)
    assert a.cluster.thread is None


def test_a_space_that_cannot_be_read_at_the_start_is_tried_again(cluster_node, monkeypatch):
    """Once, another process held the space's lock at the start. The node then sent no heartbeat until the next request,
    so other nodes declared it dead although its pods ran."""
    first = cluster_node()
    first.add("c1", one_shot=True)
    second = cluster_node(configured=[first.keys], max_away_s=0.05)
    real, failures = local.LocalSpace.count, [CniError(11, "locked"), OSError(24, "Too many open files")]

    def count(self, networks):
        if failures:
            raise failures.pop()
        return real(self, networks)

    monkeypatch.setattr(local.LocalSpace, "count", count)
    second.cluster.learn()
    assert eventually(lambda: [use for use in second.store.uses() if use.holders])
    assert "Too many open files" in second.log.lines[0][1]["error"]
    second.log.lines.clear()


def test_uses_are_written_behind_in_one_step(cluster_node, monkeypatch):
    a = cluster_node(write_s=0.3)
    written = []
    a.add("c0")
    store = next(iter(a.cluster.stores.values()))
    write = store.write_uses
    monkeypatch.setattr(store, "write_uses", lambda me, uses: written.append(len(uses)) or write(me, uses))
    addresses = {a.add(f"c{i}") for i in range(1, 8)}
    assert eventually(lambda: [use for use in a.store.uses() if len(use.holders) == 8])
    [use] = a.store.uses()
    assert addresses < {one["address"] for one in use.holders}
    assert {one["container"] for one in use.holders} == {f"c{i}" for i in range(8)}
    assert len(written) <= 3
    assert (use.node, use.epoch, use.cidr) == ("a", 1, next(iter(a.blocks)))


def quiet(node):
    """Return the node's Space and its store after its thread has stopped. The test calls the jobs itself."""
    node.add("c0")
    assert eventually(node.store.uses)
    node.cluster.stop()
    member = next(iter(node.cluster.members.values()))
    return next(iter(member.spaces.values())), member.store


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_noted_while_uses_are_written_is_written_next(cluster_node, monkeypatch, fails):
    """Once, the server emptied the set of changed blocks only after the call to the store, so it lost a change that was
    noted during the call."""
    space, store = quiet(cluster_node())
    [cidr], written = space.owned, []
    later = ip_network(cidr).broadcast_address + 1
    other = f"{later}/{ip_network(cidr).prefixlen}"

    def write(me, uses):
        written.append(uses)
        space._note_dirty([later.packed])
        if fails:
            raise Away("no route to host")

    monkeypatch.setattr(store, "write_uses", write)
    space.dirty, space.changes = {cidr}, 1
    space.written.clear()
    with pytest.raises(Away) if fails else contextlib.nullcontext():
        space._write(0.0)
    assert written and (space.dirty, space.changes) == ({cidr, other} if fails else {other}, 1)


def test_an_ip_claim_that_changes_while_it_is_attended_to_is_attended_to_again(cluster_node, monkeypatch):
    """Once, the server removed the newer change together with the older one."""
    space, _ = quiet(cluster_node())
    old, new = (IPClaim(space="default", address="10.9.9.9", block="10.9.9.0/28", state=state)
                for state in (HELD, KEPT))
    seen = []

    def attend(ip_claim):
        seen.append(ip_claim.state)
        if len(seen) == 1:
            space.ip_claims.note(new, False)

    monkeypatch.setattr(space.ip_claims, "_attend_one", attend)
    space.ip_claims.note(old, False)
    space.ip_claims._attend(0.0)
    assert seen == [HELD, KEPT] and not space.ip_claims.changed


def test_the_holders_of_a_large_block_are_those_of_a_small_one(cluster_node, monkeypatch):
    """For a large block, the server lists the directory. For a small block, it tries the addresses one by one."""
    a = cluster_node()
    space, _ = quiet(a)
    added = {a.add(f"c{i}", one_shot=True) for i in range(1, 24)} | set(a.held)
    space.count()
    assert len(space.owned) == 2
    found = space.local.holders(space.owned)
    monkeypatch.setattr(local, "MAX_TRIED", 0)
    assert space.local.holders(space.owned) == found
    for cidr, holders in found.items():
        assert {one["address"] for one in holders} == {it for it in added if it in map(str, ip_network(cidr))}
    assert space.local.holders(["fd00::/64"]) == {"fd00::/64": []}


@pytest.mark.parametrize("sticky", [False, True])
def test_a_claim_without_a_file_ends_with_its_pod(cluster_node, sticky):
    """The claim has no file, for instance, if the ADD was killed after the claim. Only the result that the runtime
    cached has the pod's namespace."""
    a = cluster_node(reconcile_s=0.01, apart_s=0.02, list_s=0.05)
    states = {"/run/netns/x": "alive", "/run/netns/c1": "alive"}
    a.states |= states
    a.cluster.pods.cached = lambda: {("net", "x", "eth0"): ("/run/netns/x", 0.0)}
    a.add("c1")
    assert eventually(lambda: a.store.nodes() and a.stored)
    a.store.share("default", "10.0.0.192/28")
    a.store.claim_address(a.store.nodes()[0], IPClaim(
        space="default", address="10.0.0.200", block="10.0.0.192/28", state=HELD, container="x", ifname="eth0",
        pod="shop/web", network="net", since=1.0, sticky=sticky))
    assert not eventually(lambda: a.store.ip_claim("default", "10.0.0.200").state != HELD, 0.3)
    a.states["/run/netns/x"] = GONE
    assert a.logged("cluster_address_released")["kept"] == sticky
    left = a.store.ip_claim("default", "10.0.0.200")
    assert left.state == KEPT if sticky else left is None


def test_an_address_whose_pod_s_namespace_path_a_later_pod_has_is_released(cluster_node):
    """Once, the server kept the address of a pod that had ended without DEL for as long as the later pod ran."""
    a = cluster_node(reconcile_s=0.01, apart_s=0.02)
    a.states["/run/netns/p"] = "alive"
    addresses = [a.add(cid, netns="p") for cid in ("c1", "c2")]
    assert not eventually(lambda: len(a.held) < 2, 0.3)     # the links of both pods exist
    a.cluster.pods.replaced = lambda: {("net", "c1", "eth0")}
    assert a.logged("cluster_address_released")["container"] == "c1"
    assert a.held == {addresses[1]: "c2"}


def test_a_claim_for_the_address_of_another_pod_is_logged_once(cluster_node, monkeypatch):
    """Two pods can have the same address, for instance after a restore of the store. The running pod keeps it."""
    a = cluster_node(list_s=0.02)
    address = a.add("c1")
    assert eventually(lambda: a.stored)
    [cidr] = a.stored
    a.store.claim_address(a.store.nodes()[0], IPClaim(
        space="default", address=address, block=cidr, state=HELD, container="x", ifname="eth0", pod="shop/web",
        network="net", since=1.0, sticky=False))
    values = a.logged("cluster_address_conflict")
    assert (values["address"], values["claimed_by"], values["node"]) == (address, "x eth0", "a")
    assert "c1" in values["held_by"] and a.held[address] == "c1"
    space = next(iter(next(iter(a.cluster.members.values())).spaces.values()))
    looks, ip_claims = [], space.member.store.ip_claims
    # so the server finds the end of the claim only when it lists the claims
    space.member.watch.wanted = lambda event: False
    monkeypatch.setattr(space.member.store, "ip_claims",
                        lambda *args, **keys: looks.append(keys) or ip_claims(*args, **keys))
    assert eventually(lambda: len(looks) > 2)
    assert [event for event, _ in a.log.lines].count("cluster_address_conflict") == 1
    a.store.release_ip_claim(a.store.ip_claim("default", address))
    assert eventually(lambda: not space.ip_claims.conflicts)          # then a later conflict would be logged again


def test_a_confirmed_node_is_in_the_local_state(cluster_node):
    """One-shot requests read the node's epoch, its boot ID and the store's history there."""
    space, _ = quiet(cluster_node())
    space.local.note_node(Node("a", 7, "boot-2", "", ALIVE), ("etcd-1", 9, 4))
    space.count()
    assert (space.state.epoch, space.state.boot, space.state.history) == (7, "boot-2", ("etcd-1", 9, 4))


def test_a_space_has_the_ranges_of_each_network_that_a_request_used(cluster_node):
    space, _ = quiet(cluster_node())
    other = cluster_node("b", ipam={"range": "10.1.0.0/24", "node_name": "a"}).keys
    space.note(other, [])
    assert [*space.networks] == [("10.0.0.0/24",), ("10.1.0.0/24",)]
    assert space.prefetch_job.due == 0.0        # now, because the new range has no block yet


def test_the_local_state_is_read_again_when_addresses_may_be_scarce(cluster_node, monkeypatch):
    """The server reads it no more often, because it takes the directory's lock, and requests wait for the lock."""
    space, _ = quiet(cluster_node())
    read = []
    monkeypatch.setattr(space, "refresh", lambda: read.append(space.until_scarce))
    space.until_scarce, space.prefetch_job.due = 2, NEVER
    space.note(space.local.keys, [b"\x0a\0\0\1"])
    assert read == [] and space.prefetch_job.due == NEVER
    space.note(space.local.keys, [b"\x0a\0\0\2"])
    assert read == [0] and space.prefetch_job.due == 0.0


def test_requests_of_a_short_time_are_handled_together(cluster_node, monkeypatch):
    """Otherwise, the thread would compete for the GIL with the next request."""
    a = cluster_node(gather_s=2.0)
    taken, take = [], a.cluster._take_noted
    monkeypatch.setattr(a.cluster, "_take_noted", lambda: taken.append(1) or take())
    a.add("c0")
    assert not eventually(lambda: taken, 0.4)
    assert eventually(a.store.uses)


def test_many_changes_are_written_at_once(cluster_node):
    a = cluster_node(write_s=3600.0, write_changes=4)
    for i in range(4):
        a.add(f"c{i}")
    assert eventually(a.store.uses)


def test_a_deleted_pod_leaves_the_uses(cluster_node):
    a = cluster_node()
    a.add("c1")
    assert eventually(a.store.uses)
    a.delete("c1")
    assert eventually(lambda: a.store.uses()[0].holders == [])


def test_idle_blocks_are_given_back_one_by_one_until_two_are_left(cluster_node):
    a = cluster_node(idle_s=0.2, ipam={"cool_down": 0})
    for i in range(70):
        a.add(f"c{i}")
    assert eventually(lambda: len(a.blocks) >= 5)
    for i in range(70):
        a.delete(f"c{i}")
    assert eventually(lambda: len(a.blocks) == 2)
    assert eventually(lambda: a.stored == a.blocks)
    assert a.logged("cluster_block_returned")["why"] == "idle"


def test_a_block_that_is_cooling_down_is_not_given_back(cluster_node):
    a = cluster_node(idle_s=0.05, ipam={"cool_down": 3600})
    for i in range(40):
        a.add(f"c{i}")
    used = {f"{address.rpartition('.')[0]}.{int(address.rpartition('.')[2]) & ~15}/28" for address in a.held}
    assert len(used) >= 3
    for i in range(40):
        a.delete(f"c{i}")
    assert not eventually(lambda: not used <= a.blocks, 0.3)


def test_signs_of_life_are_given_while_there_are_blocks(cluster_node):
    a = cluster_node(confirm_s=0.01)
    a.add("c1")
    before = a.store.nodes()[0]
    assert eventually(lambda: a.store.nodes()[0].seen > before.seen + 0.05)
    assert a.store.nodes()[0].state == ALIVE


def test_a_full_range_is_logged_and_not_asked_for_again_and_again(cluster_node):
    a = cluster_node(ipam={"range": "10.0.0.0/27", "block_size": 29})
    for i in range(30):
        a.add(f"c{i}")
    assert a.logged("cluster_range_full")["range"] == "10.0.0.0/27"
    assert a.call("ADD", "one-too-many")[0] == 1


def test_a_full_range_is_tried_again_after_a_pause_and_logged_unless_claims_have_to_wait(cluster_node, monkeypatch):
    space, _ = quiet(cluster_node())
    tried = []
    monkeypatch.setattr(upkeep, "claim_ahead", lambda store, keys, warn: tried.append(keys) or [])
    monkeypatch.setattr(space, "short", lambda: {"10.0.0.0/24"})
    monkeypatch.setattr(space, "refresh", lambda: None)
    space.log.lines.clear()
    for now in (100.0, 104.9, 105.0):
        space._prefetch(now)
    assert len(tried) == 2
    assert [event for event, _ in space.log.lines] == ["cluster_range_full"] * 2
    space.state.hold = ["the store was restored"]
    space._prefetch(200.0)
    assert len(tried) == 3 and len(space.log.lines) == 2


def test_uses_that_the_store_has_are_not_written_again(cluster_node, monkeypatch):
    """The uses are the same if an address was given and released between two writes."""
    space, store = quiet(cluster_node())
    [cidr], written = space.owned, []
    monkeypatch.setattr(store, "write_uses", lambda me, uses: written.append(uses))
    space.dirty = {cidr, "10.9.9.0/28"}         # the other block is no longer this node's
    assert space._write(0.0) == NEVER and written == [] and space.dirty == set()
    space.dirty, space.member.node = {cidr}, None
    assert space._write(50.0) == 50.0 + space.times.write_s and space.dirty == {cidr}


def test_the_status_document_has_the_spaces(cluster_node):
    a = cluster_node()
    a.add("c1")
    assert eventually(lambda: a.cluster.status() and a.cluster.status()[0]["epoch"])
    [found] = a.cluster.status()
    assert (found["store"], found["node"], found["epoch"]) == ("local", "a", 1)
    assert "awaySeconds" not in found
    [space] = found["spaces"]
    assert (space["space"], space["blocks"], space["conflicts"]) == ("default", 1, [])
    assert space["ranges"] == [{"range": "10.0.0.0/24", "free": space["ranges"][0]["size"] - 1,
                                "size": space["ranges"][0]["size"]}]
