"""`fastcni agent` on nodes in namespaces, with a real etcd: pods reach each other, also while a node or etcd is
unavailable."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster.etcd import Etcd
from unit.agent.policy.http_pods import READ_ONLY

from fastcni.agent import files
from fastcni.clients.etcd import Client, delete, put
from fastcni.testing.namespaces import ip, run
from fastcni.testing.witnesses import eventually, ip_json

pytestmark = pytest.mark.needs("root")
SUBNETS = "/net/subnets/", "/net/subnets0"      # keys: from, to
CONF = '{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10::/48", "Backend": {"Type": "%s"}}'


class Node:
    """A node: a namespace with eth0 on the wire, and the agent as a process in it."""

    def __init__(self, number, netns, endpoints, directory):
        self.number, self.netns, self.directory = number, netns, directory / f"node{number}"
        self.endpoints, self.process, self.more, self.clock, self.served = endpoints, None, [], [], False
        self.directory.mkdir()
        ip("link", "add", f"port{number}", "master", "wire", "up", "type", "veth", "peer", "eth0", "netns", netns)
        for address in (f"192.0.2.{number}/24", f"2001:db8::{number}/64"):
            ip("addr", "add", address, "dev", "eth0", *(["nodad"] if ":" in address else []), netns=netns)
        for name in ("lo", "eth0"):
            ip("link", "set", name, "up", netns=netns)
        ip("route", "add", "default", "via", "192.0.2.254", netns=netns)

    def command(self, *more):
        options = ["--iface", "eth0", *(word for url in self.endpoints for word in ("--etcd", url)),
                   "--etcd-prefix", "/net", "--subnet-file", f"{self.directory}/subnet.env",
                   "--conflist", f"{self.directory}/net.conflist", "--folder", f"{self.directory}/state", *more]
        words = ["agent", *options] if not self.served else [
            "serve", "--socket", f"{self.directory}/warm.sock", "--cache-dir", f"{self.directory}/cache",
            "--metrics", f"{self.directory}/metrics.sock", "--agent", shlex.join(options)]
        return ["ip", "netns", "exec", self.netns, *self.faked(), sys.executable, "-m", "fastcni", *words]

    def faked(self):
        """Return the words to put before a command so that libfaketime(1) gives it the wall clock `self.clock`."""
        if not self.clock:
            return []
        (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
        # a private /dev/shm, in which a killed process leaves the library's files
        return ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec env "$@"', "sh",
                f"LD_PRELOAD={library}", "DONT_FAKE_MONOTONIC=1", *self.clock]

    def start(self):
        with open(self.directory / "log", "a") as log:
            self.process = subprocess.Popen(self.command(*self.more), stdout=log, stderr=log)

    def await_ready(self):
        assert eventually((self.directory / "net.conflist").exists, 30), self.log()
        for family, subnet in files.read_former(f"{self.directory}/subnet.env").items():
            self.pod(family, subnet)

    def pod(self, family, subnet):
        """Add an address of the subnet to lo. The address stands for a pod."""
        self.pods = getattr(self, "pods", {}) | {family: str(subnet[5])}
        ip("addr", "replace", f"{subnet[5]}/{subnet.max_prefixlen}", "dev", "lo", "nodad", netns=self.netns)

    def end(self, number=signal.SIGTERM):
        if self.process:
            self.process.send_signal(number)
            status = self.process.wait(20)
            self.process = None
            return status
        return 0

    def log(self):
        return (self.directory / "log").read_text()

    def metrics(self):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(f"{self.directory}/metrics.sock")
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return b"".join(iter(lambda: sock.recv(65536), b"")).decode()

    def reaches(self, other, family=4):
        return " 0% packet loss" in run("ping", "-c1", "-W1", "-q", "-I",
                                        self.pods[family], other.pods[family], check=False, netns=self.netns)


@pytest.fixture
def nodes(host_netns, pod_netns, tmp_path):
    """Return a function that makes nodes on one etcd. The function does not start the nodes' agents."""
    ip("link", "add", "wire", "up", "type", "bridge")
    ip("addr", "add", "192.0.2.254/24", "dev", "wire")
    made = []
    with Etcd(host="192.0.2.254") as etcd:
        client = Client(etcd.conf())

        def make(count, backend="vxlan"):
            client.txn([], [put("/net/config", CONF % backend)])
            made.extend(Node(number, pod_netns(), etcd.endpoints, tmp_path) for number in range(1, count + 1))
            made[0].etcd = etcd
            return made

        yield make
        client.close()
        for node in made:
            node.end(signal.SIGKILL)


def joined(nodes, count=3, **named):
    found = nodes(count, **named)
    for node in found:
        node.start()
    for node in found:
        node.await_ready()
    return found


@pytest.mark.parametrize("backend", ["vxlan", "host-gw"])
def test_three_nodes_join_and_pods_reach_each_other(nodes, backend):
    found = joined(nodes, backend=backend)
    for one in found:
        for other in found:
            for family in (4, 6):
                if one is not other:
                    assert eventually(lambda one=one, other=other, family=family: one.reaches(other, family)), one.log()
    assert [node.end() for node in found] == [0, 0, 0]
    assert found[0].reaches(found[1])           # the nodes' network still works


def test_no_packet_is_lost_while_agents_and_etcd_restart(nodes):
    one, two, _ = found = joined(nodes)
    assert eventually(lambda: one.reaches(two))
    ping = subprocess.Popen(["ip", "netns", "exec", one.netns, "ping", "-i", "0.05", "-q", "-I", one.pods[4],
                             two.pods[4]], stdout=subprocess.PIPE, text=True)
    for node in found:
        node.end()
        node.start()
    assert eventually(lambda: all(node.log().count("event=nodes") >= 2 for node in found))
    one.etcd.members[0].kill()
    time.sleep(1)
    one.etcd.members[0].restart()
    one.etcd.await_health()
    one.end(signal.SIGKILL)
    one.start()
    assert eventually(lambda: one.log().count("event=nodes") >= 3)
    ping.send_signal(signal.SIGINT)
    out, _ = ping.communicate(timeout=20)
    assert " 0% packet loss" in out, out


def test_a_node_that_dies_and_returns_with_another_mac_is_reached_again(nodes):
    one, two, _ = joined(nodes)
    assert eventually(lambda: one.reaches(two))
    before = files.read_former(f"{two.directory}/subnet.env")
    two.end(signal.SIGKILL)
    for name in ("flannel.1", "flannel-v6.1"):
        ip("link", "del", name, netns=two.netns)
    run("rm", "-rf", two.directory / "state", two.directory / "net.conflist", two.directory / "subnet.env")
    two.start()
    two.await_ready()
    assert files.read_former(f"{two.directory}/subnet.env") == before      # etcd finds the record by the public address
    assert eventually(lambda: one.reaches(two) and one.reaches(two, 6))


def test_a_node_whose_record_another_node_took_while_it_was_off_says_that_its_subnet_has_changed(nodes):
    """The agent logged only the new subnet, and not that pods with addresses of the old subnet had lost the network."""
    one, two, _ = joined(nodes)
    before = files.read_former(f"{two.directory}/subnet.env")
    two.end()
    client = Client(one.etcd.conf())
    (pair,) = (each for each in client.read_range(*SUBNETS)[0] if json.loads(each.value)["PublicIP"] == "192.0.2.2")
    data = {"VNI": 1, "VtepMAC": "02:00:00:00:00:99"}
    taken = {"PublicIP": "192.0.2.99", "PublicIPv6": "2001:db8::99", "BackendData": data, "BackendV6Data": data}
    client.txn([], [put(pair.key, json.dumps(json.loads(pair.value) | taken))])
    client.close()
    two.start()
    assert eventually(lambda: f'event=subnet_changed former="{before[4]} {before[6]}"' in two.log()), two.log()
    assert files.read_former(f"{two.directory}/subnet.env").keys() == before.keys()


def test_a_record_that_an_operator_deletes_is_written_again(nodes):
    one, two, _ = joined(nodes)
    client = Client(one.etcd.conf())
    keys = [pair.key for pair in client.read_range(*SUBNETS)[0]]
    client.call("/kv/deleterange", {"key": "AA==", "range_end": "AA=="})
    assert eventually(lambda: [pair.key for pair in client.read_range(*SUBNETS)[0]] == keys)
    client.close()
    assert eventually(lambda: one.reaches(two))


def test_a_record_that_another_program_damages_is_written_again(nodes):
    """The agent took another subnet, so the node's pods lost the network, or the agent logged for ever that other nodes
    had taken 10 subnets. The agent did not correct a changed VtepMAC or BackendType until its next start."""
    one, two, _ = joined(nodes)
    assert eventually(lambda: one.reaches(two))
    client = Client(one.etcd.conf())

    def records():
        return {pair.key: pair.value for pair in client.read_range(*SUBNETS)[0]}

    before = records()
    (key,) = (key for key, value in before.items() if json.loads(value)["PublicIP"] == "192.0.2.2")
    fields = json.loads(before[key])
    data = {"VNI": 1, "VtepMAC": "02:00:00:00:00:99"}
    for damage in ("[", *(json.dumps(fields | changed) for changed in (
            {"PublicIP": 5}, {"PublicIP": "192.0.2.99"}, {"BackendType": "host-gw"}, {"BackendData": data},
            {"BackendV6Data": data}))):
        client.txn([], [put(key, damage)])
        assert eventually(lambda: records() == before), (damage, two.log())
    assert eventually(lambda: one.reaches(two) and one.reaches(two, 6))
    two.end()
    client.txn([], [put(key, "[")])
    two.start()
    assert eventually(lambda: records() == before), two.log()
    client.close()
    assert "record_restored" in two.log() and "subnet_lost" not in two.log() and "subnet_changed" not in two.log()
    assert eventually(lambda: one.reaches(two) and one.reaches(two, 6))


def test_a_node_that_leaves_takes_its_things_along(nodes):
    """If the agent was killed before, `--leave` did not remove the files of policies and of the HTTP proxy."""
    one, two, three = nodes(3)
    sources = two.directory / "policies"
    sources.mkdir()
    (sources / "web.json").write_text(json.dumps(READ_ONLY))
    two.more = ["--policies", str(sources)]
    for each in (one, two, three):
        each.start()
    for each in (one, two, three):
        each.await_ready()
    assert eventually(lambda: one.reaches(two))
    assert eventually((two.directory / "state" / "http" / "haproxy.cfg").exists), two.log()
    two.end(signal.SIGKILL)
    done = subprocess.run(two.command("--leave"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not [link for link in ip_json("link", netns=two.netns) if link["ifname"].startswith("flannel")]
    assert not (two.directory / "subnet.env").exists()
    assert not [name for name in ("http", "policy.sock", "peers.json") if (two.directory / "state" / name).exists()]
    assert "fastcni" not in run("nft", "list", "tables", netns=two.netns)
    assert "0x4000000" not in ip("rule", netns=two.netns)
    assert eventually(lambda: len(ip_json("route", "show", "dev", "flannel.1", netns=one.netns)) == 1)
    assert one.reaches(three)


def test_packets_to_the_outside_have_the_nodes_address(nodes):
    one, *_ = joined(nodes)
    ip("route", "add", one.pods[4], "via", "192.0.2.1")         # a route by which the outside could answer a pod
    sniff = subprocess.Popen(["timeout", "20", sys.executable, "-c", """if True:
        import socket
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("192.0.2.254", 9999))
        print("ready", flush=True)
        print(sock.recvfrom(100)[1][0], flush=True)"""], stdout=subprocess.PIPE, text=True)
    assert sniff.stdout.readline() == "ready\n"
    send = f"""if True:
        import socket
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("{one.pods[4]}", 0))
        sock.sendto(b"x", ("192.0.2.254", 9999))"""
    run(sys.executable, "-c", send, netns=one.netns)
    assert sniff.communicate(timeout=30)[0] == "192.0.2.1\n"
    run("nft", "flush", "ruleset", netns=one.netns)
    assert eventually(lambda: "masquerade" in run("nft", "list", "ruleset", netns=one.netns))
    # The agent logs this event after it has restored the rule
    assert eventually(lambda: "event=masquerade_restored" in one.log())


def test_the_subnet_is_given_to_bird_until_the_node_leaves(nodes):
    (one,) = nodes(1)
    conf = one.directory / "bird.conf"
    (one.directory / "bgp.json").write_text(json.dumps({"as": 64512, "peers": [], "config": str(conf),
                                                     "socket": f"{one.directory}/no-bird"}))
    one.more = ["--bgp", f"{one.directory}/bgp.json"]
    one.start()
    one.await_ready()
    subnet = files.read_former(f"{one.directory}/subnet.env")[4]
    assert f"route {subnet} blackhole;" in conf.read_text()
    assert one.log().count("event=bgp_failed") == 1
    assert one.end() == 0
    assert f"route {subnet}" in conf.read_text()        # so BIRD continues to announce the subnet
    assert subprocess.run(one.command("--leave", *one.more), capture_output=True, timeout=60).returncode == 0
    assert "route" not in conf.read_text()


def test_prometheus_is_told_of_nodes_and_repairs(nodes):
    one, *_ = found = nodes(3)
    one.more = ["--metrics", f"{one.directory}/metrics.sock"]
    for node in found:
        node.start()
    for node in found:
        node.await_ready()

    def metrics():
        return dict(re.findall(r"^fastcni_agent_(\S+) (\S+)$", one.metrics(), re.MULTILINE))

    assert eventually(lambda: (metrics()["nodes"], metrics()["routes"]) == ("2.0", "4.0"))
    assert metrics()["ready"] == "1.0" and metrics()["skipped"] == "0.0"
    assert metrics()['warnings_total{event="network_repaired"}'] == "0.0"
    ip("link", "del", "flannel.1", netns=one.netns)
    assert eventually(lambda: metrics()['warnings_total{event="network_repaired"}'] == "1.0")


def test_the_server_runs_the_agent_too(nodes):
    """`fastcni serve --agent` runs both in one process, with one log and one page of metrics."""
    one, two, _ = found = nodes(3)
    one.served = True
    (one.directory / "policies").mkdir()
    one.more = ["--policies", str(one.directory / "policies")]
    for node in found:
        node.start()
    for node in found:
        node.await_ready()
    assert eventually(lambda: one.reaches(two) and two.reaches(one))
    assert all(f"event={event}" in one.log() for event in ("server_ready", "joined", "policies_ready"))
    assert eventually(lambda: "fastcni_agent_nodes 2.0" in one.metrics())
    assert "fastcni_requests_waiting 0.0" in one.metrics() and "fastcni_agent_policies 0.0" in one.metrics()
    ip("link", "del", "flannel.1", netns=one.netns)
    assert eventually(lambda: 'fastcni_agent_warnings_total{event="network_repaired"} 1.0' in one.metrics())
    assert eventually(lambda: one.reaches(two))
    assert one.end() == 0
    assert "event=server_stopped" in one.log() and one.reaches(two)
    one.start()
    assert eventually(lambda: one.log().count("event=nodes") >= 2)
    assert one.reaches(two)


def test_while_etcd_cannot_be_reached_the_network_stays_and_follows_afterwards(nodes):
    """Packets to etcd are dropped without an answer, as in a partition."""
    one, two, three = found = nodes(3)
    for node in found[:2]:
        node.start()
    for node in found[:2]:
        node.await_ready()
    assert eventually(lambda: one.reaches(two))
    run("nft", "-f", "-", stdin="""table ip cut {
        chain in { type filter hook input priority 0; ip saddr 192.0.2.254 drop; }
        chain out { type filter hook output priority 0; ip daddr 192.0.2.254 drop; }
    }
    """, netns=one.netns)
    three.start()
    three.await_ready()
    assert eventually(lambda: two.reaches(three))
    ip("neigh", "flush", "dev", "flannel.1", "nud", "all", netns=one.netns)
    assert eventually(lambda: one.reaches(two))
    assert not one.reaches(three)
    run("nft", "delete", "table", "ip", "cut", netns=one.netns)
    assert eventually(lambda: one.reaches(three), 60), one.log()


def test_jumps_of_clocks_change_nothing(nodes):
    """The wall clocks of two nodes are years off, and one jumps ten years while the agent runs."""
    one, two, three = found = nodes(3)
    clock = one.directory / "clock"
    clock.write_text("-3y")
    two.clock, one.clock = ["FAKETIME=+2y"], [f"FAKETIME_TIMESTAMP_FILE={clock}", "FAKETIME_NO_CACHE=1"]
    for node in found:
        node.start()
    for node in found:
        node.await_ready()
    assert eventually(lambda: one.reaches(two) and two.reaches(three))
    years = [int(run(*node.faked(), "date", "+%Y")) for node in found]
    assert years[0] < years[2] < years[1]
    before = [files.read_former(f"{node.directory}/subnet.env") for node in found]
    clock.write_text("+7y")
    client = Client(one.etcd.conf())
    for pair in client.read_range(*SUBNETS)[0]:             # each record is written again
        client.txn([], [delete(pair.key)])
    assert eventually(lambda: len(client.read_range(*SUBNETS)[0]) == 3)
    client.close()
    for node in found:
        node.end(signal.SIGKILL)
        node.start()
    assert eventually(lambda: all(node.log().count("event=nodes") >= 2 for node in found))
    assert eventually(lambda: one.reaches(two) and two.reaches(three) and three.reaches(one))
    assert [files.read_former(f"{node.directory}/subnet.env") for node in found] == before
    assert not any("subnet_lost" in node.log() or "subnet_changed" in node.log() for node in found)


def test_the_agent_waits_for_what_is_missing(nodes):
    """etcd has no configuration of the network yet, as in a new cluster."""
    (one,) = nodes(1)
    client = Client(one.etcd.conf())
    client.txn([], [{"request_delete_range": {"key": "L25ldC9jb25maWc="}}])        # base64 of /net/config
    one.start()
    assert eventually(lambda: "etcd has no key /net/config" in one.log())
    client.txn([], [put("/net/config", CONF % "host-gw")])
    one.await_ready()
    client.close()
    assert one.end() == 0
    assert os.stat(one.directory / "subnet.env").st_mode & 0o777 == 0o644


def test_a_router_that_does_not_answer_delays_nothing(nodes, tmp_path):
    (one,) = nodes(1)
    with socket.socket(socket.AF_UNIX) as bird:
        bird.bind(str(tmp_path / "bird.ctl"))
        bird.listen()
        (tmp_path / "bgp.json").write_text(json.dumps({
            "as": 64512, "peers": [{"address": "192.0.2.254", "as": 64513}], "config": str(tmp_path / "bird.conf"),
            "socket": str(tmp_path / "bird.ctl")}))
        one.more = ["--bgp", str(tmp_path / "bgp.json")]
        one.start()
        assert eventually((one.directory / "net.conflist").exists, 5), one.log()
        assert one.end(signal.SIGKILL) == -signal.SIGKILL
