"""tuning: sysctls and link attributes, the file with the earlier attributes, the allow-list, CHECK, DEL, GC and
STATUS."""

import json
import os
import posix
from pathlib import Path

import pytest
from lab.node import cid_of, links, run, set_sysctl, source_seen, sysctl

from fastcni.kit.sysctls import allowlist as sysctl_allowlist
from fastcni.spec.version import ALL

FORWARD, NOTIFY = "net.ipv4.ip_forward", "net.ipv4.conf.IFNAME.arp_notify"
ALL_KEYS = {"mac": "0a:00:00:00:00:01", "promisc": True, "mtu": 1400, "allmulti": True, "txQLen": 77}


@pytest.fixture
def conf(node, pod):
    """Return a configuration for a pod that a bridge has connected."""
    node.behind(node.conf("10.22.0.0/24", isGateway=True), pod)
    return tuning(node)


def tuning(node, **keys):
    return {"cniVersion": "1.1.0", "name": "net-a", "type": "tuning", "dataDir": f"{node.data_dir}/tuning", **keys}


def link(pod, name="eth0"):
    """Return {configuration key: value} of a link's attributes."""
    found = links(pod)[name]
    return {"mac": found["address"], "promisc": "PROMISC" in found["flags"], "mtu": found["mtu"],
            "allmulti": "ALLMULTI" in found["flags"], "txQLen": found["txqlen"]}


def backups(node):
    """Return {path below dataDir: content} of the backup files. The symbolic links for GC have paths, too."""
    top = Path(node.data_dir, "tuning")
    return {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if not path.is_dir()}


def names_of(pod, network="net-a"):
    name = f"{cid_of(pod)}_eth0.json"
    return {name, f".fastcni/{network}/{name}"}


# -- sysctls ----------------------------------------------------------------------------------------------

def test_sysctls_are_set_in_the_pod_and_nowhere_else(node, pod, conf):
    set_sysctl("net/ipv4/ip_forward", "0")
    result = node.add({**conf, "sysctl": {FORWARD: "1", NOTIFY: "1", "net/ipv4/tcp_rmem": "4096 87380 6291456"}}, pod)
    assert (sysctl("net/ipv4/ip_forward", pod), sysctl("net/ipv4/ip_forward")) == ("1", "0")
    assert sysctl("net/ipv4/conf/eth0/arp_notify", pod) == "1"
    assert sysctl("net/ipv4/tcp_rmem", pod).split() == ["4096", "87380", "6291456"]
    assert result == node.results[pod]
    assert backups(node) == {}


def test_the_forwarding_sysctl_makes_the_pod_forward(node, pod, pod_netns, conf):
    """The test's pod is a router between the bridge and a namespace behind the pod."""
    behind = pod_netns()
    run("ip", "link", "add", "eth9", "type", "veth", "peer", "ext0", "netns", behind, netns=pod)
    for netns, name, address in ((pod, "eth9", "10.23.0.1/24"), (behind, "ext0", "10.23.0.2/24")):
        run("ip", "addr", "add", address, "dev", name, netns=netns)
        run("ip", "link", "set", name, "up", netns=netns)
    run("ip", "route", "add", "default", "via", "10.23.0.1", netns=behind)
    node.add({**conf, "sysctl": {FORWARD: "0"}}, pod)
    assert source_seen(behind, None, "10.22.0.1", wait=0.3) is None
    node.add({**conf, "sysctl": {FORWARD: "1"}}, pod)
    run("ip", "route", "add", "10.23.0.0/24", "via", "10.22.0.2")
    assert source_seen(behind, None, "10.22.0.1") == "10.23.0.2"


def test_a_link_may_have_dots_in_its_name(node, pod, conf):
    run("ip", "link", "add", "eth0.5", "type", "veth", "peer", "eth0.6", netns=pod)
    node.add({**conf, "sysctl": {"net/ipv4/conf/eth0.5/arp_notify": "1", "net.ipv4.conf.eth0/6.arp_notify": "1"}}, pod)
    assert sysctl("net/ipv4/conf/eth0.5/arp_notify", pod) == sysctl("net/ipv4/conf/eth0.6/arp_notify", pod) == "1"
    node.add({**conf, "sysctl": {NOTIFY: "0"}}, pod, ifname="eth0.5")
    assert sysctl("net/ipv4/conf/eth0.5/arp_notify", pod) == "0"


def test_args_add_to_the_sysctls_and_replace_them(node, pod, conf):
    conf.update(sysctl={FORWARD: "0", NOTIFY: "1"}, args={"cni": {"sysctl": {FORWARD: "1"}}})
    node.add(conf, pod)
    assert sysctl("net/ipv4/ip_forward", pod) == sysctl("net/ipv4/conf/eth0/arp_notify", pod) == "1"


def test_sysctls_can_be_in_args_alone(node, pod, conf):
    """The reference plugin crashes in this case."""
    node.add({**conf, "args": {"cni": {"sysctl": {FORWARD: "1"}}}}, pod)
    assert sysctl("net/ipv4/ip_forward", pod) == "1"


@pytest.mark.parametrize("sysctls, code, msg", [
    ({"kernel.hostname": "x"}, 7, 'invalid net sysctl key: "kernel.hostname"'),
    ({"net/../kernel/hostname": "x"}, 7, 'invalid net sysctl key: "net/../kernel/hostname"'),
    ({"net.ipv4.nothing": "1"}, 999, "open /proc/sys/net/ipv4/nothing: no such file or directory"),
    ({FORWARD: "many"}, 999, "write /proc/sys/net/ipv4/ip_forward: invalid argument"),
    ({"net.ipv4.conf.IFNAME.none": "1"}, 999, "open /proc/sys/net/ipv4/conf/eth0/none: no such file or directory"),
    ({FORWARD: 1}, 7, f"failed to load netconf: sysctl.{FORWARD}: expected a string, got number 1"),
])
def test_bad_sysctls_are_refused(node, pod, conf, sysctls, code, msg):
    error = node.refused("ADD", {**conf, "sysctl": sysctls}, pod)
    assert (error["code"], error["msg"]) == (code, msg)


def test_a_repeated_key_is_refused(node, pod, conf):
    once, twice = f'"{FORWARD}": "1"', f'"{FORWARD}": "1", "{FORWARD}": "0"'
    stdin = json.dumps({**conf, "sysctl": {FORWARD: "1"}}).replace(once, twice)
    error = node.refused("ADD", stdin.encode(), pod, plugin="tuning")
    assert (error["msg"], error["details"]) == ("duplicated sysctl keys are not allowed", FORWARD)


def test_a_failed_add_restores_sysctls_and_link(node, pod, conf):
    set_in(pod, "net/ipv4/ip_forward", "0")
    before, conf["sysctl"] = link(pod), {FORWARD: "1"}
    for broken in ({"sysctl": {FORWARD: "1", "net.ipv4.nothing": "1"}}, {**ALL_KEYS, "mtu": 1 << 31}):
        node.refused("ADD", {**conf, **broken}, pod)
        assert sysctl("net/ipv4/ip_forward", pod) == "0"
        assert link(pod) == before
        assert backups(node) == {}


def set_in(pod, name, value):
    run("sh", "-c", f"echo {value} > /proc/sys/{name}", netns=pod)


def test_a_sysctl_that_can_only_be_written_is_written_and_not_checked(node, pod, conf):
    conf["sysctl"] = {"net.ipv4.route.flush": "1"}
    result = node.add(conf, pod)
    node.check(conf, pod, result)


# -- the allow-list ---------------------------------------------------------------------------------------

@pytest.fixture
def allowlist(tmp_path, monkeypatch):
    """Return a function that writes a text to the allow-list."""
    monkeypatch.setattr(sysctl_allowlist, "PATH", str(tmp_path / "allowlist.conf"))
    return (tmp_path / "allowlist.conf").write_text


def test_a_sysctl_that_no_line_allows_is_refused(node, pod, conf, allowlist):
    allowlist("  ^net\\.ipv4\\.conf\\.IFNAME\\.  \n\n^net.core\n")
    node.add({**conf, "sysctl": {NOTIFY: "1"}}, pod)
    conf["sysctl"] = {NOTIFY: "0", FORWARD: "1"}
    msg = f"Sysctl {FORWARD} is not allowed. Only the following sysctls are allowed: " \
            "[^net\\.ipv4\\.conf\\.IFNAME\\. ^net.core]"
    assert node.refused("ADD", conf, pod)["msg"] == msg
    assert sysctl("net/ipv4/conf/eth0/arp_notify", pod) == "1"      # ADD has written no sysctl
    error = node.refused("STATUS", conf)
    assert (error["code"], error["msg"]) == (50, msg)


def test_a_line_matches_any_part_of_a_name(node, pod, conf, allowlist):
    allowlist("ip_forw\n")
    node.add({**conf, "sysctl": {FORWARD: "1"}}, pod)


@pytest.mark.parametrize("text", ["", "(", "net.[[:alpha:]]"])
def test_a_list_that_is_empty_or_broken_allows_nothing(node, pod, conf, allowlist, text):
    allowlist(text)
    assert node.refused("ADD", {**conf, "sysctl": {FORWARD: "1"}}, pod)["code"] == 7
    node.add(conf, pod)                     # without sysctls, ADD does not read the list


def test_a_list_that_cannot_be_read_allows_nothing(node, pod, conf, tmp_path, allowlist):
    os.mkdir(tmp_path / "allowlist.conf")
    error = node.refused("ADD", {**conf, "sysctl": {FORWARD: "1"}}, pod)
    assert error["code"] == 5
    assert "Is a directory" in error["msg"]


# -- the link ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("key", ALL_KEYS)
def test_each_key_sets_its_attribute_and_del_restores_it(node, pod, conf, key):
    before = link(pod)
    conf[key] = ALL_KEYS[key]
    result = node.add(conf, pod)
    assert link(pod) == {**before, key: ALL_KEYS[key]} != before
    assert set(backups(node)) == names_of(pod)
    assert json.loads(backups(node)[f"{cid_of(pod)}_eth0.json"]) == {key: before[key]}
    node.check(conf, pod, result)
    node.delete({**conf, "prevResult": result}, pod)
    assert link(pod) == before
    assert backups(node) == {}


@pytest.mark.parametrize("key", ["promisc", "mtu", "allmulti", "txQLen"])
def test_args_override_the_key(node, pod, conf, key):
    conf[key] = False if key in ("promisc", "allmulti") else 1300
    node.add({**conf, "args": {"cni": {key: ALL_KEYS[key]}}}, pod)
    assert link(pod)[key] == ALL_KEYS[key]


def test_allmulti_false_turns_it_off_and_promisc_false_does_nothing(node, pod, conf):
    run("ip", "link", "set", "eth0", "allmulticast", "on", "promisc", "on", netns=pod)
    node.add({**conf, "allmulti": False, "promisc": False, "mtu": 0, "mac": ""}, pod)
    assert not link(pod)["allmulti"]
    assert link(pod)["promisc"]
    node.delete(conf, pod)
    assert link(pod)["allmulti"]


def test_the_routes_stay_when_the_mac_changes(node, pod, conf):
    run("ip", "route", "add", "default", "via", "10.22.0.1", netns=pod)
    node.add({**conf, "mac": "0a:00:00:00:00:01"}, pod)
    assert "default via 10.22.0.1" in run("ip", "route", netns=pod)
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"


@pytest.mark.parametrize("asked, number", [
    ({}, 1), ({"variable": 2}, 2), ({"variable": 2, "runtime": 3}, 3), ({"variable": 2, "runtime": 3, "args": 4}, 4)])
def test_mac_of_args_overrides_the_runtimes_the_variable_and_the_key(node, pod, conf, asked, number):
    mac = "0a:00:00:00:00:0{}".format
    conf["mac"] = mac(1)
    if "runtime" in asked:
        conf["runtimeConfig"] = {"mac": mac(3)}
    if "args" in asked:
        conf["args"] = {"cni": {"mac": mac(4)}}
    node.add(conf, pod, env={"CNI_ARGS": f"IgnoreUnknown=1;MAC={mac(2)}"} if "variable" in asked else {})
    assert link(pod)["mac"] == mac(number)


def test_the_result_has_the_mac_as_it_was_written(node, pod, conf):
    result = node.add({**conf, "mac": "0A-00-00-00-00-01"}, pod)
    assert [one["mac"] for one in result["interfaces"] if one["name"] == "eth0"] == ["0A-00-00-00-00-01"]
    assert [one["name"] for one in result["interfaces"] if one["mac"] == "0A-00-00-00-00-01"] == ["eth0"]
    node.check({**conf, "mac": "0A-00-00-00-00-01"}, pod, result)  # the reference plugin compares the MACs as texts
    node.check(node.conf("10.22.0.0/24", isGateway=True), pod, result)


@pytest.mark.parametrize("keys, msg", [
    ({"mac": "0a:00"}, "address 0a:00: invalid MAC address"),
    ({"mac": "0a:00:00:00:00:00:00:01"}, "address 0a:00:00:00:00:00:00:01: not the 6 bytes of an Ethernet address"),
    ({"mtu": -1}, "failed to load netconf: mtu: expected an integer from 0 up to 4294967295, got number -1"),
    ({"txQLen": 1 << 32}, "failed to load netconf: txQLen: expected an integer from 0 up to 4294967295, "
                          "got number 4294967296"),
    ({"args": {"cni": {"promisc": "yes"}}}, 'failed to load netconf: args.cni.promisc: expected true or false, '
                                            'got string "yes"'),
    ({"dataDir": "a\0b"}, "failed to load netconf: dataDir: a path has no NUL byte"),
])
def test_bad_values_are_refused(node, pod, conf, keys, msg):
    error = node.refused("ADD", {**conf, **keys}, pod)
    assert (error["code"], error["msg"]) == (7, msg)


def test_bad_cni_args_are_refused_but_not_by_del(node, pod, conf):
    env = {"CNI_ARGS": "nonsense"}
    assert node.refused("ADD", conf, pod, env=env)["code"] == 4
    node.delete(conf, pod, env=env)


def test_tuning_must_be_chained(node, pod):
    error = node.refused("ADD", tuning(node, mtu=1400), pod)
    assert (error["code"], error["msg"]) == (7, "Required prevResult missing")


def test_a_link_that_is_missing_is_named(node, pod, conf):
    assert node.refused("ADD", {**conf, "mtu": 1400}, pod, ifname="eth9")["msg"] == "Cannot find container link eth9"
    assert backups(node) == {}


@pytest.mark.parametrize("version", ALL)
def test_add_and_del_at_every_version(node, pod, version):
    node.behind(node.conf("10.22.0.0/24", cniVersion=version), pod)
    conf = tuning(node, cniVersion=version, mtu=1400, sysctl={FORWARD: "1"})
    result = node.add(conf, pod)
    assert result == node.results[pod]
    assert link(pod)["mtu"] == 1400
    if version >= "0.4.0":
        node.check(conf, pod, result)
    node.delete(conf, pod)
    assert link(pod)["mtu"] == 1500


# -- the file ---------------------------------------------------------------------------------------------

def test_the_file_has_the_same_bytes_as_that_of_the_reference(node, pod, conf):
    mac = link(pod)["mac"]
    node.add({**conf, **ALL_KEYS}, pod)
    path = Path(node.data_dir, "tuning", f"{cid_of(pod)}_eth0.json")
    assert path.read_text() == (f'{{\n "mac": "{mac}",\n "promisc": false,\n "mtu": 1500,\n "allmulti": false,\n'
                                ' "txQLen": 1000\n}')
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o755


def test_a_repeated_add_keeps_the_original_attributes(node, pod, conf):
    before = link(pod)
    node.add({**conf, "mtu": 1400}, pod)
    node.add({**conf, "mtu": 1300, "promisc": True}, pod)
    assert link(pod) == {**before, "mtu": 1300, "promisc": True}
    node.refused("ADD", {**conf, "mtu": 1 << 31, "allmulti": True}, pod)
    assert link(pod) == {**before, "mtu": 1300, "promisc": True}
    node.delete(conf, pod)
    assert link(pod) == before
    assert backups(node) == {}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"mtu": "many"}', '{"mac": "none"}', '{"mtu": -1}'])
def test_an_incomplete_file_is_ignored(node, pod, conf, content):
    path = Path(node.data_dir, "tuning", f"{cid_of(pod)}_eth0.json")
    before = link(pod)
    for command in ("ADD", "DEL"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        node.ok(command, {**conf, "mtu": 1400}, pod)
        assert link(pod) == {**before, "mtu": 1400}
    assert backups(node) == {}


@pytest.mark.parametrize("gone", ["link", "netns", "variable", "file", "namespace under the path"])
def test_del_of_a_missing_link_leaves_no_file(node, pod, conf, tmp_path, gone):
    node.add({**conf, **ALL_KEYS}, pod)
    netns = pod
    if gone == "link":
        run("ip", "link", "del", "eth0", netns=pod)
    elif gone == "netns":
        run("ip", "netns", "del", pod)
    elif gone == "file":
        posix.unlink(f"{node.data_dir}/tuning/{cid_of(pod)}_eth0.json")
    else:
        netns = "" if gone == "variable" else str(tmp_path / "file")
        (tmp_path / "file").touch()
    for _ in range(2):
        node.delete({key: conf[key] for key in conf}, netns, cid=cid_of(pod))
        assert backups(node) == {}


def test_del_ignores_keys_that_only_add_needs(node, pod, conf):
    node.add({**conf, "mtu": 1400}, pod)
    node.delete({**conf, "mtu": -1, "mac": "x", "sysctl": {"kernel.x": 1}, "prevResult": 7}, pod)
    assert link(pod)["mtu"] == 1500


def test_del_that_the_kernel_refuses_warns_and_keeps_the_file(node, pod, conf):
    node.add({**conf, "mtu": 1400, "promisc": True}, pod)
    path = Path(node.data_dir, "tuning", f"{cid_of(pod)}_eth0.json")
    path.write_text('{"promisc": false, "mtu": 2000000000}')
    reply = node.call("DEL", conf, pod)
    assert reply.status == 0
    assert b'failed to set mtu of "eth0" to 2000000000' in reply.stderr
    assert not link(pod)["promisc"]
    assert path.exists()       # the file stays, because DEL restored only the other attributes


def test_gc_removes_files_of_this_network_without_a_valid_attachment(node, pod, pod_netns, conf):
    others = [pod_netns(), pod_netns()]
    node.behind(node.conf("10.22.0.0/24", isGateway=True), *others)
    conf["mtu"] = 1400
    node.add(conf, pod)
    node.add(conf, others[0])
    node.add({**conf, "name": "net-b"}, others[1])
    golang = Path(node.data_dir, "tuning", "c-of-go_eth0.json")
    golang.write_text('{\n "mtu": 1500\n}')
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid_of(pod), "ifname": "eth0"}]})
    assert set(backups(node)) == names_of(pod) | names_of(others[1], "net-b") | {golang.name}
    node.ok("GC", {**conf, "dataDir": f"{node.data_dir}/none", "cni.dev/valid-attachments": []})


# -- CHECK and STATUS -------------------------------------------------------------------------------------

@pytest.mark.parametrize("msg, asked, change", [
    ("configured value of /proc/sys/net/ipv4/ip_forward is 1, current value is 0", {"sysctl": {FORWARD: "1"}},
     "sysctl -q -w net.ipv4.ip_forward=0"),
    ("configured Ethernet of eth0 is 0a:00:00:00:00:01, current value is 0a:00:00:00:00:09",
     {"mac": "0A:00:00:00:00:01"}, "ip link set eth0 address 0a:00:00:00:00:09"),
    ("link eth0 configured promisc is true, current value is 0", {"promisc": True}, "ip link set eth0 promisc off"),
    ("link eth0 configured promisc is false, current value is 1", {"mtu": 1400}, "ip link set eth0 promisc on"),
    ("configured MTU of eth0 is 1400, current value is 1300", {"mtu": 1400}, "ip link set eth0 mtu 1300"),
    ("link eth0 configured all-multicast mode is true, current value is 0", {"allmulti": True},
     "ip link set eth0 allmulticast off"),
    ("configured txQLen of eth0 is 77, current value is 78", {"txQLen": 77}, "ip link set eth0 txqueuelen 78"),
])
def test_check_reports_each_difference(node, pod, conf, msg, asked, change):
    result = node.add({**conf, **asked}, pod)
    node.check({**conf, **asked}, pod, result)
    run(*change.split(), netns=pod)
    assert node.check_refused({**conf, **asked}, pod, result) == f"Error: Tuning {msg}"


def test_check_accepts_other_white_space_and_reports_missing_sysctls(node, pod, conf):
    conf["sysctl"] = {"net.ipv4.tcp_rmem": "4096 87380 6291456"}
    result = node.add(conf, pod)
    node.check(conf, pod, result)           # the kernel separates the values by tabs. The reference plugin fails here
    missing = {**conf, "sysctl": {"net.ipv4.nothing": "1"}}
    assert "no such file" in node.check_refused(missing, pod, result)
    run("ip", "link", "del", "eth0", netns=pod)
    assert node.check_refused(conf, pod, result) == "Cannot find container link eth0"


def test_status_succeeds_without_an_allow_list(node, conf):
    node.ok("STATUS", {**conf, "sysctl": {FORWARD: "1"}})
