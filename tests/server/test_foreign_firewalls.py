"""A firewall that begins to drop forwarded packets after pods came cuts none of them off (real programs, by TCP)."""

import io
import json
import os
import subprocess
import threading

import pytest
from conftest import PEER, needs_peer
from real_kernel.node import Inside, cid_of, elements, members, run, set_sysctl
from real_kernel.portmap_chain import DUAL, EXTERNAL, POD
from real_kernel.traffic import add_external, ask, listen
from rich.console import Console
from server.foreign_firewalls import EACH, PROGRAMS, needs
from server.test_replaying import remember

from fastcni.cli.inventory import print_list
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

SECOND = {4: "10.22.0.3", 6: "fd00:22::3"}
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
    """What remember() needs of a chain."""

    def __init__(self, first):
        self.first = first


def add(call, first, pod, tmp_path):
    """Add a pod by bridge and firewall; write the runtime's cache. Return firewall's configuration."""
    conf = {**FIREWALL, "prevResult": call("ADD", first, pod)}
    call("ADD", conf, pod)
    remember(tmp_path, Remembered(first), pod, conf)
    return conf


def reaches(pod, address, family=4, wait=5.0):
    return ask(pod, EXTERNAL[family], 80, wait=wait) == address


@pytest.mark.parametrize("begin, kind", EACH)
def test_a_server_brings_pods_into_a_firewall_that_begins_to_filter(
        start, node, first, external, pod, pod_netns, tmp_path, begin, kind):
    """`ufw enable` cut off each pod: nftables let them through, and iptables dropped their packets from then on."""
    conf = add(node.ok, first, pod, tmp_path)
    server = start("--cache-dir", tmp_path / "cache")
    assert eventually(lambda: server.lines("event=start_replay_done"))
    assert reaches(pod, POD[4]) and reaches(pod, POD[6], 6)
    assert elements("forwarded4") == [POD[4]]
    with begin(tmp_path, kind):
        assert eventually(lambda: reaches(pod, POD[4], wait=0.3)), server.log_text()
        assert eventually(lambda: begin.__name__ == "docker" or reaches(pod, POD[6], 6, wait=0.3))
        assert eventually(lambda: server.lines("event=pods_let_through", "FORWARD", "failed=0")), server.log_text()
        server.ok("CHECK", conf, pod)
        late = pod_netns()
        after = add(server.ok, first, late, tmp_path)
        assert reaches(late, SECOND[4])
        for name, each in ((pod, conf), (late, after)):
            server.ok("DEL", each, name)
            assert not reaches(name, POD[4], wait=0.3)
        assert members("fastcni-forward4") == elements("iptables-forward4") == elements("forwarded4") == []


@pytest.mark.parametrize("begin, kind", EACH)
def test_without_a_server_check_names_the_command_that_lets_pods_through(node, first, external, pod, tmp_path, begin,
                                                                         kind):
    """CHECK asked whether the firewall was flushed. Nothing was flushed: iptables had begun to filter."""
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
@pytest.mark.parametrize("begin, kind", [each for each in EACH if each.values[1] == "nft"])
def test_pods_of_go_and_of_fastcni_go_on_side_by_side(
        start, node, first, external, pod, pod_netns, tmp_path, begin, kind):
    """The Go plugin's pod went on, and fastcni's pod on the same bridge was cut off."""
    add(node.ok, first, pod, tmp_path)
    server = start("--cache-dir", tmp_path / "cache")
    assert eventually(lambda: server.lines("event=start_replay_done"))
    other = pod_netns()
    conf = {**FIREWALL, "cniVersion": "1.0.0", "prevResult": node.ok("ADD", {**first, "cniVersion": "1.0.0"}, other)}
    env = {"CNI_CONTAINERID": cid_of(other), "CNI_NETNS": f"/run/netns/{other}", "CNI_IFNAME": "eth0",
           "CNI_PATH": PEER, "PATH": os.environ["PATH"], "DBUS_SYSTEM_BUS_ADDRESS": "unix:path=/nowhere"}
    for command in ("ADD", "CHECK"):
        subprocess.run([f"{PEER}/firewall"], input=json.dumps(conf), env={**env, "CNI_COMMAND": command}, check=True,
                       text=True, stdout=subprocess.DEVNULL, timeout=30)
    with begin(tmp_path, kind):
        set_sysctl("net/ipv4/ip_forward", "1")
        assert eventually(lambda: reaches(pod, POD[4], wait=0.3)), server.log_text()
        assert eventually(lambda: reaches(other, SECOND[4], wait=0.3))


@needs("iptables-legacy")
def test_a_flush_of_the_legacy_iptables_is_restored(start, node, first, external, pod, tmp_path):
    """The kernel sends no notification of it. Pods were cut off until `fastcni restore`."""
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
    """/proc/self/net is the network of the process's first thread, not of the worker that serves the caller."""
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
    assert [it.dropped_by for it in inventory.attachments] == [(NAME,)]
    out = io.StringIO()
    print_list(inventory.attachments, inventory, console=Console(file=out, width=200))
    assert f"not let through: {cid_of(pod)}/eth0 (10.22.0.2 fd00:22::2) by {NAME}; `fastcni doctor`" in out.getvalue()
    it, = checks_kernel.forward_policy(node_of(places, (), ""))
    assert it.severity == ERROR and NAME in it.what and '"backend": "nftables"' in it.do
    for rule in rules:
        run("nft", f"add rule inet admin more {rule}")
    assert [it.dropped_by for it in collect(places).attachments] == [()]
    node.ok("DEL", conf, pod)
    run("nft", "delete table inet admin")
    after = {**FIREWALL, "backend": "nftables", "prevResult": conf["prevResult"]}
    run("nft", "-f", "-", stdin=ADMIN)
    node.ok("ADD", after, pod)
    assert [it.dropped_by for it in collect(places).attachments] == [()]
