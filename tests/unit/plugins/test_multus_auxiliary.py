"""multus with auxiliaryCNIChainName: the plugins in a directory run after all networks of each pod."""

import json
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from lab.networks import NETWORKS, conf_dir, define, elements, kept, multus, network
from lab.node import cid_of, links, sysctl


@pytest.fixture
def chain(node):
    """Return a function chain(*confs) that writes the files of the chain "aux"."""
    define(node, network(node, "a"), network(node, "b"))
    directory = conf_dir(node) / "aux"
    directory.mkdir()

    def write(*confs):
        for number, conf in enumerate(confs):
            text = conf if isinstance(conf, str) else json.dumps(conf)
            (directory / f"{number}.conf").write_text(text)
    return write


def conf(node, **keys):
    return multus(node, annotations={NETWORKS: "b"}, clusterNetwork=f"{conf_dir(node)}/a.conf",
                  auxiliaryCNIChainName="aux", **keys)


def tuning(name, value):
    return {"type": "tuning", "name": "mytuning", "sysctl": {name: value}}


def test_its_plugins_run_behind_all_networks_and_del_leaves_nothing(node, pod, chain):
    chain(tuning("net.ipv4.conf.net1.arp_filter", "1"), tuning("net.ipv4.conf.eth0.arp_filter", "1"))
    (conf_dir(node) / "aux" / "other.json").write_text("no configuration")      # Multus reads only *.conf
    result = node.add(conf(node), pod)
    assert [ip["address"] for ip in result["ips"]] == ["10.1.1.2/24"]
    assert [sysctl(f"net/ipv4/conf/{name}/arp_filter", pod) for name in ("eth0", "net1")] == ["1", "1"]
    assert [it["Name"] for it in elements(node, pod)] == ["a", "default/b", "aux"]
    node.check(conf(node), pod, result)
    for path in (conf_dir(node) / "aux").iterdir():
        path.unlink()
    node.delete(conf(node), pod)
    assert (list(links(pod)), kept(node)) == (["lo"], [])


@pytest.mark.parametrize("exists", [True, False])
def test_without_files_there_is_no_chain(node, pod, chain, exists):
    if not exists:
        (conf_dir(node) / "aux").rmdir()
    node.add(conf(node), pod)
    assert [it["Name"] for it in elements(node, pod)] == ["a", "default/b"]


def test_the_directory_as_the_daemon_of_multus_sees_it_is_found_on_the_host(node, pod, chain):
    chain(tuning("net.ipv4.conf.eth0.arp_filter", "1"))
    node.add(conf(node) | {"clusterNetwork": f"/host{conf_dir(node)}/a.conf"}, pod)
    assert sysctl("net/ipv4/conf/eth0/arp_filter", pod) == "1"


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x"}'])
def test_a_damaged_file_is_refused_before_anything_is_added(node, pod, chain, text):
    chain(text)
    error = node.refused("ADD", conf(node), pod)
    assert (error["code"], "/aux" in error["msg"]) == (7, True), error
    assert (list(links(pod)), kept(node)) == (["lo"], [])


@pytest.mark.parametrize("keys, why", [({"clusterNetwork": "a"}, "must be the path of a file"),
                                       ({"auxiliaryCNIChainName": "../x"}, "auxiliaryCNIChainName")])
def test_a_chain_that_cannot_be_found_is_refused(node, pod, chain, keys, why):
    error = node.refused("ADD", conf(node) | keys, pod)
    assert (error["code"], why in error["msg"]) == (7, True), error


def test_a_chain_that_fails_removes_all_networks(node, pod, chain):
    chain(tuning("net.ipv4.conf.lost0.arp_filter", "1"))
    error = node.refused("ADD", conf(node), pod)
    assert error["msg"].startswith('network "aux" (net2) failed (add): '), error
    assert (list(links(pod)), kept(node)) == (["lo"], [])


def test_a_pod_that_multus_added_with_a_chain_is_deleted(node, pod, chain):
    """In Multus, the chain begins with its plugin passthru, which does nothing."""
    chain(tuning("net.ipv4.conf.eth0.arp_filter", "1"))
    node.add(conf(node), pod)
    path = Path(node.data_dir, "multus", cid_of(pod))
    listed = json.loads(path.read_text())
    document = json.loads(b64decode(listed[2]["Bytes"]))
    document["plugins"].insert(0, {"type": "passthru", "name": "passthru-cni"})
    listed[2]["Bytes"] = b64encode(json.dumps(document).encode()).decode()
    path.write_text(json.dumps(listed))
    node.delete(conf(node), pod)
    assert (list(links(pod)), kept(node)) == (["lo"], [])
