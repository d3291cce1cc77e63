"""ADD, CHECK and DEL of a list of plugins. Comments such as L1 number the cases of libcni's behaviour."""

import os
import stat
from base64 import b64encode

import pytest

from fastcni.runtime import (
    CniError,
    PluginError,
    RuntimeConf,
    parse_list,
)

RT = RuntimeConf("ctr", "/run/netns/c", "eth0")
ADDED = '{"cniVersion":"%s","interfaces":[{"name":"eth0"}]}'
LATER = '{"code":11,"msg":"later","details":"why"}'


def cache_file(stage, name="net-ctr-eth0"):
    return stage.cache / "results" / name


# ADD --------------------------------------------------------------------------------------------

L1 = ({"type": "a", "capabilities": {"portMappings": True, "mac": False}}, {"type": "b"})
L1_RT = RuntimeConf("ctr", "/run/netns/c", "eth0", [("K", "V"), ("A", "x=y")],
                    {"portMappings": [{"hostPort": 80}], "mac": "c2:11:22:33:44:55"})


def test_capabilities_are_filtered_and_results_handed_on(stage, cni, net_of):  # L1
    result = cni.add(net_of(*L1), L1_RT)
    assert result == {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0"}]}
    first, second = stage.calls()
    assert first.stdin == {"capabilities": {"mac": False, "portMappings": True}, "cniVersion": "1.1.0",
                           "name": "net", "type": "a", "runtimeConfig": {"portMappings": [{"hostPort": 80}]}}
    assert second.raw == (b'{"cniVersion":"1.1.0","name":"net","prevResult":{"cniVersion":"1.1.0",'
                          b'"interfaces":[{"name":"eth0"}]},"type":"b"}')
    assert {name: text for name, text in first.env.items() if name.startswith("CNI_")} == {
        "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "ctr", "CNI_NETNS": "/run/netns/c", "CNI_IFNAME": "eth0",
        "CNI_ARGS": "K=V;A=x=y", "CNI_PATH": str(stage.bin)}


def test_a_runtime_config_in_the_file_stays_unless_it_is_replaced(stage, cni, net_of):
    own = {"type": "a", "capabilities": {"mac": True}, "runtimeConfig": {"static": 1}}
    cni.add(net_of(own), RT)
    cni.add(net_of(own), RuntimeConf("ctr", "", "eth0", capability_args={"mac": None}))
    assert [call.stdin["runtimeConfig"] for call in stage.calls()] == [{"static": 1}, {"mac": None}]


def test_a_result_without_a_version_has_the_lists(stage, cni, net_of):  # L2
    stage.answer("a", "ADD", out='{"ips":[{"version":"4","address":"10.0.0.2/24"}]}')
    cni.add(net_of("a", "b", version="0.3.1"), RT)
    assert (b'"prevResult":{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.2/24"}],"dns":{}}'
            in stage.calls()[1].raw)


def test_a_list_without_a_version(stage, cni, net_of):  # L3
    stage.answer("a", "ADD", out="{}")
    result = cni.add(net_of("a", version=None), RT)
    assert stage.calls()[0].stdin["cniVersion"] == ""
    assert result["cniVersion"] == "0.1.0"


def test_nothing_leaks_in_from_the_callers_environment(stage, cni, monkeypatch, net_of):  # L4
    for name in ("CNI_ARGS", "CNI_IFNAME", "CNI_COMMAND", "CNI_CONTAINERID"):
        monkeypatch.setenv(name, "leaked")
    cni.add(net_of("a"), RT)
    assert "leaked" not in stage.calls()[0].env.values()
    assert stage.calls()[0].env["CNI_ARGS"] == ""


def test_the_cache_file_is_what_the_go_library_writes(stage, cni, net_of):  # L5
    net = net_of(*L1)
    cni.add(net, L1_RT)
    file = cache_file(stage)
    assert file.read_bytes() == (
        b'{"kind":"cniCacheV1","containerId":"ctr","config":"' + b64encode(net.raw) +
        b'","ifName":"eth0","networkName":"net","netns":"/run/netns/c","cniArgs":[["K","V"],["A","x=y"]],'
        b'"capabilityArgs":{"mac":"c2:11:22:33:44:55","portMappings":[{"hostPort":80}]},'
        b'"result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}]}}')
    paths = (file, file.parent, stage.cache, stage.cache.parent)
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in paths]
    assert modes == [0o600, 0o700, 0o700, 0o700]
    assert os.listdir(stage.cache) == ["results"]


def test_a_failing_plugin_stops_the_add(stage, cni, net_of):  # L6
    stage.answer("b", "ADD", out=LATER, status=1)
    with pytest.raises(PluginError) as caught:
        cni.add(net_of("a", "b", "c"), RT)
    assert str(caught.value) == 'plugin type="b" (index 1) failed (add): later; why'
    assert (caught.value.code, caught.value.details) == (11, "why")
    assert caught.value.__cause__.msg == "later"
    assert stage.called() == ["a ADD", "b ADD"]
    assert not cache_file(stage).exists()


def test_the_error_contains_the_name_in_the_plugins_configuration(stage, cni, net_of):
    stage.answer("a", "ADD", out=LATER, status=1)
    with pytest.raises(PluginError, match=r'^plugin type="a" name="mine" \(index 0\) failed \(add\): later'):
        cni.add(net_of({"type": "a", "name": "mine"}), RT)


def test_a_failed_add_is_rolled_back_on_request(stage, cni, net_of):
    stage.answer("b", "ADD", out=LATER, status=1)
    stage.answer("b", "DEL", out='{"code":5,"msg":"stuck"}', status=1)
    with pytest.raises(PluginError, match=r"later") as caught:
        cni.add(net_of("a", "b", "c"), RT, rollback=True)
    assert stage.called() == ["a ADD", "b ADD", "b DEL", "a DEL"]
    assert caught.value.__notes__ == ['while undoing: plugin type="b" (index 1) failed (delete): stuck']


def test_a_plugin_that_was_never_started_gets_no_del(stage, cni, net_of):
    with pytest.raises(PluginError, match=r'failed to find plugin "missing"'):
        cni.add(net_of("a", "missing"), RT, rollback=True)
    assert stage.called() == ["a ADD", "a DEL"]


def test_a_cache_that_cannot_be_written_is_an_error(stage, cni, net_of):
    stage.cache.parent.write_text("in the way")
    with pytest.raises(CniError, match=r'^failed to set network "net" cached result: ') as caught:
        cni.add(net_of("a"), RT, rollback=True)
    assert caught.value.code == 5
    assert stage.called() == ["a ADD", "a DEL"]


def test_an_empty_list_has_no_result_and_a_cache_file(stage, cni):
    assert cni.add(parse_list(b'{"name":"net","cniVersion":"1.0.0"}'), RT) is None
    assert b'"result"' not in cache_file(stage).read_bytes()


def test_a_missing_binary_is_reported_before_a_bad_container_id(cni, net_of):  # L37
    bad = RuntimeConf("@bad", "", "eth0")
    with pytest.raises(PluginError, match=r"failed to find plugin"):
        cni.add(net_of("missing"), bad)
    with pytest.raises(PluginError, match=r"invalid characters in containerID; @bad"):
        cni.add(net_of("a"), bad)


@pytest.mark.parametrize("name, rt, code", [
    ("net", RuntimeConf("", "", "eth0"), 3),
    ("net", RuntimeConf("../ctr", "", "eth0"), 4),
    ("net", RuntimeConf("ctr", "", "eth0/.."), 4),
    ("net", RuntimeConf("ctr", "", ""), 4),
    ("../net", RT, 7),
])
def test_identifiers_are_checked_before_an_add(stage, cni, name, rt, code, net_of):
    with pytest.raises(PluginError) as caught:
        cni.add(net_of("a", name=name), rt)
    assert caught.value.code == code
    assert not stage.calls()
    assert not stage.cache.exists()


# CHECK ------------------------------------------------------------------------------------------

def test_check_sends_the_cached_result(stage, cni, net_of):  # L7
    net = net_of("a", "b", version="1.0.0")
    cni.add(net, RT)
    stage.forget_calls()
    cni.check(net, RT)
    assert stage.called() == ["a CHECK", "b CHECK"]
    assert {call.stdin["prevResult"]["cniVersion"] for call in stage.calls()} == {"1.0.0"}
    cache_file(stage).unlink()
    stage.forget_calls()
    cni.check(net, RT)
    assert not any("prevResult" in call.stdin for call in stage.calls())
    cache_file(stage).write_text("garbage")
    with pytest.raises(CniError, match=r'^failed to get network "net" cached result: '):
        cni.check(net, RT)


@pytest.mark.parametrize("disabled", [False, True])
def test_check_is_refused_below_0_4_0(stage, cni, disabled, net_of):  # L8
    with pytest.raises(CniError) as caught:
        cni.check(net_of("a", version="0.3.1", disableCheck=disabled), RT)
    assert str(caught.value) == 'configuration version "0.3.1" does not support the CHECK command'


def test_disable_check_prevents_check(stage, cni, net_of):  # L9
    cni.check(net_of("a", version="0.4.0", disableCheck=True), RT)
    assert not stage.calls()


def test_the_error_of_a_check_names_the_plugin_and_those_before_it(stage, cni, net_of):
    # The Go library returns only the plugin's message, which does not say which plugin of the list failed.
    stage.answer("b", "CHECK", out=LATER, status=1)
    with pytest.raises(PluginError) as caught:
        cni.check(net_of("a", "b", "c"), RT)
    assert str(caught.value) == 'plugin type="b" (index 1) failed (check): later; why'
    assert (caught.value.code, caught.value.details) == (11, "why")
    assert [plugin.type for plugin in caught.value.done] == ["a"]
    assert stage.called() == ["a CHECK", "b CHECK"]


def test_check_and_del_report_that_no_result_is_cached(stage, cni, net_of):
    net = net_of("a", "b")
    for command in (cni.check, cni.delete):
        report = command(net, RT)
        assert len(report.called) == 2
        assert report.unknown == f"no result of its ADD is cached in {stage.cache}/results"
    cni.add(net, RT)
    assert cni.check(net, RT).unknown == cni.delete(net, RT).unknown == ""


def test_del_reports_a_cached_result_that_cannot_be_used(stage, cni, net_of):
    net = net_of("a")
    cni.add(net, RT)
    cache_file(stage).write_text("{")
    assert cni.delete(net, RT).unknown.startswith("the cached result of its ADD could not be used: ")


def test_a_disabled_check_is_reported(stage, cni, net_of):
    report = cni.check(net_of("a", disableCheck=True), RT)
    assert (report.called, report.skipped) == ((), "disableCheck is true")


def test_check_and_del_report_an_invalid_version(cni, net_of):
    for command in (cni.check, cni.delete):
        with pytest.raises(CniError, match=r'^failed to convert major version part "abc"'):
            command(net_of("a", version="abc"), RT)


# DEL --------------------------------------------------------------------------------------------

def test_delete_calls_plugins_in_reverse_and_removes_the_cache_file(stage, cni, net_of):  # L10, L13
    net = net_of("a", "b", version="0.4.0")
    stage.answer("a", "ADD", out=ADDED % "0.4.0")
    stage.answer("b", "ADD", out=ADDED % "0.4.0")
    cni.add(net, RT)
    stage.forget_calls()
    cni.delete(net, RT)
    assert stage.called() == ["b DEL", "a DEL"]
    assert all(call.stdin["prevResult"]["cniVersion"] == "0.4.0" for call in stage.calls())
    assert not cache_file(stage).exists()
    cni.delete(net, RT)


def test_below_0_4_0_delete_has_no_prev_result(stage, cni, net_of):  # L11
    net = net_of("a", version="0.3.1")
    stage.answer("a", "ADD", out=ADDED % "0.3.1")
    cni.add(net, RT)
    cni.delete(net, RT)
    assert "prevResult" not in stage.calls()[1].stdin
    assert not cache_file(stage).exists()


@pytest.mark.parametrize("content", [
    b"garbage", b"", b'{"kind":"cniCacheV1","containerId":"ctr","conf', b"[]", b"5",
    b'{"cniVersion":"9.9.9"}', b'{"kind":"cniCacheV1","result":{"cniVersion":"1.0.0","ips":5}}'])
def test_a_damaged_cache_never_blocks_a_delete(stage, cni, content, net_of):  # L12
    cache_file(stage).parent.mkdir(parents=True)
    cache_file(stage).write_bytes(content)
    cni.delete(net_of("a"), RT)
    assert stage.called() == ["a DEL"]
    assert "prevResult" not in stage.calls()[0].stdin
    assert not cache_file(stage).exists()


def test_a_failing_delete_stops_and_keeps_the_cache(stage, cni, net_of):  # L14
    net = net_of("a", "b")
    cni.add(net, RT)
    stage.forget_calls()
    stage.answer("b", "DEL", out=LATER, status=1)
    with pytest.raises(PluginError) as caught:
        cni.delete(net, RT)
    assert str(caught.value) == 'plugin type="b" (index 1) failed (delete): later; why'
    assert stage.called() == ["b DEL"]
    assert cache_file(stage).exists()


def test_identifiers_of_a_delete_cannot_leave_the_cache(stage, cni, net_of):
    victim = stage.where / "var" / "victim"
    (stage.cache / "results").mkdir(parents=True)
    victim.write_text("{")
    cni.delete(net_of("a"), RuntimeConf("x/../../../victim", "", "eth0"))
    cni.delete(net_of("a"), RuntimeConf("", "", ""))
    assert victim.exists()
    assert stage.called() == ["a DEL"] * 2
