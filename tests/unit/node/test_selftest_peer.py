"""`fastcni selftest --peer`: a pod sends echo requests to another node, and to that node's address in its pod
network."""

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest
from lab.forked import run_command
from unit.node.test_selftest import Node, bin_dir  # noqa: F401 - a fixture

from fastcni.agent import peer_list
from fastcni.selftest.peer import find
from fastcni.spec.errors import CniError
from fastcni.testing.namespaces import ip
from fastcni.testing.witnesses import eventually

OF_A_PEER = ["peer", "peer-mtu", "peer-pods", "peer-pods-mtu"]


class Pair(Node):
    """Two nodes on one link. The first node is this Node. Agents on both nodes write the routes."""

    def __init__(self, directory, bin_dir, other, backend):         # noqa: F811
        super().__init__(directory, bin_dir)
        self.other, self.agents = other, []
        ip("link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", other)
        for number, name in ((1, None), (2, other)):
            ip("address", "add", f"192.0.2.{number}/24", "dev", "up0", netns=name)
            for link in ("lo", "up0"):
                ip("link", "set", link, "up", netns=name)
        ip("link", "add", "cni0", "type", "bridge", netns=other)
        ip("address", "add", "10.244.2.1/24", "dev", "cni0", netns=other)
        ip("link", "set", "cni0", "up", netns=other)
        self.nodes = directory / "nodes.json"
        self.nodes.write_text(json.dumps({
            "network": {"Network": "10.244.0.0/16", "Backend": {"Type": backend}},
            "nodes": [{"name": name, "subnets": [f"10.244.{number}.0/24"], "public": [f"192.0.2.{number}"]}
                      for number, name in ((1, "one"), (2, "two"))]}))
        self.configure(ranges=[[{"subnet": "10.244.1.0/24"}]], mtu=1450 if backend == "vxlan" else 1500)

    def start(self, name, netns):
        directory = self.directory / name
        command = [sys.executable, "-m", "fastcni", "agent", "--nodes", self.nodes, "--node-name", name,
                   "--conflist", "", "--iface", "up0", "--subnet-file", directory / "subnet.env", "--folder", directory]
        inside = ["ip", "netns", "exec", netns] if netns else []
        self.agents.append(subprocess.Popen([*inside, *map(str, command)], stderr=subprocess.DEVNULL))
        assert eventually((directory / "subnet.env").exists)

    def end(self):
        for agent in self.agents:
            agent.terminate()
            agent.wait()
        self.agents.clear()

    def to(self, peer):
        """Run `fastcni selftest --peer`. Return (exit status, {name: check} of the checks about the peer)."""
        done = run_command([*self.words("selftest", "testnet"), "--socket", "", "--json", "--peer", peer,
                            "--agent-folder", self.directory / "one"])
        return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]
                                 if check["name"].startswith("peer")}


@pytest.fixture
def pair(host_netns, pod_netns, tmp_path, bin_dir):                 # noqa: F811
    with ExitStack() as opened:
        def make(backend):
            it = Pair(tmp_path, bin_dir, pod_netns(), backend)
            opened.callback(it.end)
            it.start("one", None)
            it.start("two", it.other)
            return it

        yield make


def failed(found):
    return {name for name, check in found.items() if not check["ok"]}


@pytest.mark.parametrize("backend", [pytest.param("vxlan", marks=pytest.mark.needs("vxlan")), "host-gw"])
def test_a_peer_is_reached_and_each_fault_of_the_way_has_its_check(pair, backend):
    it = pair(backend)
    status, found = it.to("two")
    assert (status, list(found), failed(found)) == (0, OF_A_PEER, set())
    it.end()                            # end the agents, because an agent would restore the route
    ip("route", "del", "10.244.2.0/24")
    status, found = it.to("two")
    assert (status, failed(found)) == (1, {"peer-pods", "peer-pods-mtu"})
    assert found["peer-pods"]["hop"] == "the way to the pods there"
    assert found["peer-pods"]["command"] == "ip route get 10.244.2.0"
    ip("link", "set", "up0", "down", netns=it.other)
    status, found = it.to("two")
    assert (status, failed(found)) == (1, set(OF_A_PEER))


def test_packets_that_are_too_long_for_the_way_fail_their_checks(pair):
    it = pair("host-gw")
    ip("link", "set", "up0", "mtu", "1400", netns=it.other)
    ip("link", "set", "up0", "mtu", "1400")
    assert failed(it.to("two")[1]) == {"peer-mtu", "peer-pods-mtu"}


def test_a_peer_is_found_by_name_address_and_resolver(tmp_path):
    (tmp_path / peer_list.NAME).write_text(json.dumps([
        {"name": "two", "addresses": ["192.0.2.2", "2001:db8::2"], "subnets": ["10.244.2.0/24", "fd00:2::/64"]}]))
    directory = str(tmp_path)
    two = find("two", directory)
    assert two.node == {4: ["192.0.2.2"], 6: ["2001:db8::2"]} and two == find("2001:db8::2", directory)
    assert two.pods == {4: ["10.244.2.0", "10.244.2.1"], 6: ["fd00:2::", "fd00:2::1"]}
    assert find("192.0.2.9", directory).node == {4: ["192.0.2.9"]} and find("192.0.2.9", directory).pods == {}
    with pytest.raises(CniError, match=r"no node nowhere\.invalid is known.*the agent's list in .* has two"):
        find("nowhere.invalid", directory)


def test_a_damaged_list_of_the_agent_is_an_error_that_names_it(tmp_path):
    (tmp_path / peer_list.NAME).write_text("{")
    with pytest.raises(CniError, match=f"read {tmp_path}/peers.json"):
        find("two", str(tmp_path))


def test_a_node_that_leaves_the_network_removes_its_list(host_netns, tmp_path):
    ip("link", "add", "up0", "type", "bridge")
    ip("address", "add", "192.0.2.1/24", "dev", "up0")
    ip("link", "set", "up0", "up")
    nodes, directory = tmp_path / "nodes.json", tmp_path / "one"
    nodes.write_text(json.dumps({"network": {"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}}, "nodes": [
        {"name": "one", "subnets": ["10.244.1.0/24"], "public": ["192.0.2.1"]}]}))
    directory.mkdir()
    (directory / peer_list.NAME).write_text("[]")
    command = [sys.executable, "-m", "fastcni", "agent", "--leave", "--nodes", nodes, "--node-name", "one",
               "--iface", "up0", "--conflist", "", "--subnet-file", directory / "subnet.env", "--folder", directory]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not (directory / peer_list.NAME).exists()
