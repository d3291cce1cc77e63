"""flannel: the delegate's configuration for each key and each line of subnet.env, the file for DEL, GC, STATUS."""

import json
import os
import stat
from pathlib import Path

import pytest
from lab.node import addresses, cid_of, elements, links, routes, run, source_seen

from fastcni.spec.version import ALL

V4, V6 = "10.22.0.0/24", "fd00:22::/64"


@pytest.fixture
def conf(node):
    return flannel(node)


def flannel(node, *subnets, lines=None, **keys):
    """Return a configuration of flannel. Its subnet.env has these subnets and lines."""
    return {"cniVersion": "1.1.0", "name": "net-a", "type": "flannel",
            "subnetFile": node.subnet_file(*subnets or (V4,), **lines or {}), "dataDir": f"{node.data_dir}/flannel",
            "ipam": {"dataDir": node.data_dir}, **keys}


def kept(node):
    """Return {container ID: configuration} of the files that ADD wrote for DEL."""
    found = Path(node.data_dir, "flannel").glob("*")
    return {path.name: json.loads(path.read_text()) for path in found}


@pytest.fixture
def delegate(node, tmp_path):
    """Return a function delegate(name) that installs a shell script as the delegate. delegate() returns a function that
    lists the script's calls as [(command, stdin)].

    on_add: the shell command of ADD. codes: {command: exit status}.
    """
    log = tmp_path / "delegate"
    log.mkdir()

    def install(name="any-plugin", on_add='echo \'{"cniVersion": "1.0.0"}\'', **codes):
        script = tmp_path / name
        cases = "".join(f'{command}) echo \'{{"code": 77, "msg": "no {command}"}}\'; exit {code};;'
                        for command, code in codes.items())
        script.write_text(f'#!/bin/sh\ncat > "{log}/$(ls {log} | wc -l)-$CNI_COMMAND"\n'
                          f"case $CNI_COMMAND in {cases} ADD) {on_add};; esac\n")
        script.chmod(0o755)
        return lambda: [(path.name.split("-")[1], json.loads(path.read_text()))
                        for path in sorted(log.iterdir(), key=lambda path: int(path.name.split("-")[0]))]
    install.path = {"CNI_PATH": str(tmp_path)}
    return install


# -- the delegate's configuration -------------------------------------------------------------------------

def test_a_bridge_connects_the_pod_and_routes_the_cluster(node, pod, conf):
    result = node.add(conf, pod)
    assert [item["name"] for item in result["interfaces"]][::2] == ["cni0", "eth0"]
    assert result["ips"] == [{"address": "10.22.0.2/24", "gateway": "10.22.0.1", "interface": 2}]
    assert addresses("cni0") == ["10.22.0.1/24"]
    assert ("10.22.0.0/16", "10.22.0.1") in routes(pod)
    assert links()["cni0"]["mtu"] == links(pod)["eth0"]["mtu"] == 1450
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"
    assert [key for key, _ in elements("pods4")] == ["10.22.0.2"]
    node.check(conf, pod, result)
    node.delete({**conf, "prevResult": result}, pod)
    assert set(links()) == {"lo", "cni0"}
    assert set(links(pod)) == {"lo"}
    assert node.held() == kept(node) == {}
    assert elements("pods4") == []


def test_the_file_has_the_documented_configuration(node, pod, conf):
    """flannel's documentation shows this configuration. Newer versions write the address ranges as a list."""
    node.add(conf, pod)
    assert kept(node) == {cid_of(pod): {
        "cniVersion": "1.1.0", "name": "net-a", "type": "bridge", "mtu": 1450, "ipMasq": True, "isGateway": True,
        "ipam": {"type": "host-local", "dataDir": node.data_dir, "ranges": [[{"subnet": "10.22.0.0/24"}]],
                 "routes": [{"dst": "10.22.0.0/16"}]}}}
    path = Path(node.data_dir, "flannel")
    assert [stat.S_IMODE(os.stat(each).st_mode) for each in (path, path / cid_of(pod))] == [0o700, 0o600]


def test_subnets_of_both_families_are_used(node, pod):
    conf = flannel(node, V4, V6)
    result = node.add(conf, pod)
    assert [ip["address"] for ip in result["ips"]] == ["10.22.0.2/24", "fd00:22::2/64"]
    assert result["routes"] == [{"dst": "10.22.0.0/16"}, {"dst": "fd00:22::/48"}]
    assert source_seen(pod, None, "fd00:22::1") == "fd00:22::2"
    node.check(conf, pod, result)


def test_an_ipv6_subnet_alone_is_used(node, pod):
    assert [ip["address"] for ip in node.add(flannel(node, V6), pod)["ips"]] == ["fd00:22::2/64"]


def test_pods_have_routes_to_several_networks(node, pod):
    lines = {"NETWORK": "10.22.0.0/16,10.30.7.7/16", "IPV6_NETWORK": "fd00:22::/48,fd00:30::/48"}
    node.add(flannel(node, V4, V6, lines=lines), pod)
    assert {"10.22.0.0/16", "10.30.0.0/16"} <= {dst for dst, _ in routes(pod)}
    assert {"fd00:22::/48", "fd00:30::/48"} <= {dst for dst, _ in routes(pod, family=6)}


@pytest.mark.parametrize("flanneld, asked, masquerades", [
    ("true", {}, False), ("false", {}, True), ("no", {}, True), ("true", {"ipMasq": True}, True),
    ("false", {"ipMasq": False}, False), ("false", {"ipmasq": False}, False)])
def test_the_delegate_masquerades_only_if_flanneld_does_not(node, pod, flanneld, asked, masquerades):
    node.add(flannel(node, lines={"IPMASQ": flanneld}, delegate=asked), pod)
    assert bool(elements("pods4")) is masquerades


def test_keys_of_delegate_override_those_of_flanneld(node, pod, conf):
    asked = {"bridge": "flannel7", "mtu": 1400, "isGateway": False, "hairpinMode": True, "isDefaultGateway": True}
    node.add({**conf, "delegate": asked}, pod)
    found = kept(node)[cid_of(pod)]
    assert {key: found[key] for key in asked} == asked
    assert links()["flannel7"]["mtu"] == 1400
    assert ("default", "10.22.0.1") in routes(pod)


@pytest.mark.parametrize("type_, gateway", [(None, True), ("bridge", True), ("any-plugin", False)])
def test_is_gateway_is_set_only_for_bridge(node, pod, conf, delegate, type_, gateway):
    delegate()
    node.add({**conf, "delegate": {"type": type_} if type_ else {}}, pod, env=delegate.path)
    assert kept(node)[cid_of(pod)].get("isGateway", False) is gateway


def test_another_plugin_of_ours_can_be_the_delegate(node, pod, conf):
    conf["delegate"] = {"type": "ptp"}
    result = node.add(conf, pod)
    assert routes()["10.22.0.2", ""]["dev"] == result["interfaces"][0]["name"]
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert set(links()) == {"lo"}
    assert node.held() == {}


def test_ipam_of_the_configuration_is_extended(node, pod, conf):
    conf["ipam"] |= {"fsync": True, "routes": [{"dst": "192.0.2.0/24", "gw": "10.22.0.9"}], "ranges": ["replaced"]}
    node.add(conf, pod)
    assert kept(node)[cid_of(pod)]["ipam"] == {
        "type": "host-local", "dataDir": node.data_dir, "fsync": True, "ranges": [[{"subnet": "10.22.0.0/24"}]],
        "routes": [{"dst": "192.0.2.0/24", "gw": "10.22.0.9"}, {"dst": "10.22.0.0/16"}]}
    assert ("192.0.2.0/24", "10.22.0.9") in routes(pod)


def test_another_ipam_plugin_can_be_used(node, pod, conf):
    conf["ipam"] = {"type": "static", "addresses": [{"address": "10.22.0.77/24"}]}
    assert node.add(conf, pod)["ips"][0]["address"] == "10.22.0.77/24"


def test_runtime_config_and_args_are_passed_to_the_delegate(node, pod, conf):
    conf |= {"runtimeConfig": {"mac": "02:00:00:00:00:01"}, "args": {"cni": {"ips": ["10.22.0.50"]}}}
    result = node.add(conf, pod)
    assert links(pod)["eth0"]["address"] == "02:00:00:00:00:01"
    assert result["ips"][0]["address"] == "10.22.0.50/24"
    found = kept(node)[cid_of(pod)]
    assert (found["runtimeConfig"], found["args"]) == (conf["runtimeConfig"], conf["args"])


@pytest.mark.parametrize("version", ALL)
def test_add_check_and_del_at_every_version(node, pod, conf, version):
    conf["cniVersion"] = version
    result = node.add(conf, pod)
    assert result["cniVersion"] == kept(node)[cid_of(pod)]["cniVersion"] == version
    if version >= "0.4.0":
        node.check(conf, pod, result)
    node.delete({**conf, "prevResult": result}, pod)
    assert node.held() == kept(node) == {}


# -- bad input --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("keys, msg", [
    ({"delegate": {"name": "x"}}, "'delegate' dictionary must not have 'name' field, it'll be set by flannel"),
    ({"delegate": {"ipam": {}}}, "'delegate' dictionary must not have 'ipam' field, it'll be set by flannel"),
    ({"delegate": {"type": "flannel"}}, "'delegate' dictionary must not have the type 'flannel'"),
    ({"delegate": {"type": 7}}, "delegate.type: expected a string, got number 7"),
    ({"delegate": {"type": "../bridge"}}, "invalid plugin name: ../bridge"),
    ({"delegate": []}, "delegate: expected an object, got list []"),
    ({"ipam": "host-local"}, "ipam: expected an object"), ({"ipam": {"routes": {}}}, "ipam.routes: expected a list"),
    ({"runtimeConfig": 7}, "runtimeConfig: expected an object"), ({"args": 7}, "args: expected an object"),
    ({"subnetFile": "subnet.env"}, 'subnetFile: expected an absolute path, got string "subnet.env"'),
    ({"dataDir": "/a\0b"}, "dataDir: expected an absolute path, got"),
    ({"delegate": {"mtu": "1400"}}, "mtu: expected an integer"),
])
def test_bad_values_are_refused_and_leave_nothing(node, pod, conf, keys, msg):
    before = node.left(pod)
    error = node.refused("ADD", {**conf, **keys}, pod)
    assert error["code"] == 7
    assert msg in error["msg"]
    assert node.left(pod) == before
    assert kept(node) == {}


@pytest.mark.parametrize("keys", [{"delegate": {"name": "x"}}, {"delegate": 7}, {"ipam": 7}, {"args": 7},
                                  {"subnetFile": 7}], ids=str)
def test_del_succeeds_with_values_that_add_refuses(node, pod, conf, keys):
    node.delete({**conf, **keys}, pod)
    node.add(conf, pod)
    node.delete({**conf, **keys}, pod)
    assert node.held() == kept(node) == {}
    assert set(links(pod)) == {"lo"}


@pytest.mark.parametrize("lines, msg", [
    ({"NETWORK": None}, "is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK"),
    ({"NETWORK": ""}, "is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK"),
    ({"SUBNET": None}, "is missing FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET"), ({"MTU": None}, "is missing FLANNEL_MTU"),
    ({"MTU": None, "IPMASQ": None}, "is missing FLANNEL_MTU, FLANNEL_IPMASQ"),
    ({"NETWORK": "10.22.0.0/16,ten"}, "invalid CIDR address: ten"), ({"SUBNET": "10.22.0.1"}, "address: 10.22.0.1"),
    ({"MTU": "many"}, 'FLANNEL_MTU is string "many", which is not a number of bytes'),
    ({"MTU": 1 << 32}, "which is not a number of bytes"), ({"MTU": -1}, "which is not a number of bytes"),
])
def test_an_incomplete_subnet_file_is_named_with_its_missing_line(node, pod, lines, msg):
    conf, before = flannel(node, lines=lines), node.left(pod)
    error = node.refused("ADD", conf, pod)
    assert error["code"] == 6
    assert error["msg"].startswith(conf["subnetFile"])
    assert msg in error["msg"]
    assert node.left(pod) == before
    assert kept(node) == {}
    assert node.refused("STATUS", conf)["code"] == 50


def test_without_flanneld_add_may_be_tried_later(node, pod, conf):
    os.unlink(conf["subnetFile"])
    error = node.refused("ADD", conf, pod)
    assert (error["code"], error["msg"]) == (11, f"open {conf['subnetFile']}: no such file or directory")
    assert "flanneld" in error["details"]
    assert node.refused("STATUS", conf) == {**error, "code": 50}


def test_a_directory_in_place_of_a_file_is_named(node, pod, conf, tmp_path):
    error = node.refused("ADD", {**conf, "subnetFile": str(tmp_path)}, pod)
    assert error["code"] == 5
    assert f"read {tmp_path}: Is a directory" in error["msg"]
    error = node.refused("ADD", {**conf, "dataDir": conf["subnetFile"]}, pod)
    assert error["code"] == 5
    assert f"write {conf['subnetFile']}/{cid_of(pod)}: Not a directory" in error["msg"]


# -- DEL --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("gone", ["nothing", "netns", "netns unnamed", "link", "subnet.env", "prevResult"])
def test_del_leaves_nothing_and_may_be_repeated(node, pod, conf, gone):
    result = node.add(conf, pod)
    if gone != "prevResult":
        conf["prevResult"] = result
    if gone.startswith("netns"):
        run("ip", "netns", "del", pod)
    elif gone == "link":
        run("ip", "link", "del", "eth0", netns=pod)
    elif gone == "subnet.env":
        os.unlink(conf["subnetFile"])
    for _ in range(2):
        node.delete(conf, "" if gone == "netns unnamed" else pod, cid=cid_of(pod))
        assert node.held() == kept(node) == {}
        assert elements("pods4") == []


def test_del_uses_the_file_and_not_the_present_configuration(node, pod, conf):
    result = node.add({**conf, "delegate": {"type": "ptp"}}, pod)
    conf = flannel(node, "10.44.0.0/24", prevResult=result, ipam={"dataDir": "/nowhere"})
    node.delete(conf, pod)
    assert node.held() == kept(node) == {}
    assert set(links()) == {"lo"}


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"name": 7}', '{"name": "net-a"}'])
def test_without_a_usable_file_del_uses_the_configuration(node, pod, conf, content):
    """In these cases, the reference plugin leaves the address and the link."""
    node.add(conf, pod)
    path = Path(node.data_dir, "flannel", cid_of(pod))
    path.unlink() if content is None else path.write_text(content)
    node.delete(conf, pod)
    assert node.held() == {}
    assert set(links(pod)) == {"lo"}
    assert not path.exists()


def test_del_without_file_and_subnets_succeeds(node, pod, conf):
    os.unlink(conf["subnetFile"])
    reply = node.call("DEL", conf, pod)
    assert (reply.status, reply.stdout) == (0, b"")
    assert "does not know the container" in reply.stderr.decode()


def test_two_interfaces_of_a_pod_share_the_file(node, pod, conf):
    for ifname in ("eth0", "eth1"):
        node.add(conf, pod, ifname=ifname)
    node.refused("ADD", conf, pod, ifname="eth1")  # the name eth1 is in use; the failed ADD must not delete the file
    assert len(kept(node)) == 1
    for ifname in ("eth0", "eth1"):
        node.delete(conf, pod, ifname=ifname)
    assert node.held() == kept(node) == {}
    assert set(links(pod)) == {"lo"}


def test_two_networks_of_a_pod_are_kept_apart(node, pod, conf):
    other = {**conf, "name": "net-b"}
    node.add(conf, pod)
    node.add(other, pod, ifname="eth1")
    assert [found["name"] for found in kept(node).values()] == ["net-b"]
    node.delete(conf, pod)
    assert node.held() == {}
    assert len(node.held("net-b")) == len(kept(node)) == 1
    node.delete(other, pod, ifname="eth1")
    assert node.held("net-b") == kept(node) == {}


# -- delegates of other projects --------------------------------------------------------------------------------------

def test_a_foreign_delegate_receives_the_same_configuration_at_each_command(node, pod, conf, delegate):
    calls = delegate()
    conf |= {"delegate": {"type": "any-plugin", "colour": "red"}, "runtimeConfig": {"mac": "02:00:00:00:00:01"}}
    result = node.add(conf, pod, env=delegate.path)
    add = {"cniVersion": "1.1.0", "name": "net-a", "type": "any-plugin", "colour": "red", "mtu": 1450, "ipMasq": True,
           "runtimeConfig": conf["runtimeConfig"], "ipam": {"type": "host-local", "dataDir": node.data_dir,
           "ranges": [[{"subnet": "10.22.0.0/24"}]], "routes": [{"dst": "10.22.0.0/16"}]}}
    later = {**conf, "prevResult": result, "cni.dev/valid-attachments": []}
    for command, target in (("CHECK", pod), ("STATUS", ""), ("GC", ""), ("DEL", pod)):
        node.ok(command, later, target, env=delegate.path)
    assert calls()[0] == ("ADD", add)
    assert kept(node) == {}
    assert calls()[1:] == [(command, {**add, "prevResult": result, "cni.dev/valid-attachments": []})
                          for command in ("CHECK", "STATUS", "GC", "DEL")]


def test_flannel_returns_the_result_of_the_delegate(node, pod, conf, delegate):
    delegate(on_add='echo \'{"cniVersion": "1.0.0", "interfaces": [{"name": "x9"}], "dns": {"domain": "a.example"}}\'')
    conf["delegate"] = {"type": "any-plugin"}
    assert node.add(conf, pod, env=delegate.path) == {"cniVersion": "1.1.0", "interfaces": [{"name": "x9"}],
                                                  "dns": {"domain": "a.example"}}


def test_a_failed_add_is_rolled_back_and_returns_the_delegates_error(node, pod, conf, delegate):
    calls = delegate(ADD=1)
    conf["delegate"] = {"type": "any-plugin"}
    assert node.refused("ADD", conf, pod, env=delegate.path) == {"code": 77, "msg": "no ADD"}
    assert [command for command, _ in calls()] == ["ADD", "DEL"]
    assert kept(node) == {}


def test_a_del_that_fails_keeps_the_file(node, pod, conf, delegate):
    delegate()
    conf["delegate"] = {"type": "any-plugin"}
    node.add(conf, pod, env=delegate.path)
    delegate(DEL=1)
    assert node.refused("DEL", conf, pod, env=delegate.path)["code"] == 77
    assert len(kept(node)) == 1
    delegate()
    node.delete(conf, pod, env=delegate.path)
    assert kept(node) == {}


def test_a_missing_delegate_is_named(node, pod, conf):
    conf["delegate"] = {"type": "any-plugin"}
    error = node.refused("ADD", conf, pod)
    assert 'failed to find plugin "any-plugin" in path [/nowhere]' in error["msg"]
    assert kept(node) == {}


# -- CHECK, GC, STATUS ------------------------------------------------------------------------------------

def test_check_calls_that_of_the_delegate(node, pod, conf):
    result = node.add(conf, pod)
    os.unlink(conf["subnetFile"])           # CHECK must succeed without subnet.env, because the pod has not changed
    node.check(conf, pod, result)
    run("ip", "route", "del", "10.22.0.0/16", netns=pod)
    assert "Expected Route 10.22.0.0/16" in node.check_refused(conf, pod, result)


def test_gc_keeps_valid_attachments(node, pod_netns, conf):
    stays, lost, elsewhere = pod_netns(), pod_netns(), pod_netns()
    node.add({**conf, "name": "net-b", "delegate": {"ipMasq": False}}, elsewhere)
    for pod in (stays, lost):
        node.add(conf, pod)
    foreign = Path(node.data_dir, "flannel", "README")
    foreign.write_text("of somebody else")
    valid = [{"containerID": cid_of(stays), "ifname": "eth0"}]
    node.ok("GC", {**conf, "cni.dev/valid-attachments": valid})
    assert foreign.exists()
    foreign.unlink()
    assert set(kept(node)) == {cid_of(stays), cid_of(elsewhere)}
    assert set(node.held()) == {"10.22.0.2"}
    assert len(node.held("net-b")) == 1
    assert [key for key, _ in elements("pods4")] == ["10.22.0.2"]


def test_gc_without_flanneld_removes_files_and_reports_the_rest(node, pod, conf):
    node.add(conf, pod)
    os.unlink(conf["subnetFile"])
    error = node.refused("GC", {**conf, "cni.dev/valid-attachments": []})
    assert "no such file" in error["msg"]
    assert kept(node) == {}


def test_status_includes_that_of_the_delegate(node, pod):
    conf = flannel(node, "10.22.0.0/30")
    assert not node.call("STATUS", conf).stderr
    node.add(conf, pod)
    assert b"range set 0 is full" in node.call("STATUS", conf).stderr
