"""ipMasq by nftables: a fixed number of rules, an element for each pod, and masqueraded packets."""

import json

import pytest
from lab.node import cid_of, elements, eventually, links, rules, run, set_sysctl, source_seen
from lab.portmap_chain import DUAL, EXTERNAL, NODE


@pytest.fixture
def conf(node):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return node.conf(*DUAL, isDefaultGateway=True, ipMasq=True)


def fixed():
    """Return the tables, chains, maps and rules of the ruleset as JSON texts, without elements."""
    found = rules()
    for item in found:
        item.get("map", {}).pop("elem", None)
    return [json.dumps(item, sort_keys=True) for item in found]


def masqueraded(name="pods4"):
    return sorted(key for key, _ in elements(name))


@pytest.mark.parametrize("plugin", ["bridge", "ptp"])
def test_external_hosts_see_the_node_and_pods_see_each_other(node, pod_netns, external, plugin):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    routes = ["0.0.0.0/0", "::/0"]
    conf = node.conf(*DUAL, type=plugin, ipMasq=True, isGateway=True, routes=routes)
    one, two = pod_netns(), pod_netns()
    node.add(conf, one)
    node.add(conf, two)
    assert source_seen(one, external, EXTERNAL[4]) == NODE[4]
    assert source_seen(one, external, EXTERNAL[6]) == NODE[6]
    assert source_seen(one, two, "10.22.0.3") == "10.22.0.2"
    assert source_seen(one, two, "fd00:22::3") == "fd00:22::2"
    assert source_seen(one, None, NODE[4]) == "10.22.0.2"
    node.delete(conf, one)
    assert source_seen(two, external, EXTERNAL[4]) == NODE[4]


def test_pod_without_ip_masq_keeps_its_address(node, pod_netns, external, conf):
    masked, plain = pod_netns(), pod_netns()
    node.add(conf, masked)
    node.add({**conf, "ipMasq": False}, plain)
    assert masqueraded() == ["10.22.0.2"]
    # rp_filter of ext0 may drop the packet
    assert source_seen(plain, external, EXTERNAL[4], wait=1) in (None, "10.22.0.3")
    assert source_seen(masked, external, EXTERNAL[4]) == NODE[4]


def test_number_of_rules_does_not_grow_with_pods(node, pod_netns, conf):
    pods = [pod_netns() for _ in range(5)]
    node.add(conf, pods[0])
    after_one = fixed()
    for pod in pods[1:]:
        node.add(conf, pod)
    assert fixed() == after_one
    assert masqueraded() == [f"10.22.0.{n}" for n in range(2, 7)]
    assert masqueraded("pods6") == [f"fd00:22::{n}" for n in range(2, 7)]
    for pod in pods:
        node.delete(conf, pod)
    assert fixed() == after_one
    assert masqueraded() == masqueraded("pods6") == []


def test_each_subnet_has_a_chain_and_gc_removes_those_not_used(node, pod_netns, conf):
    one, two = pod_netns(), pod_netns()
    other = node.conf("10.33.0.0/16", name="net-b", bridge="br1", isGateway=True, ipMasq=True)
    node.add(conf, one)
    node.add(other, two)

    def chains():
        return sorted(item["chain"]["name"] for item in rules() if "chain" in item)

    assert chains() == ["postrouting", "subnet-10.22.0.0/24", "subnet-10.33.0.0/16", "subnet-fd00_22__/64"]
    assert elements("pods4") == [("10.22.0.2", "subnet-10.22.0.0/24"), ("10.33.0.2", "subnet-10.33.0.0/16")]
    node.delete(conf, one)
    node.ok("GC", {**other, "cni.dev/valid-attachments": [{"containerID": cid_of(two), "ifname": "eth0"}]})
    assert chains() == ["postrouting", "subnet-10.33.0.0/16"]
    assert masqueraded() == ["10.33.0.2"]


def test_element_of_a_pod_that_was_never_deleted_is_taken_over(node, pod_netns, conf):
    # The node has lost its address files, but not its ruleset. IPAM gives the same address again.
    lost, found = pod_netns(), pod_netns()
    node.add(conf, lost)
    run("ip", "netns", "del", lost)
    run("rm", "-r", node.data_dir)
    node.add(conf, found)
    assert masqueraded() == ["10.22.0.2"]
    node.delete(conf, lost, cid=cid_of(lost))           # the earlier pod's DEL comes late
    assert masqueraded() == ["10.22.0.2"]
    node.delete(conf, found)
    assert masqueraded() == []


@pytest.mark.parametrize("how", [("flush", "ruleset"), ("delete", "table", "inet", "fastcni"),
                                 ("flush", "table", "inet", "fastcni"),
                                 ("flush", "chain", "inet", "fastcni", "postrouting"),
                                 ("flush", "map", "inet", "fastcni", "pods4")], ids=" ".join)
def test_the_next_pod_adds_flushed_rules_again(node, pod_netns, conf, how):
    one, two = pod_netns(), pod_netns()
    node.add(conf, one)
    before = fixed()
    run("nft", *how)
    node.add(conf, two)
    assert "10.22.0.3" in masqueraded()
    assert fixed() == before
    node.delete(conf, one)
    node.delete(conf, two)
    assert masqueraded() == masqueraded("pods6") == []


@pytest.mark.parametrize("known", ["link", "prevResult", "neither"])
def test_del_finds_elements_by_their_mark(node, pod, conf, known):
    result = node.add(conf, pod)
    if known != "link":
        run("ip", "netns", "del", pod)
    node.delete({**conf, "prevResult": result} if known == "prevResult" else conf, pod, cid=cid_of(pod))
    assert masqueraded() == masqueraded("pods6") == []


def test_flushed_table_is_made_again_for_other_subnets_too(node, pod_netns, conf):
    one, two = pod_netns(), pod_netns()
    node.add(conf, one)
    other = node.conf("10.33.0.0/16", name="net-b", bridge="br1", isGateway=True, ipMasq=True)
    node.add(other, two)
    before = fixed()
    run("nft", "flush", "table", "inet", "fastcni")
    node.delete(other, two)
    node.add(other, two)
    assert sorted(fixed()) == sorted(before)


def test_del_finds_elements_of_addresses_that_the_pod_took_off_itself(node, pod, conf):
    node.add(conf, pod)
    run("ip", "addr", "del", "fd00:22::2/64", "dev", "eth0", netns=pod)
    node.delete(conf, pod)
    assert masqueraded() == masqueraded("pods6") == []


def test_long_container_ids_with_the_same_start_are_distinguished(node, pod_netns, conf):
    # nft keeps 128 bytes of a comment, so the comment begins with the hashes.
    one, two, long_id = pod_netns(), pod_netns(), "c" * 200
    node.add(conf, one, cid=long_id + "1")
    node.add(conf, two, cid=long_id + "2")
    node.delete(conf, one, cid=long_id + "1")
    assert masqueraded() == ["10.22.0.3"]


REFERENCE = """
add table inet cni_plugins_masquerade
add chain inet cni_plugins_masquerade masq_checks
add rule inet cni_plugins_masquerade masq_checks ip saddr 10.1.0.5 ip daddr != 10.1.0.0/16 masquerade \
comment "8e48f37d5de60467-0b65a318f52e521b, net: net1, if: eth0, id: cid1"
add rule inet cni_plugins_masquerade masq_checks ip saddr 10.1.0.6 ip daddr != 10.1.0.0/16 masquerade \
comment "8e48f37d5de60467-ffffffffffffffff, net: net1, if: eth0, id: cid2"
"""


def test_del_removes_rules_of_the_reference_plugins(node, pod, conf):
    run("nft", "-f", "-", stdin=REFERENCE)
    node.delete({**conf, "name": "net1"}, pod, cid="cid1")
    assert [item["rule"]["comment"].split()[-1] for item in rules() if "rule" in item] == ["cid2"]


def test_gc_deletes_rules_of_the_reference_plugins_for_lost_attachments(node, conf):
    run("nft", "-f", "-", stdin=REFERENCE.replace("-ffffffffffffffff, net: net1, if: eth0, id: cid2",
                                                  "-ffffffffffffffff, net: net1, if: eth0, id: lost"))
    node.ok("GC", {**conf, "cni.dev/valid-attachments": []})            # a GC of another network
    assert len([item for item in rules() if "rule" in item]) == 2
    node.ok("GC", {**conf, "name": "net1", "cni.dev/valid-attachments": [{"containerID": "cid1", "ifname": "eth0"}]})
    assert [item["rule"]["comment"].split()[-1] for item in rules() if "rule" in item] == ["cid1"]


def test_foreign_tables_are_left_alone(node, pod, conf):
    run("nft", "-f", "-", stdin="table ip mine { map pods4 { type ipv4_addr : verdict; "
        "elements = { 10.22.0.2 : accept } }\n chain c { type nat hook postrouting priority 90; }\n}\n")
    mine = fixed()
    node.add(conf, pod)
    node.delete(conf, pod)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": []})
    assert [item for item in fixed() if '"mine"' in item] == [item for item in mine if '"mine"' in item]


def test_unknown_backend_is_refused_before_anything_is_made(node, pod, conf):
    before = node.left(pod)
    error = node.refused("ADD", {**conf, "ipMasqBackend": "pf"}, pod)
    assert 'unknown ipmasq backend "pf"' in error["msg"]
    assert node.left(pod) == before
    assert eventually(lambda: set(links()) == {"lo"})
