"""The agent reads a list of all pods of a cluster while the list arrives, one object at a time."""

import json
import threading
import tracemalloc

import pytest
from unit.clients.http_service import Service

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.sources.kubernetes import PODS, Kubernetes, line_of
from fastcni.clients import kubernetes, kubernetes_watch
from fastcni.clients.errors import Away
from fastcni.clients.kubeconfig import Access
from fastcni.clients.kubernetes import Api, Expired
from fastcni.clients.kubernetes_watch import KindWatch
from fastcni.clients.list_reader import ListError, read_list

pytest.importorskip("urllib3")
COUNT = 1000                    # pods of 5 kB
LIST = {"kind": "PodList", "items": [{"a": "ü\\\"]}", "b": [1, {}]}, {}, {"c": None}], "apiVersion": "v1",
        "metadata": {"resourceVersion": "12"}}


def pod(number, notes=""):
    return {"metadata": {"name": f"p{number}", "namespace": "shop", "resourceVersion": "1", "notes": notes}}


def answer(*documents, version="1", **metadata):
    return {"kind": "List", "metadata": {"resourceVersion": version, **metadata}, "items": [*documents]}


class Pods(dict):
    """Answers for a Service: each list of pods is the result of function()."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def get(self, path, other):
        return (lambda body: self.function()) if path.startswith(PODS) else other


def ask(service):
    return Api(lambda: Access("test", service.url))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_list_is_read_from_pieces_of_any_size(size):
    body, told = json.dumps(LIST, ensure_ascii=False, indent=size % 2).encode(), []
    rest = read_list((body[at:at + size] for at in range(0, len(body), size)), told.append)
    assert {**rest, "items": told} == LIST


def test_an_object_is_told_before_the_next_one_arrives():
    told = []

    def pieces():
        yield b'{"items": [{"n": 1}, {"n'
        assert told == [{"n": 1}]
        yield b'": 2}, 3'
        assert told == [{"n": 1}, {"n": 2}]
        yield b'4], "metadata": {}}'

    assert read_list(pieces(), told.append) == {"metadata": {}}
    assert told[2] == 34


@pytest.mark.parametrize("items", [None, []])
def test_a_list_without_objects_is_empty(items):
    told = []
    assert read_list(iter([json.dumps({"items": items, "n": 1}).encode()]), told.append)["n"] == 1
    assert not told


def test_an_answer_that_ends_too_early_or_is_no_list_is_an_error(monkeypatch):
    body = json.dumps(LIST).encode()
    for end in range(len(body)):
        with pytest.raises(ListError, match="ends too early"):
            read_list(iter([body[:end]]), list)
    for wrong in (b"[]", b"<html>", b'{"items": [{} {}]}', b'{"a" 1}', b'{"a": ' + b"[" * 100_000 + b"]"):
        with pytest.raises(ListError):
            read_list(iter([wrong]), list)
    monkeypatch.setattr("fastcni.clients.list_reader.MAX_OBJECT", 100)
    with pytest.raises(ListError, match="is no JSON"):
        read_list(iter([b'{"a": "', *[b"x" * 60] * 3]), list)


def test_the_agent_keeps_neither_the_answer_with_all_pods_nor_the_pods_other_keys():
    """Once, the list of 20,000 pods took 855 MB."""
    body = json.dumps(answer(*(pod(number, "x" * 5000) for number in range(COUNT)))).encode()
    with Service(Pods(lambda: (200, body))) as service:
        source = Kubernetes(ask(service), Compiler())
        stop = threading.Event()
        source.api.watch = lambda *_: stop.set() or iter(())
        tracemalloc.start()
        try:
            KindWatch(source.api, PODS, PODS, source._tell, source._list_ended, cached=True).follow(stop.is_set)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            source._wakeup.close()
    assert len(source._events) == COUNT + 1
    assert peak < len(body) / 2, f"{peak:,} bytes for an answer of {len(body):,}"


def test_a_pod_takes_the_agent_less_than_three_kilobytes():
    """Once, a pod took 3.8 kB, with six copies of its key and separate copies of its labels and ports."""
    source = Kubernetes(None, Compiler())
    tracemalloc.start()
    try:
        for number in range(COUNT):
            labels = {f"label-{i}": f"web{i}" for i in range(4)}
            source.put(PODS, key := f"shop/web-{number}", line_of(PODS, {
                "metadata": {"name": key[5:], "namespace": "shop", "labels": labels},
                "spec": {"nodeName": f"node-{number // 20}", "containers": [
                    {"ports": [{"name": f"port-{i}", "containerPort": i} for i in range(1, 4)]}]},
                "status": {"podIP": f"10.0.{number >> 8}.{number & 255}"}}))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        source._wakeup.close()
    assert size / COUNT < 2900, f"{size / COUNT:.0f} bytes"


def test_a_list_may_take_longer_than_a_request(monkeypatch):
    """Once, a list had the time limit of a request, 5 s. A list of 500 MB takes 4 s at 1 Gb/s."""
    monkeypatch.setattr(kubernetes, "LIST_SILENCE_S", 5.0)
    late = threading.Event()

    def slow():
        def pieces():
            late.wait(0.6)
            yield b'{"metadata": {"resourceVersion": "7"}, "items": ['
            for end in (b"{}, ", b"{}]}"):
                late.wait(0.3)
                yield end
            yield b""
        return pieces()

    with Service(Pods(slow)) as service:
        api, told = ask(service), []
        api._open()[1].timeout = 0.4
        assert api.list_each(PODS, told.append, lambda: False) == "7"
        api.close()
    assert told == [{}, {}]


def test_a_list_that_breaks_off_is_not_complete():
    for body in (b'{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "p"}}', b"<html>"):
        with Service(Pods(lambda body=body: [body])) as service:
            api, listed = ask(service), []
            with pytest.raises(Away, match=PODS):
                KindWatch(api, PODS, PODS, lambda *_: None, listed.append, cached=True).follow(lambda: False)
            api.close()
        assert not listed


def test_an_object_of_a_list_that_expired_is_deleted_if_the_next_list_lacks_it():
    """Without a cache, the API server sends the list in pages. Here the server has expired the list before it sends the
    second page."""
    lists = iter([(200, answer(pod(1), pod(2), **{"continue": "two"})), (410, {"code": 410}), (200, answer(pod(2)))])
    told, stop = [], threading.Event()
    with Service(Pods(lambda: next(lists))) as service:
        api = ask(service)
        api.watch = lambda *_: stop.set() or iter(())
        KindWatch(api, PODS, PODS, lambda _, it, gone: told.append((it["metadata"]["name"], gone)), lambda _: None,
                  cached=True).follow(stop.is_set)
        api.close()
        queries = [path.partition("?")[2] for path, _, _ in service.asked]
    assert told == [("p1", False), ("p2", False), ("p2", False), ("p1", True)]
    # the last query lacks resourceVersion=0, so etcd answers
    assert queries == ["limit=500&resourceVersion=0", "limit=500&continue=two", "limit=500"]


def test_a_list_is_not_older_than_what_another_watch_of_the_path_has_seen():
    """One watch is for the pods of this node, another watch for the pods of other nodes. After a restore of etcd from a
    backup, a list may be older than an event."""
    lists = iter([(200, answer(version="100")), (200, answer(version="95")), (410, {"code": 410}),
                  (200, answer(version="7")), (200, answer(version="8"))])
    with Service(Pods(lambda: next(lists))) as service:
        api = ask(service)
        for _ in range(2):
            api.list_each(PODS, list, lambda: False)
        with pytest.raises(Expired):
            api.list_each(PODS, list, lambda: False)
        for _ in range(2):
            api.list_each(PODS, list, lambda: False)
        api.close()
        queries = [path.partition("?")[2] for path, _, _ in service.asked]
    assert queries == ["limit=500&resourceVersion=0", "resourceVersion=100", "resourceVersion=100", "limit=500",
                       "resourceVersion=7"]


def test_agents_that_list_all_pods_again_wait_for_a_random_time_that_grows_with_the_pods(monkeypatch):
    waits, ends = [], iter([Expired(), Expired(), None])
    monkeypatch.setattr(kubernetes_watch.waiting, "until", lambda stop, seconds, kind: waits.append(seconds))
    monkeypatch.setattr("random.uniform", lambda least, most: most)

    class Lists:
        count, stopped = 1000, False

        def list_each(self, path, tell, *_):
            for number in range(self.count):
                tell(pod(number))
            self.count *= 10
            return "1"

        def watch(self, *_):
            if end := next(ends):
                raise end
            self.stopped = True
            return iter(())

    api = Lists()
    KindWatch(api, PODS, PODS, lambda *_: None, lambda _: None, cached=True).follow(lambda: api.stopped)
    assert waits == [1.0, 10.0]


def test_an_object_that_an_event_deleted_is_not_deleted_again_by_the_next_list():
    told = []

    class Changes:
        lists = [[pod(1), pod(2)], [pod(2)]]

        def list_with_revision(self, *_):
            return self.lists.pop(0), "1"

        def watch(self, *_):
            yield "DELETED", pod(1)
            raise Expired

    api = Changes()
    KindWatch(api, PODS, PODS, lambda _, it, gone: told.append((it["metadata"]["name"], gone)),
              lambda _: None).follow(lambda: not api.lists)
    assert told == [("p1", False), ("p2", False), ("p1", True), ("p2", False)]
