"""The plugin files and the dhcp daemon with dnsmasq and Kea on a node: macvlan and bridge, one-shot and warm."""

import os
import signal
import subprocess
import sys

import conftest as shared
import pytest
from cluster.dhcp.servers import Dnsmasq, Kea
from unit.dhcp.fixtures import leases, reboot
from unit.dhcp.process import Daemon, call, ok
from unit.dhcp.server import addresses

from fastcni.launcher.install import install
from fastcni.testing.witnesses import eventually

OPTIONS = [{"option": name} for name in ("6", "15", "26", "119", "121")]


@pytest.fixture(scope="session")
def bin_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bin")
    install(directory, names=["bridge", "dhcp", "host-device", "macvlan"])
    return str(directory)


@pytest.fixture
def node(network):
    """Return the name of the pods' node: a namespace whose link eth0 is on the network."""
    name = os.path.basename(network.pod())
    subprocess.run(["ip", "-n", name, "link", "set", "eth0", "up"], check=True)
    return name


@pytest.fixture
def launched(tmp_path, bin_dir):
    """Yield a daemon, started by `dhcp daemon` of the plugin file."""
    with Daemon(tmp_path, "-resendtimeout", "20s", command=(f"{bin_dir}/dhcp", "daemon")) as daemon:
        yield daemon


@pytest.fixture
def go_launched(tmp_path):
    """Yield the dhcp daemon of the reference plugins."""
    (tmp_path / "go").mkdir()
    with Daemon(tmp_path / "go", command=(f"{shared.PEER}/dhcp", "daemon"), own=False) as daemon:
        yield daemon


def on_node(node, bin_dir, command, conf, pod, *, cid="c1", socket=""):
    """Run a plugin file in the node's namespace. Return the JSON document that the plugin prints."""
    wrapper = f"{bin_dir}/on-{node}-{conf['type']}"
    if not os.path.exists(wrapper):
        with open(wrapper, "w", encoding="ascii", opener=lambda path, how: os.open(path, how, 0o755)) as file:
            file.write(f"#!/bin/sh\nexec ip netns exec {node} {bin_dir}/{conf['type']}\n")
    return ok(command, conf, pod, plugin=wrapper, cid=cid, CNI_PATH=bin_dir, FASTCNI_SOCKET=socket)


def macvlan(daemon, **ipam):
    return {**daemon.conf(**ipam), "type": "macvlan", "master": "eth0", "mode": "bridge"}


@pytest.mark.needs("macvlan")
def test_two_pods_on_a_macvlan_lease_from_dnsmasq(network, node, launched, bin_dir, tmp_path):
    pods = {cid: f"/run/netns/{network.netns('pod')}" for cid in ("c1", "c2")}
    conf = macvlan(launched, request=OPTIONS, provide=[{"option": "host-name", "fromArg": "POD"}])
    with Dnsmasq(network, tmp_path) as server:
        results = {cid: on_node(node, bin_dir, "ADD", conf, pod, cid=cid) for cid, pod in pods.items()}
        for cid, pod in pods.items():
            on_node(node, bin_dir, "CHECK", conf | {"prevResult": results[cid]}, pod, cid=cid)
            assert addresses(pod) == [results[cid]["ips"][0]["address"]]
        assert results["c1"]["routes"] == [{"dst": "192.168.9.0/24", "gw": "10.77.0.9", "mtu": 1400},
                                           {"dst": "0.0.0.0/0", "gw": "10.77.0.1", "mtu": 1400}]
        given = [result["ips"][0]["address"].partition("/")[0] for result in results.values()]
        assert sorted(server.leases()) == sorted(given) and len(set(given)) == 2
        for cid, pod in pods.items():
            on_node(node, bin_dir, "DEL", conf, pod, cid=cid)
        assert eventually(lambda: server.leases() == [])       # the reference's RELEASE does not reach the server
    assert leases(launched) == []


def test_a_device_of_the_host_is_in_the_pod_before_it_asks_and_until_it_has_released(network, node, launched, bin_dir,
                                                                                     tmp_path):
    pod = f"/run/netns/{network.netns('pod')}"
    conf = {**launched.conf(), "type": "host-device", "device": "eth0"}
    with Dnsmasq(network, tmp_path) as server:
        result = on_node(node, bin_dir, "ADD", conf, pod)
        assert addresses(pod) == [result["ips"][0]["address"]]
        on_node(node, bin_dir, "DEL", conf, pod)
        assert eventually(lambda: server.leases() == [])
    assert "sent_by=pod" in launched.log()


def test_a_lease_of_kea_is_renewed_over_a_kill_of_the_daemon(network, launched, tmp_path):
    pod = network.pod()
    with Kea(network, tmp_path, 4) as server:
        result = ok("ADD", launched.conf(), pod)
        address = result["ips"][0]["address"]
        subprocess.run(["ip", "-n", os.path.basename(pod), "addr", "add", address, "dev", "eth0"], check=True)
        launched.wait_for("lease_renewed")
        launched.stop(signal.SIGKILL)
        launched.start()
        launched.wait_for("lease_renewed", 3)
        assert ok("ADD", launched.conf(), pod) == result and addresses(pod) == [address]
        ok("DEL", launched.conf(), pod)
        server.wait_for("DHCP4_RELEASE ")


def test_a_pod_loses_its_address_when_kea_is_gone_and_gets_one_when_it_is_back(network, launched, tmp_path):
    pod = network.pod()
    with Kea(network, tmp_path, 3) as server:
        address = ok("ADD", launched.conf(), pod)["ips"][0]["address"]
        subprocess.run(["ip", "-n", os.path.basename(pod), "addr", "add", address, "dev", "eth0"], check=True)
        server.kill()
        launched.wait_for("lease_lost")
        assert eventually(lambda: addresses(pod) == [])
        server.start()
        launched.wait_for("lease_acquired", 2)
        assert eventually(lambda: len(addresses(pod)) == 1)
        ok("CHECK", launched.conf(), pod)


def test_a_server_refuses_an_address_of_another_network_and_gives_one(network, launched, tmp_path):
    """The node was moved to another network while it rebooted. dnsmasq answers the request for the old address with
    NAK."""
    pod = network.pod()
    with Dnsmasq(network, tmp_path) as server:
        result = ok("ADD", launched.conf(), pod)
        launched.stop()
        reboot(launched, address=bytes((192, 168, 7, 7)))
        launched.start()
        assert ok("ADD", launched.conf(), pod) == result
        server.wait_for("DHCPNAK")
        launched.wait_for("lease_refused")


def test_a_server_that_was_reset_gives_another_address(network, launched, tmp_path):
    pod = network.pod()
    with Kea(network, tmp_path, 4) as server:
        address = ok("ADD", launched.conf(), pod)["ips"][0]["address"]
        subprocess.run(["ip", "-n", os.path.basename(pod), "addr", "add", address, "dev", "eth0"], check=True)
        server.kill()
        server.subnet, server.pool, server.router = "10.78", "10.78.3", "10.78.0.1"
        for words in (("add", "10.78.0.1/16"), ("del", "10.77.0.1/16")):
            subprocess.run(["ip", "-n", network.host, "addr", *words, "dev", "br0"], check=True)
        server.start()
        launched.wait_for("lease_acquired", 2)
        assert eventually(lambda: [one[:8] for one in addresses(pod)] == ["10.78.3."])
        status, error, _ = call("CHECK", launched.conf() | {"prevResult": {
            "cniVersion": "1.1.0", "ips": [{"address": address}]}}, pod)
        assert (status, error["code"]) == (1, 999) and address in error["msg"]


@pytest.mark.parametrize("at", ["T1", "T2"])
def test_a_renewal_that_dnsmasq_refuses_gives_the_pod_another_address(network, launched, tmp_path, at):
    """dnsmasq restarts with another pool. At T1 the daemon sends a unicast request, and dnsmasq broadcasts a NAK. A
    socket that was bound to the pod's address did not receive this NAK. At T2 dnsmasq has another address, so only the
    daemon's broadcast request reaches dnsmasq."""
    pod = network.pod()
    server = Dnsmasq(network, tmp_path)
    server.t1, server.t2 = (3, 50) if at == "T1" else (1, 6)
    with server:
        address = ok("ADD", launched.conf(), pod)["ips"][0]["address"]
        subprocess.run(["ip", "-n", os.path.basename(pod), "addr", "add", address, "dev", "eth0"], check=True)
        server.kill()
        server.pool = "10.77.4"
        if at == "T2":
            for words in (("del", "10.77.0.1/16"), ("add", "10.77.0.2/16")):
                subprocess.run(["ip", "-n", network.host, "addr", *words, "dev", "br0"], check=True)
        server.start()
        launched.wait_for("lease_lost")
        assert "the server refused to renew it" in launched.log()
        assert eventually(lambda: [one[:8] for one in addresses(pod)] == ["10.77.4."])
        server.wait_for("DHCPNAK(br0)")


@pytest.mark.parametrize("has_loopback", [False, True])
@pytest.mark.parametrize("whose", ["own", "reference"])
def test_dnsmasq_renews_a_lease_whose_address_the_link_lacks(network, tmp_path, launched, go_launched, whose,
                                                             has_loopback):
    """The test also runs the daemon of the reference plugins, to compare. A unicast request from 0.0.0.0 does not reach
    dnsmasq."""
    pod, daemon = network.pod(), go_launched if whose == "reference" else launched
    if has_loopback:
        subprocess.run(["ip", "-n", os.path.basename(pod), "link", "set", "lo", "up"], check=True)
    server = Dnsmasq(network, tmp_path)
    server.t1, server.t2 = 3, 50
    with server:
        ok("ADD", daemon.conf("1.0.0"), pod)
        assert addresses(pod) == []
        assert eventually(lambda: daemon.log().count("lease renewed" if whose == "reference" else "lease_renewed") >= 3,
                          60), daemon.log()


def test_a_renewal_with_another_router_changes_the_result_only(network, launched, tmp_path):
    pod = network.pod()
    server = Kea(network, tmp_path, 60)
    server.t1, server.t2 = 2, 50
    with server:
        result = ok("ADD", launched.conf(), pod)
        ip = ["ip", "-n", os.path.basename(pod)]
        for words in (("addr", "add", result["ips"][0]["address"]), ("route", "add", "default", "via", "10.77.0.1")):
            subprocess.run([*ip, *words, "dev", "eth0"], check=True)
        server.kill()
        server.router = "10.77.0.9"
        server.start()
        launched.wait_for("lease_changed")
        assert "options=routers" in launched.log()
        assert ok("ADD", launched.conf(), pod)["ips"] == [result["ips"][0] | {"gateway": "10.77.0.9"}]
        ok("CHECK", launched.conf() | {"prevResult": result}, pod)
        routes = subprocess.run([*ip, "route"], capture_output=True, text=True, check=True).stdout
        assert "default via 10.77.0.1 dev eth0" in routes and "10.77.0.9" not in routes


def test_the_warm_server_has_the_daemon_and_answers_while_a_lease_is_awaited(network, node, bin_dir, tmp_path):
    """Run `fastcni serve --dhcp`. An ADD that waits for an answer of a DHCP server delays no other request."""
    directory, silent = str(tmp_path), network.netns("silent")
    subprocess.run(["ip", "-n", silent, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"], check=True)
    with open(f"{directory}/log", "wb") as log:
        server = subprocess.Popen([sys.executable, "-m", "fastcni", "serve", "--socket", f"{directory}/s/warm.sock",
                                   "--workers", "2", "--dhcp", "--dhcp-socket", f"{directory}/dhcp.sock",
                                   "--dhcp-leases", f"{directory}/leases"], stderr=log)
    try:
        daemon = Daemon(tmp_path)
        assert eventually(lambda: server.poll() is not None or "server_ready" in daemon.log())
        warm, plugin = {"FASTCNI_SOCKET": f"{directory}/s/warm.sock"}, f"{bin_dir}/dhcp"
        waiting = [subprocess.Popen([plugin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={
            **os.environ, **warm, "CNI_COMMAND": "ADD", "CNI_CONTAINERID": f"w{n}", "CNI_IFNAME": "eth0",
            "CNI_NETNS": f"/run/netns/{silent}", "CNI_PATH": bin_dir}) for n in range(3)]
        for each in waiting:
            each.stdin.write(str(daemon.conf()).replace("'", '"').encode())
            each.stdin.close()
        with Dnsmasq(network, tmp_path) as dhcp:
            pod = f"/run/netns/{network.netns('pod')}"
            conf = {**daemon.conf(request=OPTIONS), "type": "bridge", "bridge": "br1"}
            subprocess.run(["ip", "-n", node, "link", "add", "br1", "type", "bridge", "forward_delay", "0"], check=True)
            subprocess.run(["ip", "-n", node, "link", "set", "eth0", "master", "br1"], check=True)
            result = on_node(node, bin_dir, "ADD", conf, pod, socket=warm["FASTCNI_SOCKET"])
            assert addresses(pod) == [result["ips"][0]["address"]]
            assert result["dns"] == {"nameservers": ["10.77.0.1"], "domain": "example.org",
                                     "search": ["a.example", "b.example"]}
            on_node(node, bin_dir, "DEL", conf, pod, socket=warm["FASTCNI_SOCKET"])
            assert eventually(lambda: dhcp.leases() == [])
        assert all(each.poll() is None for each in waiting)
        for each in waiting:
            each.kill()                         # after its end the server's worker and the daemon stop waiting
            each.stdout.close()
            each.wait()
        daemon.wait_for("lease_abandoned", 3)
        log = daemon.log()
        assert "event=request_done" in log and "plugin=bridge" in log
    finally:
        server.terminate()
        assert server.wait(60) == 0
    assert "dhcp_stopped" in daemon.log()
