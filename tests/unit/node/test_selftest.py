"""`fastcni selftest`: on a working network no check fails, each fault makes a check fail, and the test leaves
nothing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lab.forked import run_command

from fastcni.launcher.install import install_plugins
from fastcni.runtime.cache import TEMPORARY
from fastcni.selftest import policies
from fastcni.selftest.check import Failed
from fastcni.testing.namespaces import ip, run
from fastcni.testing.witnesses import eventually, set_sysctl

pytestmark = pytest.mark.needs("root")
BRIDGE = "fcst0"
FAMILIES = [[{"subnet": "10.61.0.0/24"}], [{"subnet": "fd00:61::/64"}]]
ROUTES = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
OF_A_BRIDGE = ["add", "pod", "mtu", "gateway", "host", "host-to-pod", "outside", "host-port", "hairpin", "pod-ipv6",
               "mtu-ipv6", "gateway-ipv6", "host-ipv6", "host-to-pod-ipv6", "outside-ipv6", "host-port-ipv6",
               "hairpin-ipv6", "check", "del"]


@pytest.fixture(scope="module")
def bin_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bin")
    install_plugins(str(directory))
    return directory


class Node:
    """The namespace of `host_netns` as a node with one network. Its methods run `fastcni` there."""

    def __init__(self, directory, bin_dir):
        self.directory, self.bin_dir = directory, bin_dir
        self.conf_dir, self.cache, self.networks = directory / "net.d", directory / "cache", directory / "networks"
        self.conf_dir.mkdir()

    def configure(self, *more, kind="bridge", ranges=FAMILIES, routes=ROUTES, **keys):
        """Write the network: an interface plugin with ipMasq, portmap, and the plugins `more`."""
        first = {"type": kind, "ipMasq": True, **keys,
                 "ipam": {"type": "host-local", "dataDir": str(self.networks), "ranges": ranges, "routes": routes}}
        if kind == "bridge":
            first |= {"bridge": BRIDGE, "isGateway": True, "hairpinMode": True}
        plugins = [first, {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}, *more]
        document = {"cniVersion": "1.0.0", "name": "testnet", "plugins": plugins}
        (self.conf_dir / "10-testnet.conflist").write_text(json.dumps(document))
        return self

    def words(self, *words):
        places = ["--conf-dir", self.conf_dir, "--bin-dir", self.bin_dir, "--cache-dir", self.cache]
        return [*words, *map(str, places)]

    def command(self, *words):
        return [sys.executable, "-m", "fastcni", *self.words(*words)]

    def pod(self, name):
        run(*self.command("add", "testnet", f"/run/netns/{name}"))

    def selftest(self, socket=""):
        """Run `fastcni selftest`. Return (exit status, checks)."""
        done = run_command([*self.words("selftest", "testnet"), "--socket", socket, "--json"])
        return done.returncode, json.loads(done.stdout)["checks"]

    def failed(self, **more):
        """Run `fastcni selftest`. Return {name: check} of the failed checks. Assert that the exit status matches."""
        status, checks = self.selftest(**more)
        found = {check["name"]: check for check in checks if not check["ok"]}
        assert status == (1 if found else 0)
        for check in found.values():
            assert check["hop"] and check["what"] and check["command"]
        return found

    def left(self):
        """Return the links, address files and cached results of the node."""
        links = sorted(link["ifname"] for link in json.loads(run("ip", "-j", "link")))
        files = [path.name for path in self.networks.rglob("[0-9f]*") if path.is_file()]
        return links, files, [path.name for path in self.cache.rglob("*") if path.is_file()]


@pytest.fixture
def node(host_netns, tmp_path, bin_dir):
    return Node(tmp_path, bin_dir)


def test_a_bridge_that_works_has_no_failed_check_and_nothing_is_left(node):
    status, checks = node.configure().selftest()
    assert (status, [check for check in checks if not check["ok"]]) == (0, [])
    assert [check["name"] for check in checks] == OF_A_BRIDGE
    assert {(check["network"], check["mode"]) for check in checks} == {("testnet", "one-shot")}
    assert all(check["ms"] >= 0 for check in checks)
    assert node.left() == (["lo"], [], [])


def test_ptp_works_and_running_pods_stay(node, pod_netns):
    node.configure(kind="ptp", ranges=FAMILIES[:1]).pod(pod := pod_netns())
    before = node.left()
    assert node.failed() == {}
    assert node.left() == before
    assert ip("addr", "show", "eth0", netns=pod)


def test_with_a_server_both_modes_are_tested(node, tmp_path):
    path = tmp_path / "server.sock"
    server = subprocess.Popen([sys.executable, "-m", "fastcni", "serve", "--socket", path], stderr=subprocess.DEVNULL)
    try:
        eventually(path.exists)
        status, checks = node.configure().selftest(str(path))
    finally:
        server.terminate()
        server.wait()
    assert status == 0
    modes = [check["mode"] for check in checks]
    assert modes == ["one-shot"] * len(OF_A_BRIDGE) + ["warm"] * len(OF_A_BRIDGE)


def test_the_bandwidth_limit_is_measured(node):
    node.configure({"type": "bandwidth", "capabilities": {"bandwidth": True}})
    status, checks = node.selftest()
    assert status == 0 and "bandwidth" in [check["name"] for check in checks]


def test_a_network_without_a_route_to_outside_is_no_fault(node):
    node.configure(routes=[])
    status, checks = node.selftest()
    texts = {check["name"]: check["what"] for check in checks if check["what"]}
    assert status == 0 and texts.keys() == {"outside", "outside-ipv6"}
    assert "host-port" not in [check["name"] for check in checks] and "no route" in texts["outside"]


@pytest.mark.parametrize(("keys", "more"), [
    ({"portIsolation": True}, [{"type": "bandwidth", "capabilities": {"bandwidth": True}}]),
    ({}, [{"type": "firewall", "ingressPolicy": "isolated"}])])
def test_pods_that_the_network_keeps_apart_are_no_fault(node, keys, more):
    """Once, `pod`, `mtu`, `hairpin` and `bandwidth` failed, although the network worked as configured."""
    node.configure(*more, **keys)
    status, checks = node.selftest()
    assert (status, [check for check in checks if not check["ok"]]) == (0, [])
    untested = {check["name"] for check in checks if check["what"].startswith("not tested: ")}
    assert untested - {"bandwidth"} == {"pod", "pod-ipv6", "mtu", "mtu-ipv6", "hairpin", "hairpin-ipv6"}
    assert ("bandwidth" in untested) == bool(keys)
    assert {"gateway", "host", "host-to-pod", "outside", "host-port"} <= {check["name"] for check in checks} - untested


def test_a_network_without_a_gateway_is_no_fault(node):
    """Once, `gateway` and `host-to-pod` failed, although the network only has to connect its pods."""
    node.configure(routes=[])
    path = node.conf_dir / "10-testnet.conflist"
    document = json.loads(path.read_text())
    document["plugins"][0] |= {"isGateway": False, "ipMasq": False}
    path.write_text(json.dumps(document))
    status, checks = node.selftest()
    assert (status, [check for check in checks if not check["ok"]]) == (0, [])
    found = {check["name"]: check["what"] for check in checks}
    assert "no route of the pod" in found["gateway"] and "gives the node no address" in found["host-to-pod-ipv6"]
    assert found["pod"] == found["mtu-ipv6"] == ""


def test_host_ports_that_multus_passes_on_are_not_tested(node):
    """The cluster network has no plugin for host ports. Once, this was a failed check with the command `fastcni
    restore`."""
    node.configure()
    path = node.conf_dir / "10-testnet.conflist"
    document = json.loads(path.read_text())
    del document["plugins"][1:]
    inner = node.directory / "10-inner.conflist"
    inner.write_text(json.dumps({**document, "name": "inner"}))
    path.write_text(json.dumps({"cniVersion": "1.0.0", "name": "testnet", "plugins": [
        {"type": "multus", "clusterNetwork": str(inner), "capabilities": {"portMappings": True},
         "cniDir": str(node.directory / "multus")}]}))
    status, checks = node.selftest()
    found = {check["name"]: check for check in checks}
    assert status == 0 and found["host-port"]["what"].startswith("not tested: multus passes portMappings")
    assert "hairpin" not in found


@contextlib.contextmanager
def agent(policies, directory):
    """Run an agent with policies in the context. Its socket is directory/policy.sock."""
    nodes = directory / "nodes.json"
    nodes.write_text("""{"Network": "10.62.0.0/16", "Backend": {"Type": "host-gw"}, "nodes": []}""")
    process = subprocess.Popen(
        [sys.executable, "-m", "fastcni", "agent", "--nodes", nodes, "--policies", policies, "--folder", directory,
         "--conflist", "", "--subnet-file", directory / "subnet.env"], stderr=subprocess.PIPE)
    try:
        for line in process.stderr:
            if b"policies_ready" in line:
                break
        yield process
    finally:
        process.terminate()
        process.communicate()


def nft(*rules):
    """Add rules to chains at the rules' hooks, as another program's firewall would."""
    for hook in {rule.split()[0] for rule in rules}:
        run("nft", f"add table inet other; add chain inet other {hook} {{ type filter hook {hook} priority -10; }}")
    for rule in rules:
        run("nft", "add", "rule", "inet", "other", *rule.split())


# {fault: (function that causes it, the checks that fail)}
FAULTS = {
    "a firewall drops forwarded packets": (lambda: nft("forward meta l4proto tcp ct state new drop"),
                                           {"outside", "outside-ipv6", "host-port", "host-port-ipv6"}),
    "a firewall drops echo requests to the gateway": (lambda: nft("input icmp type echo-request drop"), {"gateway"}),
    "a firewall drops what pods send to the node": (lambda: nft(f"input iifname {BRIDGE} tcp flags syn drop"),
                                                    {"host", "host-ipv6"}),
    "a firewall drops what the node sends to pods": (lambda: nft(f"output oifname {BRIDGE} tcp flags syn drop"),
                                                     {"host-to-pod", "host-to-pod-ipv6"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_path_fails_its_checks(node, fault):
    how, expected = FAULTS[fault]
    how()
    assert expected <= node.configure().failed().keys()
    assert node.left() == (["lo"], [], [])


def test_what_an_add_would_mend_is_a_failed_check(node, pod_netns):
    node.configure().pod(pod_netns())
    set_sysctl("net/ipv4/ip_forward", "0")
    run("ip", "address", "del", "10.61.0.1/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "down")
    found = node.failed()
    assert found["bridge"]["command"] == f"ip link set {BRIDGE} up"
    assert found["gateway-address"]["command"] == f"ip address add 10.61.0.1/24 dev {BRIDGE}"
    assert found["forwarding"]["command"] == "sysctl -w net.ipv4.ip_forward=1"


def test_an_address_that_is_not_masqueraded_is_seen_by_the_outside_host(node):
    run("nft", "add table ip other; add chain ip other nat { type nat hook postrouting priority 90; }")
    run("nft", "add rule ip other nat ip saddr 10.61.0.2 snat to 10.61.0.2")
    found = node.configure().failed()
    assert found.keys() == {"outside"} and found["outside"]["hop"] == "masquerade"


def test_a_link_that_is_too_narrow_fails_the_mtu_check(node):
    run("nft", "add table bridge other; add chain bridge other c { type filter hook forward priority filter; }")
    run("nft", "add rule bridge other c udp length > 1400 drop")
    assert node.configure().failed().keys() == {"mtu", "mtu-ipv6"}


def test_a_policy_closes_and_opens_a_pod_where_an_agent_runs(node, tmp_path):
    directory, socket = tmp_path / "policies", tmp_path / "policy.sock"
    directory.mkdir()
    left = policies.Policy(str(directory))
    left.path = directory / "fastcni-selftest-4194305.json"  # a file that a killed test left: no process has this ID
    left.write(opens=True)
    node.configure({"type": "policy", "agentSocketPath": str(socket)})
    with agent(directory, tmp_path):
        status, checks = node.selftest()
    assert [check for check in checks if not check["ok"]] == [] and status == 0
    assert {"policy-closed", "policy-open"} <= {check["name"] for check in checks}
    assert list(directory.iterdir()) == []


def test_a_policy_that_does_not_hold_is_a_failed_check(tmp_path, monkeypatch):
    monkeypatch.setattr(policies, "SETTLED_S", 0.2)
    policy = policies.Policy(str(tmp_path))
    with pytest.raises(Failed, match="pod 2 is still open to pod 1"):
        policy.require(lambda: None, opens=False)

    def refuse():
        raise TimeoutError("timed out")

    with pytest.raises(Failed, match="pod 2 is still closed to pod 1"):
        policy.require(refuse, opens=True)


def test_an_add_that_fails_is_the_only_failed_check(node):
    node.configure({"type": "tuning", "sysctl": {"net.ipv4.no_such_key": "1"}})
    found = node.failed()
    assert list(found) == ["add"] and "no_such_key" in found["add"]["what"]
    assert node.left() == (["lo"], [], [])
    node.configure(kind="ovs", bridge="br0", socket_file="unix:/nowhere/db.sock")
    assert node.failed()["add"]["command"] == "fastcni status testnet"      # the configuration has no wrong key


def has_ended(group):
    """Return whether each process of the process group has ended."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("moment", ["*10.61.0.2", "*selftest-*-1-eth0", "*selftest-*-2-eth0"])
def test_what_a_killed_test_leaves_is_removed_by_the_next_one(node, moment):
    """Once, a test that was killed during its first ADD left an address and elements, and no later test removed
    them."""
    node.configure({"type": "firewall"})
    process = subprocess.Popen([*node.command("selftest", "testnet"), "--socket", "", "--json"],
                               stdout=subprocess.DEVNULL, start_new_session=True)
    eventually(lambda: list(node.directory.rglob(moment)), pause=0.0005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # the killed test's plugin continues until its end
    assert eventually(lambda: has_ended(process.pid))
    eventually(lambda: [name for name in node.left()[0] if name != BRIDGE] == ["lo"])
    # The killed ADD may have left a bridge that is down or without its address. The next ADD completes the bridge.
    assert node.failed().keys() <= {"bridge", "gateway-address", "forwarding"}
    assert node.failed() == {}
    _, addresses, results = node.left()
    # Readers skip the temporary file of a write that was killed before rename().
    assert (addresses, [name for name in results if not name.startswith(TEMPORARY)]) == ([], [])
    assert "fastcni-selftest" not in run("nft", "list", "ruleset")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_test_leaves_nothing(node, number):
    node.configure()
    process = subprocess.Popen([*node.command("selftest", "testnet"), "--socket", "", "--json"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: list(Path(node.cache).rglob("*selftest*")), pause=0.001)
    process.send_signal(number)
    assert process.wait(30) == 1
    assert node.left() == (["lo"], [], [])


DEL_FAILS = """#!/bin/sh
cat > /dev/null
case $CNI_COMMAND in
    ADD) touch {started}; sleep {pause}; echo '{{"cniVersion": "1.0.0", "interfaces": [], "ips": []}}';;
    DEL) echo '{{"cniVersion": "1.0.0", "code": 100, "msg": "no DEL today"}}'; exit 1;;
esac
"""


@pytest.fixture
def without_del(node):
    """Return a function that writes a network whose DEL fails. Its ADD ends after `pause` seconds."""
    def write(pause):
        node.bin_dir = node.directory / "bin"
        node.bin_dir.mkdir()
        program = node.bin_dir / "stays"
        program.write_text(DEL_FAILS.format(started=node.directory / "started", pause=pause))
        program.chmod(0o755)
        (node.conf_dir / "10-testnet.conflist").write_text(json.dumps(
            {"cniVersion": "1.0.0", "name": "testnet", "plugins": [{"type": "stays"}]}))
        return node
    return write


def test_after_a_failed_add_a_failed_del_is_reported(without_del):
    node = without_del(0)
    found = node.failed()
    assert found.keys() == {"add", "del"}
    assert "no DEL today" in found["del"]["what"] and found["del"]["command"] == "fastcni gc testnet"


def test_an_interrupted_test_says_which_pod_stays(without_del):
    node = without_del(20)
    with subprocess.Popen([*node.command("selftest", "testnet"), "--socket", ""], text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert eventually((node.directory / "started").exists)
        process.send_signal(signal.SIGTERM)
        _, text = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "pod 1 of the test stays: DEL: " in text and "no DEL today; fastcni gc testnet" in text


def test_an_unknown_network_is_an_error(node):
    node.configure()
    done = subprocess.run(node.command("selftest", "other"), capture_output=True, text=True)
    assert done.returncode == 1 and 'no net configuration with name "other"' in done.stderr
