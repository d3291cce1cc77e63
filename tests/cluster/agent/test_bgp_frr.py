"""BGP through FRR: Debian's bgpd and zebra run in a namespace, with a router that runs BIRD as their neighbor."""

import json
import shutil
import subprocess
import tempfile
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from cluster.agent.test_agent import nodes  # noqa: F401 - a fixture
from cluster.agent.test_bgp import ROUTER, Bird, learned
from lab.loggers import logger_to
from unit.agent.nodes import Machine

from fastcni.agent import bgp, files
from fastcni.agent.bgp import frr
from fastcni.agent.contract import ConfigurationError
from fastcni.testing.namespaces import ip, run
from fastcni.testing.witnesses import eventually, ip_json

DAEMONS = "/usr/lib/frr"
FILE = {"as": 64512, "engine": "frr", "peers": [
    {"address": "192.0.2.254", "as": 64513, "password": "for-tests-only"}, {"address": "2001:db8::254", "as": 64513}]}


class Frr:
    """zebra and bgpd in a namespace. They run as the user frr, who cannot enter pytest's directories."""

    def __init__(self, netns):
        self.directory, self.netns, self.processes = Path(tempfile.mkdtemp(dir="/tmp")), netns, []
        shutil.chown(self.directory, "frr", "frrvty")

    def start(self):
        for name in ("zebra", "bgpd"):
            with open(self.directory / "log", "a") as log:
                self.processes.append(subprocess.Popen(
                    ["ip", "netns", "exec", self.netns, f"{DAEMONS}/{name}", "-f", self.directory / f"{name}.conf",
                     "--vty_socket", self.directory, "-z", self.directory / "zserv", "-i",
                     self.directory / f"{name}.pid",
                     "-P", "0"], stdout=log, stderr=log))
            assert eventually((self.directory / f"{name}.vty").exists), (self.directory / "log").read_text()

    def end(self):
        for process in self.processes:
            process.terminate()
            process.wait(20)
        self.processes = []
        for path in self.directory.glob("*.vty"):
            path.unlink()

    def show(self, *words):
        return run("vtysh", "--vty_socket", str(self.directory), "-d", "bgpd", *words)


@pytest.fixture
def routers(host_netns, pod_netns, tmp_path):
    """Return (the router's BIRD, the node's FRR, the node). The router is the test's namespace, which is not in the
    agents' network."""
    ip("link", "add", "wire", "up", "type", "bridge")
    ip("addr", "add", "192.0.2.254/24", "dev", "wire")
    ip("addr", "add", "2001:db8::254/64", "dev", "wire", "nodad")
    node = Machine(1, pod_netns(), "wire")
    router = Bird(tmp_path / "router", host_netns, ROUTER.replace("for tests only", "for-tests-only"))
    own = Frr(node.netns)
    yield router, own, node
    router.end()
    own.end()
    shutil.rmtree(own.directory)


def make(directory, socket, **more):
    path = Path(directory, "bgp.json")
    path.write_text(json.dumps({**FILE, "config": f"{directory}/agent.conf", "socket": str(socket), **more}))
    log = []

    def note(event):
        log.append(event)

    found = bgp.Bgp(bgp.read_settings(str(path)), logger_to(note))
    found.events = log
    return found


@pytest.mark.needs("root")
def test_a_pod_is_reached_from_outside_until_the_node_leaves(routers, tmp_path):
    router, own, node = routers
    router.start()
    own.start()
    own.show("-c", "configure terminal", "-c", "router bgp 65000", "-c", "neighbor 198.51.100.1 remote-as 65001")
    it = make(tmp_path, own.directory)
    it.set([ip_network("10.244.1.0/24"), ip_network("fd00:10:244:1::/64")], ip_address("192.0.2.1"))
    assert it.events[-1]["event"] == "announced", it.events
    assert eventually(lambda: learned() == {"10.244.1.0/24"}, 60), router.log()
    assert eventually(lambda: learned(6) == {"fd00:10:244:1::/64"}, 60)
    assert " 0% packet loss" in run("ping", "-c1", "-W2", "-q", "10.244.1.5")
    assert not [each for each in ip_json("route", netns=node.netns) if each.get("protocol") == "bgp"]

    own.end()                               # FRR ends and restarts: the agent writes FRR's BGP view again
    own.start()
    it.checked = it.due = 0.0
    it.attend()
    assert eventually(lambda: learned() == {"10.244.1.0/24"} and learned(6), 60)
    own.show("-c", "configure terminal", "-c", "router bgp 65000", "-c", "neighbor 198.51.100.1 remote-as 65001")
    it.set([], ip_address("192.0.2.1"))
    assert eventually(lambda: learned() == learned(6) == set(), 60)
    assert "neighbor 198.51.100.1 remote-as 65001" in own.show("-c", "show running-config")


@pytest.mark.needs("root")
def test_a_router_that_is_two_hops_away(routers, pod_netns, tmp_path):
    _, own, node = routers
    far = pod_netns()
    ip("link", "add", "far", "up", "type", "veth", "peer", "eth0", "netns", far)
    ip("addr", "add", "198.51.100.254/24", "dev", "far")
    ip("addr", "add", "198.51.100.1/24", "dev", "eth0", netns=far)
    ip("link", "set", "eth0", "up", netns=far)
    ip("route", "add", "default", "via", "198.51.100.254", netns=far)
    ip("route", "replace", "default", "via", "192.0.2.254", netns=node.netns)
    run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    router = Bird(tmp_path / "far", far, """router id 198.51.100.1; protocol device {}
        protocol bgp { local 198.51.100.1 as 64513; neighbor 192.0.2.1 as 64512; multihop 2;
                       ipv4 { import all; export none; }; }""")
    try:
        router.start()
        own.start()
        it = make(tmp_path, own.directory, peers=[{"address": "198.51.100.1", "as": 64513, "multihop": 2}])
        it.set([ip_network("10.244.1.0/24")], ip_address("192.0.2.1"))
        assert eventually(lambda: "10.244.1.0/24" in run(
            "birdc", "-s", router.socket, "show", "route", netns=far), 60), router.log()
    finally:
        router.end()


@pytest.mark.needs("root")
def test_frr_announces_nothing_after_leave(nodes):  # noqa: F811
    (one,) = nodes(1)
    own = Frr(one.netns)
    try:
        own.start()
        (one.directory / "bgp.json").write_text(json.dumps({
            "as": 64512, "engine": "frr", "config": f"{one.directory}/frr.conf", "socket": str(own.directory),
            "peers": [{"address": "192.0.2.254", "as": 64513}]}))
        one.more = ["--bgp", f"{one.directory}/bgp.json"]
        one.start()
        one.await_ready()
        subnet = files.read_former(f"{one.directory}/subnet.env")[4]
        assert eventually(lambda: f"network {subnet}" in own.show("-c", "show running-config")), one.log()
        assert one.end() == 0
        assert f"network {subnet}" in own.show("-c", "show running-config")
        subprocess.run(one.command("--leave", *one.more), check=True, timeout=60)
        assert "network 10.244" not in own.show("-c", "show running-config")
    finally:
        own.end()
        shutil.rmtree(own.directory)


@pytest.mark.needs("root")
def test_peers_and_the_as_are_changed_and_refusals_are_told_once(routers, tmp_path):
    _, own, _ = routers
    it = make(tmp_path, own.directory)
    it.set([ip_network("10.244.1.0/24")], ip_address("192.0.2.1"))
    it.due = 0.0
    it.attend()
    assert len(it.events) == 1 and "bgpd run" in it.events[0]["error"]
    own.start()
    it.due = 0.0
    it.attend()
    assert it.events[-1]["event"] == "announced"
    one = {"address": "192.0.2.253", "as": 64514, "multihop": 3}
    it = make(tmp_path, own.directory, peers=[one])
    it.set([ip_network("10.244.2.0/24")], ip_address("192.0.2.1"))
    present = "\n".join(frr.view_of(it.settings))
    assert "192.0.2.254" not in present and "10.244.1.0" not in present and "ebgp-multihop 3" in present
    it = make(tmp_path, own.directory, **{"as": 64999, "peers": [{**one, "multihop": 0}]})
    it.set([ip_network("10.244.2.0/24")], ip_address("192.0.2.1"))
    present = "\n".join(frr.view_of(it.settings))
    assert present.startswith("router bgp 64999 ") and "multihop" not in present
    it = make(tmp_path, own.directory, peers=[{**one, "multihop": 999}])
    it.set([], ip_address("192.0.2.1"))
    assert "FRR refuses its configuration" in it.events[-1]["error"] and "999" in it.events[-1]["error"]


@pytest.mark.parametrize(("change", "message"), [
    ({"engine": "quagga"}, "engine: expected one of bird, frr"),
    ({"peers": [{"address": "192.0.2.1", "as": 1, "password": "a b"}]}, "FRR takes no blanks"),
    ({"peers": [{"address": "192.0.2.1", "as": 1, "password": 'a"b'}]}, "FRR takes no quotes")])
def test_an_error_names_the_key(tmp_path, change, message):
    with pytest.raises(ConfigurationError, match=message):
        make(tmp_path, tmp_path, **change)
