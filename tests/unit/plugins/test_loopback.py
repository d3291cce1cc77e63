"""loopback on the real kernel. ADD sets `lo` up, DEL sets it down, and neither changes anything else."""

import pytest
from lab.node import links, run

from fastcni.spec.version import ALL

CONF = {"cniVersion": "1.1.0", "name": "lo", "type": "loopback"}


def up(pod):
    return "UP" in links(pod)["lo"]["flags"]


@pytest.mark.parametrize("version", ALL)
def test_add_check_and_del_at_every_version(node, pod, version):
    conf = {**CONF, "cniVersion": version}
    result = node.add(conf, pod)
    assert up(pod)
    assert result["cniVersion"] == version
    if version in ("0.1.0", "0.2.0"):
        assert (result["ip4"]["ip"], result["ip6"]["ip"]) == ("127.0.0.1/8", "::1/128")
    else:
        assert result["interfaces"] == [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": f"/run/netns/{pod}"}]
        assert [(ip["address"], ip["interface"]) for ip in result["ips"]] == [("127.0.0.1/8", 0), ("::1/128", 0)]
    if version in ("0.4.0", "1.0.0", "1.1.0"):
        node.check(conf, pod, result)
    node.delete(conf, pod)
    assert not up(pod)


def test_add_may_be_repeated_and_ignores_the_interface_name(node, pod):
    assert node.add(CONF, pod, ifname="eth7") == node.add(CONF, pod)
    assert set(links(pod)) == {"lo"}


def test_prev_result_is_passed_on(node, pod):
    previous = {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0"}], "ips": [{"address": "10.1.0.2/24"}]}
    assert node.add({**CONF, "prevResult": previous}, pod) == previous
    assert up(pod)


def test_broken_prev_result_is_refused_before_lo_is_touched(node, pod):
    error = node.refused("ADD", {**CONF, "prevResult": {"cniVersion": "1.1.0", "ips": 7}}, pod)
    assert "prevResult" in error["msg"]
    assert not up(pod)


def test_other_address_on_lo_is_an_error(node, pod):
    run("ip", "addr", "add", "192.0.2.1/32", "dev", "lo", netns=pod)
    error = node.refused("ADD", CONF, pod)
    assert 'loopback interface found with non-loopback address "192.0.2.1"' in error["msg"]
    assert not up(pod)


def test_check_finds_lo_down(node, pod):
    result = node.add(CONF, pod)
    run("ip", "link", "set", "lo", "down", netns=pod)
    assert node.check_refused(CONF, pod, result) == "loopback interface is down"


@pytest.mark.parametrize("netns", ["gone", "unnamed"])
def test_del_without_the_netns_succeeds(node, pod, netns):
    node.add(CONF, pod)
    run("ip", "netns", "del", pod)
    for _ in range(2):
        node.delete(CONF, pod if netns == "gone" else "", cid="c")


def test_del_ignores_prev_result(node, pod):
    node.add(CONF, pod)
    node.delete({**CONF, "prevResult": {"ips": 7}}, pod)
    assert not up(pod)


def test_status_and_gc_have_nothing_to_do(node):
    node.ok("STATUS", CONF)
    node.ok("GC", {**CONF, "cni.dev/valid-attachments": []})
