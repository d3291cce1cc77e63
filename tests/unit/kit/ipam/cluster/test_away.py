"""Nodes of a cluster whose store is unavailable or was restored, and nodes that were declared dead."""

import errno
import json
import os
import posix
from ipaddress import ip_address, ip_network
from types import SimpleNamespace

import pytest
from unit.kit.ipam.cluster.node import NET, pod
from unit.kit.ipam.cluster.watched import WatchedMode, a_block, add_until_refused, calls, declare_dead, lose, store_of

from fastcni import _ipam_bitmap
from fastcni.clients.http import REQUEST_TIMEOUT_S
from fastcni.kit.ipam import store as store_module
from fastcni.kit.ipam.cluster import hold, released, stores
from fastcni.kit.ipam.cluster.conf import read_keys
from fastcni.kit.ipam.cluster.contract import ACTIVE, KEPT, QUARANTINE
from fastcni.kit.ipam.cluster.node_state import MadeSpace, State
from fastcni.kit.ipam.cluster.stores.local import key_of
from fastcni.kit.ipam.store import Store
from fastcni.node.attachments.adopt import adopt
from fastcni.node.attachments.inventory import Places
from fastcni.server.cluster.times import Times
from fastcni.server.reboot import release_addresses
from fastcni.spec.config import Section

TINY = {"range": "10.0.0.0/29"}                     # the addresses .1 to .6
STICKY = {"range": "10.0.0.0/24", "sticky": "pod"}


# -- the store is unavailable -----------------------------------------------------------------------------------------


def test_own_blocks_serve_while_the_store_is_away(a):
    a.add(NET, "c0")
    a.mode.watched.away = True
    e = add_until_refused(a)
    assert e.code == 11 and "none of them free" in e.details and len(a.files()) == a_block(a)
    a.delete(NET, "c0")
    a.mode.watched.away = False
    assert a.add(NET, "d")


OTHERS = [{"path": "/other"}, {"type": "etcd", "endpoints": ["http://10.0.0.1:2379"], "prefix": "/x"}]


@pytest.mark.parametrize("settings", OTHERS)
def test_no_address_is_given_while_the_configuration_names_another_store_that_is_away(a, settings):
    """Once, the node gave addresses of its blocks in the previous store. In the new store, another node may have these
    blocks."""
    a.add(NET, "c1")
    a.store = a.store | settings
    a.mode.watched.away = True
    e = a.refused("ADD", NET, "c2")
    assert e.code == 11 and "is unavailable: no route to host" in e.msg and "another store" in e.details
    assert len(a.files()) == 1
    a.delete(NET, "c1")


def test_the_blocks_of_a_former_store_are_claimed_in_the_next_one_before_they_are_given(a, b, tmp_path):
    given = [a.add(NET, f"a{i}")[0] for i in range(3)]
    (old,) = store_of(a).blocks()
    a.store = b.store = {"type": "local", "path": str(tmp_path / "next")}
    a.mode, b.mode = WatchedMode(a.store), WatchedMode(b.store)
    store_of(b).claim(store_of(b).join("b", "boot"), [("default", old.cidr)])
    e = a.refused("ADD", NET, "more")
    assert e.code == 11 and "another 60 s" in e.msg         # claims wait until the other nodes may have joined
    assert f"block {old.cidr} of space default now belongs to another node" in " ".join(a.warnings)
    assert sorted(a.files()) == sorted(given) and store_of(a).blocks()[0].node == "b"


def test_a_store_with_another_address_is_asked_once(a):
    """The second address leads to the same store. The store knows the node, so the next ADD makes no call."""
    a.add(NET, "c1")
    a.store = {"type": "etcd", "endpoints": ["http://10.0.0.1:2379"]}  # the test's mode still opens the local store
    calls(a)
    assert a.add(NET, "c2")
    assert calls(a) == ["keep_alive", "join_space"]
    assert a.add(NET, "c3") and calls(a) == [] and a.warnings == []


@pytest.mark.parametrize("before, now, same", [
    ({"endpoints": ["http://a:2379"]}, {"endpoints": ["http://b:2379", "http://a:2379"], "password": "x"}, True),
    ({"endpoints": ["http://a:2379"]}, {"endpoints": ["http://b:2379"]}, False),
    ({"endpoints": ["http://a:2379"], "prefix": "/x"}, {"endpoints": ["http://a:2379"], "prefix": "/y"}, False),
    ({"type": "kubernetes", "kubeconfig": "/a"}, {"type": "kubernetes", "kubeconfig": "/a", "node_ttl": 9}, True),
    ({"type": "kubernetes", "kubeconfig": "/a"}, {"type": "kubernetes", "kubeconfig": "/b"}, False),
    ({"type": "local", "path": "/a"}, {"type": "kubernetes"}, False)])
def test_what_tells_one_store_from_another(before, now, same):
    before, now = {"type": "etcd"} | before, {"type": "etcd"} | now
    assert stores.same_store(stores.key_of(before), now) is same


def test_an_ip_claim_is_released_later_if_the_store_is_away(a, b):
    first = a.add(TINY, "c1")
    a.mode.watched.away = True
    a.delete(TINY, "c1")
    assert a.files() == {} and "released in the store later" in a.warnings[-1]
    assert [one.container for one in store_of(a).ip_claims()] == ["c1"]
    a.mode.watched.away = False
    a.add(TINY, "c2")
    assert [one.container for one in store_of(a).ip_claims()] == ["c2"] and first


def test_an_ip_claim_that_a_failed_add_has_claimed_is_released_later(a, b):
    """The ADD claims the address, then the store becomes unavailable. When the store answers again, the node releases
    the claim."""
    a.add(TINY, "c0")
    a.mode.watched.lost = ("claim_address", "ip_claim")
    assert a.refused("ADD", TINY, "c1").code == 11
    assert len(store_of(a).ip_claims()) == 2
    a.mode.watched.lost = ()
    a.delete(TINY, "c1")
    assert [one.container for one in store_of(a).ip_claims()] == ["c0"]
    assert set(a.files()) == {store_of(a).ip_claims()[0].address}


def test_a_kept_address_that_another_node_took_over_stays_held_here(a, b):
    """When the store receives the record of the DEL, the pod already has its address on another node."""
    first = a.add(STICKY, "c1", args=pod("db-0"))
    a.mode.watched.away = True
    a.delete(STICKY, "c1")
    a.mode.watched.away = False
    (ip_claim,) = store_of(a).ip_claims()
    store_of(a).change_ip_claim(ip_claim, state=KEPT)       # an operator changes the claim
    assert b.add(STICKY, "c2", args=pod("db-0")) == first
    assert first[0] not in [a.add(STICKY, f"d{i}", args=pod(f"x{i}"))[0] for i in range(20)]
    assert [one.node for one in store_of(a).ip_claims(pod="ns/db-0")] == ["b"]


def test_a_claim_whose_answer_was_lost_is_found_again(a):
    a.mode.watched.lost = ("claim",)
    assert a.refused("ADD", NET, "c1").code == 11
    a.mode.watched.lost = ()
    assert a.add(NET, "c1")
    assert len(store_of(a).blocks()) == 1


def test_a_node_may_be_told_to_stop_without_its_store(a, monkeypatch):
    a.add(NET, "c1")
    now = released.boottime()
    monkeypatch.setattr("fastcni.kit.ipam.cluster.allocate.boottime", lambda: now + 3700)
    monkeypatch.setattr("fastcni.kit.ipam.cluster.released.boottime", lambda: now + 3700)
    a.mode.watched.away = True
    assert a.add(NET, "c2")
    assert "this node continues with its own blocks" in a.warnings[-1]
    e = a.refused("ADD", NET | {"serve_after_loss": 3600}, "c3")
    assert e.code == 11 and "for more than 3600 s" in e.msg


# -- nodes that die and come back ---------------------------------------------------------------------------


def confirm_is_due(monkeypatch):
    monkeypatch.setattr("fastcni.kit.ipam.cluster.allocate.CONFIRM_S", 0.0)
    monkeypatch.setattr("fastcni.kit.ipam.cluster.allocate.TRY_S", 0.0001)


@pytest.mark.parametrize("state", [QUARANTINE, ACTIVE])
def test_a_node_that_was_declared_dead_adopts_its_blocks(a, b, monkeypatch, state):
    """If the process that declared the node dead was killed before it changed the blocks, the blocks are ACTIVE."""
    a.add(NET, "c1")
    declare_dead(b, "a")
    (block,) = store_of(a).blocks()
    block.state = state
    with store_of(a).open() as doc:
        doc.put("blocks", key_of(block), block)
    confirm_is_due(monkeypatch)
    a.add(NET, "c2")
    assert {(one.node, one.epoch, one.state) for one in store_of(a).blocks()} == {("a", 2, ACTIVE)}
    assert len(a.files()) == 2


def test_a_node_that_was_forgotten_gives_nothing_of_a_block_that_another_has(a, b, monkeypatch):
    (first,) = a.add(NET, "c1")
    (block,) = store_of(a).blocks()
    store_of(a).forget(declare_dead(b, "a"))
    other = store_of(b).join("b", "boot")
    store_of(b).claim(other, [("default", block.cidr)])
    confirm_is_due(monkeypatch)
    (second,) = a.add(NET, "c2")
    assert first in a.files()                   # the running pod keeps its address
    assert second.rpartition(".")[2] != str(int(first.rpartition(".")[2]) + 1)
    assert [one.node for one in store_of(a).blocks() if one.cidr == block.cidr] == ["b"]
    assert any("now belongs to another node" in text for text in a.warnings)


def test_a_claim_by_a_dead_node_joins_first(a, b):
    a.add(NET, "c1")
    declare_dead(b, "a")
    given = [a.add(NET, f"d{i}")[0] for i in range(20)]
    assert len(set(given)) == 20
    assert {(one.epoch, one.state) for one in store_of(a).blocks()} == {(2, ACTIVE)}


def test_a_store_that_was_restored_gets_its_blocks_again(a, b, tmp_path, monkeypatch):
    a.add(NET, "a0")
    backup = (tmp_path / "store/store.json").read_bytes()
    for i in range(40):
        a.add(NET, f"a{i}")
    mine = {one.cidr for one in store_of(a).blocks()}
    (tmp_path / "store/store.json").write_bytes(backup)
    e = add_until_refused(a)
    assert e.code == 11 and "the store was restored" in e.msg
    assert mine <= {one.cidr for one in store_of(a).blocks(node="a")}


@pytest.fixture
def clock(monkeypatch):
    """Replace CLOCK_BOOTTIME of the pause after a restore. Return a list whose only item is the time."""
    clock = [1000.0]
    monkeypatch.setattr("fastcni.kit.ipam.cluster.hold.boottime", lambda: clock[0])
    return clock


@pytest.fixture
def restored(a, b, tmp_path, clock):
    """Restore the store from a backup that lacks blocks of node a. Node b has noticed the restore. Return the addresses
    of a's pods."""
    a.add(NET, "a0")
    b.add(NET, "b0")
    backup = (tmp_path / "store/store.json").read_bytes()
    for i in range(40):
        b.add(NET, f"b{i}")
    given = [a.add(NET, f"a{i}")[0] for i in range(1, 70)]
    (tmp_path / "store/store.json").write_bytes(backup)
    assert "for another 60 s" in add_until_refused(b).msg
    return given


def note_hold(node, value):
    """Write State.hold of a node's address space."""
    with MadeSpace(read_keys(Section(node.conf(NET))), node.warnings.append) as space:
        state = space.state.copy()
        state.hold = value
        space.save(state)


def ended(node, text):
    """Return whether the text is in the error of the node's next claim."""
    return text in add_until_refused(node).msg


def test_after_a_restore_claims_wait_for_each_node_that_the_store_knows(a, b, restored, clock, monkeypatch):
    """Once, with node_ttl 6, a node claimed other nodes' blocks 20 s after the restore. 11 addresses had two pods."""
    lose(b, "a")
    clock[0] += 61
    assert ended(b, "until a are back or dead")
    confirm(a, monkeypatch)
    assert ended(b, "for another 5 s")
    clock[0] += 6
    given = [b.add(NET, f"d{i}")[0] for i in range(60)]
    assert not set(given) & {*restored, *a.files()}


def test_after_a_restore_claims_wait_no_longer_than_until_a_lost_node_would_be_dead(a, b, restored, clock):
    lose(b, "a")
    clock[0] += 599
    assert ended(b, "until a are back or dead")
    clock[0] += 2
    assert ended(b, "for another 5 s")
    clock[0] += 6
    assert b.add(NET, "d0")


def test_a_sign_of_life_notices_that_blocks_are_missing(a, b, restored, monkeypatch):
    """At the heartbeat, the restored store's revision may already be higher. Once, a one-shot node compared only the
    revision, and another node got its blocks."""
    with store_of(a).open() as doc:
        doc.data["revision"] += 1000
    confirm(a, monkeypatch)
    blocks = {one.cidr for one in store_of(a).blocks(node="a")}
    assert len(blocks) == 5 and {address for address in restored if not in_any(address, blocks)} == set()


def test_a_sign_of_life_remembers_the_revision_that_a_restored_store_lacks(a, b, tmp_path, monkeypatch):
    """Once, a node that had claimed nothing since the backup did not notice the restore, and claimed another node's
    block."""
    a.add(NET, "a1")
    b.add(NET, "b0")
    backup = (tmp_path / "store/store.json").read_bytes()
    live = [b.add(NET, f"b{i}")[0] for i in range(1, 70)]
    confirm(a, monkeypatch)
    (tmp_path / "store/store.json").write_bytes(backup)
    assert "the store was restored" in add_until_refused(a).msg
    assert not {*live} & {*a.files()}


def confirm(node, monkeypatch):
    """Run an ADD so late after the last confirmation that the node asks the store for a confirmation."""
    now = released.boottime() + 301
    with monkeypatch.context() as patch:
        for module in ("allocate", "released"):
            patch.setattr(f"fastcni.kit.ipam.cluster.{module}.boottime", lambda: now)
        node.add(NET, "a1")


def in_any(address, blocks):
    return any(ip_address(address) in ip_network(cidr) for cidr in blocks)


def test_the_least_difference_of_log_and_revision_never_falls():
    """A member of etcd that is behind reports a lower index of the log."""
    state = State({"history": ["etcd", 5, 9]})
    assert state.later_history(("etcd", 8, 7)) == ("etcd", 8, 9)
    assert state.later_history(("etcd", 8, 11)) == ("etcd", 8, 11)


@pytest.mark.parametrize("node_ttl, seconds", [(6, 60), (120, 120)])
def test_the_pause_after_a_restore_is_longer_than_any_servers_pause(node_ttl, seconds):
    assert hold.seconds_of({"node_ttl": node_ttl}) == seconds
    longest = 1.1 * Times().max_away_s + REQUEST_TIMEOUT_S
    assert 2 * longest <= hold.PAUSE_S


@pytest.mark.parametrize("uptime, refused", [(10.0, "for another 50 s"), (61.0, "for another 5 s")])
def test_the_pause_after_a_restore_does_not_outlive_its_boot(b, restored, clock, monkeypatch, uptime, refused):
    """Once, after a restore at an uptime of 30 days and a reboot, the node claimed no block for 30 days."""
    clock[0] += 30 * 86400
    note_hold(b, hold.begin({}))
    monkeypatch.setattr(store_module, "known_boot_id", b"0" * 8 + b"-0000-0000-0000-" + b"0" * 12)
    clock[0] = uptime
    assert ended(b, refused)
    if uptime > 60:
        clock[0] += 6
        assert b.add(NET, "d0")


def test_the_end_of_a_pause_without_its_boot_is_of_no_boot(b, restored, clock):
    """An earlier version recorded only the CLOCK_BOOTTIME at which the pause ends, without the boot ID."""
    note_hold(b, 30 * 86400.0)
    assert ended(b, "for another 5 s")


def test_after_a_reboot_the_addresses_are_free_and_the_blocks_are_kept(a, monkeypatch):
    monkeypatch.setattr("fastcni.kit.ipam.before_reboot.boot_began_ns", lambda: 1 << 62)
    sticky = a.add(STICKY, "s1", args=pod("db-0"))
    a.add(NET, "c1")
    a.add(NET, "c2", args="IP=10.0.0.240" if sticky[0] < "10.0.0.200" else "IP=10.0.0.16")
    blocks = {one.cidr for one in store_of(a).blocks(node="a")}
    monkeypatch.setattr(store_module, "known_boot_id", b"0" * 8 + b"-0000-0000-0000-" + b"0" * 12)
    a.add(NET, "c3")
    owners = sorted(content.split(b"\r\n")[0] for content in a.files().values())
    assert owners == [b"c3", b"fastcni:single ns/db-0"]
    assert {one.cidr for one in store_of(a).blocks(node="a")} == blocks
    a.add({"range": "10.77.0.0/24"}, "c4")      # with a claim, the node also reports ended pods to the store
    assert [(one.state, one.pod) for one in store_of(a).ip_claims()] == [(KEPT, "ns/db-0")]


def test_a_full_disk_after_a_reboot_leaves_no_descriptor_open(a, monkeypatch):
    """Once, the table of released addresses stayed open if the first request after a reboot could not write to it."""
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    a.add(NET, "c1")
    monkeypatch.setattr("fastcni.kit.ipam.before_reboot.boot_began_ns", lambda: 1 << 62)
    monkeypatch.setattr(store_module, "known_boot_id", b"0" * 8 + b"-0000-0000-0000-" + b"0" * 12)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(posix, "pwrite", full)
        a.add(NET, "c2")
    opened = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    assert not {path for path in opened if path.startswith(str(a.root)) and path.endswith("/released")}


def open_as_host_local(node, how):
    """Open the directory of an address space as if it were a network of host-local."""
    if how == "server's start":
        release_addresses(SimpleNamespace(debug=print, info=print, warning=print), str(node.root))
        return
    with Store(str(node.root), "default", print) as store:
        store.read_all()


@pytest.mark.parametrize("how", ["server's start", "adopt", "host-local"])
def test_a_space_in_a_directory_of_host_local_keeps_its_index(a, monkeypatch, how):
    """Once, the server's start opened address spaces below /var/lib/cni/networks as networks of host-local. After a
    reboot it wrote an index that took whole files as owners, and DEL released nothing."""
    given = [a.add(NET, f"c{i}")[0] for i in range(3)]
    monkeypatch.setattr("fastcni.kit.ipam.before_reboot.boot_began_ns", lambda: 1)     # no file is older than this boot
    monkeypatch.setattr(store_module, "known_boot_id", b"0" * 8 + b"-0000-0000-0000-" + b"0" * 12)
    _ipam_bitmap.forget()
    if how == "adopt":
        (a.root / "net.d").mkdir()
        net = {"cniVersion": "1.0.0", "name": "net", "plugins": [a.conf(NET)]}
        (a.root / "net.d/net.conflist").write_text(json.dumps(net))
        found = adopt(Places(str(a.root / "net.d"), (str(a.root / "cni"),)))
        assert [it.path for it in found.directories if str(a.root) in it.path] == []
    else:
        open_as_host_local(a, how)
    assert sorted(a.files()) == sorted(given)
    a.delete(NET, "c0")
    assert sorted(a.files()) == sorted(given[1:])


@pytest.mark.parametrize("how", ["server's start", "host-local"])
def test_only_requests_of_a_space_release_its_addresses_of_the_former_boot(a, monkeypatch, how):
    """Only these requests report ended pods to the store."""
    given = [a.add(NET, f"c{i}")[0] for i in range(3)]
    monkeypatch.setattr("fastcni.kit.ipam.before_reboot.boot_began_ns", lambda: 1 << 62)
    monkeypatch.setattr(store_module, "known_boot_id", b"0" * 8 + b"-0000-0000-0000-" + b"0" * 12)
    _ipam_bitmap.forget()
    open_as_host_local(a, how)
    assert sorted(a.files()) == sorted(given)
    a.delete(NET, "c9")
    assert a.files() == {}
