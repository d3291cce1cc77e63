"""bridge with disableFlooding: an IPv6 neighbour solicitation reaches only the pod that has the address."""

import json

import pytest
from lab.node import elements, ip_json, run, source_seen
from lab.unflooded import DUAL, FLAGS, Received, conf_of, flags, restored

from fastcni.kernel import nft_rules
from fastcni.kit.firewall import solicitations

ONLY6 = ("fd00:22::/64",)


@pytest.fixture
def conf(node):
    return conf_of(node)


def fixed(conf, address, **keys):
    return conf(ipam={"type": "static", "addresses": [{"address": f"{address}/64"}]}, **keys)


def solicited():
    """Return {(bridge, address): MAC} of the elements in fastcni's map `solicited`."""
    return {tuple(key): value for key, value in elements("solicited", "netdev")}


@pytest.mark.parametrize("subnets", [DUAL, ONLY6], ids=["dual", "IPv6"])
def test_pods_and_the_host_reach_each_other_and_no_other_pod_hears_of_it(node, conf, pod_netns, subnets):
    one, two, silent = pod_netns(), pod_netns(), pod_netns()
    results = [node.add(conf(*subnets), pod) for pod in (one, two, silent)]
    assert [flags(result) for result in results] == [FLAGS] * 3
    with Received(silent) as heard:
        for sender, receiver, address, source in (
                (one, two, "fd00:22::3", "fd00:22::2"), (two, one, "fd00:22::2", "fd00:22::3"),
                (two, None, "fd00:22::1", "fd00:22::3"), (None, one, "fd00:22::2", "fd00:22::1")):
            assert source_seen(sender, receiver, address) == source
        fourth = node.add(conf(*subnets), pod_netns())
        for result in (*results[:2], fourth):
            assert heard.from_mac(result["interfaces"][2]["mac"]) == []
    for pod, result in zip((one, two, silent), results, strict=True):
        node.check(conf(*subnets), pod, result)


def test_pods_reach_each_other_by_their_link_local_addresses(node, conf, pod_netns):
    one, two = pod_netns(), pod_netns()
    macs = [node.add(conf(*DUAL), pod)["interfaces"][2]["mac"] for pod in (one, two)]
    target, = (it["local"] for it in ip_json("-6", "addr", "show", "dev", "eth0", netns=two)[0]["addr_info"]
               if it.get("scope") == "link")
    assert solicited()["br0", target] == macs[1]
    assert " 0% packet loss" in run("ping", "-c1", "-W5", f"{target}%eth0", netns=one)


def test_pods_of_both_modes_share_a_bridge(node, conf, pod_netns):
    plain, quiet = pod_netns(), pod_netns()
    node.add(conf(*DUAL, disableFlooding=False), plain)
    node.add(conf(*DUAL), quiet)
    assert source_seen(plain, quiet, "fd00:22::3") == "fd00:22::2"
    assert source_seen(quiet, plain, "fd00:22::2") == "fd00:22::3"


@pytest.mark.parametrize("keys", [{"ipMasq": True}, {"hairpinMode": True}, {"promiscMode": True}, {"enabledad": True},
                                  {"macspoofchk": True}, {"ipspoofchk": True},
                                  {"runtimeConfig": {"mac": "02:00:00:00:00:77"}}], ids=lambda keys: next(iter(keys)))
def test_it_works_with_the_other_keys(node, conf, pod_netns, keys):
    one, two = pod_netns(), pod_netns()
    before = node.left(one, two)
    node.add(conf(*ONLY6), one)
    result = node.add(conf(*ONLY6, **keys), two)
    assert source_seen(one, two, "fd00:22::3") == "fd00:22::2"
    assert source_seen(two, one, "fd00:22::2") == "fd00:22::3"
    node.check(conf(*ONLY6, **keys), two, result)
    node.delete(conf(*ONLY6), one)
    node.delete({**conf(*ONLY6, **keys), "prevResult": result}, two)
    run("ip", "link", "del", "br0")
    assert solicited() == {}
    assert node.left(one, two) == before


def test_two_bridges_may_have_the_same_addresses(node, conf, pod_netns):
    pods = {name: (pod_netns(), pod_netns()) for name in ("br0", "br1")}
    for bridge, (one, two) in pods.items():
        gateway = {"isGateway": False, "name": f"net-{bridge}", "bridge": bridge}
        node.add(fixed(conf, "fd00:22::8", **gateway), one)
        node.add(fixed(conf, "fd00:22::9", runtimeConfig={"mac": f"02:00:00:00:00:{bridge[2:]:>02}"}, **gateway), two)
    assert len(solicited()) == 8
    for bridge, (one, two) in pods.items():
        with Received(pods["br1" if bridge == "br0" else "br0"][1]) as other:
            assert source_seen(one, two, "fd00:22::9") == "fd00:22::8"
            mac = json.loads(run("ip", "-j", "link", "show", "eth0", netns=one))[0]["address"]
            assert other.from_mac(mac) == []


def test_an_address_that_moves_is_reached_at_once_and_a_late_del_takes_nothing_from_its_new_pod(node, conf, pod_netns):
    peer, old, new = pod_netns(), pod_netns(), pod_netns()
    node.add(fixed(conf, "fd00:22::8"), peer)
    node.add(fixed(conf, "fd00:22::9"), old)
    assert source_seen(peer, old, "fd00:22::9") == "fd00:22::8"
    run("ip", "link", "del", "eth0", netns=old)                 # the link vanishes without a DEL
    run("ip", "neigh", "flush", "dev", "eth0", netns=peer)
    moved = fixed(conf, "fd00:22::9", runtimeConfig={"mac": "02:00:00:00:00:77"})
    result = node.add(moved, new)
    assert source_seen(peer, new, "fd00:22::9") == "fd00:22::8"
    node.delete(fixed(conf, "fd00:22::9"), old)
    node.check(moved, new, result)


def test_del_and_gc_remove_the_elements(node, conf, pod_netns):
    """DEL must remove a pod's elements even without the namespace or prevResult."""
    pods = [pod_netns() for _ in range(5)]
    results = [node.add(conf(*DUAL), pod) for pod in pods]
    assert len(solicited()) == 10
    for pod in pods[2:]:
        run("ip", "link", "del", "eth0", netns=pod)
    node.delete(conf(*DUAL), pods[0])
    node.delete({**conf(*DUAL), "prevResult": results[1]}, pods[1])
    node.delete({**conf(*DUAL), "prevResult": results[2]}, pods[2], env={"CNI_NETNS": None})
    node.delete(conf(*DUAL), pods[3], env={"CNI_NETNS": None})
    assert set(solicited().values()) == {results[4]["interfaces"][2]["mac"]}
    node.ok("GC", {**conf(*DUAL), "cni.dev/valid-attachments": []})
    assert solicited() == {}


def test_a_solicitation_passes_no_port_isolation(node, conf, pod_netns):
    one, two, open_to_all = pod_netns(), pod_netns(), pod_netns()
    isolated = conf(*ONLY6, portIsolation=True)
    results = [node.add(isolated, pod) for pod in (one, two)]
    node.add(conf(*ONLY6), open_to_all)
    with Received(two) as heard:
        run("ping", "-c1", "-W1", "fd00:22::3", check=False, netns=one)
        assert heard.from_mac(results[0]["interfaces"][2]["mac"]) == []
    assert source_seen(one, None, "fd00:22::1") == "fd00:22::2"
    assert source_seen(open_to_all, two, "fd00:22::3") == "fd00:22::4"
    restored(isolated, two, results[1])
    node.check(isolated, two, results[1])
    assert {address for _, address in solicited() if not address.startswith("fe80:")} == {"fd00:22::4"}


def test_a_solicitation_does_not_pass_the_ingress_policy_of_the_firewall(node, conf, pod_netns):
    one, two = pod_netns(), pod_netns()
    policy = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", "backend": "nftables",
              "ingressPolicy": "isolated"}
    results = [node.add(conf(*ONLY6), pod) for pod in (one, two)]
    for pod, result in zip((one, two), results, strict=True):
        node.add({**policy, "prevResult": result}, pod)
    assert solicited() == {}
    with Received(two) as heard:
        run("ping", "-c1", "-W1", "fd00:22::3", check=False, netns=one)
        assert heard.from_mac(results[0]["interfaces"][2]["mac"]) == []
    assert source_seen(one, None, "fd00:22::1") == "fd00:22::2"
    assert source_seen(None, two, "fd00:22::3") == "fd00:22::1"
    node.check(conf(*ONLY6), two, results[1])


def test_a_failed_add_leaves_no_element(node, conf, pod):
    run("ip", "link", "add", "br0", "type", "bridge")
    node.refused("ADD", conf(*DUAL, ipMasq=True, ipMasqBackend="iptables"), pod, env={"PATH": "/nowhere"})
    assert solicited() == {}


def test_what_a_deleted_pod_left_does_not_block_a_pod_of_the_default_mode(node, conf, pod_netns):
    """DEL of the reference plugin deletes only the link, so the earlier pod's element remains."""
    one, old, new = pod_netns(), pod_netns(), pod_netns()
    node.add(conf(*ONLY6), one)
    node.add(fixed(conf, "fd00:22::9"), old)
    run("ip", "link", "del", "eth0", netns=old)
    mac = node.add(fixed(conf, "fd00:22::9", disableFlooding=False), new)["interfaces"][2]["mac"]
    assert solicited()["br0", "fd00:22::9"] != mac
    assert source_seen(one, new, "fd00:22::9") == "fd00:22::2"
    assert source_seen(new, one, "fd00:22::2") == "fd00:22::9"
    assert source_seen(new, None, "fd00:22::1") == "fd00:22::9"


def test_a_bridge_that_was_deleted_and_made_again(node, conf, pod_netns):
    """With the bridge, the kernel deletes the bridge's nftables chain, and sends no notification about the chain."""
    for _ in range(2):
        one, two = pod_netns(), pod_netns()
        node.add(conf(*ONLY6), one)
        result = node.add(conf(*ONLY6), two)
        address = result["ips"][0]["address"].partition("/")[0]
        assert source_seen(one, two, address)
        node.check(conf(*ONLY6), two, result)
        run("ip", "link", "del", "br0")


@pytest.mark.parametrize("lacking", ["NFT_DUP_NETDEV", "NF_TABLES_NETDEV"])
def test_with_a_kernel_that_cannot_do_it_multicast_reaches_the_pods(node, conf, pod_netns, monkeypatch, lacking):
    if lacking == "NFT_DUP_NETDEV":
        monkeypatch.setattr(nft_rules, "dup_to_iif", lambda: (("unknown-to-all", lambda batch: batch),))
    else:
        monkeypatch.setattr(solicitations, "FAMILY", 77)
    one, two = pod_netns(), pod_netns()
    results = [node.add(conf(*DUAL), pod) for pod in (one, two)]
    assert [flags(result) for result in results] == [{**FLAGS, "mcast_flood": True}] * 2
    assert source_seen(one, two, "fd00:22::3") == "fd00:22::2"
    node.check(conf(*DUAL), two, results[1])
    restored(conf(*DUAL), two, results[1])
    node.check(conf(*DUAL), two, results[1])
    assert b"the bridge floods IPv6 multicast to the pod's port" in node.call("ADD", conf(*DUAL), pod_netns()).stderr
    node.ok("GC", {**conf(*DUAL), "cni.dev/valid-attachments": [{"containerID": f"c-{two}", "ifname": "eth0"}]})
    node.delete(conf(*DUAL), two)
    assert solicited() == {}


LOSSES = {"ruleset": "nft flush ruleset", "chain": "nft flush chain netdev fastcni bridge-br0",
          "rules": "nft flush chain netdev fastcni solicitations",
          "elements": "nft flush map netdev fastcni solicited"}


@pytest.mark.parametrize("loss", LOSSES)
def test_check_names_what_another_program_flushes_and_restore_restores_it(node, conf, pod_netns, loss):
    one, two = pod_netns(), pod_netns()
    node.add(conf(*DUAL), one)
    result = node.add(conf(*DUAL), two)
    before = solicited()
    run(*LOSSES[loss].split())
    port = result["interfaces"][1]["name"]
    assert node.check_refused(conf(*DUAL), two, result) == \
        f'disableFlooding: nftables sends no neighbour solicitations to port "{port}"'
    restored(conf(*DUAL), two, result)
    node.check(conf(*DUAL), two, result)
    mac = result["interfaces"][2]["mac"]
    assert solicited().items() >= {key: value for key, value in before.items() if value == mac}.items()
    assert source_seen(one, two, "fd00:22::3") == "fd00:22::2"


def test_a_pod_of_an_earlier_version_is_known_to_check_and_restore_brings_it_up_to_date(node, conf, pod_netns):
    """An earlier version let multicast reach pods with IPv6 addresses, and nftables had no elements for these pods."""
    one, two = pod_netns(), pod_netns()
    results = [node.add(conf(*DUAL), pod) for pod in (one, two)]
    run("nft", "delete", "table", "netdev", "fastcni")
    for result in results:
        run("bridge", "link", "set", "dev", result["interfaces"][1]["name"], "mcast_flood", "on")
    node.check(conf(*DUAL), two, results[1])
    assert source_seen(one, two, "fd00:22::3") == "fd00:22::2"
    node.add(conf(*DUAL), pod_netns())
    node.check(conf(*DUAL), two, results[1])
    assert flags(results[1])["mcast_flood"]
    restored(conf(*DUAL), two, results[1])
    node.check(conf(*DUAL), two, results[1])
    assert flags(results[1]) == FLAGS
    assert source_seen(one, two, "fd00:22::3") == "fd00:22::2"
