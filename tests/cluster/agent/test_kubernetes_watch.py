"""The watch of Kubernetes as the registry: the agent reads only metadata, from the API server's cache, and lists
seldom."""

import threading
from ipaddress import ip_address, ip_network

from cluster.agent.kubernetes_nodes import ME, P, node_object, stored
from cluster.kubernetes.api_server import merged

from fastcni.agent.registries import kubernetes
from fastcni.clients.errors import Away
from fastcni.clients.kubernetes import Expired
from fastcni.testing.witnesses import eventually


class Watching:
    """A registry that watches in a thread. seen: the nodes after each change. asked(): (path, query) of the registry's
    requests."""

    def __init__(self, mock, registry):
        self.mock, self.registry, self.seen, self.stop = mock, registry, [], threading.Event()
        self.thread = threading.Thread(target=registry.watch, args=(
            lambda nodes: self.seen.append({it.name: it for it in nodes}), self.stop.is_set))

    def __enter__(self):
        self.mock.do(lambda api: api.log.clear())
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.registry.close()
        self.thread.join(30)
        assert not self.thread.is_alive()

    def asked(self):
        return [path.partition("?")[::2] for _, path in self.mock.do(lambda api: list(api.log))]


def member(number, **notes):
    """Return a Node object with the annotations that flanneld writes."""
    return node_object(number, **{"kube-subnet-manager": "true", "public-ip": f"192.0.2.{number}", **notes})


def test_of_nodes_only_the_metadata_are_read_and_lists_come_from_the_cache(mock, registry, monkeypatch):
    """An agent read each Node with all its images, and made the API server read the Nodes from etcd."""
    one, two = registry(), registry("n2")
    for each in one, two:
        each.join(each.conf(), ME)
    read = []
    original = one._read
    monkeypatch.setattr(one, "_read", lambda document: (read.append(document), original(document))[1])
    with Watching(mock, one) as watching:
        assert eventually(lambda: watching.seen and watching.seen[-1].keys() == {"n1", "n2"})
        two.leave(two.join(two.conf(), ME))
        assert eventually(lambda: watching.seen[-1].keys() == {"n1"})
        listed = [query for path, query in watching.asked() if path == "/api/v1/nodes" and "watch" not in query]
    assert listed == ["limit=500&resourceVersion=0"]
    assert all(document.keys() == {"kind", "apiVersion", "metadata"} for document in read)


def test_a_node_of_flanneld_is_read_once_for_its_pod_cidrs(mock, registry):
    mock.do(lambda api: api.put("nodes", member(3)))
    with Watching(mock, registry()) as watching:
        assert eventually(lambda: watching.seen and "n3" in watching.seen[-1])
        assert watching.seen[-1]["n3"].subnets[4] == ip_network("10.244.3.0/24")
        changed = merged(stored(mock, "n3"), {"metadata": {"annotations": {f"{P}/public-ip": "192.0.2.33"}}})
        mock.do(lambda api: api.put("nodes", changed))
        assert eventually(lambda: watching.seen[-1]["n3"].public[4] == ip_address("192.0.2.33"))
        assert [path for path, _ in watching.asked()].count("/api/v1/nodes/n3") == 1


def test_many_nodes_of_flanneld_are_read_in_pages_and_not_one_by_one(mock, registry, monkeypatch):
    monkeypatch.setattr(kubernetes, "MAX_ASKED", 3)
    for number in range(3, 9):
        mock.do(lambda api, number=number: api.put("nodes", member(number)))
    with Watching(mock, registry()) as watching:
        assert eventually(lambda: watching.seen and len(watching.seen[-1]) == 6)
        assert not [path for path, _ in watching.asked() if path.startswith("/api/v1/nodes/")]


def test_a_node_that_gets_its_pod_cidrs_later_is_seen(mock, registry):
    mock.do(lambda api: api.put("nodes", {**member(3), "spec": {}}))
    with Watching(mock, registry()) as watching:
        assert eventually(lambda: watching.seen == [{}])
        mock.do(lambda api: api.put("nodes", member(3)))
        assert eventually(lambda: watching.seen[-1].keys() == {"n3"})


def test_a_node_that_another_one_replaces_has_the_new_pod_cidrs(mock, registry):
    mock.do(lambda api: api.put("nodes", member(3)))
    with Watching(mock, registry()) as watching:
        assert eventually(lambda: watching.seen and "n3" in watching.seen[-1])
        again = member(4)
        again["metadata"]["name"] = "n3"
        mock.do(lambda api: (api.drop("nodes", "n3"), api.put("nodes", again)))
        assert eventually(lambda: watching.seen[-1].get("n3") and watching.seen[-1]["n3"].subnets[4] == ip_network(
            "10.244.4.0/24"))


def test_a_lost_watch_goes_on_without_a_list(mock, registry, monkeypatch):
    """After a restart of the API server, each agent listed all Nodes again."""
    monkeypatch.setattr(kubernetes, "FIRST_PAUSE_S", 0.01)
    one, lost = registry(), []
    original = one.api.watch

    def watch(*words, **named):
        for event in original(*words, **named):
            if event[0] != "BOOKMARK" and not lost:
                lost.append(event)
                raise Away("lost")
            yield event

    monkeypatch.setattr(one.api, "watch", watch)
    with Watching(mock, one) as watching:
        assert eventually(lambda: watching.seen == [{}])
        mock.do(lambda api: api.put("nodes", member(3)))
        assert eventually(lambda: watching.seen[-1].keys() == {"n3"})
        assert lost
        assert [query for path, query in watching.asked() if path == "/api/v1/nodes" and "watch" not in query] == [
            "limit=500&resourceVersion=0", "limit=1"]


def test_after_a_restore_of_etcd_all_nodes_are_listed(mock, registry, monkeypatch):
    """After the restore, the agent's revision is higher than the API server's, so the API server's cache rejects the
    agent's revision."""
    monkeypatch.setattr(kubernetes, "FIRST_PAUSE_S", 0.01)
    one, lost = registry(), threading.Event()
    original = one.api.watch

    def watch(path, revision, stop, **named):
        yield from original(path, revision, lambda: stop() or lost.is_set(), **named)
        if lost.is_set():
            lost.clear()
            raise Away("lost")

    def restore(api):
        api.drop("nodes", "n3")
        api.revision, api.changes = 50, []
        lost.set()
        api.put("nodes", member(4))

    monkeypatch.setattr(one.api, "watch", watch)
    mock.do(lambda api: api.put("nodes", member(3)))
    with Watching(mock, one) as watching:
        assert eventually(lambda: watching.seen and watching.seen[-1].keys() == {"n3"})
        assert eventually(lambda: any("watch=true" in query for _, query in watching.asked()))
        mock.do(restore)
        assert eventually(lambda: watching.seen[-1].keys() == {"n4"})


def test_agents_that_list_again_wait_for_a_random_time_that_grows_with_the_nodes(mock, registry, monkeypatch):
    """The test replaces random.uniform() and the wait."""
    for number in range(3, 9):
        mock.do(lambda api, number=number: api.put("nodes", member(number)))
    one, waited, stop = registry(), [], threading.Event()

    def wait(seconds):
        waited.append(seconds)
        stop.set()

    monkeypatch.setattr(kubernetes.random, "uniform", lambda low, high: high)
    monkeypatch.setattr(one, "wait", wait)

    def watch(*words, **named):
        raise Expired
        yield

    monkeypatch.setattr(one.api, "watch", watch)
    one.watch(lambda nodes: None, stop.is_set)
    count = len(mock.do(lambda api: [key for key in api.stored if key[0].plural == "nodes"]))
    assert waited == [kubernetes.LIST_S_OF_A_NODE * count ** 2]
