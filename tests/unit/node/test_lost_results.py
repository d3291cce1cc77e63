"""`fastcni pod down` for pods whose cached result is lost. The command detaches all interfaces, or returns an error."""

from dataclasses import replace

import pytest

from fastcni.cli import pod as pod_command
from fastcni.launcher.install import install
from fastcni.node.attachments.inventory import collect
from fastcni.testing.namespaces import run

SECOND = {"cniVersion": "1.0.0", "name": "net2", "plugins": [
    {"type": "bridge", "bridge": "br1", "ipMasq": True, "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}]}


@pytest.fixture(scope="module")
def plugin_files(tmp_path_factory):
    where = tmp_path_factory.mktemp("bin")
    install(where, names=["bridge", "host-local", "loopback", "portmap"])
    return where


def test_pod_down_without_a_cached_result_needs_the_namespace(host, pod_netns, fastcni, plugin_files):
    """Once, the command sent DEL without the namespace. The pod kept its interface, and another pod could get its
    address."""
    pod = pod_netns()
    host.add("c1", pod)
    host.configure(SECOND, "20-net2.conflist")
    host.cni.add(host.cni.load("net2"), replace(host.rt("c1", pod), ifname="eth1"))
    for name in ("net1-c1-eth0", "net2-c1-eth1"):
        (host.cache / "results" / name).unlink()
    answer = fastcni("pod", "down", "c1", "--bin-dir", plugin_files)
    assert answer.status == 1
    assert "pod c1 has no cached result that names the network namespace, but network net1 eth0 (" in answer.err
    assert "fastcni pod down c1 NETNS" in answer.err
    assert (host.data / "net1" / "10.88.0.2").exists()
    answer = fastcni("pod", "down", "c1", f"/run/netns/{pod}", "--bin-dir", plugin_files)
    assert answer.status == 0
    for network, ifname in (("net1", "eth0"), ("net2", "eth1")):
        assert f"{ifname} of c1 in network {network} is detached" in answer.out
    assert "eth0" not in run("ip", "-br", "link", netns=pod)
    assert not (host.data / "net1" / "10.88.0.2").exists()
    assert fastcni("pod", "down", "c1", "--bin-dir", plugin_files).status == 0      # the pod has no interface left


def test_pod_down_lists_the_node_once_if_all_results_are_cached(host, pod_netns, fastcni, plugin_files, monkeypatch):
    """Once, pod down listed all attachments of the node two or three times."""
    listed = []
    monkeypatch.setattr(pod_command, "collect", lambda places: listed.append(places) or collect(places))
    host.add("c1", pod_netns())
    answer = fastcni("pod", "down", "c1", "--bin-dir", plugin_files)
    assert answer.status == 0 and "eth0 of c1 in network net1 is detached" in answer.out
    assert len(listed) == 1


def test_pod_down_leaves_the_interface_of_a_pod_that_has_the_namespace_now(host, pod_netns, fastcni, plugin_files):
    """Once, pod down for the earlier pod removed the interface of the running pod."""
    pod = pod_netns()
    host.add("c1", pod)
    run("ip", "link", "del", "eth0", netns=pod)
    host.add("c2", pod)
    answer = fastcni("pod", "down", "c1", "--bin-dir", plugin_files)
    assert answer.status == 1 and f"/run/netns/{pod} is now the namespace of container c2" in answer.err
    assert "fastcni pod down c1 /nonexistent" in answer.err
    answer = fastcni("pod", "down", "c1", "/nonexistent", "--bin-dir", plugin_files)
    assert answer.status == 0 and "eth0 of c1 in network net1 is detached" in answer.out
    assert "eth0" in run("ip", "-br", "link", netns=pod)
    assert [path.name for path in (host.data / "net1").glob("10.88.*")] == ["10.88.0.3"]
    assert fastcni("pod", "down", "c2", "--bin-dir", plugin_files).status == 0
    assert "eth0" not in run("ip", "-br", "link", netns=pod)


def test_gc_keeps_a_running_pod_whose_result_was_lost(host, pod_netns, fastcni, plugin_files):
    """Once, gc released the address and the rules of a running pod. The next pod got the address."""
    pods = [pod_netns() for _ in range(3)]
    for number, pod in enumerate(pods):
        host.add(f"c{number}", pod)
        if number != 1:
            (host.cache / "results" / f"net1-c{number}-eth0").unlink()
    run("ip", "link", "del", "eth0", netns=pods[2])      # now no namespace has this pod's address
    before = run("nft", "list", "ruleset")
    answer = fastcni("gc", "net1", "--bin-dir", plugin_files)
    assert answer.status == 0 and "kept          c0 eth0" in answer.out
    assert {path.name for path in (host.data / "net1").glob("10.88.*")} == {"10.88.0.2", "10.88.0.3"}
    after = run("nft", "list", "ruleset")
    assert "id: c0" in after and "id: c2" in before and "id: c2" not in after
    for number in range(2):
        host.delete(f"c{number}", pods[number])


def test_pod_down_detaches_or_names_the_network_of_a_lost_result(host, pod_netns, fastcni, plugin_files):
    host.configure(SECOND, "20-net2.conflist")
    for kept in (True, False):
        pod = pod_netns()
        host.add("c1", pod)
        rt = replace(host.rt("c1", pod), ifname="eth1")
        second = host.cni.load("net2")
        host.cni.add(second, rt)
        (host.cache / "results" / "net2-c1-eth1").unlink()
        if not kept:
            (host.conf / "20-net2.conflist").unlink()
        answer = fastcni("pod", "down", "c1", "--bin-dir", plugin_files)
        assert (answer.status == 0) == kept, answer.err
        assert ("eth1" not in run("ip", "-br", "link", netns=pod)) == kept
        assert kept or "pod c1 still has network net2 eth1 (" in answer.err
    host.cni.delete(second, rt)
