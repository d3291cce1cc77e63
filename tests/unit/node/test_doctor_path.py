"""`fastcni doctor` on the path of packets. Each fault gives one finding, whose command repairs the fault."""

import dataclasses
import json
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from unit.node.conftest import LIST, diagnosed

from fastcni.launcher.install import install
from fastcni.node.checks import pods as checks_pods
from fastcni.runtime import RuntimeConf
from fastcni.runtime.pod_networks import LOOPBACK
from fastcni.testing.namespaces import ip, run
from fastcni.testing.witnesses import eventually, links

DUAL = {**LIST, "plugins": [{"type": "bridge", "bridge": "br0", "isGateway": True, "ipMasq": True, "portIsolation": True, "ipam": {
    "type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]],
    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}, LIST["plugins"][1]]}
PTP = {**LIST, "plugins": [{"type": "ptp", "ipMasq": True, "ipam": DUAL["plugins"][0]["ipam"]}, LIST["plugins"][1]]}


class Pods:
    """Two running pods of a network. host_links: the host's ends of their veth pairs."""

    def __init__(self, host, pod_netns):
        self.host = host
        self.names = [pod_netns(), pod_netns()]
        results = [host.add(f"c{number}", name) for number, name in enumerate(self.names)]
        self.host_links = [next(it["name"] for it in result["interfaces"] if it["name"].startswith("veth"))
                           for result in results]


@pytest.fixture
def uplink(host_netns):
    """Give the host a default route over a link with an MTU of 1500."""
    run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1")
    run("ip", "address", "add", "192.0.2.1/24", "dev", "up0")
    for link in ("up0", "up1"):
        run("ip", "link", "set", link, "up")
    run("ip", "route", "add", "default", "via", "192.0.2.254")
    return "up0"


@pytest.fixture
def pods(directories, uplink, pod_netns):
    directories.configure(DUAL)
    return Pods(directories, pod_netns)


@pytest.fixture
def doctor(fastcni, bin_dir):
    """Return a function doctor() that runs `fastcni doctor`, checks its exit status, and returns {check: finding}."""
    def doctor():
        status, found = diagnosed(fastcni, "--bin-dir", bin_dir)
        assert status == max((2 if it["severity"] == "error" else 1 for it in found.values()), default=0)
        return found
    return doctor


# ruff: noqa: E501
# {fault: (how to break it, the check, a part of the sentence)}
FAULTS = {
    "the bridge is down": (lambda it: ip("link", "set", "br0", "down"), "bridges", "the bridge br0 of 2 running pods is down"),
    "the bridge has no gateway": (lambda it: ip("address", "del", "10.88.0.1/24", "dev", "br0"), "bridges", "lacks the address"),
    "the bridge has lost every address": (lambda it: ip("address", "flush", "dev", "br0"), "bridges", "lacks the address"),
    "the bridge was deleted": (lambda it: ip("link", "del", "br0"), "bridges", "the bridge br0 of 2 running pods does not exist"),
    "a port has left the bridge": (lambda it: ip("link", "set", it.host_links[0], "nomaster"), "host-links", "pod c0/eth0 is not on its"),
    "a host's link is down": (lambda it: ip("link", "set", it.host_links[1], "down"), "host-links", "pod c1/eth0 is down"),
    "a port is not isolated any more": (lambda it: run("bridge", "link", "set", "dev", it.host_links[0], "isolated", "off"), "host-links", "pod c0/eth0 has isolated off"),
    "a pod has lost its route": (lambda it: ip("route", "del", "default", netns=it.names[0]), "pod-links", "pod c0/eth0 lacks"),
    "a pod has lost the route to its subnet": (lambda it: ip("-6", "route", "del", "fd00:88::/64", netns=it.names[1]), "pod-links", "pod c1/eth0 lacks"),
    "pods have lost an address": (lambda it: [ip("address", "flush", "dev", "eth0", "scope", "global", netns=name)
                                              for name in it.names], "pod-links", "2 pods (c0/eth0, c1/eth0) lack"),
    "a pod's interface is down": (lambda it: ip("link", "set", "eth0", "down", netns=it.names[0]), "pod-links", "pod c0/eth0 lacks"),
    "a pod's end has a larger MTU": (lambda it: ip("link", "set", "eth0", "mtu", 9000, netns=it.names[0]), "mtu", "two ends"),
    "the host's end has a smaller MTU": (lambda it: ip("link", "set", it.host_links[0], "mtu", 1300), "mtu", "two ends"),
    "the bridge has a smaller MTU": (lambda it: ip("link", "set", "br0", "mtu", 1400), "mtu", "the bridge br0 has an MTU of 1400, 2 pods"),
    "the bridge has a larger MTU": (lambda it: ip("link", "set", "br0", "mtu", 9000), "mtu", "the bridge br0 has an MTU of 9000"),
    "the uplink has a smaller MTU": (lambda it: ip("link", "set", "up0", "mtu", 1400), "mtu", "larger than 1400, the MTU of up0"),
    "a pod took another pod's address": (lambda it: ip("address", "add", "10.88.0.2/24", "dev", "eth0", netns=it.names[1]),
                                         "duplicate-addresses", "2 running pods have the address 10.88.0.2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_path_is_one_finding_whose_command_mends_it(pods, doctor, fault):
    assert doctor() == {}
    how, check, part = FAULTS[fault]
    how(pods)
    found = doctor()
    assert part in found[check]["what"]
    assert set(found) <= {check, "forwarding"}
    for it in found.values():
        run("sh", "-c", it["do"])
    assert doctor() == {}


def test_the_loopback_interfaces_of_pods_are_no_duplicates(directories, pods, doctor):
    """containerd and `fastcni pod up` attach lo. Once, doctor said that all pods of a node have the address
    127.0.0.1."""
    for number, name in enumerate(pods.names):
        directories.cni.add(LOOPBACK, RuntimeConf(f"c{number}", f"/run/netns/{name}", "lo"))
    assert doctor() == {}


def test_an_address_that_was_given_again_after_the_files_were_lost(directories, pods, pod_netns, doctor):
    """A new disk is mounted at /var/lib/cni. Once, an ADD gave the address of a running pod again, and doctor found
    nothing."""
    for lost in (directories.data, directories.cache):
        shutil.rmtree(lost, ignore_errors=True)
    directories.add("new", pod_netns())
    found = doctor()["duplicate-addresses"]
    assert "2 running pods have the address" in found["what"] and f"eth0 in /run/netns/{pods.names[0]}" in found["what"]


def test_an_address_of_a_pod_of_another_host_namespace_is_no_duplicate(pods, pod_netns, doctor):
    """Link indexes are unique only within a namespace. The other pod's peer has an index that a link of this host has,
    too."""
    other_host, other_pod = pod_netns(), pod_netns()
    found = links()[pods.host_links[0]]
    run("ip", "link", "add", "host0", "index", str(found["ifindex"]), "type", "veth", "peer",
        "name", "eth0", "index", str(found["link_index"]), "netns", other_pod, netns=other_host)
    ip("address", "add", "10.88.0.2/24", "dev", "eth0", netns=other_pod)
    assert doctor() == {}


def test_a_pod_whose_interface_was_deleted_has_to_be_made_again(pods, doctor):
    ip("link", "del", "eth0", netns=pods.names[0])
    found = doctor()["pod-links"]
    assert "the interface of pod c0/eth0 does not exist" in found["what"] and "delete the pod" in found["do"]


def test_pods_of_ptp_have_no_finding_and_their_lost_routes_are_found(directories, uplink, pod_netns, fastcni, tmp_path):
    install(tmp_path / "bin", names=["ptp", "host-local", "portmap"])

    def doctor():
        return diagnosed(fastcni, "--bin-dir", tmp_path / "bin")[1]

    directories.configure(PTP)
    pods = Pods(directories, pod_netns)
    assert doctor() == {}
    ip("route", "del", "default", netns=pods.names[0])
    ip("link", "set", pods.host_links[1], "down")
    found = doctor()
    assert set(found) == {"pod-links", "host-links"}
    for it in found.values():
        run("sh", "-c", it["do"])
    assert "pod-links" not in doctor()


def test_many_pods_with_one_fault_are_one_finding_and_its_command_says_that_there_are_more(directories, uplink, pod_netns, doctor):
    directories.configure()
    for number in range(9):
        directories.add(f"c{number}", pod_netns())
    for link in json.loads(run("ip", "-j", "link", "show", "master", "br0")):
        ip("link", "set", link["ifname"], "nomaster")
    rounds = 0
    while found := doctor():
        assert list(found) == ["host-links"]
        run("sh", "-c", found["host-links"]["do"])
        rounds += 1
    assert rounds == 2


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_host_port_that_a_process_also_has_is_a_warning_with_its_name(directories, uplink, pod_netns, doctor, protocol):
    directories.configure(DUAL)
    code = ("import socket, sys, time; s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if sys.argv[1] == 'tcp' else "
            "socket.SOCK_DGRAM); s.bind(('0.0.0.0', 8080)); sys.argv[1] == 'tcp' and s.listen(); print(flush=True); time.sleep(99)")
    with subprocess.Popen([sys.executable, "-c", code, protocol], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            rt = directories.rt("c1", pod_netns())
            ports = [{"hostPort": 8080, "containerPort": 80, "protocol": protocol}]
            directories.cni.add(directories.cni.load("net1"), type(rt)(rt.container_id, rt.netns, "eth0", (), {"portMappings": ports}))
            found = doctor()
            name = f"process {process.pid} ({Path(f'/proc/{process.pid}/comm').read_text().strip()})"
            assert set(found) == {"host-ports"} and found["host-ports"]["severity"] == "warning"
            assert f"{name} listens on 8080/{protocol}" in found["host-ports"]["what"]
            run(*shlex.split(found["host-ports"]["do"], comments=True))
            process.wait()
            assert eventually(lambda: doctor() == {}, pause=0.1)
        finally:
            process.kill()


def test_a_process_on_another_address_than_the_mapping_has_no_finding(directories, uplink, pod_netns, doctor):
    directories.configure(DUAL)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, rt = server.getsockname()[1], directories.rt("c1", pod_netns())
        ports = [{"hostPort": port, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}]
        directories.cni.add(directories.cni.load("net1"), type(rt)(rt.container_id, rt.netns, "eth0", (), {"portMappings": ports}))
        assert doctor() == {}


def test_an_mtu_that_the_plugin_tuning_has_set_is_no_finding(directories, uplink, pod_netns, fastcni, tmp_path):
    install(tmp_path / "bin", names=["bridge", "host-local", "tuning"])
    directories.configure({**LIST, "plugins": [DUAL["plugins"][0], {"type": "tuning", "mtu": 1400, "dataDir": str(tmp_path)}]})
    directories.add("c1", pod_netns())
    assert diagnosed(fastcni, "--bin-dir", tmp_path / "bin") == (0, {})


@pytest.mark.parametrize("ends", ["namespace", "cached result"])
def test_a_pod_that_is_deleted_meanwhile_has_no_finding(pods, doctor, monkeypatch, ends):
    """DEL removes the link before it removes the cached result. doctor may read in between."""
    real = checks_pods.read

    def read(it, *more, **options):
        if it.container_id == "c0" and ends == "namespace":
            raise FileNotFoundError(2, "No such file or directory", it.netns)
        found = real(it, *more, **options)
        if it.container_id == "c0":
            Path(it.cached.path).unlink(missing_ok=True)
            return dataclasses.replace(found, link=None)
        return found

    monkeypatch.setattr(checks_pods, "read", read)
    assert "pod-links" not in doctor()


def test_a_pod_whose_namespace_s_path_another_pod_has_is_not_said_to_run_there(directories, host_netns, pod_netns, fastcni, bin_dir):
    """The runtime lost pod c0 without a DEL. Once, doctor advised to give c0's address to c1's interface, and c0's
    address stayed allocated."""
    directories.configure(DUAL)
    name = pod_netns()
    link = next(it["name"] for it in directories.add("c0", name)["interfaces"] if it["name"].startswith("veth"))
    ip("netns", "del", name)
    assert eventually(lambda: link not in links())
    ip("netns", "add", name)
    directories.add("c1", name)
    _, found = diagnosed(fastcni, "--bin-dir", bin_dir)
    assert "pod-links" not in found
    listed = fastcni("list", "--json").document["attachments"]
    assert {it["containerID"]: it["state"] for it in listed} == {"c0": "gone", "c1": "running"}
    assert f"/run/netns/{name} is now the namespace of c1" in [it["why"] for it in listed]


def test_a_master_that_is_down_is_found(directories, uplink, pod_netns, doctor):
    directories.configure({**LIST, "plugins": [{"type": "macvlan", "master": uplink, "ipam": {
        "type": "host-local", "subnet": "10.88.0.0/24"}}]})
    directories.add("c0", pod_netns())
    assert "host-links" not in doctor()
    ip("link", "set", uplink, "down")
    found = doctor()
    assert found["host-links"]["what"] == "up0, the master of pod c0/eth0, is down"
    run("sh", "-c", found["host-links"]["do"])
    assert "host-links" not in doctor()


def test_lost_routes_of_a_pod_with_several_networks_are_found_once(directories, uplink, pod_netns, fastcni, tmp_path):
    """Once, doctor did not report a lost default route. Both multus and the first network have the pod's first
    interface, and this counted as two pods."""
    install(tmp_path / "bin", names=["multus", "bridge", "host-local"])
    cluster, further = (
        {"cniVersion": "1.1.0", "name": name, "type": "bridge", "bridge": bridge, "isGateway": True, "ipam": {
            "type": "host-local", "subnet": f"{subnet}.0/24", "dataDir": str(directories.data),
            "routes": [{"dst": "0.0.0.0/0", **gateway}]}} for name, bridge, subnet, gateway in (
                ("first", "br0", "10.88.0", {}), ("second", "br1", "10.89.0", {"gw": "10.89.0.1"})))
    directories.configure({"cniVersion": "1.1.0", "name": "pods", "plugins": [
        {"type": "multus", "cniDir": str(tmp_path / "multus"), "delegates": [cluster, further]}]})
    name = pod_netns()
    directories.add("c0", name, "pods")

    def found():
        answer = fastcni("doctor", "--json", "--socket", "", "--bin-dir", tmp_path / "bin", "--cache-dir",
                         tmp_path / "multus")
        return [it for it in answer.document["findings"] if it["check"] in ("pod-links", "duplicate-addresses")]

    def default():
        return [it.get("dev") for it in json.loads(run("ip", "-j", "route", "show", "default", netns=name))]

    given = default()
    assert sorted(given) == ["eth0", "net1"] and found() == []
    ip("route", "del", "default", "dev", "eth0", netns=name)
    assert found() == []                                        # the default route of the other network is enough
    ip("route", "replace", "default", "via", "10.89.0.77", netns=name)
    finding, = found()
    assert finding["what"].startswith("pod c0/net1 lacks ")
    run("sh", "-c", finding["do"])
    assert "via 10.89.0.1 dev net1" in run("ip", "route", "get", "192.0.2.99", netns=name) and found() == []
    while default():
        ip("route", "del", "default", netns=name)
    finding, = found()
    assert finding["what"].startswith("2 pods (c0/eth0, c0/net1) lack ")
    run("sh", "-c", finding["do"])
    assert default() == given and found() == []
    ip("route", "del", "10.89.0.0/24", netns=name)
    finding, = found()
    assert finding["what"].startswith("pod c0/net1 lacks ")
    ip("link", "del", "net1", netns=name)
    finding, = found()
    assert "pod c0/net1 does not exist" in finding["what"]
    assert finding["why"] == "the pod has no network by this interface"
