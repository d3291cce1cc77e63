"""`fastcni why` with NAT, conntrack, listening sockets, the MTU and hosts outside. Also the command's output and
options."""

import json
import os
import socket
import subprocess
import sys

import click
import pytest
from unit.why.conftest import HOST_PORT, NODE, OUTSIDE, Case, cases, check

from fastcni.testing.namespaces import Inside, run
from fastcni.testing.witnesses import eventually

pytestmark = pytest.mark.needs("root")
POD = "pod-a {ip_b}:{port_b}"
OUT = "pod-a 192.0.2.2:{port_x}"
NAT = ["nft delete table ip mine"]


@cases(
    Case("no process listens in the pod", "pod-a {ip_b}:9", [], "listening socket", "no process listens on tcp port 9",
         "pod-b", mends=False),
    Case("no process listens on UDP in the pod", "--udp pod-a {ip_b}:9", [], "listening socket", "no process listens",
         mends=False),
    Case("no process listens on the node", "pod-a 192.0.2.1:9", [], "listening socket", "this node", mends=False),
    Case("no process listens outside", "pod-a 192.0.2.2:9", [], "outside host", "reset", mends=False),
    Case("no process listens on UDP outside", "--udp pod-a 192.0.2.2:9", [], "outside host", "unreachable (ICMP)",
         mends=False),
    Case("an outside host does not exist", "pod-a 192.0.2.77:80", [], "node neighbour", "192.0.2.77", mends=False),
    Case("a pod's address that no pod has", "pod-a 10.88.0.99:80", [], "neighbour", "10.88.0.99", mends=False),
    Case("an address of the subnet of ptp that no pod has", "pod-c 10.89.0.99:80", [
        "ip route add default via 192.0.2.2"], "outside host", "the subnet 10.89.0.0/24 of n-ptp", "by up0",
         mends=False, undo=["ip route del default"]),
    Case("the masquerade is gone", OUT, ["nft flush ruleset"], "NAT", "the masquerade of ipMasq is missing",
         "fastcni restore", mends=False),
    Case("the source becomes a foreign address", OUT, ["nft 'add table ip mine; add chain ip mine c { type nat hook "
         "postrouting priority -10; }; add rule ip mine c ip daddr 192.0.2.2 snat to 203.0.113.9'"], "NAT",
         "203.0.113.9", "snat to 203.0.113.9", "hand-written", undo=NAT),
    Case("the destination becomes a dead address", OUT, ["nft 'add table ip mine; add chain ip mine c { type nat hook "
         "prerouting priority -110; }; add rule ip mine c ip daddr 192.0.2.2 dnat to 10.88.0.99'"], "NAT",
         "10.88.0.99", "dnat to 10.88.0.99", undo=NAT),
    Case("the MTU of the way is smaller", "pod-c {ip_b}:{port_b}", ["B: ip link set eth0 mtu 1300",
         "nft 'add table ip mine; add chain ip mine c { type filter hook output priority 0; }; "
         "add rule ip mine c icmp type destination-unreachable drop'"], "MTU", "1300", mends=False,
         undo=[*NAT, "B: ip link set eth0 mtu 1500"]),
)
def test_a_fault_behind_the_firewalls_is_named(case, why, world, broken):
    check(case, why, world, broken)
    world.faulty = world.faulty and (case.mends or "flush" in str(case.commands))


def test_host_port_without_its_rule_is_named(why, world, broken):
    """A flush of nftables removes the port's mapping, and then the node answers with a reset."""
    assert why(OUTSIDE, f"{NODE}:{HOST_PORT}").status == 0
    broken(["nft flush ruleset"])
    found = why(OUTSIDE, f"{NODE}:{HOST_PORT}").document["ends"]
    assert (found["hop"], found["do"]) == ("NAT", "fastcni restore")
    assert "host port of pod pod-b" in found["what"]


def test_a_process_that_listens_on_loopback_only_is_named(why, world):
    with Inside(world.names["b"]):
        sock = socket.create_server(("127.0.0.1", 0))
    with sock:
        found = why("pod-a", f"{{ip_b}}:{sock.getsockname()[1]}").document["ends"]
    assert found["hop"] == "listening socket" and "address 127.0.0.1" in found["rule"]


def test_loopback_is_that_of_the_pod_itself(why):
    """Once, the command checked the node's listening sockets if the target was a pod's 127.0.0.1."""
    assert why("pod-b", "127.0.0.1:{port_b}").status == 0
    found = why("pod-b", "127.0.0.1:{port_h}").document["ends"]
    assert found["hop"] == "listening socket" and "pod pod-b" in found["what"]


def test_a_packet_to_the_pod_itself_does_not_leave_the_pod(why):
    """Once, the command printed hops of the node, and reported tc, one of them, as the hop at which the packet ends."""
    for to in ("{ip_b}", "127.0.0.1", "[{ip6_b}]", "[::1]"):
        assert why("pod-b", f"{to}:{{port_b}}").status == 0
        for udp in ([], ["--udp"]):
            found = why(*udp, "pod-b", f"{to}:9").document
            assert [hop["hop"] for hop in found["hops"]] == ["pod link", "pod firewall", "listening socket"], found
            assert "pod pod-b" in found["ends"]["what"]


POLICY = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
          "metadata": {"name": "closed", "namespace": "shop"},
          "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}


def test_a_network_policy_that_denies_is_named(why, world, tmp_path):
    directory = tmp_path / "policies"
    directory.mkdir()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-b", "namespace": "shop"},
           "status": {"podIP": world.words["ip_b"], "podIPs": [{"ip": world.words["ip_b"]}]}}
    (directory / "pod.json").write_text(json.dumps(pod))
    (directory / "policy.json").write_text(json.dumps(POLICY))
    nodes = tmp_path / "nodes.json"
    nodes.write_text("""{"Network": "10.62.0.0/16", "Backend": {"Type": "host-gw"}, "nodes": []}""")
    world.faulty = True
    with Inside(world.names["h"]):
        agent = subprocess.Popen(
            [sys.executable, "-m", "fastcni", "agent", "--nodes", nodes, "--policies", directory, "--folder", tmp_path,
             "--conflist", "", "--subnet-file", tmp_path / "subnet.env"], stderr=subprocess.PIPE)
    try:
        assert any(b"policies_ready" in line for line in agent.stderr)
        found = why("pod-a", "{ip_b}:{port_b}").document["ends"]
        assert found["hop"] == "policy" and found["owner"].startswith("fastcni (table inet fastcni-policy"), found
        assert found["do"] == world.say("fastcni policy test {ip_a} {ip_b} {port_b}/tcp")
        opened = {**POLICY, "spec": {**POLICY["spec"], "ingress": [{}]}}
        (directory / "new").write_text(json.dumps(opened))
        (directory / "new").rename(directory / "policy.json")
        assert eventually(lambda: why("pod-a", "{ip_b}:{port_b}").status == 0)
    finally:
        agent.terminate()
        agent.communicate()


def test_a_full_accept_queue_is_named(why, world):
    with Inside(world.names["b"]):
        sock = socket.create_server(("0.0.0.0", 0), backlog=0)
    port, clients = sock.getsockname()[1], []
    try:
        with Inside(world.names["a"]):
            for _ in range(4):
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex((world.words["ip_b"], port))
                clients.append(client)
        assert eventually(lambda: why("pod-a", f"{{ip_b}}:{port}").status == 1, 5)
        found = why("pod-a", f"{{ip_b}}:{port}").document["ends"]
        assert found["hop"] == "listening socket" and "accept queue" in found["rule"]
    finally:
        for each in (sock, *clients):
            each.close()


def test_a_conntrack_entry_to_a_dead_pod_is_named_and_mended(why, world, broken):
    """If a UDP client always sends from one port, all its packets go to the address that its first packet was sent
    to."""
    words = "--udp", "pod-a", "{ip_c}:{port_c}"
    broken(["conntrack -I -p udp -s {ip_a} -d {ip_c} --sport 4000 --dport {port_c} --reply-src 10.88.0.99 "
            "--reply-dst {ip_a} --reply-port-src {port_c} --reply-port-dst 4000 --timeout 60"])
    found = why(*words).document["ends"]
    assert found["hop"] == "conntrack" and "10.88.0.99" in found["what"]
    world.shell(found["do"])
    assert why(*words).status == 0
    world.faulty = False


def test_a_full_conntrack_table_is_named(world, why, monkeypatch):
    """The real limit is that of the machine's first namespace, so the test replaces its value."""
    from fastcni.why import answers, path

    values = {answers.COUNT: "262144", answers.MAX: "262144"}
    monkeypatch.setattr(answers, "setting", lambda name: values.get(name) or path.setting(name))
    # this drops packets where a full table does, and leaves no trace of it
    world.shell("iptables-legacy -t raw -A PREROUTING -d 192.0.2.2 -j DROP")
    try:
        found = why("pod-a", "192.0.2.2:{port_x}").document["ends"]
    finally:
        world.shell("iptables-legacy -t raw -F")
    assert (found["hop"], found["do"]) == ("conntrack", "sysctl -w net.netfilter.nf_conntrack_max=524288")


def test_a_pod_whose_namespace_is_gone_is_named(world, why):
    path = world.cache / "results" / "n-bridge-pod-dead-eth0"
    document = json.loads((world.cache / "results" / "n-bridge-pod-a-eth0").read_text())
    document["containerId"], document["netns"] = "pod-dead", "/run/netns/fcni-no-such-pod"
    for ip in document["result"]["ips"]:
        ip["address"] = ip["address"].replace("10.88.0.2/", "10.88.0.222/").replace("::2/", "::de/")
    path.write_text(json.dumps(document))
    try:
        found = why("pod-dead", "192.0.2.2:80").document
        assert found["hops"] == [{"hop": "pod namespace", "ok": False}]
        assert "fcni-no-such-pod" in found["ends"]["what"]
    finally:
        path.unlink()


def await_addresses(world):
    """Wait until the node can use its IPv6 addresses, because the kernel sends no neighbour solicitations without
    one."""
    assert eventually(lambda: not run("ip", "-n", world.names["h"], "-6", "addr", "show", "tentative"))


def test_every_kind_of_end_reaches(why, world):
    await_addresses(world)
    for words in (POD, OUT, "pod-b {ip_c}:{port_c}", "pod-c {ip_b}:{port_b}", "pod-a 192.0.2.1:{port_h}",
                  "192.0.2.1 pod-b:{port_b}", "{ip_a} pod-b:{port_b}", "192.0.2.2 pod-b:{port_b}",
                  "shop/web-a {ip_b}:{port_b}", "pod-a shop/web-b:{port_b}", "pod-a [{ip6_b}]:{port_b}",
                  "fd00:2::2 [{ip6_b}]:{port_b}",
                  "pod-a [fd00:2::2]:{port_x}", f"pod-a 192.0.2.1:{HOST_PORT}",
                  "--udp pod-a {ip_b}:{port_b}", "--udp 192.0.2.2 pod-b:{port_b}", "--udp pod-a 192.0.2.2:{port_x}"):
        found = why(*words.split())
        assert found.status == 0, f"{words}: {found.out}{found.err}"
        assert found.document["reaches"] is True and found.document["ends"] is None
        assert all(hop["ok"] for hop in found.document["hops"])


@pytest.mark.parametrize("family, request_of, words", [
    ("ip6", "icmpv6 type nd-neighbor-solicit", "fd00:2::2 [{ip6_b}]:{port_b}"),
    ("arp", "arp operation request", "192.0.2.2 {ip_b}:{port_b}")])
def test_a_mac_that_the_node_gets_by_its_second_request_is_waited_for(why, world, family, request_of, words):
    """The kernel sends a second request after a second. Once, the command waited only 0.4 s and reported that the pod
    does not answer. On a busy machine, this also happened without a lost request."""
    world.shell(f"b: nft 'add table {family} late; add chain {family} late c {{ type filter hook input priority 0; }}; "
                f"add rule {family} late c {request_of} limit rate 1/hour burst 1 packets drop'")
    await_addresses(world)
    try:
        world.shell("ip neigh flush dev br0")
        found = why(*words.split())
        assert found.document["reaches"] is True, found.out
    finally:
        world.shell(f"b: nft delete table {family} late")


def test_text_says_hop_rule_owner_and_command(why, world, broken):
    broken(["nft 'add table inet mine; add chain inet mine c { type filter hook forward priority 0; }; add rule inet "
            "mine c ip saddr {ip_a} drop'"], ["nft delete table inet mine"])
    found = why("pod-a", "192.0.2.2:{port_x}", text=True)
    assert found.status == 1
    lines = click.unstyle(found.out).splitlines()
    assert "ENDS    forward chains" in lines and "ok      forwarding" in lines
    assert any("pod pod-a does not reach" in line for line in lines)
    for label in ("rule:", "owner:", "do:"):
        assert any(line.strip().startswith(label) for line in lines)
    world.shell("nft delete table inet mine")
    assert "reaches" in why("pod-a", "192.0.2.2:{port_x}", text=True).out
    world.faulty = False


def test_nothing_is_left_on_the_node_not_even_after_sigkill(why, world):
    def left():
        with Inside(world.names["h"]):
            found = run("nft", "list", "tables"), run("ip", "-br", "link")
        with Inside(world.names["a"]):
            return *found, run("nft", "list", "tables")

    before = left()
    why("pod-a", "192.0.2.2:9")
    assert eventually(lambda: left() == before)
    places = ["--conf-dir", str(world.conf_dir), "--cache-dir", str(world.cache)]
    with Inside(world.names["h"]):
        process = subprocess.Popen([sys.executable, "-m", "fastcni", "why", "pod-a", "192.0.2.77:80", *places],
                                   stdout=subprocess.DEVNULL)
        assert eventually(lambda: "fastcni-why" in run("nft", "list", "tables"))
    process.kill()
    process.wait()
    assert eventually(lambda: left() == before)


def test_a_mistaken_argument_is_an_error_that_says_what_is_expected(why):
    for words, text in ((("pod-a", "192.0.2.2"), "expected ADDRESS:PORT"), (("pod-a", "192.0.2.2:0"), "expected"),
                        (("pod-a", "fd00::1:80"), "expected"), (("nobody", "192.0.2.2:80"), "no pod of this node"),
                        (("pod-", "192.0.2.2:80"), "3 pods match"),
                        (("pod-a", "10.88.0.255:80"), "10.88.0.255 is a broadcast address"),
                        (("192.0.2.2", "10.88.0.255:80"), "10.88.0.255 is a broadcast address"),
                        (("pod-a", "224.0.0.1:80"), "the address of a multicast group"),
                        (("pod-a", "[ff02::1]:80"), "the address of a multicast group"),
                        (("pod-a", "0.0.0.0:80"), "the unspecified address")):
        found = why(*words)
        assert found.status == 1 and text in found.out, found.out


def test_without_root_the_command_says_so(why, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = why("pod-a", "192.0.2.2:80")
    assert found.status == 1 and "run the command as root" in found.out
