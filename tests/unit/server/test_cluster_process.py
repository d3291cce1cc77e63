"""`fastcni serve` with cluster-wide addresses, as a process that is killed or that ends."""

import json
from base64 import b64encode

import pytest
from unit.server.client import Server
from unit.server.cluster import RANGE

from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.server import status
from fastcni.testing.witnesses import eventually


def conf(directory, **ipam):
    return {"cniVersion": "1.1.0", "name": "net", "type": "cluster",
            "ipam": {"type": "cluster", "range": RANGE, "node_name": "a", "dataDir": str(directory / "data"),
                     "store": {"type": "local", "path": str(directory / "store")}, **ipam}}


def holders(directory):
    store = open_store({"type": "local", "path": str(directory / "store")})
    return {one["container"] for use in store.uses() for one in use.holders}


def cache(directory, net, cid):
    """Write the cached result of an attachment, as a runtime does."""
    results = directory / "cache" / "results"
    results.mkdir(parents=True, exist_ok=True)
    document = {"kind": "cniCacheV1", "containerId": cid, "ifName": "eth0", "networkName": "net",
                "netns": str(directory / "netns" / cid),
                "config": b64encode(json.dumps({**net, "plugins": [net]}).encode()).decode()}
    (results / f"net-{cid}-eth0").write_text(json.dumps(document))


def test_a_killed_server_loses_nothing_that_the_next_one_does_not_write(tmp_path):
    net = conf(tmp_path)
    with Server(tmp_path, "--cache-dir", str(tmp_path / "cache")) as first:
        given = {first.ok("ADD", net, f"/nowhere/c{i}")["ips"][0]["address"] for i in range(5)}
        for i in range(5):
            cache(tmp_path, net, f"c-c{i}")
    assert len(given) == 5
    store = tmp_path / "store" / "store.json"
    data = json.loads(store.read_text())
    data["uses"].clear()
    store.write_text(json.dumps(data))
    with Server(tmp_path, "--cache-dir", str(tmp_path / "cache")) as second:
        assert eventually(lambda: holders(tmp_path) == {f"c-c{i}" for i in range(5)})
        assert second.ok("ADD", net, "/nowhere/c1")["ips"][0]["address"] in given
        second.ok("DEL", net, "/nowhere/c2")
        assert eventually(lambda: "c-c2" not in holders(tmp_path))
        found = status.ask(str(second.path))["cluster"]
        assert [(one["store"], one["node"], one["spaces"][0]["blocks"]) for one in found] == [("local", "a", 1)]
        assert second.stop() == 0
        assert not second.lines("level=error")


def test_a_server_that_ends_writes_what_was_given_out(tmp_path):
    net = conf(tmp_path)
    with Server(tmp_path, "--cache-dir", str(tmp_path / "cache")) as server:
        server.ok("ADD", net, "/nowhere/c1")
        server.ok("ADD", net, "/nowhere/c2")
        assert server.stop() == 0
        assert server.lines("server_stopped")
    assert holders(tmp_path) == {"c-c1", "c-c2"}


@pytest.mark.needs("root")
def test_a_server_that_cannot_see_the_namespaces_of_pods_says_so_at_its_start(tmp_path):
    net = conf(tmp_path)
    (tmp_path / "netns").mkdir()
    (tmp_path / "netns" / "c-c1").touch()
    cache(tmp_path, net, "c-c1")
    with Server(tmp_path, "--cache-dir", str(tmp_path / "cache"),
                before=("unshare", "--mount", "--propagation", "private")) as server:
        texts = "event=namespaces_unseen", f"directory={tmp_path}/netns", "1 plain file"
        assert eventually(lambda: server.lines(*texts))
