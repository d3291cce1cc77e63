"""tap: each key, frames through the device, owner and group, CHECK, STATUS. test_devices.py has more tests."""

import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time

import pytest
from lab.node import Inside, addresses, eventually, ip_json, links, run, sysctl

from fastcni.kernel.devices import tun

DUAL = ("10.22.0.0/24", "fd00:22::/64")
TUNSETIFF, IFF_TUN, IFF_TAP, IFF_MULTI_QUEUE, IFF_NO_PI = 0x400454CA, 0x0001, 0x0002, 0x0100, 0x1000
CONTEXT = "system_u:system_r:container_t:s0"
STATION, STATION_MAC = "10.22.0.77", bytes.fromhex("0a0000000077")
OPEN_AS = """
import fcntl, os, sys
uid, gid, ifreq = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
fd = os.open("/dev/net/tun", os.O_RDWR)
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
fcntl.ioctl(fd, 0x400454CA, ifreq)
"""

pytestmark = pytest.mark.needs("tun")


@pytest.fixture
def conf(node):
    return node.conf(*DUAL, type="tap", bridge=None)


@pytest.fixture
def layer2(node):
    return node.conf(type="tap", bridge=None, ipam=None)


def ifreq(name, flags):
    return struct.pack("=16sH22x", name.encode(), flags)


def open_tap(pod, name="eth0", flags=IFF_TAP | IFF_NO_PI):
    """Open the device as a program in the pod does, for example a virtual machine or a VPN. Return the file."""
    with Inside(pod):
        file = os.fdopen(os.open(tun.PATH, os.O_RDWR), "r+b", buffering=0)
    fcntl.ioctl(file, TUNSETIFF, ifreq(name, flags))
    return file


def may_open(pod, uid, gid, flags=IFF_TAP | IFF_NO_PI):
    """Return whether a process with these IDs and without capabilities may open the device."""
    with Inside(pod):
        args = [sys.executable, "-I", "-c", OPEN_AS, str(uid), str(gid), ifreq("eth0", flags).hex()]
        done = subprocess.run(args, capture_output=True, text=True)
    assert done.returncode == 0 or "Operation not permitted" in done.stderr, done.stderr
    return done.returncode == 0


def arp_of(file, target, tries=10):
    """Send ARP requests for `target` through the device until an answer arrives. Return the MAC, or None."""
    ask = struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1) + STATION_MAC + socket.inet_aton(STATION)
    for _ in range(tries):
        file.write(b"\xff" * 6 + STATION_MAC + ask + bytes(6) + socket.inet_aton(target))
        while select.select([file], [], [], 0.2)[0]:
            frame = file.read(2000)
            if frame[:6] == STATION_MAC and frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\2":
                return frame[22:28].hex(":")
    return None


def tap(pod, name="eth0"):
    """Return the kernel's attributes of the device."""
    link = links(pod)[name]
    assert link["linkinfo"]["info_kind"] == "tun"
    return link["linkinfo"]["info_data"]


def test_program_in_the_pod_sends_and_receives_by_the_device(node, pod, conf):
    result = node.add(conf, pod)
    mac = links(pod)["eth0"]["address"]
    assert result["interfaces"] == [{"name": "eth0", "mac": mac, "sandbox": f"/run/netns/{pod}"}]
    assert [(ip["address"], ip["interface"]) for ip in result["ips"]] == [("10.22.0.2/24", 0), ("fd00:22::2/64", 0)]
    assert addresses("eth0", pod) == ["10.22.0.2/24", "fd00:22::2/64"]
    assert set(links()) == {"lo"}                       # ADD leaves no link on the host
    with open_tap(pod) as program:
        assert arp_of(program, "10.22.0.2") == mac
        assert arp_of(program, "10.22.0.3", tries=1) is None
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo"}
    assert node.held() == {}


def test_device_stays_when_its_program_ends_and_is_opened_again(node, pod, conf):
    result = node.add(conf, pod)
    for _ in range(2):
        with open_tap(pod) as program:
            assert arp_of(program, "10.22.0.2")
        assert tap(pod)["persist"] is True
    node.check(conf, pod, result)


def test_del_removes_a_device_that_a_program_has_open(node, pod, conf):
    node.add(conf, pod)
    with open_tap(pod):
        node.delete(conf, pod)
        assert set(links(pod)) == {"lo"}
        assert node.held() == {}


@pytest.mark.parametrize("keys", [{}, {"owner": 70001, "group": 70002}, {"multiQueue": True}], ids=str)
def test_frames_have_neither_packet_information_nor_a_header_of_virtio(node, pod, conf, keys):
    """If owner and group are set, the reference plugin enables both."""
    node.add({**conf, **keys}, pod)
    assert tap(pod)["type"] == "tap"
    assert tap(pod)["pi"] is tap(pod)["vnet_hdr"] is False


@pytest.mark.parametrize("keys, args", [
    ({}, ""), ({"multiQueue": True}, "multi_queue"), ({"owner": 70001}, "user 70001"), ({"group": 0}, "group 0"),
    ({"multiQueue": True, "owner": 0, "group": 4294967294}, "multi_queue user 0 group 4294967294")])
def test_device_equals_the_one_that_ip_tuntap_creates(node, pod, layer2, keys, args):
    """The reference plugin runs `ip tuntap`."""
    node.add({**layer2, **keys}, pod)
    with Inside(pod):
        run("ip", "tuntap", "add", "mode", "tap", "name", "other", *args.split())
    run("ip", "link", "set", "other", "up", netns=pod)

    def attributes(name):
        return {key: value for key, value in links(pod)[name].items() if key not in ("ifindex", "ifname", "address")}

    # the kernel sets operstate within a second after the last program has closed the device
    for name in ("eth0", "other"):
        assert eventually(lambda name=name: attributes(name)["operstate"] == "DOWN")
    assert attributes("eth0") == attributes("other")


@pytest.mark.parametrize("keys, uid, gid, allowed", [
    ({"owner": 70001}, 70001, 70009, True), ({"owner": 70001}, 70002, 70009, False),
    ({"group": 70001}, 70009, 70001, True), ({"group": 70001}, 70009, 70002, False),
    ({"owner": 70001, "group": 70002}, 70001, 70002, True), ({"owner": 70001, "group": 70002}, 70001, 70009, False),
    ({"owner": 0}, 70001, 70009, False), ({"owner": 3000000000}, 3000000000, 70009, True), ({}, 70009, 70009, True)])
def test_owner_and_group_open_the_device_without_a_capability(node, pod, conf, keys, uid, gid, allowed):
    node.add({**conf, **keys}, pod)
    assert may_open(pod, uid, gid) == allowed


@pytest.mark.parametrize("key", ["owner", "group"])
@pytest.mark.parametrize("number", [-1, 0xFFFFFFFF, 1 << 32, "root"])
def test_owner_that_is_no_id_is_refused(node, pod, conf, key, number):
    error = node.refused("ADD", {**conf, key: number}, pod)
    assert error["code"] == 7
    assert f"{key}: expected an integer from 0 up to 4294967294" in error["msg"]


def test_multi_queue_is_for_programs_that_open_the_device_more_than_once(node, pod, conf):
    node.add({**conf, "multiQueue": True}, pod)
    flags = IFF_TAP | IFF_NO_PI | IFF_MULTI_QUEUE
    with open_tap(pod, flags=flags), open_tap(pod, flags=flags):
        assert (tap(pod)["multi_queue"], tap(pod)["numqueues"]) == (True, 2)
    with pytest.raises(OSError, match="Invalid argument"):
        open_tap(pod)


def test_without_multi_queue_one_program_has_the_device(node, pod, conf):
    node.add(conf, pod)
    with open_tap(pod), pytest.raises(OSError, match="busy"):
        open_tap(pod)
    assert tap(pod)["multi_queue"] is False


def test_mtu_is_the_kernels_or_the_one_asked_for(node, pod, conf):
    node.add(conf, pod)
    assert links(pod)["eth0"]["mtu"] == 1500
    node.add({**conf, "mtu": 9000}, pod, ifname="eth1")
    assert links(pod)["eth1"]["mtu"] == 9000


@pytest.mark.parametrize("mtu, code, msg", [(-1, 7, "mtu: expected an integer from 0"),
                                              (65536, 999, "mtu greater than device maximum")])
def test_mtu_that_no_tap_can_have_is_refused(node, pod, conf, mtu, code, msg):
    before = node.left(pod)
    error = node.refused("ADD", {**conf, "mtu": mtu}, pod)
    assert error["code"] == code
    assert msg in error["msg"]
    assert node.left(pod) == before


@pytest.mark.parametrize("asked, mac", [
    ({"mac": "0a:00:00:00:00:01"}, "0a:00:00:00:00:01"),
    ({"mac": "0a:00:00:00:00:01", "env": "0a:00:00:00:00:02"}, "0a:00:00:00:00:02")])
def test_mac_of_the_variable_overrides_the_key(node, pod, conf, asked, mac):
    env = {"CNI_ARGS": f"IgnoreUnknown=1;MAC={asked.pop('env')}"} if "env" in asked else {}
    result = node.add({**conf, **asked}, pod, env=env)
    assert links(pod)["eth0"]["address"] == mac == result["interfaces"][0]["mac"]


def test_all_keys_can_be_used_together(node, pod, layer2):
    """If owner and group are set, the reference plugin ignores mtu and mac."""
    keys = {"mtu": 1400, "mac": "0a:00:00:00:00:01", "owner": 70001, "group": 70002, "multiQueue": True}
    node.add({**layer2, **keys}, pod)
    link, made = links(pod)["eth0"], tap(pod)
    assert (link["mtu"], link["address"]) == (1400, "0a:00:00:00:00:01")
    assert (made["user"], made["group"], made["multi_queue"]) == (70001, 70002, True)


@pytest.mark.needs("bridge")
def test_device_is_a_port_of_a_bridge_in_the_pod(node, pod, layer2):
    run("ip", "link", "add", "inner", "address", "0a:00:00:00:00:09", "type", "bridge", netns=pod)
    run("ip", "addr", "add", "10.22.0.9/24", "dev", "inner", netns=pod)
    run("ip", "link", "set", "inner", "up", netns=pod)
    conf = {**layer2, "bridge": "inner", "mac": "0a:00:00:00:00:01"}
    result = node.add(conf, pod)
    assert links(pod)["eth0"]["master"] == "inner"
    with open_tap(pod) as program:
        assert arp_of(program, "10.22.0.9") == "0a:00:00:00:00:09"
    node.check(conf, pod, result)
    run("ip", "link", "set", "eth0", "nomaster", netns=pod)
    assert node.check_refused(conf, pod, result) == "container tap bridge (none) does not match expected value: inner"
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo", "inner"}


@pytest.mark.needs("bridge")
def test_bridge_is_looked_for_in_the_pod_alone(node, pod, conf):
    run("ip", "link", "add", "outer", "type", "bridge")
    before = node.left(pod)
    error = node.refused("ADD", {**conf, "bridge": "outer"}, pod)
    assert error == {"code": 7, "msg": "failed to get bridge outer: Link not found",
                     "details": "the bridge must exist in the pod's namespace"}
    assert node.left(pod) == before


def test_a_link_that_is_not_a_bridge_is_refused(node, pod, conf):
    before = node.left(pod)
    error = node.refused("ADD", {**conf, "bridge": "lo"}, pod)
    assert "failed to set tap eth0 as a port of bridge lo" in error["msg"]
    assert node.left(pod) == before


def test_selinux_context_is_refused_where_selinux_is_off(node, pod, conf):
    if os.path.exists("/sys/fs/selinux/enforce"):
        pytest.skip("SELinux is on here")
    before = node.left(pod)
    error = node.refused("ADD", {**conf, "selinuxContext": CONTEXT}, pod)
    assert error["code"] == 2
    assert error["msg"].startswith("failed set socket label: ")
    assert CONTEXT in error["details"]
    assert node.left(pod) == before


@pytest.fixture
def selinux(tmp_path, monkeypatch):
    """Replace /proc/.../attr/exec by a file, and prevent this process from creating a device. Return a function that
    reads the file."""
    file = tmp_path / "exec"
    file.write_text("")
    monkeypatch.setattr(tun, "NEXT_CONTEXT", str(file))
    monkeypatch.setattr(tun, "ioctl", None)
    return file.read_text


def test_another_process_creates_the_device_with_a_selinux_context(node, pod, layer2, selinux):
    keys = {"selinuxContext": CONTEXT, "multiQueue": True, "owner": 70001, "group": 3000000000, "mtu": 1400}
    node.add({**layer2, **keys}, pod)
    assert selinux() == "\n" + CONTEXT[1:]  # the process wrote the context, then an empty line that resets it
    made = tap(pod)
    assert (made["user"], made["group"], made["multi_queue"], made["pi"]) == (70001, 3000000000, True, False)
    assert made["persist"] is True
    assert links(pod)["eth0"]["mtu"] == 1400


def test_errors_of_that_process_are_the_same(node, pod, layer2, selinux):
    run("ip", "link", "add", "eth0", "type", "veth", "peer", "other", netns=pod)
    before = node.left(pod)
    error = node.refused("ADD", {**layer2, "selinuxContext": CONTEXT}, pod)
    assert error["msg"] == "failed to create tap: Device or resource busy (errno 16)"
    assert selinux() == "\n" + CONTEXT[1:]
    assert node.left(pod) == before


@pytest.mark.parametrize("python", ["/bin/false", "/nowhere/python"])
def test_python_that_cannot_be_started_there_is_an_error(node, pod, layer2, selinux, monkeypatch, python):
    monkeypatch.setattr(sys, "executable", python)
    before = node.left(pod)
    assert "failed to create tap: " in node.refused("ADD", {**layer2, "selinuxContext": CONTEXT}, pod)["msg"]
    assert selinux() == "\n" + CONTEXT[1:]
    assert node.left(pod) == before


@pytest.mark.parametrize("kind", ["tap", "veth"])
def test_pod_that_has_the_name_keeps_its_link(node, pod, conf, kind):
    """The reference plugin succeeds and leaves a device with a random name."""
    if kind == "tap":
        node.add(conf, pod)
    else:
        run("ip", "link", "add", "eth0", "type", "veth", "peer", "other", netns=pod)
    before = node.left(pod)
    assert node.refused("ADD", conf, pod) == {
        "code": 999, "msg": "failed to create tap: Device or resource busy (errno 16)",
        "details": "the pod has an interface of that name; was it added before?"}
    assert node.left(pod) == before


def test_add_does_not_wait_for_duplicate_address_detection(node, pod, conf):
    """Duplicate address detection begins when the device has a carrier, which may be much later. The reference plugin
    waits for five seconds."""
    started = time.monotonic()
    node.add({**conf, "enabledad": True}, pod)
    assert time.monotonic() - started < 4
    assert sysctl("net/ipv6/conf/eth0/accept_dad", pod) == "1"
    info = ip_json("addr", "show", "dev", "eth0", "scope", "global", netns=pod)[0]["addr_info"]
    assert [item.get("tentative", False) for item in info] == [False, True]


def test_del_does_not_need_the_device_file(node, pod, conf, monkeypatch):
    node.add(conf, pod)
    monkeypatch.setattr(tun, "PATH", "/nowhere/tun")
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo"}


@pytest.mark.parametrize("keys, says", [
    ({"owner": 70009, "multiQueue": True}, "container tap multiQueue False does not match expected value: True"),
    ({"owner": 70001}, "container tap owner 70009 does not match expected value: 70001"),
    ({"owner": 70009, "group": 70001}, "container tap group (none) does not match expected value: 70001")])
def test_check_compares_the_keys(node, pod, conf, keys, says):
    result = node.add({**conf, "owner": 70009}, pod)
    assert node.check_refused({**conf, **keys}, pod, result) == says


def test_check_does_not_compare_an_owner_and_a_group_that_are_not_configured(node, pod, conf):
    """The program that opens the device may have set its owner and its group."""
    result = node.add({**conf, "owner": 70009, "group": 70001}, pod)
    node.check({key: value for key, value in conf.items() if key not in ("owner", "group")}, pod, result)


def test_check_distinguishes_tap_from_tun(node, pod, layer2):
    result = node.add(layer2, pod)
    del result["interfaces"][0]["mac"]                  # a TUN device has no MAC
    run("ip", "link", "del", "eth0", netns=pod)
    with Inside(pod):
        run("ip", "tuntap", "add", "mode", "tun", "name", "eth0")
    assert node.check_refused(layer2, pod, result) == "container tap type tun does not match expected value: tap"


@pytest.mark.parametrize("file, msg", [("/nowhere/tun", "No such file or directory (errno 2)"),
                                         ("/dev/full", "Inappropriate ioctl for device (errno 25)")])
def test_device_file_that_cannot_be_used_is_an_error(node, pod, conf, monkeypatch, file, msg):
    before = node.left(pod)
    monkeypatch.setattr(tun, "PATH", file)
    assert node.refused("ADD", conf, pod)["msg"] == f"failed to create tap: {msg}"
    assert node.left(pod) == before


def test_status_reports_a_missing_device_file(node, conf, layer2, monkeypatch):
    node.ok("STATUS", conf)
    node.ok("STATUS", layer2)
    monkeypatch.setattr(tun, "PATH", "/nowhere/tun")
    for each in (conf, layer2):
        error = node.refused("STATUS", each)
        assert error["code"] == 50
        assert error["msg"] == "/nowhere/tun: No such file or directory (errno 2)"
        assert "modprobe tun" in error["details"]


def test_a_name_with_a_number_pattern_is_refused(node, pod, conf):
    """The kernel would replace the pattern, for example eth%d by eth0. DEL would not find the device by its pattern."""
    before = node.left(pod)
    assert node.refused("ADD", conf, pod, ifname="eth%d")["code"] == 4
    assert node.left(pod) == before
