"""`fastcni ipam import-whereabouts` with the objects that whereabouts keeps in the API server."""

import json

import pytest

from fastcni.cli import entry_point
from fastcni.kit.ipam.cluster.contract import SHARED, Taken

GROUP = "whereabouts.cni.cncf.io"


@pytest.fixture
def cluster(mock, kubernetes, store, tmp_path, capfd):
    """Return a function that runs `fastcni ipam` on a node with a whereabouts configuration. The function returns (exit
    status, JSON document)."""
    def put(plural, namespace, name, spec, version="v1"):
        body = {"metadata": {"name": name, **({"namespace": namespace} if namespace else {})}, "spec": spec}
        mock.do(lambda api: api.put(plural, body, namespace, version))

    for name, node in (("web-0", "node-1"), ("web-1", "node-2"), ("web-2", "node-1")):
        put("pods.", "shop", name, {"nodeName": node})
    put(f"ippools.{GROUP}", "kube-system", "10.5.0.0-24", {"range": "10.5.0.0/24", "allocations": {
        "1": {"id": "c1", "podref": "shop/web-0", "ifname": "net1"},
        "2": {"id": "c2", "podref": "shop/web-1", "ifname": "net1"},
        "3": {"id": "c3", "podref": "shop/gone", "ifname": "net1"}}}, "v1alpha1")
    put(f"ippools.{GROUP}", "kube-system", "blue-fd00-5---64", {"range": "fd00:5::/64", "allocations": {
        "5": {"id": "c1", "podref": "shop/web-0", "ifname": "net2"}}}, "v1alpha1")
    put(f"overlappingrangeipreservations.{GROUP}", "kube-system", "10.5.0.9",
        {"containerid": "c9", "podref": "shop/web-2", "ifname": "net1"}, "v1alpha1")
    conf = {"cniVersion": "1.0.0", "name": "macvlan-conf", "type": "macvlan", "master": "eth0", "ipam": {
        "type": "whereabouts", "range": "10.5.0.0/24", "kubernetes": {"kubeconfig": kubernetes["kubeconfig"]},
        "node_name": "node-1", "dataDir": str(tmp_path / "addresses")}}
    (tmp_path / "net.d").mkdir()
    (tmp_path / "net.d" / "10.conf").write_text(json.dumps(conf))

    def run(*words):
        capfd.readouterr()
        status = entry_point.run(["ipam", *words, "--conf-dir", str(tmp_path / "net.d"), "--json"])
        return status, json.loads(capfd.readouterr().out)
    return run


def test_all_of_it_is_taken_over_once(cluster, store):
    status, document = cluster("import-whereabouts", "--dry-run")
    assert status == 0, document
    assert store.blocks() == [] and len(document["addresses"]) == 4
    status, document = cluster("import-whereabouts")
    assert (status, document["conflicts"]) == (0, [])
    assert [it["pod"] for it in document["gone"]] == ["shop/gone"]
    assert [(it.space, it.address, it.pod, it.node, it.container) for it in store.ip_claims()] == [
        ("blue", "fd00:5::5", "shop/web-0", "node-1", "c1"), ("default", "10.5.0.1", "shop/web-0", "node-1", "c1"),
        ("default", "10.5.0.2", "shop/web-1", "node-2", "c2"), ("default", "10.5.0.9", "shop/web-2", "node-1", "c9")]
    assert {it.state for it in store.blocks()} == {SHARED}
    status, document = cluster("import-whereabouts")
    assert (status, document["known"], document["addresses"], document["blocks"]) == (0, 4, [], [])


def test_no_node_can_claim_an_imported_block(cluster, store):
    cluster("import-whereabouts")
    me = store.join("node-3", "boot")
    for block in store.blocks():
        with pytest.raises(Taken):
            store.claim(me, [(block.space, block.cidr)])


def test_show_knows_an_imported_address(cluster):
    cluster("import-whereabouts")
    status, document = cluster("show", "10.5.0.2")
    assert status == 0
    assert (document["found"][0]["holder"]["pod"], document["found"][0]["holder"]["node"]) == ("shop/web-1", "node-2")


def test_a_cluster_without_whereabouts_is_named(cluster, mock):
    def drop(api):
        for plural, name in (("ippools", "10.5.0.0-24"), ("ippools", "blue-fd00-5---64"),
                             ("overlappingrangeipreservations", "10.5.0.9")):
            api.drop(f"{plural}.{GROUP}", name, "kube-system", "v1alpha1")
    mock.do(drop)
    status, document = cluster("import-whereabouts")
    assert (status, document["code"]) == (1, 11)
    assert "cannot read whereabouts' objects" in document["msg"] and "--kubeconfig" in document["details"]


def test_an_api_server_that_is_away_is_code_11(cluster, mock):
    mock.__exit__()
    mock.__enter__()        # the API server runs again, on another port
    status, document = cluster("import-whereabouts")
    assert (status, document["code"]) == (1, 11) and "cannot read whereabouts' objects" in document["msg"]
