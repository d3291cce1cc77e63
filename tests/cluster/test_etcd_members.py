"""The etcd store when members of etcd end or hang, with TLS and users, and after a restore from a backup."""

import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
from cluster.etcd import PASSWORD, Etcd

from fastcni.clients.errors import Away
from fastcni.kit.ipam.cluster.contract import ALIVE, Block, Changed, Fenced, Use
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.launcher import modules
from fastcni.testing.witnesses import eventually

WAIT_S = 30


@pytest.fixture
def opened():
    """Return a function that opens a store. The fixture closes the stores at the end of the test."""
    stores = []

    def open_one(settings, **keys):
        stores.append(open_store(settings | keys))
        return stores[-1]
    yield open_one
    for store in stores:
        store.close()


class Watcher:
    """A thread that runs store.watch(), and runs it again after Away, as the server does. events: (record, whether it
    was deleted)."""

    def __init__(self, store):
        self.store, self.events, self.away, self.stopped = store, [], [], threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stopped.is_set():
            try:
                self.store.watch(lambda event: self.events.append((event.record, bool(event.gone))),
                                 self.stopped.is_set)
            except Away as e:
                self.away.append(e)
                self.stopped.wait(0.1)

    def saw(self, cidr, gone=False):
        return eventually(lambda: any(type(record) is Block and record.cidr == cidr and was == gone
                                      for record, was in list(self.events)), WAIT_S)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


def patiently(call):
    """Return call(). While the members elect a leader, repeat a call that fails."""
    limit = time.monotonic() + WAIT_S
    while True:
        try:
            return call()
        except Away:
            assert time.monotonic() < limit
            time.sleep(0.1)


# -- members ------------------------------------------------------------------------------------------


def test_claims_and_a_watch_survive_a_killed_leader(etcd_three, opened):
    store, other = opened(etcd_three.conf(prefix="/leader")), opened(etcd_three.conf(prefix="/leader"))
    me = store.join("a", "boot")
    store.claim(me, [("s", "10.0.0.0/26")])
    leader = etcd_three.leader()
    with Watcher(other) as watcher:
        assert watcher.saw("10.0.0.0/26")
        leader.kill()
        try:
            (block,) = patiently(lambda: store.claim(me, [("s", "10.0.0.64/26")]))
            assert (block.node, block.epoch) == ("a", 1)
            assert [one.cidr for one in other.blocks()] == ["10.0.0.0/26", "10.0.0.64/26"]
            assert watcher.saw("10.0.0.64/26")
        finally:
            leader.restart()
            etcd_three.await_health()


def test_a_hanging_member_is_left_for_the_next_which_is_remembered(etcd_three, opened):
    leader = etcd_three.leader()
    first, second = (member for member in etcd_three.members if member is not leader)
    store = opened(etcd_three.conf(prefix="/hang", endpoints=[first.endpoint, leader.endpoint, second.endpoint]))
    store.etcd.http.endpoint_timeout = 0.3
    me = store.join("a", "boot")
    assert store.etcd.http.good == 0
    with Watcher(store) as watcher:
        store.claim(me, [("s", "10.0.0.0/26")])
        assert watcher.saw("10.0.0.0/26")
        first.pause()
        try:
            patiently(lambda: store.claim(me, [("s", "10.0.0.64/26")]))
            assert store.etcd.http.good > 0
            sent = store.etcd.http.sent
            assert store.keep_alive(me).state == ALIVE
            assert store.etcd.http.sent - sent == 1
            assert watcher.saw("10.0.0.64/26"), "the watch has to leave the member, too"
        finally:
            first.resume()
            etcd_three.await_health()


def test_a_store_whose_members_are_all_gone_says_which_and_why(opened):
    store = opened({"type": "etcd", "endpoints": ["http://127.0.0.1:1", "http://localhost:1"]})
    with pytest.raises(Away, match=r"etcd at http://127\.0\.0\.1:1: Connection refused \(errno 111\); etcd at "
                                        r"http://localhost:1: Connection refused"):
        store.nodes()


def test_a_member_that_hangs_costs_one_deadline(etcd_alone, opened):
    store = opened(etcd_alone.conf())
    store.join("a", "boot")
    store.etcd.http.timeout = 0.3
    etcd_alone.members[0].pause()
    began = time.monotonic()
    with pytest.raises(Away, match="no answer in time"):
        store.nodes()
    assert time.monotonic() - began < 5
    etcd_alone.members[0].resume()
    store.etcd.http.timeout = WAIT_S
    assert [node.name for node in store.nodes()] == ["a"]


def test_a_node_lives_as_long_as_its_lease(etcd, opened):
    store = opened(etcd, node_ttl=1)
    store.join("a", "boot")
    assert eventually(lambda: store.nodes()[0].state != ALIVE, WAIT_S, pause=0.1)
    assert store.declare_dead(store.nodes()[0]).epoch == 2


def test_an_epoch_never_comes_twice_for_a_node_that_was_forgotten(etcd, opened, etcd_member):
    store = opened(etcd)
    old = store.join("a", "boot")
    etcd_member.end_lease(etcd["prefix"], "a")
    store.forget(store.declare_dead(store.nodes()[0]))
    assert store.join("a", "boot 2").epoch == 2
    with pytest.raises(Exception, match="epoch=2"):
        store.claim(old, [("s", "10.0.0.0/26")])
    assert store.blocks() == []


def test_a_sign_of_life_is_no_sign_if_the_node_was_declared_dead_meanwhile(etcd, opened, etcd_member):
    """A process was killed after it had created the lease of the node and epoch, and before it put the node's key.
    Other processes renewed this lease, and never saw that the node was declared dead."""
    store, stalled, one_shot = opened(etcd), opened(etcd), opened(etcd)
    me = store.join("a", "boot")
    assert stalled.keep_alive(me).state == one_shot.keep_alive(me).state == ALIVE
    etcd_member.end_lease(etcd["prefix"], "a")
    killed = opened(etcd)
    killed.etcd.txn = None
    with pytest.raises(TypeError):
        killed.keep_alive(me)
    store.declare_dead(store.nodes()[0])
    for each in (store, stalled, one_shot):
        with pytest.raises(Fenced):
            each.keep_alive(me)


def test_all_processes_of_a_node_keep_the_same_lease(etcd, opened, etcd_member):
    store, other = opened(etcd), opened(etcd)
    me = store.join("a", "boot")
    sent = other.etcd.http.sent
    other.keep_alive(me)
    other.keep_alive(me)
    other.join("a", "boot")
    assert other.leases == store.leases and len(store.leases) == 1
    assert other.etcd.http.sent - sent == 2 + 1 + 3


# -- lost answers ------------------------------------------------------------


def test_a_claim_whose_answer_was_lost_succeeds_when_it_is_asked_again(etcd, opened, monkeypatch):
    store = opened(etcd)
    me = store.join("a", "boot")
    real = store.etcd.http.request

    def lossy(*args, **named):
        real(*args, **named)
        raise Away("the answer was lost")

    steps = {
        "claim": lambda: store.claim(me, [("s", "10.0.0.0/26"), ("s", "10.0.0.64/26")]),
        "write_uses": lambda: store.write_uses(me, [Use("s", "10.0.0.0/26", "a", 1, "boot", [], 1.0)]),
        "give_back": lambda: store.give_back(store_blocks[0]),
        "keep_alive": lambda: store.keep_alive(me), "grid": lambda: store.grid("s", {"4": 26}),
        "share": lambda: store.share("s", "10.0.9.0/26"), "join": lambda: store.join("a", "boot"),
    }
    for name, step in steps.items():
        store_blocks = store.blocks()
        with monkeypatch.context() as patch:
            patch.setattr(store.etcd.http, "request", lossy)
            with pytest.raises(Away):
                step()
        assert step() is not False, name
    assert [(one.cidr, one.node) for one in store.blocks()] == [("10.0.0.64/26", "a"), ("10.0.9.0/26", "")]


def test_a_claim_is_one_request(etcd, opened):
    store = opened(etcd)
    me = store.join("a", "boot")
    sent = store.etcd.http.sent
    store.claim(me, [("s", "10.0.0.0/26"), ("s", "fd00::/122"), ("t", "10.0.0.0/26")])
    store.keep_alive(me)
    store.write_uses(me, [Use("s", "10.0.0.0/26", "a", 1, "boot", [], 1.0)])
    assert store.etcd.http.sent - sent == 3


def test_more_blocks_than_a_transaction_takes_are_all_claimed_or_none(etcd, opened):
    store = opened(etcd)
    a, b = store.join("a", "boot"), store.join("b", "boot")
    wanted = [("s", f"10.0.{i}.0/26") for i in range(150)]
    store.claim(b, wanted[-1:])
    store.claim(a, wanted[:1])
    with pytest.raises(Exception, match="node='b'"):
        store.claim(a, wanted)
    assert [one.cidr for one in store.blocks(node="a")] == ["10.0.0.0/26"]
    assert len(store.claim(a, wanted[:-1])) == 149 == len(store.blocks(node="a"))


def test_the_use_of_a_huge_block_leaves_holders_out_that_etcd_would_not_take(etcd, opened):
    store = opened(etcd)
    me = store.join("a", "boot")
    cidrs = ["10.0.0.0/16", "10.1.0.0/26", "10.2.0.0/16"]
    store.claim(me, [("s", cidr) for cidr in cidrs])
    holders = [{"address": f"10.0.{i >> 8}.{i & 255}", "container": f"{i:064x}", "pod": "a/b"} for i in range(12000)]
    store.write_uses(me, [Use("s", cidr, "a", 1, "boot", holders if cidr.endswith("16") else holders[:64], 1.0)
                          for cidr in cidrs])
    counts = [len(use.holders) for use in store.uses()]
    assert counts[1] == 64 and counts[0] == counts[2] and 6000 < counts[0] < 12000


# -- history ------------------------------------------------------------------------------------------


def test_a_restored_backup_is_seen_in_the_history_and_by_a_watch(etcd_alone, opened):
    store = opened(etcd_alone.conf())
    me = store.join("a", "boot")
    store.claim(me, [("s", "10.0.0.0/26")])
    saved = etcd_alone.backup()
    patiently(lambda: store.claim(me, [("s", "10.0.0.64/26")]))
    name, newest, _ = store.history()
    with Watcher(opened(etcd_alone.conf())) as watcher:
        assert watcher.saw("10.0.0.64/26")
        etcd_alone.restore(saved)
        assert watcher.saw("10.0.0.64/26", gone=True)
    store.nodes()
    assert store.history()[0] == name and store.history()[1] < newest
    assert [one.cidr for one in store.blocks()] == ["10.0.0.0/26"]


def test_a_sign_of_life_notices_a_restored_backup(etcd_alone, opened):
    """The backup contains the node's lease, so the node can still renew it. An idle server makes no other request for
    hours."""
    store = opened(etcd_alone.conf())
    me = store.join("a", "boot")
    saved = etcd_alone.backup()
    for i in range(20):
        patiently(lambda i=i: store.claim(me, [("s", f"10.0.{i}.0/26")]))
    newest = store.history()
    etcd_alone.restore(saved)
    assert patiently(lambda: store.keep_alive(me)).state == ALIVE
    assert store.history() < newest


def test_a_new_etcd_at_the_same_place_does_not_know_the_node(etcd_alone, opened):
    store = opened(etcd_alone.conf())
    me = store.join("a", "boot")
    newest = store.history()
    etcd_alone.end()
    subprocess.run(["rm", "-r", etcd_alone.members[0].directory / "data"], check=True)
    etcd_alone.restart()
    with pytest.raises(Changed, match="node a with epoch 1 is not in the store"):
        store.claim(me, [("s", "10.0.0.0/26")])
    assert store.history() != newest


def test_a_watch_reads_anew_what_was_compacted(etcd, opened, etcd_member):
    store = opened(etcd)
    me = store.join("a", "boot")
    (block,) = store.claim(me, [("s", "10.0.0.0/26")])
    watching = opened(etcd)
    real = watching.etcd.watch
    opens = []

    def late(first, end, revision, stop):
        """Let the first watch begin after a change that etcd has compacted."""
        if not opens:
            store.give_back(block)
            store.claim(me, [("s", "10.0.0.64/26")])
            etcd_member.call("/v3/kv/compaction", {"revision": store.history()[1]})
        opens.append(revision)
        return real(first, end, revision, stop)

    watching.etcd.watch = late
    with Watcher(watching) as watcher:
        assert watcher.saw("10.0.0.64/26") and watcher.saw("10.0.0.0/26", gone=True)
    assert watcher.away == []


# -- TLS ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["client", "named"])
def test_tls_with_a_client_certificate(etcd_tls, opened, name):
    pem = f"{etcd_tls.directory}/{name}"
    store = opened(etcd_tls.conf(prefix=f"/fastcni/{name}", cert=f"{pem}.pem", key=f"{pem}-key.pem"))
    me = store.join("a", "boot")
    assert [one.cidr for one in store.claim(me, [("s", "10.0.0.0/26")])] == ["10.0.0.0/26"]
    with Watcher(store) as watcher:
        assert watcher.saw("10.0.0.0/26")
        store.claim(me, [("s", "10.0.0.64/26")])
        assert watcher.saw("10.0.0.64/26")


@pytest.mark.parametrize("change, message", [
    ({"cert": "", "key": ""}, "certificate"), ({"ca": ""}, "certificate verify failed|self.signed|unable to get"),
    ({"ca": "/nonexistent/ca.pem"}, "read /nonexistent/ca.pem for TLS: No such file or directory"),
    ({"key": "ca.pem"}, "TLS with .*client.pem and .*ca.pem"), ({"endpoints": "localhost"}, "localhost|mismatch"),
])
def test_bad_certificates_are_named(etcd_tls, opened, change, message):
    conf = etcd_tls.conf()
    for key, value in change.items():
        conf[key] = conf["endpoints"][0].replace("127.0.0.1", value) if key == "endpoints" else value
        if value == "ca.pem":
            conf[key] = f"{etcd_tls.directory}/ca.pem"
        if key == "endpoints":
            conf[key] = [conf[key]]
    with pytest.raises(Away, match=message):
        opened(conf).nodes()


def test_a_certificate_that_was_renewed_is_used(etcd_tls, opened, tmp_path):
    conf = etcd_tls.conf()
    paths = {key: tmp_path / key for key in ("cert", "key")}
    (tmp_path / "cert").write_text("not a certificate")
    (tmp_path / "key").write_text("nor a key")
    store = opened(conf | {key: str(path) for key, path in paths.items()})
    with pytest.raises(Away, match="TLS with"):
        store.nodes()
    for key, path in paths.items():
        shutil.copy(conf[key], tmp_path / "new")
        os.replace(tmp_path / "new", path)
    assert store.nodes() == []


# -- users --------------------------------------------------------------------------------------------


def test_a_user_with_a_password_file_and_a_token_that_has_expired(etcd_user, opened, tmp_path):
    (tmp_path / "password").write_text(PASSWORD + "\n")
    conf = etcd_user.conf(prefix="/fastcni/user", password="", password_file=str(tmp_path / "password"))
    store = opened(conf)
    me = store.join("a", "boot")
    store.etcd.token = "expired.1"
    store.claim(me, [("s", "10.0.0.0/26")])
    store.etcd.token = "expired.1"
    with Watcher(store) as watcher:
        assert watcher.saw("10.0.0.0/26")
    assert watcher.away == []


def test_what_a_user_may_not_do_is_named(etcd_user, opened):
    for keys, message in (({"password": "wrong"}, "authentication failed, invalid user ID or password"),
                          ({"prefix": "/other"}, "permission denied; may this user read and write"),
                          ({"username": ""}, "user name is empty")):
        with pytest.raises(Away, match=message):
            opened(etcd_user.conf(prefix="/fastcni/user") | keys).nodes()


def test_a_user_is_not_needed_where_etcd_wants_none(etcd, opened):
    store = opened(etcd, username="nobody", password="x")
    assert store.nodes() == [] == store.nodes()
    assert store.etcd.http.sent == 3


def test_with_users_a_certificate_must_have_no_common_name(opened):
    """etcd takes a certificate's common name for the user's name. The JSON gateway does not support this, and rejects
    the request."""
    with Etcd(tls=True, user=True) as etcd:
        conf = etcd.conf(prefix="/fastcni/both")
        assert opened(conf).nodes() == []
        with pytest.raises(Away, match="permission denied; may this user"):
            opened(conf, username="").nodes()
        named = {key: conf[key].replace("client", "named") for key in ("cert", "key")}
        with pytest.raises(Away, match="CommonName of client sending a request against gateway will be ignored"):
            opened(conf | named).nodes()


# -- one-shot -----------------------------------------------------------------------------------------

ONE_SHOT = """
import sys
sys.path.append({root!r})
from fastcni.clients import site_packages
from fastcni.kit.ipam.cluster.stores import open_store
site_packages.DIRECTORIES = {directories!r}         # as in a plugin file
assert "urllib3" not in sys.modules and "site" not in sys.modules
store = open_store({settings!r})
print([block.cidr for block in store.claim(store.join("a", "boot"), [("s", "10.0.0.0/26")])])
"""


def test_a_python_without_site_packages_finds_urllib3(etcd):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", ONE_SHOT.format(
        root=root, settings=etcd, directories=modules.site_packages())],
                          capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("['10.0.0.0/26']\n", "")


def test_keys_are_below_the_prefix_and_names_are_escaped(etcd, opened, etcd_member):
    store = opened(etcd)
    me = store.join("node/1%", "boot")
    store.claim(me, [("a/b", "10.0.0.0/26")])
    assert [one.space for one in store.blocks(node="node/1%")] == ["a/b"]
    assert [one.name for one in store.nodes()] == ["node/1%"]
    keys = etcd_member.keys(etcd["prefix"] + "/")
    assert sorted(key.removeprefix(etcd["prefix"]) for key in keys) == [
        "/blk/a%2Fb/10.0.0.0/26", "/node/node%2F1%25/alive", "/node/node%2F1%25/epoch", "/node/node%2F1%25/record",
        "/own/node%2F1%25/a%2Fb/10.0.0.0/26"]
