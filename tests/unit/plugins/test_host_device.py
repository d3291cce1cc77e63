"""host-device moves a device into the pod and back. Also its MAC, errors, DEL and GC. test_devices.py has more
tests."""

import os

import pytest
from lab.node import Inside, addresses, ip_json, links, run, source_seen, sysctl
from unit.plugins.uplink import MAC, OTHER_MAC, add_uplink, conf_of, device, naming

from fastcni.kit.links import moving


@pytest.fixture
def neighbor(node, pod_netns):
    return add_uplink(node, pod_netns)


@pytest.fixture
def conf(node, neighbor, tmp_path):
    return conf_of(node, tmp_path / "kept")


@pytest.fixture
def layer2(conf):
    return {**conf, "ipam": None}


# -- moves into the pod and back --------------------------------------------------------------------------

def test_device_moves_into_the_pod_and_back(node, pod, neighbor, conf):
    before = links()["up0"]
    result = node.add(conf, pod)
    assert source_seen(pod, neighbor, "10.22.0.254") == "10.22.0.2"
    assert source_seen(pod, neighbor, "fd00:22::fe") == "fd00:22::2"
    assert [ip["interface"] for ip in result["ips"]] == [0, 0]
    assert "dns" not in result
    assert result["interfaces"] == [{"name": "eth0", "mac": before["address"], "sandbox": f"/run/netns/{pod}"}]
    assert addresses("eth0", pod) == ["10.22.0.2/24", "fd00:22::2/64"]
    assert set(links()) == {"lo"}
    assert links(pod)["eth0"]["ifalias"] == "up0"
    node.check(conf, pod, result)
    node.delete(conf, pod)
    after = links()["up0"]
    assert set(links(pod)) == {"lo"}
    assert node.held() == {}
    assert addresses("up0") == []
    assert "ifalias" not in after
    assert "UP" not in after["flags"]
    assert all(after[key] == before[key] for key in ("address", "mtu", "txqlen", "linkinfo"))


def test_one_device_serves_one_pod_after_the_other(node, pod, pod_netns, conf):
    for name in (pod, pod_netns()):
        node.check(conf, name, node.add(conf, name))
        assert node.refused("ADD", conf, pod, ifname="eth1")["code"] == 11
        node.delete(conf, name)


def test_device_can_have_the_same_name_in_the_pod(node, pod, conf):
    result = node.add(conf, pod, ifname="up0")
    assert links(pod)["up0"]["ifalias"] == "up0"
    node.check(conf, pod, result, ifname="up0")
    node.delete(conf, pod, ifname="up0")
    assert set(links()) == {"lo", "up0"}


def test_pod_and_host_may_have_the_names_that_the_device_leaves(node, pod, conf):
    run("ip", "link", "add", "up0", "type", "veth", "peer", "other", netns=pod)
    run("ip", "link", "add", "eth0", "type", "veth", "peer", "other")
    node.add(conf, pod)
    assert links(pod)["eth0"]["ifalias"] == "up0"
    assert set(links(pod)) == {"lo", "eth0", "up0", "other"}
    node.delete(conf, pod)
    assert set(links()) == {"lo", "eth0", "other", "up0"}
    assert set(links(pod)) == {"lo", "up0", "other"}


def test_without_ipam_the_link_is_up_and_has_no_address_and_the_result_no_dns(node, pod, layer2):
    result = node.add({**layer2, "dns": {"domain": "example.org"}}, pod)
    assert "UP" in links(pod)["eth0"]["flags"]
    assert addresses("eth0", pod) == []
    assert set(result) == {"cniVersion", "interfaces"}
    node.check(layer2, pod, result)
    node.delete(layer2, pod)
    assert set(links()) == {"lo", "up0"}


def test_disableipv6_leaves_none_on_the_link_until_it_is_back(node, pod, conf):
    conf["ipam"]["ranges"] = [[{"subnet": "10.22.0.0/24"}]]
    node.add({**conf, "disableIPv6": True}, pod)
    assert "inet6" not in run("ip", "addr", "show", "eth0", netns=pod)
    node.delete(conf, pod)
    assert sysctl("net/ipv6/conf/up0/disable_ipv6") == "0"


def test_no_descriptor_is_left_open(node, pod, conf, collector_off):
    before = set(os.listdir("/proc/self/fd"))
    node.add(conf, pod)
    node.delete(conf, pod)
    node.refused("ADD", {**conf, "device": "up9"}, pod)
    assert set(os.listdir("/proc/self/fd")) == before


# -- errors -----------------------------------------------------------------------------------------------

def test_device_keeps_its_addresses_when_ipam_has_none(node, pod, conf):
    conf["ipam"]["ranges"] = [[{"subnet": "10.22.0.0/24", "rangeStart": "10.22.0.5", "rangeEnd": "10.22.0.5"}]]
    node.add({**conf, "type": "host-local"}, pod, cid="other")
    before = device()
    assert node.refused("ADD", conf, pod)["code"] == 11
    assert device() == before
    assert set(links(pod)) == {"lo"}


@pytest.mark.needs("bridge")
def test_device_is_as_it_was_when_the_pod_cannot_be_configured(node, pod, conf):
    """Only addresses and routes are lost, because the kernel deletes them when a link changes its namespace."""
    run("ip", "link", "add", "br0", "type", "bridge")
    run("ip", "addr", "flush", "dev", "up0")
    run("ip", "link", "set", "up0", "master", "br0", "mtu", "1400", "alias", "to the left switch")
    before = node.left(pod), links()["up0"]["ifalias"]
    conf["ipam"]["routes"] = [{"dst": "198.51.100.0/24", "gw": "172.16.0.1"}]
    error = node.refused("ADD", {**conf, "runtimeConfig": {"mac": MAC}}, pod)
    assert "failed to add route '198.51.100.0/24" in error["msg"]
    assert "undoing" not in error.get("details", "")
    assert (node.left(pod), links()["up0"]["ifalias"]) == before
    assert "UP" in links()["up0"]["flags"]
    assert os.listdir(conf["dataDir"]) == [".fastcni"]


def test_name_taken_in_the_pod_leaves_the_device_alone(node, pod, conf):
    run("ip", "link", "add", "eth0", "type", "veth", "peer", "other", netns=pod)
    before = node.left(pod), device()
    assert node.refused("ADD", conf, pod) == {
        "code": 999, "msg": 'failed to rename host device "up0" to "eth0": File exists',
        "details": "the pod has an interface of that name; was it added before?"}
    assert (node.left(pod), device()) == before
    reply = node.call("DEL", conf, pod)                 # after a failed ADD, a runtime calls DEL
    assert reply.status == 0
    assert b"alias is not set" in reply.stderr
    assert (node.left(pod), device()) == before


def test_name_taken_on_the_host_keeps_the_device_in_the_pod_until_it_is_free(node, pod, conf):
    node.add(conf, pod)
    run("ip", "link", "add", "up0", "type", "veth", "peer", "other")
    before = node.left(pod), links(pod)["eth0"]["ifalias"]
    for _ in range(2):
        assert node.refused("DEL", conf, pod) == {
            "code": 999, "msg": 'failed to rename host device "eth0" to "up0": File exists',
            "details": "the host has an interface of that name; the device stays in the pod, and DEL can be repeated "
                       "when the name is free"}
        assert (node.left(pod), links(pod)["eth0"]["ifalias"]) == before        # the address stays allocated, too
    run("ip", "link", "del", "up0")
    node.delete(conf, pod)
    assert set(links()) == {"lo", "up0"}
    assert node.held() == {}


def test_a_name_taken_at_the_last_moment_moves_the_device_back(node, pod, conf, monkeypatch):
    """The kernel has moved the device, but it cannot rename the device."""
    monkeypatch.setattr(moving, "check_free", lambda *_: None)
    run("ip", "link", "add", "eth0", "type", "veth", "peer", "other", netns=pod)
    run("ip", "addr", "flush", "dev", "up0")
    before = node.left(pod)
    assert node.refused("ADD", conf, pod)["msg"] == 'failed to move link "up0": File exists (errno 17)'
    assert node.left(pod) == before
    node.add(conf, pod, ifname="eth1")
    run("ip", "link", "add", "up0", "type", "veth", "peer", "other")
    assert node.refused("DEL", conf, pod, ifname="eth1")["msg"] == 'failed to move link "eth1": File exists (errno 17)'
    assert links(pod)["eth1"]["ifalias"] == "up0"
    assert set(links()) == {"lo", "up0", "other"}
    run("ip", "link", "del", "up0")
    node.delete(conf, pod, ifname="eth1")
    assert "ifalias" not in links()["up0"]


def test_link_that_cannot_leave_its_namespace_is_an_error(node, pod, conf):
    before = node.left(pod)
    error = node.refused("ADD", {**conf, "device": "lo"}, pod)
    assert 'failed to move link "lo": ' in error["msg"]
    assert node.left(pod) == before


# -- MACs -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("env, args, runtime, mac", [
    (MAC, None, None, MAC), (MAC, OTHER_MAC, None, OTHER_MAC), (MAC, MAC, OTHER_MAC, OTHER_MAC)])
def test_mac_of_the_runtime_overrides_args_and_the_variable_and_del_restores_it(
        node, pod, conf, layer2, env, args, runtime, mac):
    own = links()["up0"]["address"]
    keys = {**layer2, "args": {"cni": {"mac": args}}, "runtimeConfig": {"mac": runtime}}
    result = node.add(keys, pod, env={"CNI_ARGS": f"K8S_POD_NAME=a;MAC={env}"})
    assert links(pod)["eth0"]["address"] == mac == result["interfaces"][0]["mac"]
    node.check(keys, pod, result)
    node.delete(layer2, pod)            # this DEL has no runtimeConfig, and must not need one
    assert links()["up0"]["address"] == own
    assert os.listdir(conf["dataDir"]) == [".fastcni"]


def test_a_mac_that_the_device_has_already_is_not_saved(node, pod, conf):
    node.add({**conf, "runtimeConfig": {"mac": links()["up0"]["address"]}}, pod)
    assert not os.path.exists(conf["dataDir"])


def test_mac_that_the_kernel_refuses_is_an_error_and_the_device_stays(node, pod, conf):
    run("ip", "addr", "flush", "dev", "up0")
    before = node.left(pod)
    error = node.refused("ADD", {**conf, "runtimeConfig": {"mac": "01:00:00:00:00:01"}}, pod)
    assert 'failed to set the MAC of "eth0"' in error["msg"]
    assert node.left(pod) == before


def test_directory_that_cannot_be_written_is_an_error_and_the_device_stays(node, pod, conf):
    run("ip", "addr", "flush", "dev", "up0")
    before = node.left(pod)
    error = node.refused("ADD", {**conf, "dataDir": "/proc/nowhere", "runtimeConfig": {"mac": MAC}}, pod)
    assert error["code"] == 5
    assert "/proc/nowhere" in error["msg"]
    assert node.left(pod) == before


# -- DEL, CHECK, STATUS, GC -------------------------------------------------------------------------------

@pytest.mark.parametrize("gone", ["link", "netns", "variable", "nothing, twice"])
def test_del_of_a_missing_link_succeeds_and_frees_the_address(node, pod, conf, gone):
    node.add({**conf, "runtimeConfig": {"mac": MAC}}, pod)
    if gone == "link":
        run("ip", "link", "del", "eth0", netns=pod)
    elif gone == "netns":
        run("ip", "netns", "del", pod)
    for _ in range(2):
        node.delete(conf, "" if gone == "variable" else pod, cid=f"c-{pod}")
    assert node.held() == {}
    assert os.listdir(conf["dataDir"]) == [".fastcni"]


@pytest.mark.parametrize("alias", ["", "a/b", "sixteen-letters-", "a%d", "a\x7f"])
def test_a_device_without_a_recorded_name_stays_in_the_pod(node, pod, conf, alias):
    """In this case, the reference plugin's DEL fails for ever, so the pod cannot end. Root in the pod can change the
    alias, which records the name."""
    result = node.add(conf, pod)
    run("ip", "link", "set", "eth0", "alias", alias, netns=pod)
    says = 'failed to find original ifname for "eth0" (alias is not set)'
    assert node.check_refused(conf, pod, result) == says
    reply = node.call("DEL", conf, pod)
    assert reply.status == 0
    assert says.encode() in reply.stderr
    assert node.held() == {}
    assert set(links()) == {"lo"}
    assert "eth0" in links(pod)


def test_gc_frees_addresses_and_files_of_pods_that_are_gone(node, pod, pod_netns, conf):
    other = pod_netns()
    run("ip", "link", "add", "up1", "type", "veth", "peer", "other")
    for name, link in ((pod, "up0"), (other, "up1")):
        node.add({**conf, "device": link, "runtimeConfig": {"mac": MAC}}, name)
    node.ok("GC", naming(conf, **{"cni.dev/valid-attachments": [{"containerID": f"c-{other}", "ifname": "eth0"}]}))
    assert {content.split()[0] for content in node.held().values()} == {f"c-{other}"}
    assert sorted(os.listdir(conf["dataDir"])) == [".fastcni", f"c-{other}_eth0.json"]


def test_thread_returns_to_its_namespace(node, pod, conf):
    with Inside(None):
        node.add(conf, pod)
        node.delete(conf, pod)
        assert "up0" in {item["ifname"] for item in ip_json("link")}
