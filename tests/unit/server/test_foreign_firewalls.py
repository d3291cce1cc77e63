"""Another firewall begins to drop forwarded packets after pods were added. The pods keep their connections. The tests
use the real programs and TCP."""

import contextlib
import io
import json
import os
import subprocess
import threading

import pytest
from conftest import PEER, needs_peer
from lab.node import Inside, cid_of, elements, members, run, set_sysctl
from lab.portmap_chain import DUAL, EXTERNAL, NODE, POD, mapping
from lab.traffic import add_external, ask, listen
from rich.console import Console
from unit.server.foreign_firewalls import (
    EACH,
    LEGACY,
    PROGRAMS,
    docker,
    firewalld,
    firewalld_complete,
    firewalld_nftables,
    needs,
    ufw,
)
from unit.server.test_replaying import remember

from fastcni.cli.text.inventory import print_list
from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.kit.firewall import iptables
from fastcni.node.attachments.inventory import Places, collect
from fastcni.node.checks import kernel as checks_kernel
from fastcni.node.checks.doctor import node_of
from fastcni.node.checks.findings import ERROR
from fastcni.runtime.cache import Cache
from fastcni.runtime.restore import restore
from fastcni.testing.witnesses import eventually

FIREWALLDS = (firewalld, firewalld_complete, firewalld_nftables)
FIREWALL = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall"}


@pytest.fixture
def external(host_netns, pod_netns):
    name = add_external(pod_netns, has_default_route=True)
    with listen(name, 80):
        yield name


@pytest.fixture
def first(node):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return node.conf(*DUAL, isDefaultGateway=True)


class Remembered:
    """The attribute of a Chain that remember() needs."""

    def __init__(self, first):
        self.first = first


def add(call, first, pod, tmp_path):
    """Make a pod's ADD with bridge and firewall, and write its results as the runtime does. Return the firewall
    plugin's configuration."""
    conf = {**FIREWALL, "prevResult": call("ADD", first, pod)}
    call("ADD", conf, pod)
    remember(tmp_path, Remembered(first), pod, conf)
    return conf


def reaches(pod, address, family=4, wait=5.0):
    return ask(pod, EXTERNAL[family], 80, wait=wait) == address


class GoPlugins:
    """The reference plugins as processes. They use the iptables of this kind."""

    def __init__(self, node, first, kind, bus):
        self.node, self.first = node, {**first, "cniVersion": "1.0.0"}
        self.prepare, self.bus = LEGACY if kind == "legacy" else "", bus

    def call(self, plugin, command, conf, pod):
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": cid_of(pod), "CNI_NETNS": f"/run/netns/{pod}",
               "CNI_IFNAME": "eth0", "CNI_PATH": PEER, "PATH": os.environ["PATH"], "DBUS_SYSTEM_BUS_ADDRESS": self.bus}
        subprocess.run(["unshare", "--mount", "--propagation", "slave", "sh", "-c",
                        f"{self.prepare}exec {PEER}/{plugin}"], input=json.dumps(conf), env=env, check=True, text=True,
                       stdout=subprocess.DEVNULL, timeout=30)

    def add(self, pod, **chained):
        """Make a pod's ADD with fastcni's bridge, and then with the reference plugin firewall and the plugins in
        {plugin: keys}. Return the pod's IPv4 address, or None if the reference plugins are not installed."""
        if not os.path.exists(f"{PEER}/firewall"):
            return None
        result = self.node.ok("ADD", self.first, pod)
        for plugin, more in {"firewall": {}, **chained}.items():
            conf = {**FIREWALL, "cniVersion": "1.0.0", "type": plugin, "prevResult": result, **more}
            self.call(plugin, "ADD", conf, pod)
        return result["ips"][0]["address"].partition("/")[0]


@pytest.fixture
def bus(tmp_path, monkeypatch):
    """Return the address of the bus that firewalld uses while it runs. At other times, no program listens there."""
    address = f"unix:path={tmp_path}/bus"
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
    return address


def seen(inventory, pod):
    """Return only this pod's attachments, because the machine can have files of other pods."""
    return [it for it in inventory.attachments if it.container_id == cid_of(pod)]


def ip_of(conf, family=4):
    return conf["prevResult"]["ips"][(4, 6).index(family)]["address"].partition("/")[0]


def soon_reaches(pod, address, family=4):
    return eventually(lambda: reaches(pod, address, family, wait=0.3))


def replayed(server, begin, pods=2):
    """Return whether the server has replayed the pods' rules for both IP families. The families can have separate
    replays, and the test must wait for both, because a DEL during a replay can leave rules behind. Of these programs,
    only firewalld causes a replay when it writes its own rules again."""
    if begin in FIREWALLDS:
        return server.lines("event=rules_replayed", f"attachments={pods} ", "failed=0")
    text = "".join(server.lines("event=pods_let_through", "failed=0"))
    return all(f"{family} filter FORWARD" in text for family in ("ip", "ip6"))


@pytest.mark.parametrize("begin, kind", EACH)
def test_pods_go_on_when_another_firewall_begins_to_filter(
        start, node, first, external, pod_netns, tmp_path, bus, begin, kind):
    """Once, `ufw enable` cut off each pod: nftables accepted the pods' packets, but iptables dropped them. Pods of the
    reference plugin on the same bridge keep their connections, except under firewalld, which removes that plugin's
    rules."""
    go, theirs, last = GoPlugins(node, first, kind, bus), pod_netns(), pod_netns()

    def one_shot(*args):
        return node.ok(*args, env={"DBUS_SYSTEM_BUS_ADDRESS": bus})

    def added(call):
        pod = pod_netns()
        return call, pod, add(call, first, pod, tmp_path)

    early = [added(one_shot)]
    server = start("--cache-dir", tmp_path / "cache")
    assert eventually(lambda: server.lines("event=start_replay_done"))
    early.append(added(server.ok))
    address = go.add(theirs)
    for _, pod, conf in early:
        assert reaches(pod, ip_of(conf)) and reaches(pod, ip_of(conf, 6), 6)

    def go_on():
        for _, pod, conf in early:
            assert soon_reaches(pod, ip_of(conf)), server.log_text()
            assert begin is docker or soon_reaches(pod, ip_of(conf, 6), 6), server.log_text()
        assert not address or begin in FIREWALLDS or soon_reaches(theirs, address)

    with begin(tmp_path, kind) as again:
        set_sysctl("net/ipv4/ip_forward", "1")
        go_on()
        assert eventually(lambda: replayed(server, begin)), server.log_text()
        late = [added(one_shot), added(server.ok)]
        last_address = go.add(last)
        for _, pod, conf in late:
            assert reaches(pod, ip_of(conf))
        assert not last_address or reaches(last, last_address)
        again()
        go_on()
        assert eventually(lambda: replayed(server, begin, len(early + late))), server.log_text()
        for call, pod, conf in early + late:
            call("CHECK", conf, pod)
            call("DEL", conf, pod)
            assert not reaches(pod, ip_of(conf), wait=0.1)
        assert members("fastcni-forward4") == elements("iptables-forward4") == elements("forwarded4") == []
        assert elements("firewalld-sources4") == []


@pytest.mark.parametrize("begin, kind", [each for each in EACH if each.values[0] not in FIREWALLDS])
def test_without_a_server_check_names_the_command_that_lets_pods_through(node, first, external, pod, tmp_path, begin,
                                                                         kind):
    """Once, CHECK's error asked whether the firewall was flushed, although iptables had begun to filter."""
    conf = add(node.ok, first, pod, tmp_path)
    places = Places(str(tmp_path / "none"), (str(tmp_path / "cache"),), (node.data_dir,))

    def dropped_by():
        found, = [it for it in collect(places).attachments if POD[4] in it.addresses]
        return found.dropped_by

    assert dropped_by() == ()
    with begin(tmp_path, kind):
        set_sysctl("net/ipv4/ip_forward", "1")
        assert f"chain FORWARD of iptables-{kind}" in dropped_by()
        assert not reaches(pod, POD[4], wait=0.3)
        error = node.refused("CHECK", conf, pod)
        assert error["msg"].endswith("expected FORWARD rule [-j CNI-FORWARD] not found")
        assert "began to filter after the pod was added" in error["details"] and "fastcni restore" in error["details"]
        assert restore(Cache(tmp_path / "cache")).failed == ()
        assert reaches(pod, POD[4])
        node.ok("CHECK", conf, pod)
        assert dropped_by() == ()
        run("iptables" if kind == "nft" else "iptables-legacy", "-F", "FORWARD")
        assert node.refused("CHECK", conf, pod)["details"] == "was the firewall flushed?"
        node.ok("DEL", conf, pod)
    assert members("fastcni-forward4") == elements("forwarded4") == []


@needs_peer
@needs(*PROGRAMS["nft"], "ufw")
def test_host_ports_pass_a_firewall_that_drops_if_it_allows_the_pods_port_as_with_the_go_plugins(
        node, first, external, pod_netns, tmp_path, bus):
    """The firewall plugin accepts packets from pods, and the answers to these. A connection from outside to a host port
    is neither."""
    go, pods = GoPlugins(node, first, "nft", bus), {port: pod_netns() for port in (8080, 8081, 8082)}
    keys = {port: {"type": "portmap", "capabilities": {"portMappings": True},
                   "runtimeConfig": {"portMappings": [mapping(port)]}} for port in pods}
    for port, more in {8080: {}, 8081: {"backend": "iptables"}}.items():
        conf = add(node.ok, first, pods[port], tmp_path)
        node.ok("ADD", {**conf, **keys[port], **more}, pods[port])
    go.add(pods[8082], portmap={**keys[8082], "backend": "iptables"})

    def reached(wait):
        return {port for port in pods if ask(external, NODE[4], port, wait=wait)}

    with contextlib.ExitStack() as stack:
        for each in pods.values():
            stack.enter_context(listen(each, 80))
        assert reached(5) == {*pods}
        with ufw(tmp_path) as command:
            assert restore(Cache(tmp_path / "cache")).failed == ()
            assert reached(0.3) == set()
            command("route", "allow", "proto", "tcp", "to", "10.22.0.0/24", "port", "80")
            assert reached(5) == {*pods}


@needs("iptables-legacy")
def test_a_flush_of_the_legacy_iptables_is_restored(start, node, first, external, pod, tmp_path):
    """The kernel does not announce such a flush. Once, it cut off the pods until someone ran `fastcni restore`."""
    for program in PROGRAMS["legacy"]:
        run(program, "-P", "FORWARD", "DROP")
    add(node.ok, first, pod, tmp_path)
    server = start("--cache-dir", tmp_path / "cache")
    assert eventually(lambda: server.lines("event=start_replay_done"))
    assert reaches(pod, POD[4])
    run("iptables-legacy", "-F")
    assert eventually(lambda: reaches(pod, POD[4], wait=0.3)), server.log_text()
    assert eventually(lambda: server.lines("event=rules_replayed", 'gone="legacy ip filter', "failed=0"))


@needs("iptables-legacy")
def test_a_caller_from_another_namespace_is_asked_about_its_own_legacy_tables(host_netns, pod_netns):
    """/proc/self/net is the network of the process's first thread, not of the worker that handles the caller's
    request."""
    other, found = pod_netns(), []

    def look():
        with Inside(other):
            found.append(iptables.legacy(Request(Mode(), env={}), "filter"))

    for namespace, there in ((None, False), (other, True)):
        run(*(["ip", "netns", "exec", namespace] if namespace else []), "iptables-legacy", "-P", "FORWARD", "DROP")
        worker = threading.Thread(target=look)
        worker.start()
        worker.join()
        assert found.pop() is there


ADMIN = """table inet admin {
    chain forward { type filter hook forward priority filter; policy drop; jump more; }
    chain more { }
}"""
NAME = "chain forward of nftables inet admin"


@pytest.mark.parametrize("rules", [
    ["ip saddr 10.22.0.0/16 accept", "ip6 saddr fd00:22::/64 accept"], ["iifname br0 accept"],
    ["ip saddr 10.16.0.0/13 accept", "ip6 saddr fd00:22::2 accept"],
])
def test_list_names_pods_that_a_chain_of_an_administrator_drops(node, first, external, pod, tmp_path, rules):
    conf = add(node.ok, first, pod, tmp_path)
    places = Places(str(tmp_path / "none"), (str(tmp_path / "cache"),), (node.data_dir,))
    run("nft", "-f", "-", stdin=ADMIN)
    inventory = collect(places)
    assert [it.dropped_by for it in seen(inventory, pod)] == [(NAME,)]
    out = io.StringIO()
    print_list(seen(inventory, pod), inventory, console=Console(file=out, width=200))
    assert f"not let through: {cid_of(pod)}/eth0 (10.22.0.2 fd00:22::2) by {NAME}; `fastcni doctor`" in out.getvalue()
    it, = checks_kernel.forward_policy(node_of(places, (), ""))
    assert it.severity == ERROR and NAME in it.what and '"backend": "nftables"' in it.do
    for rule in rules:
        run("nft", f"add rule inet admin more {rule}")
    assert [it.dropped_by for it in seen(collect(places), pod)] == [()]
    node.ok("DEL", conf, pod)
    run("nft", "delete table inet admin")
    after = {**FIREWALL, "backend": "nftables", "prevResult": conf["prevResult"]}
    run("nft", "-f", "-", stdin=ADMIN)
    node.ok("ADD", after, pod)
    assert [it.dropped_by for it in seen(collect(places), pod)] == [()]


def rule_of(chain, table="inet admin"):
    """Return the handle of the chain's last rule, as `nft -a` prints it."""
    return run("nft", "-a", "list", "chain", *table.split(), chain).rpartition("# handle ")[2].split()[0]


def is_reached(pod, wanted):
    return soon_reaches(pod, POD[4]) if wanted else not reaches(pod, POD[4], wait=0.3)


REJECTING = """table inet admin {
    chain forward { type filter hook forward priority filter; policy accept; RULES
    }
    chain more { }
}"""
SURE, MAYBE, NOTHING = "", "possibly ", None


@pytest.mark.parametrize("rules, expected", [
    (("ip saddr 10.22.0.0/16 drop",), SURE), (("iifname br0 reject",), SURE),
    (("iifname {br0, br9} counter drop",), SURE),
    (("ct state established accept", "ct status dnat accept", "ip saddr 10.22.0.0-10.22.0.9 log drop"), SURE),
    (("ip saddr 10.22.0.0/16 tcp dport 25 drop",), MAYBE), (("meta mark 7 accept", "ip saddr 10.22.0.2 drop"), MAYBE),
    (("iifname br0 ip saddr != 10.22.0.0/16 drop",), NOTHING), (("iifname br1 drop",), NOTHING),
    (("tcp dport 25 drop",), NOTHING),
    (("ct state invalid drop", "meta l4proto udp reject"), NOTHING),
    (("ip saddr 10.22.0.2 accept", "ip saddr 10.22.0.0/16 drop"), NOTHING),
])
def test_list_and_doctor_name_a_rule_of_nftables_that_drops_what_a_pod_sends(
        node, first, external, pod, tmp_path, rules, expected):
    """Once, these commands read only the policies of chains. If `nft add rule ... drop` had cut off a pod, neither of
    them reported it."""
    add(node.ok, first, pod, tmp_path)
    places = Places(str(tmp_path / "none"), (str(tmp_path / "cache"),), (node.data_dir,))
    assert [it.dropped_by for it in seen(collect(places), pod)] == [()]
    run("nft", "-f", "-", stdin=REJECTING.replace("RULES", "\n".join(rules)))
    name = f"rule {rule_of('forward')} of chain forward of nftables inet admin"
    assert expected == MAYBE or is_reached(pod, expected is NOTHING)
    inventory = collect(places)
    assert [it.dropped_by for it in seen(inventory, pod)] == [() if expected is NOTHING else (expected + name,)]
    found = list(checks_kernel.forward_rules(node_of(places, (), "")))
    assert [it.what.partition(" packets that ")[0] for it in found] == {
        SURE: [f"{name} drops"], MAYBE: [f"{name} may drop"], NOTHING: []}[expected]
    assert all("nft -a list chain inet admin forward" in it.do for it in found)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=needs(*PROGRAMS[kind])) for kind in PROGRAMS])
@pytest.mark.parametrize("rules, expected", [
    (("-A FORWARD -s 10.22.0.0/16 -j DROP",), SURE), (("-A FORWARD -i br+ -j REJECT",), SURE),
    (("-N USER", "-A FORWARD -m conntrack --ctstate NEW -j USER", "-A USER -i br0 -j DROP"), SURE),
    (("-A FORWARD -s 10.22.0.2 -p tcp --dport 25 -j DROP",), MAYBE),
    (("-A FORWARD -m mark --mark 7 -j ACCEPT", "-A FORWARD -i br0 -j DROP"), MAYBE),
    (("-A FORWARD -i br0 ! -s 10.22.0.0/16 -j DROP",), NOTHING), (("-A FORWARD -o br9 -j DROP",), NOTHING),
    (("-A FORWARD -m conntrack --ctstate INVALID -j DROP",), NOTHING),
    (("-N USER", "-A USER -i br0 -j DROP"), NOTHING), (("-N USER", "-A USER -j RETURN", "-A FORWARD -j USER"), NOTHING),
])
def test_list_names_a_rule_of_iptables_that_drops_what_a_pod_sends(node, first, external, pod, tmp_path, kind, rules,
                                                                   expected):
    add(node.ok, first, pod, tmp_path)
    program = PROGRAMS[kind][0]
    for rule in rules:
        run(program, *rule.split())
    assert expected == MAYBE or is_reached(pod, expected is NOTHING)
    places = Places(str(tmp_path / "none"), (str(tmp_path / "cache"),), (node.data_dir,))
    found, = seen(collect(places), pod)
    last = next(line for line in reversed(run(program, "-S").splitlines()) if line.startswith("-A"))
    assert found.dropped_by == (() if expected is NOTHING else (f"{expected}rule `{last}` of iptables-{kind}",))


@needs("firewalld", "dbus-daemon")
def test_list_names_the_rule_of_firewalld_that_drops_what_a_pod_sends(node, first, external, pod, tmp_path, bus):
    add(node.ok, first, pod, tmp_path)
    places = Places(str(tmp_path / "none"), (str(tmp_path / "cache"),), (node.data_dir,))
    with firewalld_nftables(tmp_path):
        assert not reaches(pod, POD[4], wait=0.3)
        found, = seen(collect(places), pod)
        assert "of nftables inet firewalld" in found.dropped_by[0] and "possibly" not in found.dropped_by[0]
        it, = checks_kernel.forward_rules(node_of(places, (), ""))
        assert it.do == "fastcni restore"
        assert restore(Cache(tmp_path / "cache")).failed == ()
        assert reaches(pod, POD[4])
        found, = seen(collect(places), pod)
        assert found.dropped_by == ()
