"""Working through the result cache: what each plugin is told, and that one failure keeps no other attachment."""

import inspect
import json

import pytest

from fastcni import plugins
from fastcni.cli import door
from fastcni.runtime import restore as restoring
from fastcni.runtime.cache import Cache
from fastcni.runtime.records import RuntimeConf
from fastcni.spec import errors
from fastcni.spec.errors import CniError

NETNS = "/proc/self/ns/net"
RESULT = {"cniVersion": "1.0.0", "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": NETNS}],
          "ips": [{"address": "10.0.0.2/24", "interface": 1}]}
BRIDGE = {"type": "bridge", "ipMasq": True}
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
PORTS = {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}], "mac": "02:00:00:00:00:01"}


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cni")


@pytest.fixture
def told(monkeypatch):
    """[(type, variables, stdin)] of the calls. A plugin that is told `"refuse": true` fails."""
    calls = []

    def restore_one(kind, env, stdin, *, host):
        calls.append((kind, env, json.loads(stdin)))
        if calls[-1][2].get("refuse"):
            raise CniError(errors.INTERNAL, "no, thanks")
        return []

    monkeypatch.setattr(restoring, "restore_one", restore_one)
    return calls


def remember(cache, cid, *plugins, netns=NETNS, network="net", version="1.0.0", config=None):
    config = config or json.dumps({"cniVersion": version, "name": network, "plugins": plugins}).encode()
    rt = RuntimeConf(cid, netns, "eth0", [("K", "V")], PORTS)
    cache.write(network, config, rt, {**RESULT, "cniVersion": version})


def test_each_plugin_with_something_in_the_firewall_is_told_what_check_would_be(cache, told):
    remember(cache, "c1", BRIDGE, {"type": "tuning"}, PORTMAP, {"type": "somebody-elses"})
    done = restoring.restore(cache, {"PATH": "/sbin"})
    assert (done.attachments, done.plugins, done.gone, done.failed) == (1, 2, 0, ())
    assert [kind for kind, _, _ in told] == ["bridge", "portmap"]
    _, env, stdin = told[1]
    assert {key: env[key] for key in env if key != "CNI_PATH"} == {
        "PATH": "/sbin", "CNI_COMMAND": "CHECK", "CNI_CONTAINERID": "c1", "CNI_NETNS": NETNS, "CNI_IFNAME": "eth0",
        "CNI_ARGS": "K=V"}
    assert stdin == {**PORTMAP, "name": "net", "cniVersion": "1.0.0", "prevResult": RESULT,
                     "runtimeConfig": {"portMappings": PORTS["portMappings"]}}


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.1.0"])
def test_versions_without_check_are_told_the_result_too(cache, told, version):
    remember(cache, "c1", BRIDGE, version=version)
    restoring.restore(cache)
    assert told[0][2]["prevResult"]["cniVersion"] == told[0][2]["cniVersion"] == version


@pytest.mark.parametrize("netns", ["", "/run/netns/that-is-no-more", "/etc/passwd"])
def test_an_attachment_whose_namespace_is_gone_is_left_out(cache, told, netns):
    remember(cache, "c1", BRIDGE, netns=netns)
    remember(cache, "c2", BRIDGE)
    done = restoring.restore(cache)
    assert (done.attachments, done.gone) == (1, 1) and [env["CNI_CONTAINERID"] for _, env, _ in told] == ["c2"]


def test_a_plugin_that_stood_alone_is_found_too(cache, told):
    remember(cache, "c1", config=json.dumps({**BRIDGE, "name": "net", "cniVersion": "1.0.0"}).encode())
    restoring.restore(cache)
    assert told[0][0] == "bridge" and told[0][2]["prevResult"]


def test_it_goes_on_after_failures_and_tells_of_all(cache, told):
    remember(cache, "c1", {**BRIDGE, "refuse": True}, PORTMAP)
    remember(cache, "c2", config=b"[]")
    remember(cache, "c3", BRIDGE)
    done = restoring.restore(cache)
    assert [kind for kind, _, _ in told] == ["bridge", "portmap", "bridge"]
    assert (done.attachments, done.plugins) == (2, 3)
    assert [(it.attachment.container_id, it.plugin) for it in done.failed] == [("c1", "bridge"), ("c2", "")]
    assert str(done.failed[0]) == "bridge of eth0 of container c1 in network net: no, thanks"


def test_the_command_says_how_many_and_exits_1_after_a_failure(cache, told, capfd):
    remember(cache, "c1", BRIDGE)
    assert door.run(["restore", "--cache-dir", cache.directory]) == 0
    assert json.loads(capfd.readouterr().out) == {"attachments": 1, "plugins": 1, "gone": 0, "failed": []}
    remember(cache, "c2", {**PORTMAP, "refuse": True})
    assert door.run(["restore", "--json", "--cache-dir", cache.directory]) == 1
    assert json.loads(capfd.readouterr().out)["failed"] == [
        {"network": "net", "containerID": "c2", "ifname": "eth0", "plugin": "portmap", "code": 999,
         "msg": "no, thanks"}]


@pytest.mark.parametrize("kind", plugins.TABLE)
def test_who_has_a_restore_means_this_one(kind):
    function = getattr(plugins.load(kind), "restore", None)
    assert function is None or [*inspect.signature(function).parameters] == ["req", "conf"]


def test_nothing_remembered_is_nothing_to_do(cache, told, capfd):
    assert door.run(["restore", "--cache-dir", cache.directory]) == 0
    assert json.loads(capfd.readouterr().out) == {"attachments": 0, "plugins": 0, "gone": 0, "failed": []}
