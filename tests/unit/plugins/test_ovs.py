"""ovs on a real Open vSwitch with the userspace datapath: configuration keys, the port, the pod's packets, CHECK."""

import json
import select
import socket
import struct
import time

import pytest
from lab.node import Inside, addresses, eventually, links, source_seen
from lab.openvswitch import assert_nothing_is_left, host_of, needs_ovs

pytestmark = needs_ovs
OWNER = "ovs-cni.network.kubevirt.io"
DUAL = ("10.22.0.0/24", "fd00:22::/64")
SILENT_S = 0.5                  # for so long nothing must arrive


# -- ADD ---------------------------------------------------------------------------------------------------------

def test_add_makes_a_port_as_ovs_cni_does_and_del_leaves_nothing(node, switch, ovs_conf, kept, pod):
    conf = ovs_conf(*DUAL, vlan=100)
    result = node.add(conf, pod, env={"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_UID=1-2-3"})
    port, interface = switch.row("Port", host_of(result)), switch.row("Interface", host_of(result))
    assert (port["tag"], port["vlan_mode"], port["trunks"]) == (100, "access", [])
    assert port["external_ids"] == {
        "owner": OWNER, "contNetns": f"/run/netns/{pod}", "contIface": "eth0", "contPodUid": "1-2-3",
        "fastcni-container": f"c-{pod}", "fastcni-network": "net-a"}
    assert (interface["link_state"], interface["error"]) == ("up", [])
    assert [each["name"] for each in result["interfaces"]] == [host_of(result), "eth0"]
    assert {ip["interface"] for ip in result["ips"]} == {1}
    assert {"10.22.0.2/24", "fd00:22::2/64"} <= {*addresses("eth0", pod)}
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert_nothing_is_left(node, switch, kept, pod)
    node.delete(conf, pod)


def test_the_cache_has_what_ovs_cni_reads_of_it(node, switch, ovs_conf, kept, tmp_path, pod):
    node.add(ovs_conf("10.22.0.0/24", vlan=100, mtu=1400), pod)
    assert kept() == [f"c-{pod}-eth0"]
    found = json.loads((tmp_path / "cache" / f"c-{pod}-eth0").read_text())
    net_conf = found["Netconf"]
    assert (net_conf["bridge"], net_conf["socket_file"], net_conf["ipam"]["type"], net_conf["vlan"]) == (
        "br0", switch.address, "host-local", 100)
    assert (found["OrigIfName"], found["UserspaceMode"]) == ("", False)


@pytest.mark.parametrize("subnets, mac", [(DUAL, "0a:58:0a:16:00:02"), (DUAL[1:], None)])
def test_a_pod_without_a_requested_mac_has_one_of_its_ipv4_address(node, ovs_conf, pod, subnets, mac):
    found = node.add(ovs_conf(*subnets), pod)["interfaces"][1]["mac"]
    assert found == mac if mac else not found.startswith("0a:58")
    assert links(pod)["eth0"]["address"] == found


@pytest.mark.parametrize("keys, args", [
    ({}, "MAC=0a:00:00:00:00:05"), ({}, "mac=0a:00:00:00:00:05"),
    ({"args": {"cni": {"MAC": "0a:00:00:00:00:05"}}}, "K8S_POD_NAME=web"),
    ({"capabilities": {"mac": True}, "runtimeConfig": {"mac": "0a:00:00:00:00:05"}}, "MAC=0a:00:00:00:00:06")])
def test_a_requested_mac_is_the_pods(node, ovs_conf, pod, keys, args):
    result = node.add(ovs_conf("10.22.0.0/24", **keys), pod, env={"CNI_ARGS": f"IgnoreUnknown=1;{args}"})
    assert result["interfaces"][1]["mac"] == links(pod)["eth0"]["address"] == "0a:00:00:00:00:05"


@pytest.mark.parametrize("keys, args", [({"args": {"cni": {"OvnPort": "lsp1"}}}, ""), ({}, "ovnPort=lsp1")])
def test_an_ovn_port_is_named_to_ovn_on_the_bridge_br_int(node, switch, ovs_conf, pod, keys, args):
    switch.add_bridge("br-int")
    result = node.add(ovs_conf(bridge=None, **keys), pod, env={"CNI_ARGS": args})
    assert switch.ports("br-int") == [host_of(result)]
    assert switch.row("Interface", host_of(result))["external_ids"] == {"iface-id": "lsp1"}


def test_port_number_type_and_mtu_are_as_asked(node, switch, ovs_conf, pod):
    result = node.add(ovs_conf(ofport_request=77, interface_type="system", mtu=1400), pod)
    interface = switch.row("Interface", host_of(result))
    assert (interface["ofport"], interface["type"]) == (77, "system")
    assert (links()[host_of(result)]["mtu"], links(pod)["eth0"]["mtu"]) == (1400, 1400)
    assert [each["mtu"] for each in result["interfaces"]] == [1400, 1400]


def test_a_trunk_is_one_sorted_set_and_no_vlan_is_a_trunk_of_all(node, switch, ovs_conf, pod_netns):
    some, every = pod_netns(), pod_netns()
    ranges = [{"id": 42}, {"minID": 8, "maxID": 10}, {"minID": 9, "maxID": 11, "id": 5}, {"id": 0}]
    of_some = ovs_conf(trunk=ranges, vlan=7)
    result = node.add(of_some, some)
    port = switch.row("Port", host_of(result))
    assert (port["vlan_mode"], port["trunks"], port["tag"]) == ("trunk", [0, 5, 8, 9, 10, 11, 42], [])
    node.check(of_some, some, result)
    port = switch.row("Port", host_of(node.add(ovs_conf(), every)))
    assert (port["vlan_mode"], port["trunks"], port["tag"]) == ("trunk", [], [])


@pytest.mark.parametrize("keys", [
    {"vlan": 4095}, {"vlan": -1}, {"trunk": [{"id": 4095}]}, {"trunk": [{"minID": 9, "maxID": 8}]},
    {"trunk": [{"minID": 9}]}, {"trunk": [{}]}, {"bridge": ""}, {"ofport_request": 65280},
    {"socket_file": "ssl:10.0.0.1:6640"}, {"socket_file": "tcp:6640"},
    {"socket_file": "tcp:localhost:6640"}, {"socket_file": "tcp:127.0.0.1"}, {"socket_file": "/run/a\0b"},
    {"configuration_path": "/etc/a\0b"}, {"dataDir": "/var/a\0b"},
    {"vxlanID": 1 << 24}, {"vxlanID": 5, "vlan": 5}])
def test_a_bad_key_is_code_7_before_anything_is_made(node, switch, ovs_conf, kept, pod, keys):
    switch.freeze("ovsdb-server")           # the plugin must not ask the stopped server
    try:
        error = node.refused("ADD", ovs_conf("10.22.0.0/24", **keys), pod)
        assert error["code"] == 7
        assert keys.get("socket_file") != "tcp:6640" or error["msg"].endswith("expected tcp:IP:PORT, got tcp:6640")
    finally:
        switch.thaw("ovsdb-server")
    assert_nothing_is_left(node, switch, kept, pod)


def test_a_virtual_function_is_refused_by_name(node, ovs_conf, pod):
    error = node.refused("ADD", ovs_conf(deviceID="0000:00:1f.6"), pod)
    assert (error["code"], error["msg"]) == (2, "deviceID: hardware offload is not supported")


def test_a_bridge_that_is_missing_is_named(node, switch, ovs_conf, kept, pod):
    error = node.refused("ADD", ovs_conf("10.22.0.0/24", bridge="br9"), pod)
    assert (error["code"], error["msg"]) == (11, "failed to find bridge br9")
    assert switch.address in error["details"]
    assert_nothing_is_left(node, switch, kept, pod)


def test_what_ipam_refuses_leaves_nothing_and_del_succeeds(node, switch, ovs_conf, kept, pod):
    conf = ovs_conf("10.22.0.0/24")
    bad = {**conf, "ipam": {**conf["ipam"], "ranges": [[{"subnet": "10.22.0.0/30", "rangeStart": "10.22.0.2",
                                                        "rangeEnd": "10.22.0.2", "gateway": "10.22.0.1"}]]}}
    node.add(bad, pod, cid="first", ifname="eth9")
    before = switch.ports("br0"), kept(), node.held()
    node.refused("ADD", bad, pod)
    assert (switch.ports("br0"), kept(), node.held()) == before
    node.delete(bad, pod)
    assert (switch.ports("br0"), kept(), node.held()) == before


def test_a_port_that_vswitchd_cannot_use_is_an_error_and_leaves_nothing(node, switch, ovs_conf, kept, pod):
    error = node.refused("ADD", ovs_conf("10.22.0.0/24", interface_type="nonsense"), pod)
    assert "ovs-vswitchd cannot use port veth" in error["msg"]
    assert_nothing_is_left(node, switch, kept, pod)


# -- packets -----------------------------------------------------------------------------------------------------

def test_pods_of_one_vlan_hear_each_other_and_no_other_vlan(node, ovs_conf, pod_netns):
    first, second, other = (pod_netns() for _ in range(3))
    for pod, vlan in ((first, 100), (second, 100), (other, 200)):
        node.add(ovs_conf(*DUAL, vlan=vlan), pod)
    assert source_seen(first, second, "10.22.0.3") == "10.22.0.2"
    assert source_seen(first, second, "fd00:22::3") == "fd00:22::2"
    assert source_seen(first, other, "10.22.0.4", wait=SILENT_S) is None


def packets_of(pod):
    with Inside(pod):
        found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))       # ETH_P_ALL
    found.bind(("eth0", 3))
    return found


def frames(sock, seconds, wanted=lambda frame: True):
    """Yield the frames that match and arrive within `seconds`."""
    end = time.monotonic() + seconds
    while select.select([sock], [], [], max(0, end - time.monotonic()))[0]:
        frame, (_, _, kind, *_) = sock.recvfrom(2000)
        if kind != socket.PACKET_OUTGOING and wanted(frame):
            yield frame


def test_a_trunk_carries_its_vlans_tagged_and_drops_others(node, switch, ovs_conf, pod_netns):
    """The kernel may not support 802.1Q links, so packet sockets send and receive the frames."""
    trunk, access = pod_netns(), pod_netns()
    node.add(ovs_conf(trunk=[{"minID": 99, "maxID": 101}]), trunk)
    node.add(ovs_conf(vlan=100), access)
    with packets_of(trunk) as sender, packets_of(access) as receiver:
        def send(vid):
            sender.send(b"\xff" * 6 + b"\x0a\0\0\0\0\x01" + struct.pack("!HHH", 0x8100, vid, 0x88B5) + b"vid %d" % vid
                        + bytes(50))

        def arrives(vid):
            send(vid)
            return next(frames(receiver, 0.2, lambda frame: b"vid %d" % vid in frame), None)

        assert eventually(lambda: arrives(100))
        assert arrives(100)[12:14] == b"\x88\xb5"           # the access port removes the tag
        send(101)                                           # the trunk has VLAN 101, but the access port has VLAN 100
        send(55)
        assert not [*frames(receiver, SILENT_S, lambda frame: b"vid 101" in frame or b"vid 55" in frame)]


def test_a_pod_announces_its_addresses_when_its_port_is_up(node, ovs_conf, pod_netns):
    first, second = pod_netns(), pod_netns()
    node.add(ovs_conf(*DUAL), first)
    with packets_of(first) as receiver:
        mac = bytes.fromhex(node.add(ovs_conf(*DUAL), second)["interfaces"][1]["mac"].replace(":", ""))
        source, senders = bytes((10, 22, 0, 3)), {}
        for frame in frames(receiver, 10, lambda frame: (frame[12:14], frame[28:32]) == (b"\x08\x06", source)
                            or (frame[12:14] == b"\x86\xdd" and frame[54] == 136)):
            senders[frame[12:14]] = frame[6:12]
            if len(senders) == 2:
                break
        assert senders == {b"\x08\x06": mac, b"\x86\xdd": mac}      # the two announcements may arrive in either order


def add_tunnel(switch, name, key, remote, *columns):
    switch.vsctl("add-port", "br0", name, *columns, "--", "set", "interface", name, "type=vxlan", f"options:key={key}",
                 f"options:remote_ip={remote}")


def test_vxlan_id_puts_the_pod_into_the_vlan_of_the_bridges_tunnels(node, switch, ovs_conf, kept, pod_netns):
    first, second = pod_netns(), pod_netns()
    segment = ovs_conf(vxlanID=42)
    error = node.refused("ADD", segment, first)
    assert (error["code"], error["msg"]) == (11, "vxlanID 42: bridge br0: it has no tunnel of that key")
    assert_nothing_is_left(node, switch, kept)
    add_tunnel(switch, "vx1", 42, "192.0.2.1", "tag=9")
    add_tunnel(switch, "vx2", 42, "192.0.2.2", "tag=9")
    add_tunnel(switch, "vx3", 43, "192.0.2.1", "tag=10")
    result = node.add(segment, first)
    port = switch.row("Port", host_of(result))
    assert (port["vlan_mode"], port["tag"]) == ("access", 9)
    node.check(segment, first, result)
    switch.vsctl("set", "port", "vx2", "tag=11")
    assert "are in different VLANs" in node.refused("ADD", segment, second)["msg"]


# -- CHECK -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("change, text", [
    (("set", "port", "NAME", "tag=101"), "vlan tag 101 does not match expected value: 100"),
    (("set", "port", "NAME", "vlan_mode=trunk"), "vlan mode trunk does not match expected value: access"),
    (("del-port", "NAME"), "Error: bridge br0 has no port NAME"),
    (("--", "add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=netdev", "--", "del-port", "NAME", "--",
      "add-port", "br1", "NAME"), "Error: bridge br0 has no port NAME")])
def test_check_notices_what_another_program_has_changed(node, switch, ovs_conf, pod, change, text):
    conf = ovs_conf("10.22.0.0/24", vlan=100)
    result = node.add(conf, pod)
    switch.vsctl(*(word.replace("NAME", host_of(result)) for word in change))
    assert text.replace("NAME", host_of(result)) in node.check_refused(conf, pod, result)


def test_check_notices_a_vswitchd_that_has_ended(node, switch, ovs_conf, pod):
    conf = ovs_conf("10.22.0.0/24")
    result = node.add(conf, pod)
    switch.stop("ovs-vswitchd")
    assert "ovs-vswitchd is not connected" in node.check_refused(conf, pod, result)


def test_check_asks_the_database_in_which_add_made_the_port(node, switch, ovs_conf, pod):
    """The file of configuration_path may be missing. Once, DEL read the database's address in the pod's file, but CHECK
    did not."""
    conf = ovs_conf("10.22.0.0/24")
    result = node.add(conf, pod)
    node.check({**conf, "socket_file": "unix:/nowhere/db.sock"}, pod, result)


# -- ovs.conf ----------------------------------------------------------------------------------------------------

def test_the_first_ovs_conf_gives_what_the_network_lacks(node, switch, ovs_conf, pod_netns, tmp_path, monkeypatch):
    usual, own = tmp_path / "ovs.conf", tmp_path / "own.conf"
    monkeypatch.setattr("fastcni.kit.ovs.ovs_conf.FILES", (str(tmp_path / "missing"), str(usual)))
    usual.write_text(json.dumps({"socket_file": switch.socket, "vlan": 5, "bridge": "br9"}))
    own.write_text(json.dumps({"socket_file": switch.address, "vlan": 6}))
    first, second, third = (pod_netns() for _ in range(3))
    result = node.add(ovs_conf(socket_file=None), first)
    assert switch.row("Port", host_of(result))["tag"] == 5
    own_conf = ovs_conf(socket_file=None, configuration_path=str(own))
    assert switch.row("Port", host_of(node.add(own_conf, second)))["tag"] == 6
    assert switch.row("Port", host_of(node.add({**own_conf, "vlan": 0}, third)))["tag"] == 0
    node.delete(ovs_conf(socket_file=None), first)
    assert host_of(result) not in switch.ports("br0")
    own.write_text('{"vlan": 4095}')
    error = node.refused("ADD", own_conf, third)
    assert (error["code"], str(own) in error["msg"]) == (7, True)
    own.write_text("{")
    assert node.refused("ADD", own_conf, third)["code"] == 6


def test_ovsdb_is_reached_by_tcp(node, switch, ovs_conf, pod):
    control = f"{switch.directory}/ovsdb-server.ctl"
    switch.run("ovs-appctl", "-t", control, "ovsdb-server/add-remote", "ptcp:6640:127.0.0.1")
    conf = ovs_conf(socket_file="tcp:127.0.0.1:6640")
    node.add(conf, pod)
    node.delete(conf, pod)
    assert switch.ports("br0") == []
    error = node.refused("STATUS", {**conf, "socket_file": "tcp:127.0.0.1:6641"})
    assert (error["code"], "tcp:127.0.0.1:6641" in error["msg"]) == (50, True)
