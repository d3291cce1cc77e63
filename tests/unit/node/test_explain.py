"""fastcni explain: addresses, ports, links, chains and container IDs."""

import json
import os
import socket
import socketserver
import threading
from pathlib import Path

import pytest
from unit.node.conftest import LIST, diagnosed

from fastcni.kit.call import names
from fastcni.node.attachments import listeners
from fastcni.testing.namespaces import run


@pytest.fixture
def node(directories):
    directories.configure()
    directories.cached("web1", netns="/proc/self/ns/net", result={
        "cniVersion": "1.0.0", "interfaces": [{"name": "veth00c0ffee"}], "ips": [{"address": "10.88.0.2/24"}]},
        capabilityArgs={"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]})
    directories.hold("10.88.0.2", "web1\r\neth0")
    directories.hold("10.88.0.3", "web2\r\neth0")
    directories.hold("10.88.0.4", "for the printer")
    return directories


@pytest.mark.parametrize("asked, kind, text, owners", [
    ("10.88.0.2", "address", "10.88.0.2 is the address of eth0 of container web1 in network net1", ["web1"]),
    ("10.88.0.2/24", "address", "10.88.0.2 is the address of", ["web1"]),
    ("10.88.0.1", "address", "10.88.0.1 is the gateway of network net1 (10.88.0.0/24)", []),
    ("10.88.0.7", "address", "no address file has it, so the next ADD may get it", []),
    ("10.88.0.4", "address", "it names no attachment", []),
    ("8080", "port", "8080/tcp -> 10.88.0.2:80", ["web1"]),
    (":8080/TCP", "port", "port 8080 of this node should lead to", ["web1"]),
    ("192.0.2.1:8080", "port", "port 8080 of this node should lead to", ["web1"]),
    ("veth00c0ffee", "link", "was the link of eth0 of container web1", ["web1"]),
    (names.container_chain("CNI-", "net1", "web1"), "chain", "for ipMasq", ["web1"]),
    (names.container_chain("CNI-DN-", "net1", "web2"), "chain", "for port mappings", ["web2"]),
    ("CNI-DN-0266adfaf86ead0625b1d", "chain", "it was left by a pod", []),
    ("CNI-FORWARD", "chain", "accepts packets from and to pods", []),
    ("pods4", "chain", "a set of fastcni's nftables table", []),
    ("subnet-10.88.0.0/24", "chain", "for ipMasq of the pods in one subnet", []),
    ("web", "container", "eth0 of container web1 in network net1 and eth0 of container web2", ["web1", "web2"]),
    ("lo", "link", "lo is a link of this node", []),
    ("127.0.0.1", "address", "is an address of this node, on link lo", []),
])
def test_everything_has_its_owner(node, fastcni, asked, kind, text, owners):
    answer = fastcni("explain", asked, "--json")
    first = next(it for it in answer.document["explanations"] if text in it["what"])
    assert answer.status == 0 and first["kind"] == kind
    assert [it["containerID"] for it in first["owners"]] == owners


@pytest.fixture
def agent(tmp_path):
    """Yield the directory of an agent. The agent answers each request with one pod."""
    class Answer(socketserver.StreamRequestHandler):
        def handle(self):
            asked = json.loads(self.rfile.readline())
            pod = {"pod": f"{asked['do']} {asked.get('address')}", "ingress": ["shop/db"], "egress": []}
            self.wfile.write(json.dumps({"pods": [pod], "unreadable": ["shop/db: a key"]}).encode() + b"\n")

    directory = tmp_path / "agent"
    directory.mkdir()
    with socketserver.ThreadingUnixStreamServer(str(directory / "policy.sock"), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield directory
        server.shutdown()
        thread.join()


def test_an_agent_that_no_network_names_is_asked_by_its_directory(node, fastcni, agent):
    """The agent has another --folder. Once, explain showed its policies only if a network of --conf-dir named its
    socket."""
    for asked in ("10.88.0.2", "web1"):
        assert "shop/db" not in fastcni("explain", asked).out
        told = fastcni("explain", asked, "--agent-folder", agent).out.replace("\n", " ")
        assert "10.88.0.2 is of pod explain 10.88.0.2: ingress only as shop/db allows" in told
    _, found = diagnosed(fastcni)
    assert "policy-agent" not in found
    _, found = diagnosed(fastcni, "--agent-folder", agent)
    assert "shop/db: a key" in found["policy-agent"]["what"]
    _, found = diagnosed(fastcni, "--agent-folder", agent / "none")
    assert f"no agent answers at {agent}/none/policy.sock" in found["policy-agent"]["what"]


@pytest.mark.parametrize("asked", ["8081/udp", "veth99999999", "c9", "", "70000"])
def test_what_is_unknown_is_an_error(node, fastcni, asked):
    answer = fastcni("explain", asked)
    assert answer.status == 1 and f"nothing on this node has the name or address {asked}" in answer.err


def test_text_has_files_and_fits(node, fastcni):
    answer = fastcni("explain", "10.88.0.2")
    head, *rest = answer.out.splitlines()
    assert head.startswith("10.88.0.2 is the address") and f"  address file  {node.data}/net1/10.88.0.2" in rest
    assert max(len(line) for line in answer.out.splitlines() if "/" not in line) <= 80


def test_a_listening_process_is_named(node, fastcni):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        (found,) = listeners.listening([port])
        assert (found.protocol, found.address, found.pid) == ("tcp", "127.0.0.1", os.getpid())
        name = Path("/proc/self/comm").read_text().strip()
        assert f"process {os.getpid()} ({name}) listens on {port}/tcp, address 127.0.0.1" in " ".join(
            fastcni("explain", str(port)).out.split())


@pytest.mark.parametrize("address, lengths", [
    ("127.0.0.1", (4,)), ("::1", (16,)), ("::", (16, 4)), ("::ffff:127.0.0.1", (4,))])
def test_a_socket_serves_the_addresses_of_its_families(address, lengths):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.bind((address, 0))
        (found,) = listeners.listening([sock.getsockname()[1]], "udp")
    assert found.lengths == lengths and found.address == address.removeprefix("::ffff:")


def test_only_an_ipv6_socket_that_takes_ipv4_serves_it():
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(("::", 0))
        assert listeners.listening([sock.getsockname()[1]])[0].lengths == (16,)


def test_links_and_rules_of_a_real_pod(host, pod_netns, fastcni):
    pod = pod_netns()
    result = host.add("c1", pod, ports=[(8080, 80)])
    link = result["interfaces"][1]["name"]
    assert "leads to eth0 of container c1" in fastcni("explain", link).out
    bridge = fastcni("explain", "br0", "--json").document["explanations"][0]
    assert "the bridge of network net1, with 1 port" in bridge["what"] and len(bridge["owners"]) == 1
    assert "nftables inet fastcni hostports4" in fastcni("explain", "8080/tcp").out
    assert "8080 of this node leads to eth0" in " ".join(fastcni("explain", "8080/tcp").out.split())
    run("ip", "link", "add", "veth0badc0de", "type", "veth", "peer", "name", "other")
    assert "no attachment has it" in " ".join(fastcni("explain", "veth0badc0de").out.split())
    host.delete("c1", pod)


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
def test_a_mapping_or_chain_that_was_flushed_leads_to_nothing(host, pod_netns, fastcni, backend):
    """Once, explain read only the runtime's cache, and said that the port leads to a pod."""
    host.configure({**LIST, "plugins": [LIST["plugins"][0], {**LIST["plugins"][1], "backend": backend}]})
    host.add("c1", pod := pod_netns(), ports=[(8080, 80)])
    chain = "hostports" if backend == "nftables" else "CNI-HOSTPORT-DNAT"
    assert explained(fastcni, "8080/tcp").startswith("port 8080 of this node leads to")
    assert explained(fastcni, chain).startswith(f"{chain} is shared by all pods")
    run("nft", "flush", "ruleset")
    assert explained(fastcni, "8080/tcp").startswith("port 8080 of this node should lead to")
    assert explained(fastcni, chain).startswith(f"there is no chain or set {chain} now")
    assert "10.88.0.2 is the address of eth0 of container c1" in explained(fastcni, "10.88.0.2")
    fastcni("restore")
    assert explained(fastcni, "8080/tcp").startswith("port 8080 of this node leads to")
    host.delete("c1", pod)
    assert fastcni("explain", "8080/tcp").status == 1


def explained(fastcni, what):
    return fastcni("explain", what, "--json").document["explanations"][0]["what"]
