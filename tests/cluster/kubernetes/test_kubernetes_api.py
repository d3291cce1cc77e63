"""The Kubernetes store with errors of the API server; its lists, watches, names, times and heartbeats."""

import re
import threading
import time

import pytest
from cluster.kubernetes.api_server import NAME, kubeconfig
from cluster.kubernetes.core_schemas import kubelet_lease
from hypothesis import given
from hypothesis import strategies as st

from fastcni.clients import kubernetes as kubernetes_api
from fastcni.clients.errors import Away, Rejected
from fastcni.kit.ipam.cluster.contract import ALIVE, HELD, KEPT, LOST, NODE_TTL_S, SHARED, Block, Changed, IPClaim
from fastcni.kit.ipam.cluster.stores import kubernetes_nodes, open_store
from fastcni.kit.ipam.cluster.stores.kubernetes_nodes import Signs
from fastcni.kit.ipam.cluster.stores.kubernetes_objects import (
    block_name,
    claim_name,
    label_value,
    node_name,
    read_time,
    to_time,
)
from fastcni.testing.witnesses import eventually

LABEL = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"


@pytest.fixture
def store(mock, tmp_path):
    (tmp_path / "kubeconfig").write_text(kubeconfig(mock.url, token="one"))
    store = open_store({"type": "kubernetes", "kubeconfig": str(tmp_path / "kubeconfig")})
    yield store
    store.close()


def lists(mock, kind="ipblocks"):
    """Return how often the store listed a kind from the first page."""
    return len([1 for method, path in mock.do(lambda api: list(api.log)) if method == "GET"
                and f"/{kind}?" in path and "watch" not in path and "continue" not in path])


# Answers

def test_a_busy_server_is_asked_again(mock, store):
    mock.do(lambda api: api.next.extend([(429, {"Retry-After": "1"}), (429, {})]))
    assert store.grid("s", {"4": 26}) == {"4": 26}


@pytest.mark.parametrize("told, least, most", [("4", 4, 6), ("1", 1, 1.5), ("3600", 10, 15), ("0", 0.1, 0.15),
                                               ("soon", 0.1, 0.1)])
def test_a_busy_server_is_asked_again_when_it_says(mock, store, monkeypatch, told, least, most):
    """The store tried again after 0.1 s, and ignored Retry-After."""
    pauses = []
    monkeypatch.setattr(kubernetes_api.waiting, "readable", lambda fd, seconds, kind: pauses.append(seconds))
    mock.do(lambda api: api.next.append((429, {"Retry-After": told})))
    assert store.grid("s", {"4": 26}) == {"4": 26}
    assert len(pauses) == 1 and least <= pauses[0] <= most


def test_a_server_that_stays_busy_is_a_store_that_is_away(mock, store):
    mock.do(lambda api: api.next.extend([(429, {})] * 10))
    with pytest.raises(Away, match=r"GET .*/ipspaces/s: status 429: as told"):
        store.grid("s", {"4": 26})


@pytest.mark.parametrize("status", [400, 403, 422, 500])
def test_an_error_names_the_request_and_the_servers_text(mock, store, status):
    mock.do(lambda api: api.next.append((status, {})))
    with pytest.raises(Away, match=rf"^kubernetes at http://127\.\S+: GET \S+/ipblocks: status {status}: as told") as e:
        store.blocks()
    assert isinstance(e.value, Rejected) is (status != 500)


def test_missing_crds_are_named(mock, store):
    mock.do(lambda api: api.crds.pop("ipblocks"))
    with pytest.raises(Away, match=r"/ipblocks: the cluster has no such objects; are their CRDs applied\?"):
        store.blocks()
    with pytest.raises(Away, match="CRDs"):
        store.claim(store.join("a", "boot"), [("s", "10.0.0.0/26")])


# Credentials

def test_a_token_that_is_not_known_any_more_is_read_again(mock, store, tmp_path):
    assert store.nodes() == []
    mock.do(lambda api: setattr(api, "tokens", {"two"}))
    with pytest.raises(Away, match="status 401: Unauthorized"):
        store.nodes()
    (tmp_path / "kubeconfig").write_text(kubeconfig(mock.url, token="two"))
    assert store.nodes() == []
    (tmp_path / "token").write_text("three")
    (tmp_path / "kubeconfig").write_text(kubeconfig(mock.url, user={"tokenFile": "token"}))
    mock.do(lambda api: setattr(api, "tokens", {"three"}))
    assert store.nodes() == []
    (tmp_path / "token").write_text("four")     # within the minute in which the store keeps a token
    mock.do(lambda api: setattr(api, "tokens", {"four"}))
    assert store.nodes() == []


def test_a_server_that_moved_is_found_again(mock, store, tmp_path):
    mock.do(lambda api: setattr(api, "tokens", {"two"}))
    (tmp_path / "kubeconfig").write_text(kubeconfig(mock.url.replace("127.0.0.1", "localhost"), token="two"))
    assert store.nodes() == []


def test_a_watch_reads_its_token_again(mock, store, tmp_path):
    asked = []
    store.nodes()

    def stop():
        if not asked:
            asked.append(1)
            # Another thread may have renewed the token
            (tmp_path / "kubeconfig").write_text(kubeconfig(mock.url, token="two"))
            mock.do(lambda api: setattr(api, "tokens", {"two"}))
        return {("watch", "ipam.fastcni.dev", "ipnodes")} <= mock.do(lambda api: api.asked)

    store.watch(lambda event: None, stop)


# Lists in pages

def test_a_long_list_comes_in_pages(mock, store):
    me = store.join("a", "boot")
    store.claim(me, [("s", f"10.{i}.0.0/26") for i in range(10)])
    mock.do(lambda api: setattr(api, "page", 3))
    before = len(mock.do(lambda api: list(api.log)))
    assert len(store.blocks("s")) == 10
    paths = [path for _, path in mock.do(lambda api: api.log[before:])]
    assert len(paths) == 4 and all("limit=500" in path and "labelSelector=ipam.fastcni.dev" in path for path in paths)


def test_a_page_that_comes_too_late_starts_the_list_again(mock, store):
    me = store.join("a", "boot")
    store.claim(me, [("s", f"10.{i}.0.0/26") for i in range(10)])
    mock.do(lambda api: setattr(api, "page", 3))
    expect, pages = store.api._expect, []

    def late(method, path, *rest):
        pages.append(path)
        if len(pages) == 3:
            mock.do(lambda api: api.forget("ipblocks", block_name("s", "10.9.0.0/26")))
        return expect(method, path, *rest)

    store.api._expect = late
    assert [block.cidr for block in store.blocks("s")] == [f"10.{i}.0.0/26" for i in range(9)]
    assert [("continue" in path) for path in pages] == [False, True, True, False, True, True]


def test_a_lower_revision_is_noted_only_from_a_later_list(store):
    store.api._note_revision(20, time.monotonic())
    begun = time.monotonic() - 1
    store.api._note_revision(10, begun)         # the request began before the store saw revision 20
    assert store.api.revision == 20
    store.api._note_revision(5, time.monotonic())
    assert store.api.revision == 5              # as after a restore from a backup


# Watches

class Watching:
    """A thread that runs store.watch(). blocks: the blocks that exist according to the events."""

    def __init__(self, store):
        self.store, self.blocks, self.came, self.over = store, {}, threading.Condition(), threading.Event()
        self.error = None
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self.store.watch(self._changed, self.over.is_set)
        except Away as e:
            self.error = e

    def _changed(self, event):
        with self.came:
            if isinstance(event.record, Block):
                if event.gone:
                    self.blocks.pop(event.record.cidr, None)
                else:
                    self.blocks[event.record.cidr] = event.record.state
            self.came.notify_all()

    def until(self, **blocks):
        with self.came:
            assert self.came.wait_for(lambda: self.blocks == blocks.get("are"), 20), self.blocks

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(20)


def test_a_watch_that_ends_goes_on_from_its_last_revision(mock, store):
    mock.do(lambda api: setattr(api, "watch_s", 0.2))
    with Watching(store) as watch:
        store.share("s", "10.0.0.0/26")
        watch.until(are={"10.0.0.0/26": SHARED})
        assert eventually(lambda: sum("ipblocks?watch" in path
                                      for _, path in mock.do(lambda api: list(api.log))) >= 3)
        store.share("s", "10.1.0.0/26")
        watch.until(are={"10.0.0.0/26": SHARED, "10.1.0.0/26": SHARED})
        assert lists(mock) == 1


@pytest.mark.parametrize("watch_s", [0.2, 240.0], ids=["a later watch", "the watch that waits"])
def test_a_watch_from_a_forgotten_revision_lists_again_and_tells_what_is_gone(mock, store, watch_s):
    """The test failed if its watch began before the test set a short watch_s, because the mock did not end a watch that
    waited."""
    mock.do(lambda api: setattr(api, "watch_s", watch_s))
    store.share("s", "10.0.0.0/26")
    store.share("s", "10.1.0.0/26")
    with Watching(store) as watch:
        watch.until(are={"10.0.0.0/26": SHARED, "10.1.0.0/26": SHARED})
        mock.do(lambda api: api.forget("ipblocks", block_name("s", "10.0.0.0/26")))
        watch.until(are={"10.1.0.0/26": SHARED})
    assert lists(mock) >= 2


def test_a_bookmark_is_a_revision_to_go_on_from(mock, store):
    with Watching(store) as watch:
        store.share("s", "10.0.0.0/26")
        watch.until(are={"10.0.0.0/26": SHARED})
        store.grid("s", {"4": 26})              # changes another kind, so the watch of blocks gets only a bookmark
        store.grid("t", {"4": 26})
        time.sleep(0.2)
        mock.do(lambda api: (api.compact(), setattr(api, "watch_s", 0.0)))
        mock.do(lambda api: setattr(api, "watch_s", 240))
        store.share("s", "10.1.0.0/26")
        watch.until(are={"10.0.0.0/26": SHARED, "10.1.0.0/26": SHARED})
        assert lists(mock) == 1


def test_a_watch_that_is_refused_ends_with_the_reason(mock, store):
    mock.do(lambda api: setattr(api, "rules", [{"verbs": ["list"], "apiGroups": ["ipam.fastcni.dev"],
                                                "resources": ["ipnodes", "ipblocks", "ipclaims"]},
                                               {"verbs": ["list"], "apiGroups": ["coordination.k8s.io"],
                                                "resources": ["leases"], "namespace": "kube-node-lease"}]))
    with pytest.raises(Away, match="status 403: cannot watch"):
        store.watch(lambda event: None, lambda: False)


def test_an_exception_of_the_callback_ends_the_watch(store):
    store.share("s", "10.0.0.0/26")

    def changed(event):
        raise LookupError("of the callback")

    with pytest.raises(LookupError, match="of the callback"):
        store.watch(changed, lambda: False)


# Lost answers

def lose_answer(store, number):
    """Lose the answer of the request with this number."""
    expect, count = store.api._expect, [0]

    def lossy(*args, **named):
        count[0] += 1
        try:
            return expect(*args, **named)
        finally:
            if count[0] == number:
                store.api._expect = expect
                raise Away("no answer in time")

    store.api._expect = lossy


def test_a_change_whose_answer_was_lost_is_found(store):
    me = store.join("a", "boot")
    store.share("s", "10.0.0.0/26")
    ip_claim = IPClaim("s", "10.0.0.7", "10.0.0.0/26", HELD, container="c", ifname="eth0", pod="ns/p", since=1.0)
    lose_answer(store, 1)
    with pytest.raises(Away):
        store.claim_address(me, ip_claim)
    held = store.claim_address(me, ip_claim)
    lose_answer(store, 1)
    with pytest.raises(Away):
        store.change_ip_claim(held, state=KEPT, container="")
    kept = store.change_ip_claim(held, state=KEPT, container="")
    assert (kept.state, kept.container) == (KEPT, "") and store.ip_claim("s", "10.0.0.7") == kept
    lose_answer(store, 1)
    with pytest.raises(Away):
        store.release_ip_claim(kept)
    assert store.release_ip_claim(kept) is True
    with pytest.raises(Changed):
        store.change_ip_claim(kept, state=HELD)


# Heartbeats

def lease(mock, node, age, owner="Node"):
    mock.do(lambda api: api.put("leases", kubelet_lease(node, age, owner), "kube-node-lease"))


def heartbeats(mock):
    return len([1 for method, path in mock.do(lambda api: list(api.log)) if method == "PATCH" and "/status" in path])


def test_a_node_with_a_lease_writes_no_sign_of_life(mock, store):
    lease(mock, "a", age=9)
    me = store.keep_alive(store.join("a", "boot"))
    assert me.state == ALIVE and heartbeats(mock) == 0
    (node,) = store.nodes()
    assert node.state == ALIVE and 9 <= time.time() - node.seen < 20


def test_a_node_whose_lease_is_old_writes_one_itself(mock, store):
    lease(mock, "a", age=NODE_TTL_S)
    me = store.join("a", "boot")
    assert [node.state for node in store.nodes()] == [ALIVE] and heartbeats(mock) == 1
    store.keep_alive(me)
    assert heartbeats(mock) == 2


def test_a_node_is_lost_when_its_lease_is_old(mock, store):
    lease(mock, "a", age=0)
    store.join("a", "boot")
    assert [node.state for node in store.nodes()] == [ALIVE]
    lease(mock, "a", age=NODE_TTL_S + 1)
    assert [node.state for node in store.nodes()] == [LOST]


def test_a_sign_that_moves_is_life_and_one_that_stands_is_none_whatever_clocks_say(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(kubernetes_nodes.time, "monotonic", lambda: now)
    signs = Signs(60)
    assert not signs.alive("slow clock", (5000,), now=9000)
    now += 10
    assert signs.alive("slow clock", (5010,), now=9010)
    assert signs.alive("fast clock", (99999,), now=9010)
    now += 59
    assert signs.alive("fast clock", (99999,), now=9069)
    now += 1
    assert not signs.alive("fast clock", (99999,), now=9070)
    assert not signs.alive("slow clock", (5010,), now=9070)


def test_a_lease_by_a_slow_clock_is_life_after_a_heartbeat_by_the_servers_clock(mock, store, monkeypatch):
    """The store used the later of the Lease's time and the heartbeat's time. So a node with a slow clock was LOST until
    its clock had passed the time of its first heartbeat."""
    now = 1000.0
    monkeypatch.setattr(kubernetes_nodes.time, "monotonic", lambda: now)
    store.join("a", "boot")
    store.join("a", "boot")
    assert heartbeats(mock) == 1
    for age in (3700, 3640, 3580):
        lease(mock, "a", age)
        assert [node.state for node in store.nodes()] == [ALIVE]
        now += 50
    assert [node.state for node in store.nodes()] == [ALIVE]
    now += 10
    assert [node.state for node in store.nodes()] == [LOST]


def test_a_node_is_gone_when_its_node_object_was_removed(mock, store):
    store.join("never a Node", "boot")
    mock.do(lambda api: api.put("nodes", {"metadata": {"name": "a"}}))
    store.join("a", "boot")
    assert [store.node_gone(name) for name in ("a", "never a Node", "unknown")] == [False, False, False]
    mock.do(lambda api: api.drop("nodes", "a"))
    assert store.node_gone("a") is True


def node_reads(mock):
    return len([1 for _, path in mock.do(lambda api: list(api.log)) if path.startswith("/api/v1/nodes/")])


@pytest.mark.parametrize(("age", "owner", "reads"), [(9, "Node", 0), (9, "Pod", 1), (NODE_TTL_S, "Node", 1)])
def test_a_new_lease_of_a_node_says_that_the_node_exists(mock, store, age, owner, reads):
    """A Lease that the Node owns shows that the Node exists. The Lease of a removed Node may remain."""
    lease(mock, "a", age, owner)
    store.join("a", "boot")
    assert node_reads(mock) == reads
    assert store.node_gone("a") is not bool(reads)          # the API server has no Node of this name


def test_the_making_of_an_ipnode_is_the_first_heartbeat_of_its_node(mock, store):
    me = store.join("a", "boot")
    (node,) = store.nodes()
    assert heartbeats(mock) == 0 and node.state == ALIVE and abs(time.time() - node.seen) < 20
    store.keep_alive(me)
    assert heartbeats(mock) == 1
    store.join("a", "boot")                                 # renews the IPNode's heartbeat
    assert heartbeats(mock) == 2


# Names and times

TEXTS = st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=300)


@given(TEXTS)
def test_each_name_is_one_that_an_object_can_have(text):
    for name in (node_name(text), block_name(text, "10.0.0.64/26"), claim_name(text, "fd00::1")):
        assert NAME.fullmatch(name) and len(name) <= 253 and ".." not in name
        assert all(len(part) <= 63 for part in name.split(".")) or name == text
    assert re.fullmatch(LABEL, label_value(text))


@given(TEXTS, TEXTS)
def test_different_things_have_different_names(one, two):
    assert (node_name(one) == node_name(two)) == (one == two)
    assert (block_name(one, "10.0.0.64/26") == block_name(two, "10.0.0.64/26")) == (one == two)


def test_names_can_be_read():
    assert block_name("net-1", "10.0.0.64/26") == "net-1.10-0-0-64-26"
    assert block_name("default", "fd00:9::40/122") == "default.fd00-9-0-0-0-0-0-40-122"
    assert claim_name("default", "fd00:9::40") == "default.fd00-9-0-0-0-0-0-40"
    assert node_name("node-7.example.org") == "node-7.example.org"
    assert node_name("Node_7").startswith("x-") and node_name("x-7") != "x-7"


@given(st.floats(min_value=0, max_value=4e9))
def test_a_time_comes_back_as_it_was(seconds):
    assert read_time(to_time(seconds)) == pytest.approx(seconds, abs=1e-9)


def test_times_of_now_come_back_exactly():
    now = time.time()
    assert read_time(to_time(now)) == now
    assert to_time(1.5) == "1970-01-01T00:00:01.5Z" and to_time(86400.0) == "1970-01-02T00:00:00Z"
    assert read_time("1970-01-01T01:00:00+01:00") == 0.0 and read_time("") == read_time("today") == 0.0


def test_watches_that_begin_at_the_same_time_end_at_random_times(mock, store, monkeypatch):
    """Each watch ended after exactly 240 s, so watches that had begun together also ended together. fastcni chooses the
    random time, not the API server."""
    for share, seconds in ((1.0, 240), (1.5, 360), (2.0, 480)):
        monkeypatch.setattr("random.uniform", lambda low, high, share=share: low + (high - low) * (share - 1.0))
        mock.do(lambda api: (api.log.clear(), setattr(api, "watch_s", 0.01)))
        list(store.api.watch("/api/v1/nodes", str(mock.do(lambda api: api.revision)), lambda: False))
        ((_, path),) = mock.do(lambda api: list(api.log))
        assert path.endswith(f"timeoutSeconds={seconds}")
