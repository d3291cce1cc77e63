"""A Kubernetes API server for tests: kmock, or the real one of a kubeconfig in FASTCNI_TEST_KUBECONFIG, with our CRDs
applied and nothing of value in it."""

import os

import pytest
from lab.networks import multus, network
from unit.server.conftest import local, node, plugins, pod, start  # noqa: F401 - the fixtures

from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.kit.ipam.cluster.stores.kubernetes_objects import BASE, KINDS

REAL = os.environ.get("FASTCNI_TEST_KUBECONFIG")


@pytest.fixture
def mock():
    """Yield an API server of kmock for one test."""
    from cluster.kubernetes.api_server import Running

    with Running() as running:
        yield running


@pytest.fixture
def kubernetes(request, tmp_path):
    """Yield an empty store of a configuration: {"type": "kubernetes", "kubeconfig": ...}."""
    if REAL:
        yield {"type": "kubernetes", "kubeconfig": REAL}
        store = open_store({"type": "kubernetes", "kubeconfig": REAL})
        for kind in KINDS:
            store.api._expect("DELETE", f"{BASE}/{kind}")       # all objects
        store.close()
        return
    running = request.getfixturevalue("mock")
    from cluster.kubernetes.api_server import kubeconfig

    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(running.url))
    yield {"type": "kubernetes", "kubeconfig": str(path)}


@pytest.fixture
def store(kubernetes):
    store = open_store(kubernetes)
    yield store
    store.close()


@pytest.fixture
def other(kubernetes):
    """Yield a second client of the store."""
    store = open_store(kubernetes)
    yield store
    store.close()


@pytest.fixture
def cluster(node, mock, tmp_path):          # noqa: F811
    """Yield the mock with pods and definitions. It can be made unavailable or frozen."""
    from cluster.kubernetes.networks_cluster import Cluster

    with Cluster(mock, tmp_path) as found:
        yield found
        found.thawed.set()


@pytest.fixture
def conf(node, cluster):                    # noqa: F811
    """conf(annotations, **keys): a configuration whose first network is a. Definitions of b and c are in the API."""
    for letter in "bc":
        cluster.define(network(node, letter))
    return lambda annotations=None, **keys: multus(node, network(node, "a"), annotations=annotations,
                                                   **{"kubeconfig": str(cluster.kubeconfig), **keys})


@pytest.fixture
def warm(cluster, local):                   # noqa: F811
    """Yield a server in this process, on the node NODE. The server ends before the API server."""
    return local()
