"""`fastcni ipam` on a node whose files configure no network, as with Multus."""

import json
import os

import pytest
from unit.node.test_ipam import HERE, Cluster

from fastcni.kit.ipam.cluster import flat_file
from fastcni.node.attachments import address_dirs


@pytest.fixture
def cluster(directories):
    """Return a Cluster in which this node has a block. No configuration of the node names the store."""
    cluster = Cluster(directories)
    cluster.use(HERE, "10.9.0.0/26", ("10.9.0.2", "ns/web-0", "c1"))
    return cluster


def join(cluster, space="default", **store):
    """Write the state file that an ADD writes when the node joins an address space."""
    directory = f"{address_dirs.CLUSTER_DIR}/{space}/.cluster"
    os.makedirs(directory)
    with open(f"{directory}/blocks.json", "w") as file:
        json.dump({"node": HERE, "epoch": 1, "store": json.dumps({**cluster.settings, **store})}, file)


@pytest.fixture
def flat(tmp_path, monkeypatch):
    """Return a function flat(document) that writes whereabouts' flat file."""
    path = tmp_path / "whereabouts.conf"
    monkeypatch.setattr(flat_file, "PATHS", (str(path),))
    return lambda document: path.write_text(json.dumps(document))


def test_the_store_is_that_of_the_spaces_that_the_node_has_joined(cluster, fastcni):
    join(cluster)
    answer = fastcni("ipam", "show", "10.9.0.2", "--json")
    assert answer.status == 0, answer.out
    assert answer.document["found"][0]["holder"]["pod"] == "ns/web-0"


def test_several_stores_are_chosen_by_the_space(cluster, fastcni):
    join(cluster)
    join(cluster, "blue", path="/nowhere")
    answer = fastcni("ipam", "nodes", "--json")
    assert answer.status == 1 and "2 stores: blue: local /nowhere; default: local" in answer.document["msg"]
    answer = fastcni("ipam", "nodes", "--network", "default", "--json")
    assert answer.status == 0 and [it["name"] for it in answer.document["nodes"]] == [HERE]


def test_before_its_first_pod_the_store_is_that_of_the_flat_file(cluster, fastcni, flat):
    flat({"kubernetes": {"kubeconfig": "/nowhere"}})
    answer = fastcni("ipam", "nodes", "--json")
    assert (answer.status, answer.document["code"]) == (1, 11) and "kubernetes /nowhere" in answer.document["msg"]
    flat({"kubernetes": {"kubeconfig": "/nowhere"}, "store": {"type": "etcd", "endpoints": ["http://127.0.0.1:9"]}})
    assert "etcd http://127.0.0.1:9" in fastcni("ipam", "nodes", "--json").document["msg"]


@pytest.mark.parametrize("document", [{}, {"cool_down": 5}])
def test_a_flat_file_without_a_store_names_none(fastcni, flat, document):
    flat(document)
    answer = fastcni("ipam", "nodes", "--json")
    assert (answer.status, answer.document["code"]) == (1, 4) and "no IPAM type cluster" in answer.document["msg"]


def test_a_wrong_store_key_names_its_network(directories, fastcni, tmp_path):
    """`fastcni ipam nodes` printed only "ipam.store: expected an object", on a node with many networks."""
    (tmp_path / "wrong").mkdir()
    ipam = {"type": "cluster", "range": "10.99.0.0/24", "store": "etcd"}
    document = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": ipam}]}
    (tmp_path / "wrong" / "a.conflist").write_text(json.dumps(document))
    answer = fastcni("ipam", "nodes", "--json", "--conf-dir", str(tmp_path / "wrong"))
    assert (answer.status, answer.document["code"]) == (1, 7)
    assert answer.document["msg"].startswith("network pods: ") and "ipam.store" in str(answer.document)
