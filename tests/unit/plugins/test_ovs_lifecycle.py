"""ovs on a real Open vSwitch: DEL, GC, and requests while OVSDB or ovs-vswitchd is stopped or killed."""

import contextlib
import json
import os
import subprocess

import pytest
from lab.node import Inside, cid_of, eventually, links, run, source_seen
from lab.openvswitch import assert_nothing_is_left, host_of, needs_ovs
from unit.dhcp.clock import Log

from fastcni.kit.ovs import database, ports
from fastcni.launcher.install import install
from fastcni.server.stale_ports import remove_stale_ports

pytestmark = needs_ovs
DUAL = ("10.22.0.0/24", "fd00:22::/64")

# -- DEL, GC -----------------------------------------------------------------------------------------------------

def end_namespace(pod):
    run("ip", "netns", "del", pod)


@pytest.mark.parametrize("how", ["namespace", "link", "no CNI_NETNS"])
def test_del_works_if_namespace_or_link_is_gone_and_twice(node, switch, ovs_conf, kept, pod_netns, how):
    pod = pod_netns()
    conf = ovs_conf("10.22.0.0/24")
    name = host_of(node.add(conf, pod))
    env = {"CNI_NETNS": ""} if how == "no CNI_NETNS" else {}
    if how == "link":
        run("ip", "link", "del", name)
    else:
        end_namespace(pod)
        assert eventually(lambda: name not in links())
    for _ in range(2):
        node.delete(conf, pod, env=env)
    assert_nothing_is_left(node, switch, kept)


def added_by_ovs_cni(node, switch, tmp_path, conf, pod):
    """Make an attachment as ovs-cni leaves it: its external_ids and its file lack fastcni's entries. Return the port's
    name."""
    name = host_of(node.add(conf, pod))
    for key in ("fastcni-container", "fastcni-network"):
        switch.vsctl("remove", "port", name, "external_ids", key)
    file = tmp_path / "cache" / f"c-{pod}-eth0"
    content = json.loads(file.read_text())
    del content["fastcni"]
    file.write_text(json.dumps(content))
    return name


def test_del_removes_what_ovs_cni_has_added(node, switch, ovs_conf, kept, pod, tmp_path):
    conf = ovs_conf("10.22.0.0/24")
    added_by_ovs_cni(node, switch, tmp_path, conf, pod)
    node.delete(conf, pod)
    assert_nothing_is_left(node, switch, kept, pod)


@pytest.mark.parametrize("content", ["", "[]", '{"Netconf": 5}', '{"Netconf": {"socket_file": 5, "deviceID": 0}}'])
def test_del_with_a_damaged_file_asks_where_the_network_says(node, switch, ovs_conf, kept, pod, tmp_path, content):
    conf = ovs_conf("10.22.0.0/24")
    node.add(conf, pod)
    (tmp_path / "cache" / f"c-{pod}-eth0").write_text(content)
    node.delete(conf, pod)
    assert_nothing_is_left(node, switch, kept, pod)


def test_del_of_a_pod_of_ovs_cni_that_fastcni_cannot_delete_says_so(node, switch, ovs_conf, kept, pod, tmp_path):
    """fastcni cannot delete the pod, because TLS leads to its database or it has a virtual function. DEL deletes
    nothing."""
    conf = ovs_conf("10.22.0.0/24")
    name = host_of(node.add(conf, pod))
    file = tmp_path / "cache" / f"c-{pod}-eth0"
    original = file.read_text()
    file.write_text(json.dumps({"Netconf": {**json.loads(original)["Netconf"], "deviceID": "0000:00:1f.6"}}))
    assert node.refused("DEL", conf, pod)["code"] == 2
    assert (switch.ports("br0"), "eth0" in links(pod), len(node.held())) == ([name], True, 1)
    file.write_text(original.replace(switch.address, "ssl:192.0.2.1:6640"))
    assert node.refused("DEL", conf, pod)["code"] == 7
    file.write_text(original)
    node.delete(conf, pod)
    assert_nothing_is_left(node, switch, kept, pod)


def test_a_policy_for_a_port_of_the_switch_is_refused(node, switch, ovs_conf, pod, tmp_path, monkeypatch):
    """Packets between pods on one bridge bypass nftables, so a policy would not apply."""
    monkeypatch.setattr("fastcni.kit.ovs.cache.DIRECTORY", str(tmp_path / "cache"))
    result = node.add(ovs_conf("10.22.0.0/24", dataDir=None), pod)
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": "policy", "agentSocketPath": "/nowhere/policy.sock"}
    error = node.refused("ADD", {**conf, "prevResult": result}, pod)
    assert (error["code"], error["msg"]) == (7, "the pod is a port of Open vSwitch: policies cannot hold for it")
    node.delete(conf, pod)


def test_del_asks_the_database_of_the_add(node, switch, ovs_conf, kept, pod):
    node.add(ovs_conf("10.22.0.0/24"), pod)
    node.delete(ovs_conf("10.22.0.0/24", socket_file="/nowhere/db.sock"), pod)
    assert_nothing_is_left(node, switch, kept, pod)


def test_del_leaves_the_port_of_another_container_at_the_same_path(node, switch, ovs_conf, pod):
    conf = ovs_conf()
    name = host_of(node.add(conf, pod))
    end_namespace(pod)              # without a namespace, DEL cannot delete the link
    node.delete(conf, pod, cid="another")
    assert switch.ports("br0") == [name]


def test_gc_removes_stale_and_invalid_ports_and_none_of_others(node, switch, ovs_conf, kept, pod_netns, tmp_path):
    valid, invalid, dead, old, other = (pod_netns() for _ in range(5))
    conf = ovs_conf("10.22.0.0/24")
    living = host_of(node.add(conf, valid))
    node.add(conf, invalid)
    gone = {host_of(node.add(conf, dead)), added_by_ovs_cni(node, switch, tmp_path, conf, old)}
    foreign = host_of(node.add({**conf, "name": "net-b"}, other))
    for pod in (dead, old):
        end_namespace(pod)
    assert eventually(lambda: not gone & set(links()))
    run("ip", "link", "add", "mine0", "type", "bridge")
    switch.vsctl("add-port", "br0", "mine0")
    switch.vsctl("add-port", "br0", "mine1")                # a port that has no link
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": f"c-{valid}", "ifname": "eth0"}]})
    assert sorted(switch.ports("br0")) == sorted([living, foreign, "mine0", "mine1"])
    assert "eth0" not in links(invalid)
    assert sorted(kept()) == sorted([f"c-{valid}-eth0", f"c-{old}-eth0", f"c-{other}-eth0"])


def test_gc_names_a_file_that_cannot_be_read_and_removes_the_others(node, switch, ovs_conf, kept, pod, tmp_path):
    conf = ovs_conf("10.22.0.0/24")
    node.add(conf, pod)
    (tmp_path / "cache/other").mkdir()
    reply = node.call("GC", {**conf, "cni.dev/valid-attachments": []})
    assert reply.status == 0 and f"read {tmp_path}/cache/other: Is a directory" in reply.stderr.decode()
    assert kept() == ["other"] and not switch.ports("br0")


def test_gc_in_a_namespace_without_the_switch_takes_no_port_for_stale(node, switch, ovs_conf, pod_netns):
    pod, elsewhere = pod_netns(), pod_netns()
    conf = ovs_conf("10.22.0.0/24")
    name = host_of(node.add(conf, pod))
    with Inside(elsewhere):
        node.ok("GC", {**conf, "cni.dev/valid-attachments": []})
    assert switch.ports("br0") == [name]


# -- OVSDB or ovs-vswitchd is stopped or killed -----------------------------------------------------------------------

@contextlib.contextmanager
def without(switch, what, how):
    """Stop the program `what` by SIGSTOP ("frozen") or kill it, and let it run again after the block. In the block, a
    request waits 1 s for the database, not 3 s."""
    if how == "frozen":
        switch.freeze(what)
    else:
        switch.stop(what)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(database, "TIMEOUT_S", 1.0)
            yield
    finally:
        if how == "frozen":
            switch.thaw(what)
        elif what == "ovsdb-server":
            switch.start_ovsdb()
        else:
            switch.start_vswitchd()


@pytest.mark.parametrize("what, how", [("ovsdb-server", "frozen"), ("ovsdb-server", "killed"),
                                       ("ovs-vswitchd", "frozen"), ("ovs-vswitchd", "killed")])
def test_add_without_the_switch_is_code_11_and_leaves_nothing(node, switch, ovs_conf, kept, pod, what, how):
    conf = ovs_conf("10.22.0.0/24")
    with without(switch, what, how):
        error = node.refused("ADD", conf, pod)
        assert (error["code"], switch.address in error["msg"]) == (11, True), error
        assert "eth0" not in links(pod)
        assert (node.held(), kept()) == ({}, [])
        if how == "killed":
            assert node.refused("STATUS", conf)["code"] == 50
            node.delete(conf, pod)
    assert_nothing_is_left(node, switch, kept, pod)
    assert eventually(lambda: node.call("STATUS", conf).status == 0)


def test_check_and_status_notice_an_ovs_vswitchd_that_is_stopped(node, switch, ovs_conf, pod, monkeypatch):
    """A stopped ovs-vswitchd keeps its lock in the database. Once, CHECK and STATUS succeeded for a port that carried
    no packets."""
    conf = ovs_conf("10.22.0.0/24")
    result = node.add(conf, pod)
    for command in ("STATUS", "CHECK"):
        node.ok(command, {**conf, "prevResult": result}, pod)
    monkeypatch.setattr(ports, "ANSWER_TIMEOUT_S", 0.3)
    with without(switch, "ovs-vswitchd", "frozen"):
        errors = [node.refused(command, {**conf, "prevResult": result}, pod) for command in ("STATUS", "CHECK")]
    why = f"ovs-vswitchd does not answer; it is connected to OVSDB at {switch.address}"
    assert [(it["code"], why in it["msg"]) for it in errors] == [(50, True), (999, True)], errors


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_del_without_ovsdb_is_code_11_until_it_is_back(node, switch, ovs_conf, kept, pod, how):
    conf = ovs_conf("10.22.0.0/24")
    node.add(conf, pod)
    with without(switch, "ovsdb-server", how):
        error = node.refused("DEL", conf, pod)
        assert (error["code"], switch.address in error["msg"]) == (11, True)
        assert len(kept()) == 1
        if how == "killed":
            assert node.refused("GC", {**conf, "cni.dev/valid-attachments": []})["code"] == 11
    node.delete(conf, pod)
    assert_nothing_is_left(node, switch, kept, pod)


def test_del_works_without_vswitchd_and_ports_come_back_with_it(node, switch, ovs_conf, kept, pod_netns):
    first, second, third = (pod_netns() for _ in range(3))
    conf = ovs_conf("10.22.0.0/24")
    for pod in (first, second, third):
        node.add(conf, pod)
    with without(switch, "ovs-vswitchd", "killed"):
        node.delete(conf, third)
    assert len(switch.ports("br0")) == 2
    assert source_seen(first, second, "10.22.0.3", wait=20) == "10.22.0.2"


def test_no_port_is_left_if_ovsdb_stops_in_the_middle_of_an_add(node, switch, ovs_conf, kept, pod, monkeypatch):
    """The plugin has checked that the database answers. Then the database stops; when it continues, it processes the
    transaction."""
    operations = ports.operations
    conf = ovs_conf("10.22.0.0/24")

    def stop_then(*args):
        switch.freeze("ovsdb-server")
        return operations(*args)

    monkeypatch.setattr(ports, "operations", stop_then)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "TIMEOUT_S", 1.0)
        assert node.refused("ADD", conf, pod)["code"] == 11
    switch.thaw("ovsdb-server")
    assert kept() == [f"c-{pod}-eth0"]  # because of this file, no DEL succeeds before the database answers
    assert eventually(lambda: len(switch.ports("br0")) == 1)
    node.delete(conf, pod)
    assert_nothing_is_left(node, switch, kept, pod)


# -- modes -------------------------------------------------------------------------------------------------------

def test_a_server_adds_and_deletes_as_one_shot_does(node, switch, ovs_conf, kept, pod_netns, warm):
    pods = [pod_netns() for _ in range(3)]
    conf = ovs_conf("10.22.0.0/24", vlan=100)
    for pod in pods:
        result = node.add(conf, pod, mode=warm)
        node.check(conf, pod, result, mode=warm)
    assert source_seen(pods[0], pods[1], "10.22.0.3") == "10.22.0.2"
    for pod in pods:
        node.delete(conf, pod, mode=warm)
    assert_nothing_is_left(node, switch, kept)


def test_the_server_removes_stale_ports_at_its_start(node, switch, ovs_conf, pod_netns, tmp_path):
    dead, living = pod_netns(), pod_netns()
    conf = ovs_conf("10.22.0.0/24")
    gone, stays = host_of(node.add(conf, dead)), host_of(node.add(conf, living))
    end_namespace(dead)
    assert eventually(lambda: gone not in links())
    remove_stale_ports(Log(), str(tmp_path / "cache"), usual="unix:/nowhere/db.sock")
    assert switch.ports("br0") == [stays]


def test_the_plugin_file_adds_checks_and_deletes_by_itself(node, switch, ovs_conf, kept, pod, tmp_path):
    """The plugin file must contain the modules that only the userspace datapath needs."""
    install(tmp_path / "bin", names=["host-local", "ovs"])
    conf = ovs_conf(*DUAL, vlan=100)

    def call(command, conf):
        program = tmp_path / "bin" / "ovs"
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": cid_of(pod), "CNI_NETNS": f"/run/netns/{pod}",
               "CNI_IFNAME": "eth0", "CNI_PATH": str(program.parent), "PATH": os.environ["PATH"], "FASTCNI_SOCKET": ""}
        done = subprocess.run([program], input=json.dumps(conf).encode(), env=env, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b""), done.stdout
        return json.loads(done.stdout or "null")

    result = call("ADD", conf)
    assert switch.ports("br0") == [host_of(result)]
    call("CHECK", {**conf, "prevResult": result})
    call("STATUS", conf)
    call("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid_of(pod), "ifname": "eth0"}]})
    assert switch.ports("br0") == [host_of(result)]
    call("DEL", conf)
    assert_nothing_is_left(node, switch, kept, pod)
