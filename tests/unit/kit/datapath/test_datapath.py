"""The datapath "ebpf" of ptp on the real kernel: which packets pass through the host's stack, and which packets BPF
programs redirect to the other pod."""

import contextlib
import json
import select
import socket
import struct
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from lab.datapath_pods import WAIT_S, Tcp, Udp, forwarded, host_end, kernel_flows, marks, pods_in_map
from lab.node import Inside, eventually, links, run

from fastcni.cli.datapath import datapath as datapath_command
from fastcni.kernel import wire
from fastcni.kernel.bpf import objects
from fastcni.kit.datapath import filters, maps, pins, redirect
from fastcni.node.own import datapath as own
from fastcni.server.datapath import SWEEP_S, DatapathSweep

pytestmark = marks
IP_RECVTTL = 12                 # linux/in.h


@pytest.mark.parametrize("address", ["10.22.0.3", "fd00:22::3"])
def test_the_host_sees_the_first_datagram_of_each_direction_only(datapath_pods, address):
    with Udp(*datapath_pods, address) as udp:
        udp.there_and_back(51)
        assert forwarded() == 2
        flow = next(flow for flow in kernel_flows() if flow.ports[1] == 5000)
        assert flow.packets == [50, 50] and flow.bytes == [50 * (len(b"request") + flow_header(address)),
                                                           50 * (len(b"answer") + flow_header(address))]


def flow_header(address):
    return 14 + (40 if ":" in address else 20) + 8


@pytest.mark.parametrize("address", ["10.22.0.3", "fd00:22::3"])
def test_the_host_sees_the_handshake_of_a_connection_only(datapath_pods, address):
    with Tcp(*datapath_pods, address) as tcp:
        tcp.there_and_back(20, size=300_000)
        assert forwarded() == 2


def test_the_next_connection_to_a_port_is_redirected_from_its_first_packet_on(datapath_pods):
    def connect():
        before = forwarded()
        with Tcp(*datapath_pods, "10.22.0.3", 81) as tcp:
            tcp.there_and_back()
        return forwarded() - before

    assert connect() == 2
    assert eventually(lambda: connect() == 0)       # once the host has seen a connection, at most a second later


def test_a_closed_and_a_reset_connection_leave_no_flow(datapath_pods):
    with Tcp(*datapath_pods, "10.22.0.3") as tcp:
        tcp.there_and_back()
        assert [flow for flow in kernel_flows() if flow.protocol == maps.IPPROTO_TCP]
        tcp.client.close()
        assert tcp.server.recv(1) == b""
    with Tcp(*datapath_pods, "10.22.0.3") as tcp:
        tcp.there_and_back()
        tcp.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert eventually(lambda: not [flow for flow in kernel_flows() if flow.protocol == maps.IPPROTO_TCP])


@pytest.mark.parametrize(("address", "level", "option", "kind"), [
    ("10.22.0.3", socket.IPPROTO_IP, IP_RECVTTL, socket.IP_TTL),
    ("fd00:22::3", socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, socket.IPV6_HOPLIMIT)], ids=["IPv4", "IPv6"])
def test_a_redirected_packet_has_passed_a_router(datapath_pods, address, level, option, kind):
    """The redirected packet has a decremented TTL and a correct checksum, so the receiver accepts it."""
    with Udp(*datapath_pods, address) as udp:
        udp.server.setsockopt(level, option, 1)
        udp.there_and_back()
        before = forwarded()
        udp.client.send(b"request")
        _, found, _, _ = udp.server.recvmsg(100, 100)
        assert forwarded() == before
        assert [int.from_bytes(data, "little") for where, what, data in found if (where, what) == (level, kind)] == [63]


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_a_service_answers_with_its_own_address(datapath_pods, protocol):
    """Only the host's stack undoes a Service's DNAT. So the BPF programs must not redirect the answers of a Service's
    pod."""
    run("nft", "table ip service { chain pre { type nat hook prerouting priority -100; "
        f"ip daddr 10.96.0.1 {protocol} dport 53 dnat to 10.22.0.3:5353; }}; }}")
    one, two = datapath_pods
    if protocol == "udp":
        with Inside(two):
            server = socket.socket(type=socket.SOCK_DGRAM)
            server.bind(("", 5353))
        with Inside(one):
            client = socket.socket(type=socket.SOCK_DGRAM)
        with server, client:
            client.settimeout(WAIT_S)
            server.settimeout(WAIT_S)
            for _ in range(5):
                client.sendto(b"name?", ("10.96.0.1", 53))
                data, sender = server.recvfrom(100)
                server.sendto(data, sender)
                assert client.recvfrom(100) == (b"name?", ("10.96.0.1", 53))
    else:
        with Inside(two):
            listener = socket.create_server(("", 5353))
        for _ in range(2):
            with Inside(one):
                client = socket.socket()
            with client:
                client.settimeout(WAIT_S)
                client.connect(("10.96.0.1", 53))
                server, _ = listener.accept()
                with server:
                    client.sendall(b"name?")
                    assert server.recv(100) == b"name?"
                    server.sendall(b"answer")
                    assert client.recv(100) == b"answer"
        listener.close()
    assert not [flow for flow in kernel_flows() if 5353 in flow.ports]


def test_a_masqueraded_flow_stays_masqueraded(datapath_pods):
    run("nft", "table ip nat { chain post { type nat hook postrouting priority 100; udp dport 7000 masquerade; }; }")
    with Udp(*datapath_pods, "10.22.0.3", 7000) as udp:
        for _ in range(5):
            assert udp.there()[0] == "10.22.0.1"
    assert not [flow for flow in kernel_flows() if 7000 in flow.ports]


def test_what_the_host_drops_is_not_redirected(datapath_pods):
    run("nft", "add rule inet seen forward udp dport 7001 drop")
    with Udp(*datapath_pods, "10.22.0.3", 7001) as udp:
        udp.client.send(b"1")
        udp.client.send(b"2")
        assert not select.select([udp.server], [], [], 0.3)[0]
    assert not [flow for flow in kernel_flows() if 7001 in flow.ports]


def test_a_forged_source_is_not_redirected(datapath_pods, node, datapath_conf, pod_netns):
    """A pod sends from another pod's address. Such packets must not create a flow of the other pod."""
    third = pod_netns()
    node.add(datapath_conf, third)
    one, two = datapath_pods
    run("ip", "addr", "add", "10.22.0.4/32", "dev", "lo", netns=one)
    with Inside(two):
        server = socket.socket(type=socket.SOCK_DGRAM)
        server.bind(("", 5001))
    with Inside(one):
        client = socket.socket(type=socket.SOCK_DGRAM)
        client.bind(("10.22.0.4", 0))
    with server, client:
        for _ in range(3):
            client.sendto(b"forged", ("10.22.0.3", 5001))
            assert select.select([server], [], [], WAIT_S)[0] and server.recv(100) == b"forged"
    assert not [flow for flow in kernel_flows() if 5001 in flow.ports]


def test_packets_to_a_pod_with_a_smaller_mtu_pass_through_the_host(node, datapath_conf, pod_netns):
    one, two = pod_netns(), pod_netns()
    node.add(datapath_conf, one)
    node.add({**datapath_conf, "mtu": 1300}, two)
    with Udp(one, two, "10.22.0.3") as udp:
        udp.there()
        udp.there_and_back(3)
        sender = socket.inet_aton("10.22.0.2")
        assert {flow.packets[flow.ends.index(sender)] for flow in kernel_flows()} == {0}
        udp.client.setsockopt(socket.IPPROTO_IP, 10, 2)         # IP_MTU_DISCOVER, IP_PMTUDISC_DO
        udp.client.send(bytes(1400))
        with pytest.raises(OSError, match="Message too long"):
            for _ in range(100):
                udp.client.send(bytes(1400))


def test_bandwidth_takes_a_pod_out_of_the_datapath(node, datapath_pods, datapath_conf):
    """A redirected packet passes no qdisc of the host's end, so bandwidth's limits would not apply."""
    name = host_end()
    index = links()[name]["ifindex"]
    with contextlib.closing(wire.open_socket()) as sock:
        assert filters.exist(sock, index)
        assert filters.leave(sock, index) and not filters.leave(sock, index)
        assert not filters.exist(sock, index)
    with Udp(*datapath_pods, "10.22.0.3", 5002) as udp:
        udp.there_and_back(5)
    assert not [flow for flow in kernel_flows() if 5002 in flow.ports]


def test_check_passes_for_a_pod_that_bandwidth_took_out_of_the_datapath(node, datapath_conf, pod):
    """Once, the map kept the pod's addresses, so CHECK reported missing filters. `fastcni datapath load` added the
    filters again, and the limits no longer applied."""
    result = node.add(datapath_conf, pod)
    limits = {"cniVersion": "1.0.0", "name": "net", "type": "bandwidth", "ingressRate": 8_000_000,
              "ingressBurst": 8_000_000, "prevResult": result}
    node.add(limits, pod)
    assert pods_in_map() == {}
    node.check(datapath_conf, pod, result)
    with contextlib.closing(wire.open_socket()) as sock:
        assert own.load(sock, pytest.fail) == 0


def test_bandwidth_asks_a_node_without_a_datapath_nothing_about_it(node, pod, bpffs, monkeypatch):
    result = node.add(node.conf(type="ptp", routes=["0.0.0.0/0"]), pod)
    asked = []
    monkeypatch.setattr(filters, "exist", lambda *_: asked.append("filters"))
    monkeypatch.setattr(objects, "get", lambda *_: asked.append("pins"))
    node.add({"cniVersion": "1.0.0", "name": "net", "type": "bandwidth", "ingressRate": 8_000_000,
              "ingressBurst": 8_000_000, "prevResult": result}, pod)
    assert not asked


@pytest.mark.needs("ifb")
def test_limits_of_bandwidth_are_added_to_a_pod_of_the_datapath(node, datapath_conf, pod):
    result = node.add(datapath_conf, pod)
    limits = {"cniVersion": "1.0.0", "name": "net", "type": "bandwidth", "ingressRate": 8_000_000,
              "ingressBurst": 8_000_000, "egressRate": 8_000_000, "egressBurst": 8_000_000, "prevResult": result}
    node.add(limits, pod)
    found = run("tc", "qdisc", "show", "dev", result["interfaces"][0]["name"])
    assert "qdisc tbf" in found and "qdisc ingress" in found and "clsact" not in found


def test_del_forgets_the_pods_addresses_and_nobody_elses(datapath_pods, node, datapath_conf):
    one, two = datapath_pods
    assert len(pods_in_map()) == 4
    node.delete(datapath_conf, one)
    assert set(pods_in_map()) == {socket.inet_aton("10.22.0.3"), socket.inet_pton(socket.AF_INET6, "fd00:22::3")}
    node.delete(datapath_conf, two)
    assert pods_in_map() == {}


def test_del_of_a_pod_whose_namespace_is_gone_forgets_its_addresses(node, datapath_conf, pod):
    name = node.add(datapath_conf, pod)["interfaces"][0]["name"]
    run("ip", "netns", "del", pod)
    assert eventually(lambda: name not in links())
    assert len(pods_in_map()) == 2
    node.delete(datapath_conf, pod)
    assert pods_in_map() == {}


def test_an_add_that_fails_leaves_no_address(node, pod, bpffs):
    conf = node.conf(type="ptp", datapath="ebpf", routes=["0.0.0.0/0"], ipMasq=True, ipMasqBackend="iptables")
    before = node.left(pod)
    error = node.refused("ADD", conf, pod, env={"PATH": "/nowhere"})
    assert "iptables" in str(error)
    assert pods_in_map() == {} and node.left(pod) == before


def test_check_finds_a_link_without_its_filters(node, datapath_conf, pod):
    result = node.add(datapath_conf, pod)
    node.check(datapath_conf, pod, result)
    run("tc", "qdisc", "del", "dev", result["interfaces"][0]["name"], "clsact")
    assert "has no filters of the datapath" in node.check_refused(datapath_conf, pod, result)


@pytest.mark.parametrize(("value", "warnings"), [("ebpf", 1), ("auto", 0)])
def test_a_kernel_that_refuses_leaves_a_working_pod(node, datapath_conf, pod_netns, monkeypatch, value, warnings):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(objects, "load", refuse)
    one, two = pod_netns(), pod_netns()
    datapath_conf["datapath"] = value
    for pod in (one, two):
        reply = node.call("ADD", datapath_conf, pod)
        assert reply.status == 0
        assert [b"Operation not permitted" in line for line in reply.stderr.splitlines()] == [True] * warnings
    with Udp(one, two, "10.22.0.3") as udp:
        udp.there()
    node.check(datapath_conf, two, json.loads(reply.stdout))
    node.delete(datapath_conf, one)


def test_a_pod_for_which_the_map_has_no_room_works_without_the_datapath(node, datapath_conf, pod_netns, monkeypatch):
    monkeypatch.setitem(pins.MAPS, "pods", (maps.ADDRESS_BYTES, maps.POD_BYTES, 3))
    one, two = pod_netns(), pod_netns()
    node.add(datapath_conf, one)
    reply = node.call("ADD", datapath_conf, two)
    assert reply.status == 0 and b"the map of pods is full" in reply.stderr
    assert len(pods_in_map()) == 2              # of the second pod's two addresses, one fitted into the map
    with Udp(one, two, "10.22.0.3") as udp:
        udp.there()
        udp.there_and_back(3)
        assert kernel_flows() == []


def test_flows_for_which_the_map_has_no_room_pass_through_the_host(node, datapath_conf, pod_netns, monkeypatch):
    monkeypatch.setitem(pins.MAPS, "flows", (maps.KEY_BYTES, maps.FLOW_BYTES, 1))
    one, two = pod_netns(), pod_netns()
    node.add(datapath_conf, one)
    node.add(datapath_conf, two)
    with Udp(one, two, "10.22.0.3") as udp:
        udp.there()
        udp.there_and_back(5)
        with Tcp(one, two, "10.22.0.3") as tcp:
            tcp.there_and_back(5, size=100_000)
        assert [flow.ports[1] for flow in kernel_flows()] == [5000]


def test_sweep_deletes_what_has_ended_and_keeps_what_goes_on(datapath_pods, monkeypatch):
    with Tcp(*datapath_pods, "10.22.0.3") as tcp, Udp(*datapath_pods, "10.22.0.3") as udp:
        tcp.there_and_back()
        udp.there_and_back()
        with contextlib.closing(wire.open_socket()) as sock:
            redirect.sweep(sock)
            assert {flow.protocol for flow in kernel_flows()} == {6, 17} and len(pods_in_map()) == 4
            monkeypatch.setattr(redirect, "UDP_NS", -1)
            monkeypatch.setattr(redirect, "VERDICT_NS", -1)
            redirect.sweep(sock)
            assert [flow.protocol for flow in kernel_flows()] == [6]
            before = forwarded()
            tcp.there_and_back()
            assert forwarded() == before
            tcp.client.shutdown(socket.SHUT_WR)
            assert tcp.server.recv(1) == b""
            monkeypatch.setattr(redirect, "CLOSED_NS", -1)
            redirect.sweep(sock)
            assert kernel_flows() == []


def test_the_command_shows_flows_and_removes_the_datapath(datapath_pods):
    with Udp(*datapath_pods, "10.22.0.3", 5003) as udp:
        udp.there_and_back(11)
        found = json.loads(command("status", "--json"))
        [flow] = [flow for flow in found["flows"] if flow["ports"][1] == 5003]
        assert flow["ends"] == ["10.22.0.2", "10.22.0.3"] and flow["packets"] == [10, 10]
        assert found["pods"] == ["10.22.0.2", "10.22.0.3", "fd00:22::2", "fd00:22::3"]
        text = command("status")
        assert "pods: 4 of 16384 addresses, 0 restricted by policies" in text
        assert "> 10.22.0.3 5003: 10 and 10 packets" in text
        assert command("load") == "the links of 2 pods have the programs of this version\n"
        assert command("unload").startswith("removed from the links of 2 pods")
        assert command("status") == "no pod of this node has had the datapath ebpf\n"
        udp.there_and_back(3)


def command(*words):
    done = CliRunner().invoke(datapath_command, words)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_server_sweeps_every_30_seconds(datapath_pods, monkeypatch):
    swept = []
    monkeypatch.setattr(redirect, "sweep", swept.append)
    sweep = DatapathSweep(lambda function: function(), pytest.fail)
    for _ in range(3):
        sweep.poll()
    assert len(swept) == 1
    sweep.due -= SWEEP_S
    sweep.poll()
    assert len(swept) == 2


def test_the_server_logs_once_why_it_cannot_sweep_until_a_sweep_succeeds(monkeypatch):
    """The server logs an error again if it returns after a successful sweep."""
    refused = PermissionError(1, "Operation not permitted")
    logged = []
    monkeypatch.setattr(redirect, "sweep", Mock(side_effect=[refused, refused, None, refused]))
    logger = SimpleNamespace(warning=lambda event, **fields: logged.append((event, fields)))
    sweep = DatapathSweep(lambda function: function(), logger)
    for _ in range(4):
        sweep.sweep()
    assert logged == [("datapath_unswept", {"error": "[Errno 1] Operation not permitted"})] * 2


MOUNT = """
from fastcni.kernel import wire
from fastcni.kit.datapath import pins
said, sock = [], wire.open_socket()
for _ in range(2):
    with pins.open_or_load(sock, said.append) as opened:
        print(sorted(opened.programs), said)
"""


def test_bpffs_is_mounted_where_it_is_missing_and_said_once():
    script = f"umount -q /sys/fs/bpf; exec {sys.executable} -c '{MOUNT}'"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["['from_pod', 'to_pod'] ['mounted bpffs at /sys/fs/bpf']"] * 2, done.stderr
