"""`fastcni flows` on real packets of pods: each flow's verdict, the rule that decided, and the pods' names."""

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from lab.forked import ForkedCommand

from fastcni.flows import last_flows
from fastcni.launcher.install import install_plugins
from fastcni.runtime import CNI, RuntimeConf
from fastcni.server import status
from fastcni.testing.namespaces import Inside, run
from fastcni.testing.witnesses import eventually

FAMILIES = [[{"subnet": "10.71.0.0/24"}], [{"subnet": "fd00:71::/64"}]]
ROUTES = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
GATEWAYS = ("10.71.0.1", "fd00:71::1")
TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM
WAIT_S = 20
# web may connect to port 80 of db. No other pod may connect to db, and no pod may connect to vault. vault may not
# connect to port 99 of web.
POLICIES = """
{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "db", "namespace": "shop"},
 "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"],
          "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": 80}]}]}}
---
{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "closed", "namespace": "shop"},
 "spec": {"podSelector": {"matchLabels": {"app": "vault"}}, "policyTypes": ["Ingress"], "ingress": []}}
---
{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "admin"},
 "spec": {"tier": "Admin", "priority": 1,
          "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}},
          "ingress": [{"name": "no vault", "action": "Deny",
                       "protocols": [{"tcp": {"destinationPort": {"number": 99}}}],
                       "from": [{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "vault"}}}}]
                       }]}}
"""
# web may connect to ports 80 and 81. A cluster policy denies port 99.
OF_BOTH_DIRECTIONS = """
---
{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "out-80", "namespace": "shop"},
 "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"],
          "egress": [{"ports": [{"port": 80}]}]}}
---
{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "out-81", "namespace": "shop"},
 "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"],
          "egress": [{"ports": [{"port": 81}]}]}}
---
{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "passing"},
 "spec": {"tier": "Admin", "priority": 2,
          "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}},
          "egress": [{"name": "no 99", "action": "Deny", "protocols": [{"tcp": {"destinationPort": {"number": 99}}}],
                      "to": [{"pods": {"namespaceSelector": {}, "podSelector": {}}}]},
                     {"action": "Pass", "to": [{"pods": {"namespaceSelector": {}, "podSelector": {}}}]}]}}
"""
OF_NO_POD = "10.73.99.9"        # an address without a pod, with a route to the link of vault


class Node:
    """A node in the namespace of `host_netns`. Each network has a file, and `fastcni` runs in the namespace."""

    def __init__(self, directory, bin_dir):
        self.directory, self.bin_dir = directory, bin_dir
        self.conf_dir, self.cache = directory / "net.d", directory / "cache"
        self.conf_dir.mkdir()
        self.addresses, self.agent_socket = {}, directory / "policy.sock"

    def configure(self, network, *more, kind="bridge", ranges=FAMILIES, **keys):
        first = {"type": kind, **keys, "ipam": {"type": "host-local", "dataDir": str(self.directory / "networks"),
                                                "ranges": ranges, "routes": ROUTES}}
        if kind == "bridge":
            first |= {"bridge": f"br-{network}", "isGateway": True}
        (self.conf_dir / f"{network}.conflist").write_text(json.dumps(
            {"cniVersion": "1.0.0", "name": network, "plugins": [first, *more]}))

    def words(self, *words):
        return [*map(str, words), "--conf-dir", str(self.conf_dir), "--cache-dir", str(self.cache)]

    def command(self, *words):
        return [sys.executable, "-m", "fastcni", *self.words(*words)]

    def add(self, network, netns, name, labels=""):
        """Add the pod shop/NAME to a network, and record the pod's addresses."""
        cni = CNI([str(self.bin_dir)], str(self.conf_dir), str(self.cache))
        args = ("IgnoreUnknown", "1"), ("K8S_POD_NAMESPACE", "shop"), ("K8S_POD_NAME", name), ("LABELS", labels)
        found = cni.add(cni.load(network), RuntimeConf(f"id-{name}", f"/run/netns/{netns}", "eth0", args))
        self.addresses[name] = [ip["address"].partition("/")[0] for ip in found["ips"]]


class Following:
    """A running `fastcni flows --follow --json`. seen: the flows that it has printed."""

    def __init__(self, node, *words):
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        with os.fdopen(to_out, "w") as stdout, os.fdopen(to_err, "w") as stderr:
            self.process = ForkedCommand(node.words("flows", "--follow", "--json", *words), stdout=stdout,
                                         stderr=stderr)
        self.seen = []
        assert "following" in self.stderr.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for file in (self.stdout, self.stderr):
            file.close()

    def until(self, claim):
        """Return the first flow for which claim(flow) is true, and wait for it if necessary."""
        deadline = time.monotonic() + WAIT_S
        while not (found := [flow for flow in self.seen if claim(flow)]):
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.stdout], [], [], left)[0], self.seen
            self.seen.append(json.loads(self.stdout.readline()))
        return found[0]

    def to(self, address, port):
        """Return the first flow to an address and a port, without the key `time`."""
        found = self.until(lambda it: (address, port) == (it["destination"]["address"], it["destination"]["port"]))
        assert abs(found["time"] - time.time()) < 2 * WAIT_S
        return {key: value for key, value in found.items() if key != "time"}


def end(pod, network, address, port):
    return {"pod": pod, "network": network, "container": f"id-{pod.removeprefix('shop/')}", "address": address,
            "port": port}


def short(flow):
    """Return the fields of a flow that are not numbers."""
    return (*(flow[key] for key in ("verdict", "by", "policy", "protocol")),
            *(flow[key]["pod"] for key in ("source", "destination")))


def send(netns, address, port, kind=socket.SOCK_STREAM):
    """Begin a connection from a namespace, or send a datagram. Return the socket."""
    with Inside(netns):
        it = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind | socket.SOCK_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        it.connect((address, port))
    if kind == socket.SOCK_DGRAM:
        it.send(b"hello")
    return it


def rules():
    """Return the lines of the ruleset that would report packets."""
    found = run("nft", "list", "ruleset")
    return [line for line in found.splitlines() if "fastcni-flows" in line or "nftrace" in line or " log " in line]


@pytest.fixture(scope="module")
def bin_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bin")
    install_plugins(str(directory))
    return directory


@pytest.fixture
def node(host_netns, tmp_path, bin_dir):
    return Node(tmp_path, bin_dir)


@contextlib.contextmanager
def agent(node, policies=POLICIES):
    """Run an agent with these policies in the context."""
    directory, nodes = node.directory / "policies", node.directory / "nodes.json"
    directory.mkdir()
    (directory / "policies.yaml").write_text(policies)
    nodes.write_text("""{"Network": "10.72.0.0/16", "Backend": {"Type": "host-gw"}, "nodes": []}""")
    process = subprocess.Popen(
        [sys.executable, "-m", "fastcni", "agent", "--nodes", nodes, "--policies", directory, "--folder",
         node.directory,
         "--conflist", "", "--subnet-file", node.directory / "subnet.env"], stderr=subprocess.PIPE)
    try:
        assert any(b"policies_ready" in line for line in process.stderr)
        yield process
    finally:
        process.terminate()
        process.communicate()


def test_policies_are_named_with_their_pods_and_verdicts(node, pod_netns):
    """The pods web and db are on a bridge, vault has a separate link. The test uses both families, TCP and UDP."""
    policy = {"type": "policy", "agentSocketPath": str(node.agent_socket)}
    node.configure("net", policy)
    node.configure("routed", policy, kind="ptp", ranges=[[{"subnet": "10.73.0.0/24"}], [{"subnet": "fd00:73::/64"}]])
    pods = {name: pod_netns() for name in ("web", "db", "vault")}
    with agent(node):
        for name, netns in pods.items():
            node.add("routed" if name == "vault" else "net", netns, name, f"app:{name}")
        with Following(node) as following, contextlib.ExitStack() as sockets:
            for number in (0, 1):
                web, db, vault = (node.addresses[name][number] for name in pods)
                first = sockets.enter_context(send(pods["web"], db, 80))
                for source, address, port, kind in (("web", db, 81, TCP), ("web", vault, 80, TCP),
                                                    ("vault", db, 53, UDP), ("vault", web, 90, TCP),
                                                    ("vault", web, 99, TCP)):
                    sockets.enter_context(send(pods[source], address, port, kind))
                assert following.to(db, 80) == {
                    "verdict": "allowed", "by": "policy", "policy": "shop/db", "protocol": "tcp", "chain": "",
                    "source": end("shop/web", "net", web, first.getsockname()[1]),
                    "destination": end("shop/db", "net", db, 80)}
                assert short(following.to(db, 81)) == ("dropped", "policy", "shop/db", "tcp", "shop/web", "shop/db")
                assert short(following.to(vault, 80)) == ("dropped", "policy", "shop/closed", "tcp", "shop/web",
                                                          "shop/vault")
                assert short(following.to(db, 53)) == ("dropped", "policy", "shop/db", "udp", "shop/vault", "shop/db")
                assert short(following.to(web, 90)) == ("allowed", "", "", "tcp", "shop/vault", "shop/web")
                assert short(following.to(web, 99)) == ("dropped", "policy", "admin ingress[0] (no vault)", "tcp",
                                                        "shop/vault", "shop/web")


def test_both_directions_are_named_of_pods_with_several_policies(node, pod_netns):
    """All pods have policies of both directions. A cluster policy passes the packets of web on to two NetworkPolicies,
    one for port 80 and one for port 81."""
    policy = {"type": "policy", "agentSocketPath": str(node.agent_socket)}
    node.configure("net", policy)
    node.configure("routed", policy, kind="ptp", ranges=[[{"subnet": "10.73.0.0/24"}], [{"subnet": "fd00:73::/64"}]])
    pods = {name: pod_netns() for name in ("web", "db", "vault")}
    with agent(node, POLICIES + OF_BOTH_DIRECTIONS):
        for name, netns in pods.items():
            node.add("routed" if name == "vault" else "net", netns, name, f"app:{name}")
        db, vault = (node.addresses[name][0] for name in ("db", "vault"))
        route = json.loads(run("ip", "-j", "route", "get", vault))[0]
        run("ip", "route", "add", OF_NO_POD, "dev", route["dev"])
        with Following(node) as following, contextlib.ExitStack() as sockets:
            for address, port, expected in (
                    (db, 80, ("allowed", "shop/out-80, shop/db")), (db, 81, ("dropped", "shop/db")),
                    (db, 82, ("dropped", "shop/out-80, shop/out-81")),
                    (db, 99, ("dropped", "passing egress[0] (no 99)")), (vault, 80, ("dropped", "shop/closed")),
                    (OF_NO_POD, 80, ("dropped", ""))):          # not shop/out-80, shop/out-81
                sockets.enter_context(send(pods["web"], address, port))
                found = following.to(address, port)
                assert (found["verdict"], found["policy"]) == expected


def test_why_nothing_may_be_shown_is_said_at_the_start(node, pod_netns):
    """Once, flows --follow printed nothing, for ever, if the pod's name was mistyped or the cache was another
    runtime's."""
    def warning(*words):
        with Following(node, *words) as following:
            following.process.send_signal(signal.SIGINT)
            return following.stderr.read()

    node.configure("net")
    assert f"no pod is in {node.cache}/results" in (found := warning()) and "--cache-dir" in found
    node.add("net", pod_netns(), "web")
    assert warning("--pod", "shop/wbe") == 'no pod of this node is known as shop/wbe now; did you mean "shop/web"?\n'
    assert warning("--pod", "shop/web") == warning() == ""


def test_isolated_ports_and_firewalls_are_named(node, pod_netns):
    """The causes are portIsolation, `"ingressPolicy": "isolated"`, and another program's rules in the hooks forward and
    input."""
    node.configure("apart", ranges=FAMILIES, portIsolation=True)
    node.configure("kept", {"type": "firewall", "backend": "nftables", "ingressPolicy": "isolated"},
                   ranges=[[{"subnet": "10.74.0.0/24"}], [{"subnet": "fd00:74::/64"}]])
    pods = {name: pod_netns() for name in ("a", "b", "c", "d")}
    for name, netns in pods.items():
        node.add("apart" if name in "ab" else "kept", netns, name)
    run("nft", "add table inet other; add chain inet other f { type filter hook forward priority 0; }; "
        "add chain inet other i { type filter hook input priority 0; }; add rule inet other f tcp dport 99 drop; "
        "add rule inet other i tcp dport 98 reject")
    with Following(node, "--drops") as following, contextlib.ExitStack() as sockets:
        for number, protocol in enumerate(("arp", "icmpv6")):
            _, b, c, d = (node.addresses[name][number] for name in pods)
            for source, address, port in (("a", b, 80), ("c", d, 80), ("a", c, 99), ("a", GATEWAYS[number], 98)):
                sockets.enter_context(send(pods[source], address, port))
            assert short(following.to(b, None)) == ("dropped", "isolation", "", protocol, "shop/a", "shop/b")
            # between ports of ingressPolicy isolated only ARP passes. So over IPv6, the flow that ends is neighbour
            # discovery
            seen = ("tcp", 80) if protocol == "arp" else ("icmpv6", None)
            assert short(following.to(d, seen[1])) == ("dropped", "isolation", "", seen[0], "shop/c", "shop/d")
            assert short(following.to(c, 99)) == ("dropped", "firewall", "", "tcp", "shop/a", "shop/c")
            assert following.to(c, 99)["chain"] == "inet other f"
            assert short(following.to(GATEWAYS[number], 98)) == ("dropped", "firewall", "", "tcp", "shop/a", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rule_reports_packets_before_and_after(node, number):
    assert rules() == []
    with Following(node) as following:
        assert rules()
        following.process.send_signal(number)
        assert following.process.wait(WAIT_S) == (-number if number == signal.SIGKILL else 0)
        assert eventually(lambda: rules() == [])


@contextlib.contextmanager
def flooding(netns, address, port):
    """Send datagrams from a namespace as fast as possible, in a thread. The block begins after the first thousand
    datagrams."""
    with Inside(netns):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ended, begun = threading.Event(), threading.Event()

    def run():
        for number in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
            sender.sendto(b"", (address, port))
            if number == 1000:
                begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(WAIT_S)
        yield
    finally:
        ended.set()
        thread.join()
        sender.close()


def test_a_flood_hides_no_drop_of_other_pods(node, pod_netns):
    """The kernel limits the number of reported packets. Without a separate limit per flow, one pod's packets would use
    up this number."""
    node.configure("net")
    pods = {name: pod_netns() for name in ("a", "b", "c")}
    for name, netns in pods.items():
        node.add("net", netns, name)
    run("nft", "add table inet other; add chain inet other f { type filter hook forward priority 0; }; "
        "add rule inet other f tcp dport 99 drop")
    b = node.addresses["b"][0]
    with Following(node, "--drops", "--pod", "shop/c") as following, flooding(pods["a"], b, 80), \
            send(pods["c"], b, 99):
        assert short(following.to(b, 99)) == ("dropped", "firewall", "", "tcp", "shop/c", "shop/b")


def test_a_server_keeps_flows_and_counts_them_if_it_is_asked_to(node, pod_netns, tmp_path):
    node.configure("net")
    pods = {name: pod_netns() for name in ("a", "b")}
    for name, netns in pods.items():
        node.add("net", netns, name)
    run("nft", "add table inet other; add chain inet other f { type filter hook forward priority 0; }; "
        "add rule inet other f tcp dport 99 drop")
    b, path = node.addresses["b"][0], str(tmp_path / "server.sock")
    with serving(node, path):
        assert last_flows.ask(path) is None and rules() == []
    with serving(node, path, "--flows", "--metrics", tmp_path / "metrics.sock"):
        with send(pods["a"], b, 99), send(pods["a"], b, 80):
            assert eventually(
                lambda: {flow["verdict"] for flow in last_flows.ask(path)["flows"]} == {"allowed", "dropped"})
        drops = [flow for flow in last_flows.ask(path)["flows"] if flow["verdict"] == "dropped"]
        assert short(drops[0]) == ("dropped", "firewall", "", "tcp", "shop/a", "shop/b")
        found = status.ask(path)["flows"]
        assert found["dropped"] >= 1 and short(found["last"][0]) == short(drops[0])
        text = run(*node.command("flows", "--drops", "--last", "1", "--pod", "id-a", "--socket", path))
        assert text[8:] == "  dropped  tcp    shop/a@net > shop/b@net:99  by firewall inet other f\n"
        with socket.socket(socket.AF_UNIX) as scraper:
            scraper.connect(str(tmp_path / "metrics.sock"))
            scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            page = b"".join(iter(lambda: scraper.recv(1 << 16), b"")).decode()
        assert 'fastcni_flow_drops_total{by="firewall",network="net",policy=""}' in page
        assert 'fastcni_flows_total{network="net",verdict="allowed"} 1.0' in page
    assert rules() == []


@contextlib.contextmanager
def serving(node, path, *words):
    """Run a server that listens at a path."""
    process = subprocess.Popen([sys.executable, "-m", "fastcni", "serve", "--socket", path,
                                "--cache-dir", node.cache, *words], stderr=subprocess.PIPE)
    try:
        assert any(b"server_ready" in line for line in process.stderr)
        yield
    finally:
        process.terminate()
        process.communicate()
