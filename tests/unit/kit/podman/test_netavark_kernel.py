"""podman's networks by netavark's plugin protocol. The tests run setup and teardown in this process and by the
installed file."""

import base64
import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from lab.node import Node, addresses, eventually, links, routes, run
from lab.traffic import ask, listen
from unit.server.client import Server

from fastcni.handle import handle
from fastcni.kit.podman import network as networks
from fastcni.kit.podman import record
from fastcni.launcher.install import install_plugins
from fastcni.runtime.cache import Cache
from fastcni.runtime.mode import InProcessMode
from fastcni.runtime.restore import restore
from fastcni.spec import netavark
from fastcni.testing.namespaces import Inside
from fastcni.testing.witnesses import sysctl

ID = "752947ff91f961eb3cb47ffe9315016979f3ffbec09e4d96a4fae3fb03391697"
SUBNET, SUBNET6 = {"subnet": "10.88.0.0/16", "gateway": "10.88.0.1"}, {"subnet": "fd88::/64", "gateway": "fd88::1"}
WEB = {"container_port": 80, "host_port": 8080, "protocol": "tcp", "range": 1, "host_ip": ""}


def setup(*subnets, ips=("10.88.0.50",), ports=(), mac=None, container=ID, interface="eth0", **keys):
    """Return podman's JSON for a container of the network "podman-net". keys: further keys of the network."""
    network = {"name": "podman-net", "id": "2f259bab93", "driver": "fastcni", "network_interface": "podman1",
               "internal": False, "ipv6_enabled": False, "dns_enabled": False, "options": None,
               "ipam_options": {"driver": "host-local"}, "subnets": list(subnets or (SUBNET,)), **keys}
    return {"container_id": container, "container_name": "web", "port_mappings": list(ports), "network": network,
            "network_options": {"aliases": ["7529"], "interface_name": interface, "static_ips": list(ips),
                                "static_mac": mac}}


class Podman:
    """Make podman's requests as launcher and server do, in the test's mode."""

    def __init__(self, mode):
        self.mode = mode

    def __call__(self, command, document, pod):
        """Make a request. Return (exit status, netavark's document, warnings)."""
        path = f"/run/netns/{pod}" if pod else "/run/netns/gone"
        env, stdin = netavark.as_cni({"CNI_COMMAND": command, "CNI_NETNS": path, "PATH": os.environ["PATH"]},
                                     json.dumps(document).encode())
        reply = handle(netavark.NAME, env, stdin, self.mode() if callable(self.mode) else self.mode)
        shown = netavark.answer(reply.status, reply.stdout)
        return reply.status, json.loads(shown) if shown else None, reply.stderr.decode()

    def setup(self, document, pod):
        status, answer, warnings = self("ADD", document, pod)
        assert (status, warnings) == (0, ""), answer
        return answer

    def teardown(self, document, pod):
        assert self("DEL", document, pod) == (0, None, "")


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return the directory of the attachments' records."""
    monkeypatch.setattr(record, "DIRECTORY", str(tmp_path / "cni" / "results"))
    return tmp_path / "cni" / "results"


@pytest.fixture(params=["in-process", "warm"])
def podman(request, results, host_netns):
    return Podman(InProcessMode if request.param == "in-process" else request.getfixturevalue("warm"))


@pytest.fixture
def node(tmp_path, host_netns):
    return Node(tmp_path, host_netns)


def records(results):
    return sorted(path.name for path in results.iterdir()) if results.exists() else []


def test_setup_makes_what_podmans_own_network_has_and_teardown_removes_it(podman, node, pod, external, results):
    document = setup(ports=[WEB], mac="0a:00:5e:00:53:01")
    before = node.left(pod)
    answer = podman.setup(document, pod)
    assert answer == {"dns_search_domains": [], "dns_server_ips": [], "interfaces": {"eth0": {
        "mac_address": "0a:00:5e:00:53:01", "subnets": [{"ipnet": "10.88.0.50/16", "gateway": "10.88.0.1"}]}}}
    assert addresses("eth0", pod)[:1] == ["10.88.0.50/16"] and "10.88.0.1/16" in addresses("podman1")
    assert ("default", "10.88.0.1") in routes(pod)
    assert links(pod)["eth0"]["address"] == "0a:00:5e:00:53:01"
    with Inside(pod):
        assert sysctl("net/ipv4/conf/eth0/rp_filter") == "2"
    with listen(pod, 80):
        assert ask(external, "198.51.100.1", 8080) == "198.51.100.9"
    with listen(external, 90):
        assert ask(pod, "198.51.100.9", 90) == "198.51.100.1"               # the pod's address is masqueraded
    podman.teardown(document, pod)
    assert "eth0" not in links(pod) and records(results) == []
    run("ip", "link", "del", "podman1")         # teardown does not delete the bridge, as with CNI
    assert eventually(lambda: node.left(pod) == before)


def test_both_families_routes_mtu_and_no_default_route(podman, pod):
    document = setup(SUBNET, SUBNET6, ips=["10.88.0.9", "fd88::9"], ipv6_enabled=True,
                     options={"mtu": "1400", "no_default_route": "true"},
                     routes=[{"destination": "10.99.0.0/16", "gateway": "10.88.0.7", "metric": 7}])
    answer = podman.setup(document, pod)
    assert answer["interfaces"]["eth0"]["subnets"] == [{"ipnet": "10.88.0.9/16", "gateway": "10.88.0.1"},
                                                       {"ipnet": "fd88::9/64", "gateway": "fd88::1"}]
    assert links(pod)["eth0"]["mtu"] == 1400
    found = routes(pod)
    assert "default" not in [dst for dst, _ in found] and found[("10.99.0.0/16", "10.88.0.7")]["metric"] == 7
    podman.teardown(document, pod)


def test_an_internal_network_has_no_gateway_no_masquerade_and_no_port(podman, pod, results):
    document = setup({"subnet": "10.88.0.0/16"}, internal=True, ports=[WEB])
    answer = podman.setup(document, pod)
    assert answer["interfaces"]["eth0"]["subnets"] == [{"ipnet": "10.88.0.50/16"}]
    assert "default" not in [dst for dst, _ in routes(pod)]
    assert not any("10.88." in address for address in addresses("podman1"))
    assert "10.88.0.50 . 80" not in run("nft", "list", "ruleset") and "masquerade4" not in run("nft", "list", "ruleset")
    podman.teardown(document, pod)


def test_a_range_of_ports_and_two_protocols(podman, pod):
    document = setup(ports=[{**WEB, "range": 2, "protocol": "tcp,udp", "host_ip": "198.51.100.1"}])
    podman.setup(document, pod)
    ruleset = run("nft", "list", "ruleset")
    for protocol in ("tcp", "udp"):
        for step in (0, 1):
            assert f"198.51.100.1 . {protocol} . {8080 + step}" in ruleset
    podman.teardown(document, pod)
    assert "10.88.0.50" not in run("nft", "list", "ruleset")


def test_isolated_networks_do_not_reach_each_other(podman, pod_netns):
    one, two, free = pod_netns(), pod_netns(), pod_netns()
    isolated = {"options": {"isolate": "true"}}
    first, second = setup(**isolated), setup({"subnet": "10.89.0.0/16", "gateway": "10.89.0.1"}, ips=["10.89.0.5"],
                                             container="second", name="two", network_interface="podman2", **isolated)
    third = setup({"subnet": "10.90.0.0/16", "gateway": "10.90.0.1"}, ips=["10.90.0.5"], container="third",
                  name="three", network_interface="podman3")
    for document, pod in ((first, one), (second, two), (third, free)):
        podman.setup(document, pod)
    with listen(one, 80):
        assert ask(free, "10.88.0.50", 80) == "10.88.0.1"       # this pod's address is masqueraded
        assert not ask(two, "10.88.0.50", 80, wait=0.5)
    for document, pod in ((first, one), (second, two), (third, free)):
        podman.teardown(document, pod)


def test_teardown_succeeds_twice_without_a_record_and_with_the_namespace_gone(podman, pod, results):
    document = setup(ports=[WEB])
    podman.setup(document, pod)
    podman.teardown(document, pod)
    podman.teardown(document, pod)
    podman.setup(document, pod)
    (results / records(results)[0]).unlink()
    podman.teardown(document, pod)
    assert "10.88.0.50" not in run("nft", "list", "ruleset")
    podman.setup(document, pod)
    podman.teardown(document, None)     # the namespace no longer exists, and the kernel has deleted its links
    assert "10.88.0.50" not in run("nft", "list", "ruleset") and records(results) == []


def test_a_failed_setup_leaves_nothing(podman, node, pod, results):
    """netavark calls no teardown for a network whose setup failed."""
    run("ip", "link", "add", "podman1", "type", "bridge")
    before = node.left(pod)
    status, answer, _ = podman("ADD", setup(ports=[{**WEB, "protocol": "icmp"}]), pod)
    assert status == 1 and set(answer) == {"error"} and 'unknown protocol "icmp"' in answer["error"]
    assert eventually(lambda: node.left(pod) == before) and records(results) == []


def test_a_setup_deletes_what_an_earlier_one_has_left_in_another_namespace(podman, pod_netns, results):
    """A power failure or a kill prevented the teardown of the earlier setup."""
    old, new = pod_netns(), pod_netns()
    podman.setup(setup(ports=[WEB]), old)
    podman.setup(setup(ips=["10.88.0.60"], ports=[{**WEB, "host_port": 8081}]), new)
    ruleset = run("nft", "list", "ruleset")
    assert "10.88.0.50" not in ruleset and "8080" not in ruleset and "10.88.0.60 . 80" in ruleset
    assert eventually(lambda: "eth0" not in links(old)) and "eth0" in links(new)
    assert len(records(results)) == 1
    podman.teardown(setup(), new)


@pytest.mark.parametrize("content", [b"", b"{", b'{"config": "e30="}', b'{"config": "W10="}', b'{"config": 1}'])
def test_a_damaged_record_does_not_keep_rules(podman, pod, results, content):
    podman.setup(setup(ports=[WEB]), pod)
    (path,) = results.iterdir()
    path.write_bytes(content)
    podman.teardown(setup(), pod)
    assert "10.88.0.50" not in run("nft", "list", "ruleset") and records(results) == []


def test_ports_lead_to_the_first_network_of_each_family(podman, pod, results):
    """netavark gives a container's ports to each of its networks. Once, the setup of the second network failed, because
    the port was in use."""
    first = setup(ports=[WEB])
    second = setup({"subnet": "10.89.0.0/16", "gateway": "10.89.0.1"}, SUBNET6, ips=["10.89.0.5", "fd88::5"],
                   ports=[WEB, {**WEB, "host_port": 8081, "host_ip": "198.51.100.1"}], interface="eth1", name="two",
                   network_interface="podman2")
    third = setup(ips=["10.88.0.51"], ports=[WEB], interface="eth2")
    for document in (first, second, third):
        podman.setup(document, pod)
    ruleset = run("nft", "list", "ruleset")
    assert [ruleset.count(f"{address} . 80") for address in ("10.88.0.50", "10.89.0.5", "10.88.0.51")] == [1, 0, 0]
    assert ruleset.count("fd88::5 . 80") == 1 and "8081" not in ruleset
    for document in (first, second, third):
        podman.teardown(document, pod)
    assert "fd88::5" not in run("nft", "list", "ruleset") and records(results) == []


def test_flushed_rules_are_restored_from_the_record(podman, pod, external, results):
    podman.setup(setup(ports=[WEB]), pod)
    run("nft", "flush", "ruleset")
    done = restore(Cache(results.parent))
    assert (done.attachments, done.failed) == (1, ())
    with listen(pod, 80):
        assert ask(external, "198.51.100.1", 8080) == "198.51.100.9"
    podman.teardown(setup(ports=[WEB]), pod)


def test_a_list_of_ones_own_gets_podmans_addresses_mac_and_ports(podman, node, pod, results, tmp_path, monkeypatch):
    monkeypatch.setattr(networks, "CONF_DIR", str(tmp_path))
    own = {"cniVersion": "1.0.0", "name": "mine", "plugins": [
        {"type": "bridge", "bridge": "br9", "isGateway": True, "capabilities": {"mac": True, "ips": True},
         "ipam": node.host_local("10.88.0.0/16")}, {"type": "portmap", "capabilities": {"portMappings": True}}]}
    (tmp_path / "9.conflist").write_text(json.dumps(own))
    document = setup(ips=["10.88.0.77"], mac="0a:00:5e:00:53:01", ports=[WEB], options={"conflist": "mine"})
    answer = podman.setup(document, pod)
    assert answer["interfaces"]["eth0"] == {"mac_address": "0a:00:5e:00:53:01", "subnets": [
        {"ipnet": "10.88.0.77/16", "gateway": "10.88.0.1"}]}
    assert set(node.held("mine")) == {"10.88.0.77"} and "10.88.0.77 . 80" in run("nft", "list", "ruleset")
    (tmp_path / "9.conflist").unlink()          # teardown finds the list in the record of the setup
    podman.teardown(document, pod)
    assert node.held("mine") == {} and records(results) == []
    status, answer, _ = podman("ADD", document, pod)
    assert status and f'no network list "mine" in {tmp_path}' in answer["error"]


def test_the_record_is_what_libcni_writes(podman, pod, results):
    podman.setup(setup(ports=[WEB]), pod)
    (path,) = results.iterdir()
    assert path.name == f"podman-net-{ID}-eth0"
    (found,) = Cache(results.parent).attachments()
    assert (found.network, found.container_id, found.ifname, found.netns) == (
        "podman-net", ID, "eth0", f"/run/netns/{pod}")
    assert found.capability_args["portMappings"] == [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]
    config = json.loads(base64.b64decode(json.loads(path.read_text())["config"]))
    assert [plugin["type"] for plugin in config["plugins"]] == ["bridge", "portmap", "firewall", "tuning"]
    podman.teardown(setup(), pod)


class Installed:
    """The installed file and servers in a mount namespace with an empty /var/lib/cni. Mounts of pods' namespaces
    propagate to this mount namespace."""

    def __init__(self, directory):
        self.directory = directory
        install_plugins(directory / "bin", names=["loopback"], netavark_dir=directory / "netavark")
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "slave", "sh", "-ec",
             "mkdir -p /var/lib/cni; mount -t tmpfs none /var/lib/cni; echo ready; exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.holder.stdout.readline() == b"ready\n"
        self.before = ("nsenter", "-t", str(self.holder.pid), "--mount", "--")

    def __call__(self, *words, stdin=b"", server="", **env):
        """Run the installed file. Return (exit status, document, stderr)."""
        done = subprocess.run([*self.before, self.directory / "netavark" / "fastcni", *words], input=stdin,
                              capture_output=True, timeout=60, check=False,
                              env={"PATH": os.environ["PATH"], "FASTCNI_SOCKET": str(server), **env})
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr.decode()

    def records(self):
        return Path(f"/proc/{self.holder.pid}/root/var/lib/cni/results")

    def close(self):
        self.holder.communicate()


@pytest.fixture
def installed(tmp_path, host_netns):
    installed = Installed(tmp_path)
    with contextlib.closing(installed):
        yield installed


def test_the_installed_file_speaks_the_protocol_one_shot_and_by_a_server(installed, node, pod, tmp_path):
    """CNI variables in the environment of podman's caller must have no effect."""
    document = setup(ports=[WEB])
    stdin = json.dumps(document).encode()
    network = {**document["network"], "network_interface": "", "dns_enabled": True}
    path = f"/run/netns/{pod}"
    odd = {"CNI_COMMAND": "CHECK", "CNI_NETNS": "/x", "CNI_CONTAINERID": "y", "CNI_ARGS": "z"}
    with Server(tmp_path, before=installed.before) as server:
        for where in ("", server.path):
            assert installed("info", server=where) == (0, {"version": "0.1.0", "api_version": "1.0.0"}, "")
            status, created, warning = installed("create", stdin=json.dumps(network).encode(), server=where)
            assert (status, created["network_interface"], created["dns_enabled"]) == (0, "podman-2f259bab", False)
            assert "no DNS" in warning
            before = node.left(pod)
            status, answer, stderr = installed("setup", path, stdin=stdin, server=where, **odd)
            assert (status, stderr) == (0, "") and set(answer["interfaces"]) == {"eth0"}
            assert [file.name for file in installed.records().iterdir()] == [f"podman-net-{ID}-eth0"]
            refused = json.dumps(setup(ips=["10.99.0.1"])).encode()
            status, answer, _ = installed("setup", path, stdin=refused, server=where)
            assert status == 1 and set(answer) == {"error"} and "in no subnet" in answer["error"]
            assert installed("setup", path, stdin=b"[]", server=where)[:2] == (
                1, {"error": "decode podman's JSON: expected an object"})
            for _ in range(2):
                assert installed("teardown", path, stdin=stdin, server=where, **odd) == (0, None, "")
            if "podman1" not in str(before["links"]):
                run("ip", "link", "del", "podman1")
            assert eventually(lambda before=before: node.left(pod) == before)
        log = server.log.read_text()
        assert log.count("event=request_done") == 4 and "plugin=netavark network=podman-net" in log
        assert f"container={ID}" in log


def test_a_server_that_is_killed_during_a_setup_costs_nothing_and_leaves_nothing(installed, node, pod, tmp_path):
    """netavark calls no teardown for such a setup. So the launcher runs the setup again, which first deletes
    remains."""
    document = setup(ports=[WEB])
    stdin, path = json.dumps(document).encode(), f"/run/netns/{pod}"
    installed("setup", path, stdin=stdin)       # setup makes the nftables tables, which remain
    installed("teardown", path, stdin=stdin)
    before = node.left(pod)
    strace = ["strace", "-D", "-f", "-o", tmp_path / "trace", "-e", "trace=sendto", "-e",
              "inject=sendto:signal=SIGKILL:when=%d+"]
    outcomes = set()
    for step in (8, 16):
        killed = [*map(str, strace)]
        killed[-1] %= step
        with Server(tmp_path, before=(*installed.before, *killed)) as server:
            status, answer, _ = installed("setup", path, stdin=stdin, server=server.path)
            outcomes.add(server.process.poll() is not None)
            assert status == 0 and answer["interfaces"]["eth0"]["subnets"][0]["ipnet"] == "10.88.0.50/16"
        assert [name for name in links(pod) if name != "lo"] == ["eth0"]
        assert run("nft", "list", "map", "inet", "fastcni", "hostports4").count("10.88.0.50 . 80") == 1
        assert installed("teardown", path, stdin=stdin) == (0, None, "")
        assert eventually(lambda: node.left(pod) == before)
    assert True in outcomes
