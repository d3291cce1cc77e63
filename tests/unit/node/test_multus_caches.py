"""Without --cache-dir, the commands also read the results that the plugin multus caches for its networks."""

import json
import os

import pytest
from unit.node.conftest import Answer

from fastcni.cli import entry_point
from fastcni.cli.flows import open_collector
from fastcni.flows import collector
from fastcni.flows.pods import Pods
from fastcni.node import served
from fastcni.node.activity.pools import count
from fastcni.node.attachments import cache_dirs
from fastcni.node.attachments.adopt import gc_networks
from fastcni.node.attachments.attachment import Inventory, NodeAttachment
from fastcni.node.attachments.cache_dirs import known_cache_dirs
from fastcni.runtime import CNI
from fastcni.spec.cached_result import to_base64


@pytest.fixture
def multus(directories, tmp_path, monkeypatch):
    """Return a node whose multus has added a running pod to net2. The commands' default directories are this node's."""
    conf = directories.configure({"cniVersion": "1.1.0", "name": "pods", "plugins": [
        {"type": "multus", "cniDir": str(tmp_path / "multus"), "delegates": [{
            "cniVersion": "1.1.0", "name": "net2", "type": "bridge", "bridge": "br2", "ipam": {
                "type": "host-local", "subnet": "10.89.0.0/24", "dataDir": str(directories.data)}}]}]},
                "10-pods.conflist")
    for where, network, ifname in (("cni", conf["name"], "eth0"), ("multus", "net2", "net1")):
        directories.cache = tmp_path / where
        directories.cached("web1", network, ifname, netns="/proc/self/ns/net",
                       cniArgs=[["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web"]],
                       result={"cniVersion": "1.0.0", "ips": [{"address": "10.89.0.2/24"}]})
    directories.hold("10.89.0.2", "web1\r\nnet1", "net2")
    monkeypatch.setattr(cache_dirs, "DEFAULT_DIR", str(tmp_path / "cni"))
    monkeypatch.setattr(cache_dirs, "CNI_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("NETCONFPATH", str(directories.conf))
    return directories


def by_default(capfd, *words):
    capfd.readouterr()
    status = entry_point.run([*words, "--json"])
    return Answer(status, *capfd.readouterr())


def test_networks_of_a_running_pod_are_running(multus, capfd):
    """Once, doctor called these networks orphaned, and advised to release their addresses."""
    found = by_default(capfd, "list", "--state", "running").document["attachments"]
    assert [(it["network"], it["ifname"]) for it in found if it["containerID"] == "web1"] == [
        ("net2", "net1"), ("pods", "eth0")]
    findings = by_default(capfd, "doctor", "--socket", "").document["findings"]
    assert not [it for it in findings if it["check"] == "stale"]


def test_flows_and_the_server_read_the_same_directories(multus, monkeypatch):
    monkeypatch.setattr(collector, "Collector", lambda where, _: where)
    monkeypatch.setattr(served, "DEFAULT_CONF_DIR", str(multus.conf))
    expected = known_cache_dirs((), str(multus.conf))
    assert open_collector("", ()) == served.Served()._places().cache_dirs == expected
    assert served.Served().count().attachments == {"pods": 1, "net2": 1}


def test_the_server_knows_address_spaces_and_namespaces_of_their_networks(multus, monkeypatch):
    """A network's definition may exist only in the Kubernetes API. On the node, only the cached result contains it."""
    monkeypatch.setattr(served, "DEFAULT_CONF_DIR", str(multus.conf))
    space = {"type": "whereabouts", "range": "10.90.0.0/24", "network_name": "shared", "etcd_host": "192.0.2.1:2379"}
    conf = {"cniVersion": "1.0.0", "name": "shared", "type": "bridge", "ipam": space}
    multus.cached("web1", "shared", "net2", netns="/run/netns/gone", config=to_base64(json.dumps(conf).encode()))
    node = served.Served()
    assert [keys.space for keys in node.configured()] == ["shared"]
    assert node.pods.cached()["shared", "web1", "net2"][0] == "/run/netns/gone"


def test_flows_and_counts_know_them(multus):
    found = Pods(known_cache_dirs((), str(multus.conf)))
    found.refresh()
    assert [pod.network for pod in found.by_address.values()] == ["net2"]
    directories = [f"{where}/results" for where in known_cache_dirs((), str(multus.conf))]
    assert count(str(multus.conf), *directories).attachments == {"pods": 1, "net2": 1}


def test_a_directory_that_is_given_is_the_only_one(multus, tmp_path):
    assert known_cache_dirs(("/a", "/b"), str(multus.conf)) == ("/a", "/b")


def test_a_bad_cni_dir_leaves_the_others(multus, tmp_path):
    for name, bad in (("1", 5), ("2", "relative"), ("3", str(tmp_path / "shim"))):
        (multus.conf / f"2{name}.conf").write_text(json.dumps({
            "cniVersion": "1.1.0", "name": f"bad{name}", "type": "multus-shim", "cniDir": bad}))
    assert known_cache_dirs((), str(multus.conf)) == tuple(
        str(tmp_path / name) for name in ("cni", "multus", "shim", "none"))


def test_a_gc_keeps_the_pods_that_the_other_network_added_to_the_same_network(multus, tmp_path, capfd, monkeypatch):
    """Once, `fastcni gc` of a network released the addresses of running pods that multus had added to the network.
    `fastcni gc` of multus released the addresses of pods that the runtime had added directly."""
    monkeypatch.setattr("fastcni.runtime.cni.CNI_DIR", str(tmp_path / "multus"))
    multus.configure({"cniVersion": "1.1.0", "name": "net2", "plugins": [{"type": "bridge"}]}, "20-net2.conflist")
    multus.configure({"cniVersion": "1.1.0", "name": "direct", "plugins": [{"type": "bridge"}]}, "30-direct.conflist")
    multus.cache, plugins = tmp_path / "cni", tmp_path / "bin"
    multus.cached("web2", "net2", netns="/proc/self/ns/net")
    multus.cached("web3", "direct", netns="/proc/self/ns/net")
    plugins.mkdir()
    for kind in ("bridge", "multus"):
        (plugins / kind).write_text(f"#!/bin/sh\ncat > {tmp_path}/$CNI_COMMAND\n")
        (plugins / kind).chmod(0o755)

    def gc(*words):
        """Run `fastcni gc`. Return (attachments that the command says it keeps, attachments in the plugin's stdin)."""
        found = by_default(capfd, "gc", *words, "--cache-dir", str(multus.cache), "--bin-dir", str(plugins)).document
        told = json.loads((tmp_path / "GC").read_text())["cni.dev/valid-attachments"] if not found["dryRun"] else []
        return [[f"{it['containerID']}/{it['ifname']}" for it in where]
                for where in (found["kept"], sorted(told, key=str))]

    for network, kept in (("net2", ["web2/eth0", "web1/net1"]), ("pods", ["web1/eth0", "web2/eth0"]),
                          ("direct", ["web3/eth0"])):
        assert gc(network, "--dry-run") == [kept, []]
        assert gc(network) == [kept, sorted(kept)]
    multus.configure({"cniVersion": "1.1.0", "name": "other", "plugins": [
        {"type": "multus", "cniDir": str(tmp_path / "other"), "delegates": [{"name": "net2", "type": "bridge"}]}]},
        "40-other.conflist")
    assert gc("other", "--valid", "x/eth0") == [["web2/eth0", "web1/net1"], ["web1/net1", "web2/eth0", "x/eth0"]]
    result = tmp_path / "multus/results/net2-web1-net1"
    whole = result.read_bytes()
    result.write_text("damaged")
    assert gc("net2")[1] == ["web1/net1", "web2/eth0"]
    result.write_bytes(whole)
    cni = CNI([plugins], multus.conf, multus.cache)
    cni.gc(cni.load("net2"), [])
    assert json.loads((tmp_path / "GC").read_text())["cni.dev/attachments"] == [
        {"containerID": "web1", "ifname": "net1"}]
    # --all keeps web1, because only multus can delete it
    assert gc("net2", "--all", "--yes") == [["web1/net1"], ["web1/net1"]]
    result.write_bytes(whole.replace(b"/proc/self/ns/net", b"/nowhere/web1"))
    assert gc("net2", "--valid", "x/eth0") == [["web1/net1"], ["web1/net1", "x/eth0"]]
    os.utime(result, (1, 1))  # the result is older than the boot, so the namespace no longer exists
    assert gc("net2", "--valid", "x/eth0") == [[], ["x/eth0"]]


def test_the_advice_for_a_gone_pod_of_multus_is_the_gc_that_releases_it(multus, tmp_path, capfd):
    """Once, doctor advised a GC of the networks that multus had added. Such a network has no file, or its GC cannot
    release the address. The loopback network never has a file."""
    for where in ("cni", "multus"):
        for result in (tmp_path / where / "results").iterdir():
            result.write_bytes(result.read_bytes().replace(b"/proc/self/ns/net", b"/nowhere/web1"))
            os.utime(result, (1, 1))
    multus.cache = tmp_path / "cni"
    multus.cached("web1", "cni-loopback", "lo", netns="/nowhere/web1")
    loopback = tmp_path / "cni/results/cni-loopback-web1-lo"
    os.utime(loopback, (1, 1))

    def advice():
        findings = by_default(capfd, "doctor", "--socket", "").document["findings"]
        return sorted(it["do"] for it in findings if it["check"] == "stale")

    command = f"fastcni gc --conf-dir {multus.conf} --cache-dir {tmp_path / 'cni'} pods"
    assert advice() == [command, f"rm {loopback}"]       # one command for the networks pods and net2
    notes = {it["note"] for it in by_default(capfd, "adopt", "--dry-run").document["attachments"]
             if it["ifname"] != "lo"}
    assert len(notes) == 1 and f"`{command}` releases it" in notes.pop()
    loopback.unlink()
    (tmp_path / "cni/results/pods-web1-eth0").unlink()
    assert [line.split()[-1] for line in advice()] == ["pods"]


def test_an_address_that_is_left_of_a_pod_of_multus_is_released_by_the_gc_of_multus():
    left, other = (NodeAttachment("net2", pod, "net1", "orphaned", "") for pod in ("web1", "web2"))
    pod = NodeAttachment("pods", "web1", "eth0", "gone", "", plugins=("multus",))
    network_of = gc_networks(Inventory((left, other, pod)), ())
    assert [network_of(it) for it in (left, other, pod)] == ["pods", "net2", "pods"]


def test_inspect_chooses_the_network_of_an_interface_of_multus(multus, tmp_path, capfd):
    """The first interface of a multus pod belongs to two networks. Once, no option of the command chose one of them."""
    multus.cached("web1", "net1", netns="/proc/self/ns/net")
    error = by_default(capfd, "inspect", "web1/eth0").document
    assert error["msg"] == "2 attachments match web1/eth0" and "--network" in error["details"]
    for network in ("pods", "net1"):
        assert by_default(capfd, "inspect", "web1/eth0", "--network", network).document["network"] == network
    assert "in network net2" in by_default(capfd, "inspect", "web1/eth0", "--network", "net2").document["msg"]
