"""Fixtures with a Kubernetes API server. It is kmock, or the real server of the kubeconfig FASTCNI_TEST_KUBECONFIG. The
real server needs fastcni's CRDs; the tests delete its objects of these CRDs."""

import os

import pytest
from lab.networks import multus, network
from unit.server.conftest import local, node, plugins, pod, start  # noqa: F401 - the fixtures

from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.kit.ipam.cluster.stores.kubernetes_objects import BASE, KINDS

REAL = os.environ.get("FASTCNI_TEST_KUBECONFIG")


@pytest.fixture
def mock():
    """Yield a new API mock for one test."""
    from cluster.kubernetes.api_server import Running

    with Running() as running:
        yield running


@pytest.fixture
def kubernetes(request, tmp_path):
    """Yield the `store` of an IPAM configuration, whose API server has no objects of fastcni: {"type": "kubernetes",
    "kubeconfig": ...}."""
    if REAL:
        yield {"type": "kubernetes", "kubeconfig": REAL}
        store = open_store({"type": "kubernetes", "kubeconfig": REAL})
        for kind in KINDS:
            store.api._expect("DELETE", f"{BASE}/{kind}")       # deletes all objects of the kind
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
    """Yield the API mock with pods and network definitions. A test can make the mock unavailable or freeze it."""
    from cluster.kubernetes.networks_cluster import Cluster

    with Cluster(mock, tmp_path) as found:
        yield found
        found.thawed.set()


@pytest.fixture
def conf(node, cluster):                    # noqa: F811
    """Return a function conf(annotations, **keys) that returns a configuration whose first network is a. The API has
    definitions of b and c."""
    for letter in "bc":
        cluster.define(network(node, letter))
    return lambda annotations=None, **keys: multus(node, network(node, "a"), annotations=annotations,
                                                   **{"kubeconfig": str(cluster.kubeconfig), **keys})


@pytest.fixture
def warm(cluster, local):                   # noqa: F811
    """Yield a server of fastcni in this process, on the node NODE. The server ends before the API mock."""
    return local()
