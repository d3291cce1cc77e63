"""The server records the veth pair that an ADD makes. So the DEL need not search for the pair, and never deletes
another pair."""

import pytest
from lab.node import elements, links, run
from lab.portmap_chain import Chain, mapping
from modes import show_wire

from fastcni.kernel import uapi
from fastcni.server.requests import facts


def veths():
    return [name for name in links() if name.startswith("veth")]


def conf_of(node, plugin="bridge", **keys):
    return node.conf("10.22.0.0/24", type=plugin, **keys)


@pytest.mark.parametrize("plugin", ["bridge", "ptp"])
def test_del_does_not_search_for_the_pair_of_its_add(node, pod, warm, monkeypatch, plugin):
    conf, asked = conf_of(node, plugin, ipMasq=True), []
    node.add(conf, pod, mode=warm)
    show_wire(monkeypatch, lambda way, data: asked.append(int.from_bytes(data[4:6], "little")))
    node.delete(conf, pod, mode=warm)
    assert uapi.RTM_GETLINK not in asked and uapi.RTM_GETADDR not in asked
    assert set(links(pod)) == {"lo"}
    assert not veths()
    assert not elements("pods4")
    assert not node.held()


def test_portmap_notes_the_link_of_its_add_without_a_search(node, pod, warm, monkeypatch):
    chain, asked = Chain(node, conf_of(node)), []
    result = node.add(chain.first, pod, mode=warm)
    show_wire(monkeypatch, lambda way, data: asked.append(int.from_bytes(data[4:6], "little")))
    node.add(chain.portmap(mapping(), prevResult=result), pod, mode=warm)
    assert uapi.RTM_GETLINK not in asked
    index = links()[result["interfaces"][1]["name"]]["ifindex"]
    assert f"link: {index}, net: net-a" in run("nft", "list", "map", "inet", "fastcni", "hostports4")


def test_a_link_that_replaced_the_pods_link_is_deleted(server, node, pod):
    conf = conf_of(node)
    server.ok("ADD", conf, pod)
    run("ip", "link", "del", "eth0", netns=pod)
    run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other", netns=pod)
    server.ok("DEL", conf, pod)
    assert set(links(pod)) == {"lo"}


def test_a_pair_whose_host_end_was_renamed_is_found(server, node, pod):
    conf = conf_of(node)
    name = server.ok("ADD", conf, pod)["interfaces"][1]["name"]
    run("ip", "link", "set", name, "down", "name", "renamed")
    server.ok("DEL", conf, pod)
    assert set(links(pod)) == {"lo"} and "renamed" not in links()


def test_del_in_another_namespace_leaves_the_pair_of_the_first(server, node, pod, pod_netns):
    conf, other = conf_of(node), pod_netns()
    server.ok("ADD", conf, pod, cid="same")
    server.ok("ADD", conf, other)
    server.ok("DEL", conf, other, cid="same")
    assert "eth0" in links(pod) and set(links(other)) == {"lo"}


def test_del_deletes_the_pair_of_a_later_one_shot_add(server, node, pod, pod_netns):
    """One-shot requests delete the first pair and add a second one, so the server's record is outdated."""
    conf = conf_of(node)
    server.ok("ADD", conf, pod)
    node.delete(conf, pod)
    node.add(conf, pod)
    server.ok("DEL", conf, pod)
    assert set(links(pod)) == {"lo"} and not veths()


def test_beyond_the_limit_the_oldest_pairs_are_forgotten(warm, monkeypatch):
    monkeypatch.setattr(facts, "MAX_PAIRS", 2)
    for key in "abac":
        warm.facts.keep_pair(key, key.upper())
    assert [warm.facts.take_pair(key) for key in "abc"] == ["A", None, "C"]
