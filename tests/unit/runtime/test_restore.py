"""Restore from the result cache: each plugin's input. A failed attachment does not prevent the restore of others."""

import inspect
import json
import os

import namespace_files
import pytest

from fastcni import plugins
from fastcni.cli import entry_point
from fastcni.runtime import restore as restoring
from fastcni.runtime.cache import Cache
from fastcni.runtime.records import RuntimeConf
from fastcni.spec import errors
from fastcni.spec.errors import CniError

NETNS = "/proc/self/ns/net"
RESULT = {"cniVersion": "1.0.0", "interfaces": [{"name": "lo"}, {"name": "eth0", "sandbox": NETNS}],
          "ips": [{"address": "10.0.0.2/24", "interface": 1}]}
BRIDGE = {"type": "bridge", "ipMasq": True}
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
PORTS = {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}], "mac": "02:00:00:00:00:01"}


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cni")


@pytest.fixture
def calls(monkeypatch):
    """Return the list of calls, [(type, variables, stdin)]. A plugin with `"refuse": true` in its configuration
    fails."""
    calls = []

    def restore_one(kind, env, stdin, mode):
        calls.append((kind, env, json.loads(stdin)))
        if calls[-1][2].get("refuse"):
            raise CniError(errors.INTERNAL, "no, thanks")
        return []

    monkeypatch.setattr(restoring, "restore_one", restore_one)
    return calls


def remember(cache, cid, *plugins, netns=NETNS, network="net", version="1.0.0", config=None, result=RESULT):
    config = config or json.dumps({"cniVersion": version, "name": network, "plugins": plugins}).encode()
    rt = RuntimeConf(cid, netns, "eth0", [("K", "V")], PORTS)
    cache.write(network, config, rt, {**result, "cniVersion": version})


def test_each_plugin_with_firewall_state_gets_the_input_of_a_check(cache, calls):
    remember(cache, "c1", BRIDGE, {"type": "tuning"}, PORTMAP, {"type": "of-another-project"})
    done = restoring.restore(cache, {"PATH": "/sbin"})
    assert (done.attachments, done.plugins, done.gone, done.failed) == (1, 2, 0, ())
    assert [kind for kind, _, _ in calls] == ["bridge", "portmap"]
    _, env, stdin = calls[1]
    assert {key: env[key] for key in env if key != "CNI_PATH"} == {
        "PATH": "/sbin", "CNI_COMMAND": "CHECK", "CNI_CONTAINERID": "c1", "CNI_NETNS": NETNS, "CNI_IFNAME": "eth0",
        "CNI_ARGS": "K=V"}
    assert stdin == {**PORTMAP, "name": "net", "cniVersion": "1.0.0", "prevResult": RESULT,
                     "runtimeConfig": {"portMappings": PORTS["portMappings"]}}


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.1.0"])
def test_plugins_of_versions_without_check_get_the_result_too(cache, calls, version):
    remember(cache, "c1", BRIDGE, version=version)
    restoring.restore(cache)
    assert calls[0][2]["prevResult"]["cniVersion"] == calls[0][2]["cniVersion"] == version


def test_an_attachment_whose_namespace_is_gone_is_left_out(cache, calls, tmp_path):
    remember(cache, "c1", BRIDGE, netns=f"{tmp_path}/that-is-no-more")
    namespace_files.end(tmp_path / "that-is-no-more")
    remember(cache, "c2", BRIDGE)
    done = restoring.restore(cache)
    assert (done.attachments, done.gone) == (1, 1)
    assert [env["CNI_CONTAINERID"] for _, env, _ in calls] == ["c2"]


def test_a_cache_without_netns_is_restored_in_the_sandbox_of_its_result(cache, calls):
    """libcni before 1.2 (containerd 1.6, podman 4) writes no netns. Once, fastcni regarded its pods as ended."""
    remember(cache, "c1", BRIDGE, netns="")
    done = restoring.restore(cache)
    assert (done.attachments, done.gone, done.failed) == (1, 0, ())
    assert calls[0][1]["CNI_NETNS"] == NETNS


def test_an_attachment_without_a_recorded_namespace_is_a_failure(cache, calls):
    remember(cache, "c1", BRIDGE, netns="", result={"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/24"}},
             version="0.2.0")
    remember(cache, "c2", {"type": "tuning"}, netns="", result={"cniVersion": "0.2.0"}, version="0.2.0")
    done = restoring.restore(cache)
    assert [str(it) for it in done.failed] == [
        "eth0 of container c1 in network net: the cache does not name its network namespace"]
    assert not calls
    assert done.gone == 0


def test_a_restore_that_does_not_see_the_nodes_namespaces_fails(cache, calls, tmp_path):
    """The container does not have the node's /run/netns. Once, each pod counted as gone there, and the exit status was
    0."""
    remember(cache, "c1", BRIDGE, netns=f"{tmp_path}/no-such-directory/pod")
    remember(cache, "c2", BRIDGE, netns="/etc/passwd")
    done = restoring.restore(cache)
    assert done.gone == 0
    assert "are these the mounts and the processes of the node?" in str(done.failed[0])
    assert "/etc/passwd is a plain file here" in str(done.failed[1])


def test_a_bare_result_of_a_living_pod_is_a_failure(cache, calls, tmp_path):
    """libcni before 0.8 wrote only the result. Without a configuration, fastcni cannot restore the attachment, and
    reports this."""
    (tmp_path / "cni/results").mkdir(parents=True)
    (tmp_path / "cni/results/net-c1-eth0").write_text(json.dumps(RESULT))
    (tmp_path / "cni/results/net-c2-eth0").write_text(json.dumps(RESULT).replace(NETNS, f"{tmp_path}/no-more"))
    namespace_files.end(tmp_path / "no-more")
    (tmp_path / "cni/results/net-c3-eth0").write_text('{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}')
    done = restoring.restore(cache)
    assert [(it.attachment.network, it.attachment.container_id) for it in done.failed] == [("net", "c1")]
    assert "no network configuration" in str(done.failed[0])
    assert done.gone == 1


def test_an_attachment_whose_del_has_begun_is_left_out_unless_it_was_added_again(cache, calls, tmp_path):
    for cid in ("deleted", "added-again", "no-del", "gone"):
        remember(cache, cid, BRIDGE)
    for cid, seconds in (("deleted", 100), ("added-again", 300), ("no-del", 100)):
        os.utime(tmp_path / f"cni/results/net-{cid}-eth0", (seconds, seconds))
    began = {"deleted": 200.0, "added-again": 200.0, "gone": 200.0}

    def deleted_at(it):
        (tmp_path / "cni/results/net-gone-eth0").unlink(missing_ok=True)  # the runtime removes the result after its DEL
        return began.get(it.container_id, 0.0)

    restoring.restore(cache, deleted_at=deleted_at)
    assert [env["CNI_CONTAINERID"] for _, env, _ in calls] == ["added-again", "no-del"]


def test_an_attachment_of_a_single_plugin_is_restored_too(cache, calls):
    remember(cache, "c1", config=json.dumps({**BRIDGE, "name": "net", "cniVersion": "1.0.0"}).encode())
    restoring.restore(cache)
    assert calls[0][0] == "bridge"
    assert calls[0][2]["prevResult"]


def test_restore_continues_after_failures_and_reports_all(cache, calls):
    remember(cache, "c1", {**BRIDGE, "refuse": True}, PORTMAP)
    remember(cache, "c2", config=b"[]")
    remember(cache, "c3", BRIDGE)
    done = restoring.restore(cache)
    assert [kind for kind, _, _ in calls] == ["bridge", "portmap", "bridge"]
    assert (done.attachments, done.plugins) == (2, 3)
    assert [(it.attachment.container_id, it.plugin) for it in done.failed] == [("c1", "bridge"), ("c2", "")]
    assert str(done.failed[0]) == "bridge of eth0 of container c1 in network net: no, thanks"


def test_the_command_prints_the_counts_and_exits_1_after_a_failure(cache, calls, capfd):
    remember(cache, "c1", BRIDGE)
    assert entry_point.run(["restore", "--json", "--cache-dir", cache.directory]) == 0
    assert json.loads(capfd.readouterr().out) == {"attachments": 1, "plugins": 1, "gone": 0, "elsewhere": 0,
                                                   "failed": []}
    remember(cache, "c2", {**PORTMAP, "refuse": True})
    assert entry_point.run(["restore", "--json", "--cache-dir", cache.directory]) == 1
    assert json.loads(capfd.readouterr().out)["failed"] == [
        {"network": "net", "containerID": "c2", "ifname": "eth0", "plugin": "portmap", "code": 999,
         "msg": "no, thanks"}]


@pytest.mark.parametrize("damage", [lambda raw: b"", lambda raw: raw[:40], lambda raw: b"[]", lambda raw: None])
def test_a_cached_result_that_cannot_be_read_is_a_failure_with_its_path(cache, calls, capfd, damage):
    """Once, restore skipped a truncated file. It printed "restored: 0 attachments ... failed: 0", with exit status
    0."""
    remember(cache, "c1", BRIDGE)
    remember(cache, "c2", BRIDGE)
    path = os.path.join(cache.results(), "net-c1-eth0")
    with open(path, "rb") as file:
        raw = damage(file.read())
    os.unlink(path)
    if raw is None:
        os.mkdir(path)
    else:
        with open(path, "wb") as file:
            file.write(raw)
    words = ["restore", "--cache-dir", cache.directory]
    assert entry_point.run(words) == 1
    seen = capfd.readouterr()
    assert "restored: 1 attachments, 1 plugins; failed: 1;" in seen.out
    assert seen.err.startswith(f"cached result {path}: ")
    assert entry_point.run([*words, "--json"]) == 1
    failed, = json.loads(capfd.readouterr().out)["failed"]
    assert failed["msg"] and {key: failed[key] for key in failed if key != "msg"} == {
        "network": "", "containerID": "", "ifname": "", "plugin": "", "path": path, "code": 6}


def test_an_attachment_from_before_the_last_boot_is_gone(cache, calls, tmp_path):
    """/run is empty after a boot. So such an attachment is gone, whichever mount namespace restore runs in."""
    remember(cache, "c1", BRIDGE, netns=f"{tmp_path}/no-such-directory/pod")
    os.utime(tmp_path / "cni/results/net-c1-eth0", (1, 1))
    assert restoring.restore(cache) == restoring.Restored(0, 0, 1, ())


@pytest.mark.parametrize("kind", plugins.TABLE)
def test_a_restore_function_takes_a_request_and_a_configuration(kind):
    function = getattr(plugins.load(kind), "restore", None)
    assert function is None or [*inspect.signature(function).parameters] == ["req", "conf"]


def test_an_empty_cache_needs_no_restore(cache, calls, capfd):
    assert entry_point.run(["restore", "--json", "--cache-dir", cache.directory]) == 0
    assert json.loads(capfd.readouterr().out) == {"attachments": 0, "plugins": 0, "gone": 0, "elsewhere": 0,
                                                   "failed": []}
