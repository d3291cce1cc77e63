"""Many nodes that claim their first block from one API server at the same time."""

import asyncio
import shutil
import threading

import pytest
from cluster.kubernetes.api_server import ApiServer, web
from cluster.kubernetes.core_schemas import kubelet_lease
from unit.kit.ipam.cluster.node import Node

from fastcni.clients import kubernetes as kubernetes_api
from fastcni.clients.http import Http
from fastcni.kit.ipam.cluster import allocate, claims, released

MOST_BUSY = 4                   # requests that the API server of `busy` answers at the same time


@pytest.fixture
def asked(monkeypatch):
    """Return a list to which each request to the API server is added, "METHOD path"."""
    asked = []
    real = Http.request

    def request(self, method, path, *args, **more):
        asked.append(f"{method} {path.partition('?')[0]}")
        return real(self, method, path, *args, **more)

    monkeypatch.setattr(Http, "request", request)
    return asked


def test_a_new_node_gets_its_first_address_by_six_requests(mock, kubernetes, tmp_path, asked):
    """The first ADD on a node made eleven requests, so an API server needed longer for fifty new nodes that claimed
    their first blocks at the same time."""
    for name in "ab":
        mock.do(lambda api, name=name: api.put("leases", kubelet_lease(name), "kube-node-lease"))
    Node(tmp_path, "a", kubernetes).add()
    assert len(asked) == 7, asked                           # one more: the first node stores the space's block size
    asked.clear()
    second = Node(tmp_path, "b", kubernetes)
    given = second.add()
    assert len(asked) == 6, asked
    asked.clear()
    assert second.add(who="c2") != given and asked == []


def test_a_new_node_without_a_kubelet_asks_once_more(kubernetes, tmp_path, asked):
    """Without a kubelet's Lease, the node also reads its Node object. The creation of the node's IPNode is the node's
    first heartbeat."""
    Node(tmp_path, "a", kubernetes).add()
    asked.clear()
    Node(tmp_path, "b", kubernetes).add()
    assert len(asked) == 7, asked


def test_a_one_shot_node_asks_five_times_whether_its_blocks_are_its_own(mock, kubernetes, tmp_path, asked, monkeypatch):
    """docs/ipam-whereabouts.md states this number of requests."""
    mock.do(lambda api: api.put("leases", kubelet_lease("a"), "kube-node-lease"))
    Node(tmp_path, "a", kubernetes).add()
    later = released.boottime() + allocate.CONFIRM_S
    for module in (allocate, released):
        monkeypatch.setattr(module, "boottime", lambda: later)
    for requests in (5, 0):
        asked.clear()
        assert Node(tmp_path, "a", kubernetes).add(who=f"c{requests}") and len(asked) == requests, asked


def test_a_node_that_lost_its_state_finds_its_blocks(kubernetes, store, tmp_path):
    """The node's IPNode still exists in the API, so the store does not take the node for a new one."""
    first = Node(tmp_path, "a", kubernetes)
    first.add()
    [block] = store.blocks()
    shutil.rmtree(first.root)
    first.add()
    assert store.blocks() == [block]


@pytest.mark.parametrize("status", [429, 503])
def test_an_add_tries_again_while_the_api_server_is_busy(mock, kubernetes, tmp_path, monkeypatch, status):
    """If the first answer came after 5 s, the ADD failed without a second try, as on some of fifty one-shot nodes."""
    monkeypatch.setattr(kubernetes_api, "BUSY_WAITS_S", ())
    monkeypatch.setattr(claims, "FIRST_PAUSE_S", 0.001)
    mock.do(lambda api: api.next.extend([(status, {})] * 6))
    assert Node(tmp_path, "a", kubernetes).add()


def test_the_second_try_waits_for_late_answers(mock, kubernetes, tmp_path, monkeypatch):
    """The store gave up each request after 5 s and sent all requests again. This made a slow API server even slower, so
    the ADD failed."""
    handle, request = ApiServer._handle, Http.request

    async def late(self, *args):
        answer = await handle(self, *args)
        await asyncio.sleep(0.3)
        return answer

    monkeypatch.setattr(ApiServer, "_handle", late)
    monkeypatch.setattr(Http, "request", lambda *args, **more: request(*args, **more | {"timeout": 0.1}))
    assert Node(tmp_path, "a", kubernetes).add()


def test_an_add_does_not_try_for_ever(mock, kubernetes, tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes_api, "BUSY_WAITS_S", ())
    monkeypatch.setattr(claims, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(claims, "PATIENCE_S", 0.05)
    mock.do(lambda api: api.next.extend([(429, {})] * 10000))
    e = Node(tmp_path, "a", kubernetes).refused("ADD")
    assert e.code == 11 and "status 429" in e.msg


def test_the_pauses_grow_and_differ_from_node_to_node(monkeypatch):
    slept = []
    monkeypatch.setattr(claims.waiting, "readable", lambda fd, seconds, kind: slept.append(seconds))
    for _ in range(2):
        patience = claims.Patience()
        assert all(patience.pause() for _ in range(5))
    first, second = slept[:5], slept[5:]
    assert first != second
    for number, seconds in enumerate(first):
        assert 0.5 <= seconds / (claims.FIRST_PAUSE_S * 2 ** number) <= 1.5


@pytest.fixture
def busy(mock, monkeypatch):
    """Let the API server work on at most MOST_BUSY requests at the same time, 20 ms each, and reject other requests.
    Return a list of the rejected requests."""
    real, answered, refused = ApiServer._handle, set(), []

    async def handle(self, request):
        if len(answered) >= MOST_BUSY:
            refused.append(request.url.path)
            return web.json_response({"kind": "Status", "message": "too many requests"}, status=429)
        answered.add(request)
        try:
            answer = await real(self, request)
            await asyncio.sleep(0.02)
            return answer
        finally:
            answered.discard(request)

    monkeypatch.setattr(ApiServer, "_handle", handle)
    return refused


def test_fifty_new_nodes_get_their_first_addresses_from_a_busy_api_server(busy, kubernetes, tmp_path):
    """Only one of fifty one-shot nodes that started at the same time got a block."""
    given, errors = [], []

    def add(number):
        try:
            given.extend(Node(tmp_path, f"n{number}", kubernetes).add({"range": "10.0.0.0/16"}))
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and len(set(given)) == 50
    assert len(busy) > 50
