"""The plugin `chain`: other plugins in it get the same input, byte for byte, as from libcni's execution of a list."""

import json

import pytest

from fastcni.runtime import CNI, CniError, InProcess, RuntimeConf, parse_list
from fastcni.spec import version

RT = RuntimeConf("ctr", "/run/netns/c", "eth0", [("K", "V")],
                 {"portMappings": [{"hostPort": 80}], "mac": "c2:11:22:33:44:55", "ips": ["10.0.0.9"]})
PLUGINS = [
    {"type": "a", "capabilities": {"portMappings": True, "mac": False}, "large": 1 << 60, "list": [1.0, 1e21, None]},
    {"type": "b", "Name": "own", "capabilities": {"mac": True, "portMappings": True}, "runtimeConfig": {"static": 1}},
    {"type": "c", "runtimeConfig": {"static": 1}, "args": {"cni": {"k": "v\u00e9"}}},
]
RESULTS = {
    "0.1.0": {"ip4": {"ip": "10.0.0.2/24", "routes": [{"dst": "0.0.0.0/0"}]}, "dns": {}},
    "0.3.0": {"interfaces": [{"name": "eth0", "mac": "m", "sandbox": "/run/netns/c"}], "dns": {"search": ["x"]},
              "ips": [{"version": "4", "interface": 0, "address": "10.0.0.2/24", "gateway": "10.0.0.1"}]},
    "1.0.0": {"interfaces": [{"name": "eth0", "mtu": 1500, "sandbox": "/run/netns/c"}],
              "ips": [{"interface": 0, "address": "10.0.0.2/24"}], "routes": [{"dst": "0.0.0.0/0", "mtu": 9}]},
}
SHAPES = {"0.2.0": "0.1.0", "0.3.1": "0.3.0", "0.4.0": "0.3.0", "1.1.0": "1.0.0"}


def listed(spoken, plugins=PLUGINS, **keys):
    return parse_list(json.dumps({"cniVersion": spoken, "name": "net", "plugins": plugins, **keys}).encode())


def fused(spoken, plugins=PLUGINS, **keys):
    declared = {name: True for plugin in plugins for name, on in plugin.get("capabilities", {}).items() if on}
    return listed(spoken, [{"type": "chain", "capabilities": declared, "plugins": plugins}], **keys)


@pytest.fixture
def both(stage, cni):
    """Return a runtime in which the plugins a, b and c are programs, and `chain` is fastcni's plugin."""
    return CNI([stage.bin], stage.net_d, stage.cache, runner=InProcess())


def recorded(stage, do):
    """Call do(). Return (the plugins' calls, the result or exception of do())."""
    stage.forget_calls()
    try:
        outcome = do()
    except CniError as e:
        outcome = e
    calls = [(call.plugin, call.command, call.raw, {name: text for name, text in call.env.items()
                                                    if name.startswith("CNI_")}) for call in stage.calls()]
    return calls, outcome


@pytest.mark.parametrize("spoken", version.ALL)
def test_foreign_plugins_get_the_same_bytes_as_in_the_list(stage, both, spoken):
    for name in "abc":
        stage.answer(name, "ADD", {"cniVersion": spoken, **RESULTS[SHAPES.get(spoken, spoken)]})
    seen = {}
    for make in (listed, fused):
        net, log = make(spoken), []
        log.append(recorded(stage, lambda net=net: both.add(net, RT)))
        file = (stage.cache / "results" / "net-ctr-eth0").read_bytes()
        log.append(json.loads(file)["result"])
        if version.at_least(spoken, "0.4.0"):
            log.append(recorded(stage, lambda net=net: both.check(net, RT))[0])
        log.append(recorded(stage, lambda net=net: both.delete(net, RT))[0])
        if spoken == "1.1.0":
            log.append(recorded(stage, lambda net=net: both.status(net))[0])
            log.append(recorded(stage, lambda net=net: both.gc(net, [("other", "eth0")]))[0])
        seen[make] = log
    assert seen[fused] == seen[listed]
    assert [name for name, *_ in seen[fused][0][0]] == ["a", "b", "c"]


def test_del_is_in_reverse_order_and_ends_at_the_first_failure(stage, both):
    stage.answer("b", "DEL", {"code": 11, "msg": "later", "details": "why"}, status=1)
    calls, error = recorded(stage, lambda: both.delete(fused("1.1.0"), RT))
    assert [(name, command) for name, command, *_ in calls] == [("c", "DEL"), ("b", "DEL")]
    assert (error.code, error.details) == (11, "why")
    assert error.msg.endswith('failed (delete): plugin type="b" (index 1) failed (delete): later')


def test_a_failed_add_is_rolled_back_in_reverse_order(stage, both):
    stage.answer("c", "ADD", {"code": 7, "msg": "no", "details": "why"}, status=1)
    stage.answer("b", "DEL", {"code": 11, "msg": "not now"}, status=1)
    calls, error = recorded(stage, lambda: both.add(fused("1.1.0"), RT))
    assert [f"{name} {command}" for name, command, *_ in calls] == [
        "a ADD", "b ADD", "c ADD", "c DEL", "b DEL", "a DEL"]
    assert error.code == 7
    assert error.msg.endswith('plugin type="c" (index 2) failed (add): no')
    assert error.details == "why; while undoing: not now"


def test_a_missing_plugin_is_named(stage, both):
    (stage.bin / "b").unlink()
    calls, error = recorded(stage, lambda: both.add(fused("1.0.0"), RT))
    assert [f"{name} {command}" for name, command, *_ in calls] == ["a ADD", "a DEL"]
    assert 'plugin type="b" (index 1) failed (add): failed to find plugin "b" in path' in error.msg


def test_gc_goes_on_after_a_failure(stage, both):
    stage.answer("a", "GC", {"code": 999, "msg": "broken"}, status=1)
    calls, error = recorded(stage, lambda: both.gc(fused("1.1.0"), [("ctr", "eth0")]))
    assert [name for name, *_ in calls] == ["a", "b", "c"]
    assert 'plugin type="a" (index 0) failed (gc): broken' in error.msg


def test_disable_check_and_disable_gc_of_the_list_keep_their_meaning(stage, both):
    net = fused("1.1.0", disableCheck=True, disableGC=True)
    assert both.check(net, RT).skipped and both.gc(net, None).skipped
    assert stage.calls() == []


@pytest.mark.parametrize("spoken", ["0.1.0", "0.2.0"])
def test_a_version_that_a_nested_plugin_does_not_speak_is_refused_before_anything_is_done(stage, both, spoken):
    calls, error = recorded(stage, lambda: both.add(fused(spoken, [{"type": "a"}, {"type": "bandwidth"}]), RT))
    assert calls == []
    assert (error.code, error.details[:17]) == (1, f'config is "{spoken}"')
    assert 'plugin type="bandwidth" (index 1) failed (add): incompatible CNI versions' in error.msg


def test_args_that_a_program_writes_into_the_lists_first_plugin_are_for_the_first_nested_one(stage, both):
    net = listed("1.0.0", [{"type": "chain", "args": {"cni": {"ips": ["10.0.0.9"]}},
                            "plugins": [{"type": "a"}, {"type": "b"}]}])
    calls, _ = recorded(stage, lambda: both.add(net, RT))
    first, second = (json.loads(raw) for _, _, raw, _ in calls)
    assert first["args"] == {"cni": {"ips": ["10.0.0.9"]}} and "args" not in second


def test_plugins_before_and_after_a_chain_pass_their_results_on(stage, both):
    net = listed("1.0.0", [{"type": "a"}, {"type": "chain", "plugins": [{"type": "b"}]}, {"type": "c"}])
    calls, _ = recorded(stage, lambda: both.add(net, RT))
    assert [name for name, *_ in calls] == ["a", "b", "c"]
    assert [json.loads(raw).get("prevResult", {}).get("interfaces") for _, _, raw, _ in calls] == [
        None, [{"name": "eth0"}], [{"name": "eth0"}]]
