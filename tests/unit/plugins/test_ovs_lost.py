"""ovs: a database of Open vSwitch has lost ports. `fastcni restore` and the server add them again."""

import json
import os

import pytest
from lab.node import cid_of, eventually, source_seen
from lab.openvswitch import SCHEMA, assert_nothing_is_left, host_of, needs_ovs
from unit.server.client import Server

from fastcni.kit.ovs import lost
from fastcni.node.attachments.inventory import Places
from fastcni.node.checks import doctor, ovs
from fastcni.runtime import CNI, InProcess, RuntimeConf, parse_list
from fastcni.runtime.restore import restore

pytestmark = needs_ovs


class Runtime:
    """A runtime with a cache of results. conf: the configuration of its only plugin."""

    def __init__(self, directory, conf):
        self.cni, keys = CNI([], cache_dir=directory, runner=InProcess()), dict(conf)
        head = {key: keys.pop(key) for key in ("cniVersion", "name")}
        self.net = parse_list(json.dumps({**head, "plugins": [keys]}).encode())

    @staticmethod
    def of(pod):
        args = ("IgnoreUnknown", "1"), ("K8S_POD_UID", "1-2-3")
        return RuntimeConf(cid_of(pod), f"/run/netns/{pod}", "eth0", args=args)

    def add(self, pod):
        return self.cni.add(self.net, self.of(pod))

    def check(self, pod):
        self.cni.check(self.net, self.of(pod))

    def delete(self, pod):
        self.cni.delete(self.net, self.of(pod))


def lose_database(switch):
    """Stop Open vSwitch, delete its database, create an empty database, and start Open vSwitch."""
    for name in ("ovs-vswitchd", "ovsdb-server"):
        switch.stop(name)
    os.unlink(switch.database)
    switch.run("ovsdb-tool", "create", switch.database, SCHEMA)
    switch.start_ovsdb()
    switch.vsctl("--no-wait", "init")
    switch.start_vswitchd()


def port(switch, name):
    """Return the columns of a port that the plugin has set."""
    row = switch.row("Port", name)
    return {key: row[key] for key in ("name", "tag", "trunks", "vlan_mode", "external_ids")}


@pytest.mark.parametrize("keys", [{"vlan": 100}, {"trunk": [{"minID": 0, "maxID": 3}]}])
def test_ports_of_a_lost_database_are_restored_and_carry_packets(node, switch, ovs_conf, kept, pod_netns, tmp_path,
                                                                 keys):
    first, second, gone = pods = [pod_netns() for _ in range(3)]
    runtime = Runtime(tmp_path / "cni", ovs_conf("10.22.0.0/24", **keys))
    *names, _ = (host_of(runtime.add(pod)) for pod in pods)
    runtime.delete(gone)
    before = [port(switch, name) for name in names]
    lose_database(switch)
    failed = restore(runtime.cni.cache).failed
    assert [it.error.msg for it in failed] == ["failed to find bridge br0"] * 2
    switch.add_bridge("br0")
    done = restore(runtime.cni.cache)
    assert (done.failed, done.attachments) == ((), 2)
    assert [port(switch, name) for name in names] == before
    assert source_seen(first, second, "10.22.0.3", wait=20) == "10.22.0.2"
    runtime.check(first)
    assert restore(runtime.cni.cache).failed == ()          # the second restore finds no port missing
    for pod in (first, second):
        runtime.delete(pod)
    assert_nothing_is_left(node, switch, kept, first)


@pytest.mark.parametrize("keys", [{"vlan": 100}, {"trunk": [{"minID": 0, "maxID": 3}]}, {"vxlanID": 9}])
def test_a_port_that_was_moved_or_has_other_vlans_is_restored(switch, ovs_conf, pod, tmp_path, keys):
    """Once, `fastcni restore` succeeded although the port was in another bridge or VLAN."""
    switch.add_bridge("br2")
    switch.vsctl("add-port", "br0", "far", "tag=5", "--", "set", "interface", "far", "type=vxlan", "options:key=9",
                 "options:remote_ip=192.0.2.1")
    runtime = Runtime(tmp_path / "cni", ovs_conf("10.22.0.0/24", **keys))
    name = host_of(runtime.add(pod))
    before = port(switch, name)
    for change in (["del-port", name, "--", "add-port", "br2", name, "tag=100"],
                   ["del-port", name, "--", "add-port", "br0", name, "tag=7"],
                   ["set", "port", name, "tag=7", "vlan_mode=access", "trunks=[]"],
                   ["set", "port", name, "trunks=7,8", "vlan_mode=trunk", "tag=[]"],
                   ["clear", "port", name, "tag", "trunks", "vlan_mode"]):
        switch.vsctl(*change)
        assert restore(runtime.cni.cache).failed == ()
        assert (port(switch, name), name in switch.ports("br0"), switch.ports("br2")) == (before, True, [])
    assert eventually(lambda: switch.row("Interface", name)["link_state"] == "up")
    runtime.check(pod)
    runtime.delete(pod)
    assert switch.ports("br0") == ["far"]


def test_doctor_finds_what_the_database_has_lost_and_a_vswitchd_that_has_ended(switch, ovs_conf, pod, tmp_path):
    runtime = Runtime(tmp_path / "cni", ovs_conf("10.22.0.0/24"))
    name = host_of(runtime.add(pod))

    def found():
        node = doctor.node_of(Places(str(tmp_path / "net.d"), (str(tmp_path / "cni"),)), (), "")
        return [(it.severity, it.what, it.do) for it in ovs.ports(node)], node.unseen

    assert found() == ([], [])
    restart = f"restart the ovs-vswitchd that was started with {switch.address}"
    assert ovs.restart("/var/run/openvswitch/db.sock") == "systemctl restart openvswitch-switch"
    switch.freeze("ovs-vswitchd")
    try:
        assert found() == ([("error", f"ovs-vswitchd does not answer; it is connected to OVSDB at {switch.address}",
                             restart)], [])
    finally:
        switch.thaw("ovs-vswitchd")
    switch.stop("ovs-vswitchd")
    assert found() == ([("error", f"ovs-vswitchd is not connected to OVSDB at {switch.address}", restart)], [])
    switch.start_vswitchd()
    assert eventually(lambda: found() == ([], []))
    switch.vsctl("set", "port", name, "tag=7")
    assert found() == ([("error", f"the ports of 1 running pod ({cid_of(pod)}/eth0) in Open vSwitch have other VLANs "
                         "than their network has", "fastcni restore")], [])
    switch.vsctl("del-port", name)
    assert found() == ([("error", f"the bridge br0 of Open vSwitch has no port of 1 running pod ({cid_of(pod)}/eth0)",
                         "fastcni restore")], [])
    switch.vsctl("del-br", "br0")
    (finding,), unseen = found()
    assert "has no bridge br0" in finding[1] and unseen == []
    assert finding[2] == f"ovs-vsctl --db={switch.address} add-br br0 && fastcni restore"
    switch.stop("ovsdb-server")
    findings, (text,) = found()
    assert findings == [] and switch.address in text


def test_doctor_says_once_that_the_vlan_of_lost_tunnels_is_unknown(switch, ovs_conf, pod_netns, tmp_path):
    switch.vsctl("add-port", "br0", "far", "tag=5", "--", "set", "interface", "far", "type=vxlan", "options:key=9",
                 "options:remote_ip=192.0.2.1")
    runtime = Runtime(tmp_path / "cni", ovs_conf(vxlanID=9))
    for _ in range(2):
        runtime.add(pod_netns())
    switch.vsctl("del-port", "far")
    node = doctor.node_of(Places(str(tmp_path / "net.d"), (str(tmp_path / "cni"),)), (), "")
    assert [*ovs.ports(node)] == []
    text, = node.unseen
    assert "VLANs of ports of the bridge br0" in text and "it has no tunnel of that key" in text
    failed = restore(runtime.cni.cache).failed
    assert ["vxlanID 9" in it.error.msg for it in failed] == [True, True]


def test_a_server_that_starts_restores_the_ports(switch, ovs_conf, pod, tmp_path):
    runtime = Runtime(tmp_path / "cni", ovs_conf("10.22.0.0/24"))
    name = host_of(runtime.add(pod))
    lose_database(switch)
    switch.add_bridge("br0")
    with Server(tmp_path, "--cache-dir", tmp_path / "cni") as server:
        assert eventually(lambda: server.lines("event=start_replay_done", "attachments=1 ", "failed=0"))
    assert switch.ports("br0") == [name]


def test_a_database_that_does_not_answer_is_asked_once_for_all_pods(switch, ovs_conf, pod_netns, tmp_path, monkeypatch):
    """Otherwise the restore would wait once for each pod before it restores firewall rules."""
    asked = []
    runtime = Runtime(tmp_path / "cni", ovs_conf())
    pods = [pod_netns() for _ in range(3)]
    for pod in pods:
        runtime.add(pod)

    class Counted(lost.Database):
        def __enter__(self):
            asked.append(self.address)
            return super().__enter__()

    monkeypatch.setattr(lost, "Database", Counted)
    switch.freeze("ovsdb-server")
    try:
        failed = restore(runtime.cni.cache).failed
    finally:
        switch.thaw("ovsdb-server")
    assert [(it.error.code, switch.address in it.error.msg) for it in failed] == [(11, True)] * 3
    assert asked == [switch.address]


def test_two_replays_at_the_same_time_do_not_fail(switch, ovs_conf, pod, tmp_path, monkeypatch):
    """The server and `fastcni restore` restore at the same time. Both have read that the port is missing."""
    runtime = Runtime(tmp_path / "cni", ovs_conf())
    name, names = host_of(runtime.add(pod)), lost.Names
    switch.vsctl("del-port", name)
    seen = [names(switch.address)]
    assert restore(runtime.cni.cache).failed == ()
    monkeypatch.setattr(lost, "Names", lambda address: seen.pop() if seen else names(address))
    assert restore(runtime.cni.cache).failed == ()
    assert (seen, switch.ports("br0")) == ([], [name])


def test_the_port_of_a_further_network_is_restored(node, switch, ovs_conf, pod, tmp_path):
    further = {**ovs_conf("10.23.0.0/24", vlan=7), "name": "net-b"}
    runtime = Runtime(tmp_path / "cni", {
        "cniVersion": "1.1.0", "name": "pods", "type": "multus", "cniDir": str(tmp_path / "multus"),
        "delegates": [node.conf("10.22.0.0/24", bridge="mine0"), further]})
    runtime.add(pod)
    name, = switch.ports("br0")
    before = port(switch, name)
    switch.vsctl("del-port", name)
    assert restore(runtime.cni.cache).failed == ()
    assert port(switch, name) == before
    runtime.delete(pod)
    assert switch.ports("br0") == []
