"""bridge: results of every version, CHECK, DEL with and without the pod's state, STATUS and GC."""

import os
import socket

import pytest
from lab.node import Inside, addresses, cid_of, elements, eventually, links, run, sysctl

from fastcni.spec.version import ALL

FULL = {"isGateway": True, "ipMasq": True, "macspoofchk": True}


@pytest.fixture
def conf(node):
    return node.conf("10.22.0.0/24", "fd00:22::/64", routes=["0.0.0.0/0"], **FULL)


# -- results ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("version", ALL)
def test_add_check_and_del_at_every_version(node, pod, conf, version):
    conf["cniVersion"] = version
    result = node.add(conf, pod)
    assert result["cniVersion"] == version
    if version in ("0.1.0", "0.2.0"):
        assert result == {
            "cniVersion": version,
            "ip4": {"ip": "10.22.0.2/24", "gateway": "10.22.0.1", "routes": [{"dst": "0.0.0.0/0"}]},
            "ip6": {"ip": "fd00:22::2/64", "gateway": "fd00:22::1"}, "dns": {}}
    else:
        old = version in ("0.3.0", "0.3.1", "0.4.0")
        assert [item["name"] for item in result["interfaces"]][::2] == ["br0", "eth0"]
        assert [item.get("version") for item in result["ips"]] == (["4", "6"] if old else [None, None])
        assert [item["interface"] for item in result["ips"]] == [2, 2]
        assert ("dns" in result) is old
    if version in ("0.4.0", "1.0.0", "1.1.0"):
        node.check(conf, pod, result)
    else:
        assert "config version does not allow CHECK" in node.check_refused(conf, pod, result)
    node.delete({**conf, "prevResult": result}, pod)
    assert set(links(pod)) == {"lo"}
    assert node.held() == {}
    assert elements("pods4") == elements("pods6") == []


def test_a_pair_has_one_queue_each_way(node, pod, conf):
    """With more queues, the kernel would wait for RCU when it disables unused queues."""
    host = node.add(conf, pod)["interfaces"][1]["name"]
    for link in (links()[host], links(pod)["eth0"]):
        assert (link["num_tx_queues"], link["num_rx_queues"]) == (1, 1)


def test_layer_2_only_has_no_form_below_0_3_0_and_leaves_nothing(node, pod):
    before = node.left(pod)
    error = node.refused("ADD", node.conf(ipam=None, cniVersion="0.2.0"), pod)
    assert "cannot convert: no valid IP addresses" in error["msg"]
    assert node.left(pod) == before


def test_second_interface_of_a_container_is_deleted_alone(node, pod, conf):
    node.add(conf, pod)
    second = node.add(conf, pod, ifname="eth1")
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo", "eth1"}
    assert set(node.held()) == {"10.22.0.3", "fd00:22::3"}
    assert [key for key, _ in elements("pods4")] == ["10.22.0.3"]
    node.check(conf, pod, second, ifname="eth1")
    node.delete(conf, pod, ifname="eth1")
    assert node.held() == {}
    assert elements("pods4") == []


# -- CHECK ------------------------------------------------------------------------------------------------

def in_pod(pod, *args):
    run("ip", *args, netns=pod)


SPOILED = {
    "no container link": (lambda pod, host: in_pod(pod, "link", "del", "eth0"), "Interface name eth0 not found"),
    "another MAC": (lambda pod, host: in_pod(pod, "link", "set", "eth0", "address", "02:00:00:00:00:77"),
                    "Interface eth0 Mac doesn't match"),
    "no address": (lambda pod, host: in_pod(pod, "addr", "del", "10.22.0.2/24", "dev", "eth0"),
                   "Failed to match addr 10.22.0.2/24 on interface eth0"),
    "no IPv6 address": (lambda pod, host: in_pod(pod, "addr", "del", "fd00:22::2/64", "dev", "eth0"),
                        "Failed to match addr fd00:22::2/64 on interface eth0"),
    "no route to the subnet": (lambda pod, host: in_pod(pod, "route", "del", "10.22.0.0/24"), "Failed to find Gateway"),
    "no default route": (lambda pod, host: in_pod(pod, "route", "del", "default"),
                         "Expected Route 0.0.0.0/0 via <nil> not found in routing table"),
    "no bridge": (lambda pod, host: run("ip", "link", "del", "br0"), "Interface name br0 not found"),
    "another bridge": (lambda pod, host: run("ip", "link", "set", "br0", "address", "02:00:00:00:00:78"),
                       "Bridge interface br0 Mac doesn't match"),
    "promiscuous bridge": (lambda pod, host: run("ip", "link", "set", "br0", "promisc", "on"), "promiscuity"),
    "port in hairpin mode": (lambda pod, host: run("bridge", "link", "set", "dev", host, "hairpin", "on"),
                             "has hairpin True"),
    "port isolated": (lambda pod, host: run("bridge", "link", "set", "dev", host, "isolated", "on"), "isolated True"),
    "port not guarded": (lambda pod, host: run("nft", "flush", "set", "bridge", "fastcni", "guarded"),
                         "is not guarded"),
    "port off the bridge": (lambda pod, host: run("ip", "link", "set", host, "nomaster"),
                            "CNI veth created for bridge br0 was not found"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_check_reports_the_change(node, pod, conf, what):
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    spoil, msg = SPOILED[what]
    spoil(pod, result["interfaces"][1]["name"])
    assert msg in node.check_refused(conf, pod, result)


def test_check_finds_a_lost_address_file(node, pod, conf):
    result = node.add(conf, pod)
    for name in node.held():
        os.unlink(f"{node.data_dir}/net-a/{name}")
    assert "Failed to find address added by container" in node.check_refused(conf, pod, result)


def test_check_needs_a_prev_result_of_this_sandbox(node, pod_netns, conf):
    pod, other = pod_netns(), pod_netns()
    result = node.add(conf, pod)
    assert "Required prevResult missing" in node.refused("CHECK", conf, pod)["msg"]
    msg = node.check_refused(conf, other, result, cid=cid_of(pod))
    assert f"Sandbox in prevResult /run/netns/{pod} doesn't match configured netns: /run/netns/{other}" in msg


# -- DEL --------------------------------------------------------------------------------------------------

def remove_state(node, pod, result, gone):
    """Remove a part of the state that DEL uses. Return the CNI_NETNS for the DEL."""
    if gone == "netns":
        run("ip", "netns", "del", pod)
    elif gone == "link":
        in_pod(pod, "link", "del", "eth0")
    elif gone == "bridge":
        run("ip", "link", "del", "br0")
    elif gone == "files":
        for name in node.held():
            os.unlink(f"{node.data_dir}/net-a/{name}")
    elif gone == "directory":
        run("rm", "-r", node.data_dir)
    elif gone == "ruleset":
        run("nft", "flush", "ruleset")
    elif gone == "netns turned file":
        run("ip", "netns", "del", pod)
        open(f"/run/netns/{pod}", "w").close()      # if /run is not a tmpfs, this file remains after a reboot
    elif gone == "netns unnamed":
        run("ip", "netns", "del", pod)
        return ""
    return pod


GONE = ["nothing", "netns", "link", "bridge", "files", "directory", "ruleset", "netns turned file", "netns unnamed"]


@pytest.mark.parametrize("gone", GONE)
def test_del_leaves_nothing_and_may_be_repeated(node, pod, conf, gone):
    result = node.add(conf, pod)
    given = remove_state(node, pod, result, gone)
    for _ in range(2):
        node.delete({**conf, "prevResult": result}, given, cid=cid_of(pod))
    assert eventually(lambda: set(links()) <= {"lo", "br0"})
    assert node.held() == {}
    assert elements("pods4") == elements("pods6") == []
    assert elements("guarded", "bridge") == elements("allowed", "bridge") == []
    if os.path.isfile(f"/run/netns/{pod}"):
        run("ip", "netns", "del", pod, check=False)


def test_del_never_deletes_another_containers_address(node, pod_netns, conf):
    one, two = pod_netns(), pod_netns()
    node.add(conf, one)
    node.add(conf, two)
    node.delete(conf, one)
    assert set(node.held()) == {"10.22.0.3", "fd00:22::3"}
    assert [key for key, _ in elements("pods4")] == ["10.22.0.3"]
    assert set(links(two)) == {"lo", "eth0"}


def test_del_deletes_eth0_even_if_it_is_not_a_veth(node, pod, conf):
    in_pod(pod, "link", "add", "name", "eth0", "type", "ifb")
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo"}


# -- STATUS and GC ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("plugin", ["bridge", "ptp", "tap"])
def test_status_of_a_node_whose_range_is_full_is_a_warning(node, pod_netns, plugin):
    """Once, STATUS returned an error. The runtime marked the node not ready, and Kubernetes evicted its pods."""
    conf = node.conf("10.22.0.0/30", type=plugin)
    assert node.call("STATUS", conf).stderr == b""
    node.add({**conf, "bridge": None}, pod_netns())
    reply = node.call("STATUS", conf)
    assert reply.status == 0
    assert b'range set 0 is full: 10.22.0.0/30 of network "net-a"' in reply.stderr
    assert node.refused("ADD", {**conf, "bridge": None}, pod_netns())["code"] == 11


@pytest.mark.parametrize("plugin", ["bridge", "ptp", "tap"])
def test_status_answers_50_without_the_ipam_plugin(node, plugin):
    error = node.refused("STATUS", node.conf(type=plugin, ipam={"type": "nosuch"}))
    assert error["code"] == 50
    assert 'failed to find plugin "nosuch"' in error["msg"]


@pytest.mark.parametrize("code, msg", [(4, "unknown CNI_COMMAND: STATUS"), (1, "incompatible CNI versions")])
def test_an_ipam_plugin_without_status_does_not_make_status_fail(node, tmp_path, code, msg):
    """Plugins older than CNI 1.1.0 give these errors. Once, a node with such a plugin was never ready."""
    plugin = tmp_path / "older"
    plugin.write_text(f"""#!/bin/sh\necho '{{"code": {code}, "msg": "{msg}"}}'; exit 1\n""")
    plugin.chmod(0o755)
    reply = node.call("STATUS", node.conf(ipam={"type": "older"}), env={"CNI_PATH": str(tmp_path)})
    assert reply.status == 0
    assert f"older does not answer STATUS: {msg}".encode() in reply.stderr


def test_status_returns_the_error_of_the_ipam_plugin(node, tmp_path):
    plugin = tmp_path / "broken"
    plugin.write_text("""#!/bin/sh\necho '{"code": 50, "msg": "no database"}'; exit 1\n""")
    plugin.chmod(0o755)
    error = node.refused("STATUS", node.conf(ipam={"type": "broken"}), env={"CNI_PATH": str(tmp_path)})
    assert (error["code"], error["msg"]) == (50, "no database")


def test_gc_keeps_valid_attachments_and_other_networks(node, pod_netns, conf):
    kept, lost, other = pod_netns(), pod_netns(), pod_netns()
    node.add(conf, kept)
    node.add(conf, lost)
    neighbour = node.conf("10.33.0.0/24", name="net-b", bridge="br1", **FULL)
    node.add(neighbour, other)
    run("ip", "netns", "del", lost)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid_of(kept), "ifname": "eth0"}]})
    assert set(node.held()) == {"10.22.0.2", "fd00:22::2"}
    assert set(node.held("net-b")) == {"10.33.0.2"}
    assert sorted(key for key, _ in elements("pods4")) == ["10.22.0.2", "10.33.0.2"]
    assert [key for key, _ in elements("pods6")] == ["fd00:22::2"]
    assert len(elements("guarded", "bridge")) == len(elements("allowed", "bridge")) == 2
    assert addresses("eth0", kept) == ["10.22.0.2/24", "fd00:22::2/64"]


def test_gc_with_an_empty_list_releases_all_addresses_of_the_network(node, pod, conf):
    node.add(conf, pod)
    run("ip", "netns", "del", pod)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": []})
    assert node.held() == {}
    assert elements("pods4") == elements("pods6") == elements("guarded", "bridge") == []


# -- side effects -----------------------------------------------------------------------------------------

def test_no_descriptor_is_left_open(node, pod, conf):
    node.delete(conf, pod)
    before = set(os.listdir("/proc/self/fd"))
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    node.delete(conf, pod)
    # A thread closes the last sockets, see Request.firewall.
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= len(before))


def test_host_end_takes_no_router_advertisements(node, pod, conf):
    host = node.add(conf, pod)["interfaces"][1]["name"]
    assert sysctl(f"net/ipv6/conf/{host}/accept_ra") == "0"


def test_a_pod_is_reached_by_ping(node, pod, conf):
    node.add(conf, pod)
    with Inside(pod):
        sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    with sock:
        sock.settimeout(2)
        sock.sendto(bytes.fromhex("0800f7ff00000000"), ("10.22.0.1", 0))
        assert sock.recv(100)[20] == 0              # an echo reply
