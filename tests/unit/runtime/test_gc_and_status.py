"""GC, STATUS, validation and cached attachments of a list of plugins. Comments such as L15 number the cases of libcni's
behaviour."""

import json
import os
from base64 import b64encode

import pytest

from fastcni.runtime import (
    CNI,
    Attachment,
    CniError,
    Exec,
    ManyErrors,
    Released,
    RuntimeConf,
    collect,
    list_of_plugin,
    parse_plugin,
)

RT = RuntimeConf("ctr", "/run/netns/c", "eth0")
ADDED = '{"cniVersion":"%s","interfaces":[{"name":"eth0"}]}'
LATER = '{"code":11,"msg":"later","details":"why"}'
L1_RT = RuntimeConf("ctr", "/run/netns/c", "eth0", [("K", "V"), ("A", "x=y")],
                    {"portMappings": [{"hostPort": 80}], "mac": "c2:11:22:33:44:55"})


# GC ---------------------------------------------------------------------------------------------

KEYS = ("cni.dev/valid-attachments", "cni.dev/attachments")
GC_ARGS = [
    ("none", None, None),
    # The Go library also has an unset list, which it sends as null. fastcni has no such list.
    ("empty", [], []),
    ("one", [("ctr", "eth0")], [{"containerID": "ctr", "ifname": "eth0"}]),
    ("record", [RT], [{"containerID": "ctr", "ifname": "eth0"}]),
]


@pytest.mark.parametrize("valid, sent", [row[1:] for row in GC_ARGS],
                         ids=[f"L15-{row[0]}" for row in GC_ARGS])
def test_gc_sends_the_valid_attachments_to_the_plugins(stage, cni, valid, sent, net_of):
    cni.gc(net_of("a"), valid)
    [call] = stage.calls()
    assert [call.stdin.get(key) for key in KEYS] == [sent, sent]
    assert (KEYS[0] in call.stdin) is (valid is not None)
    assert {name: text for name, text in call.env.items() if name.startswith("CNI_")} == {
        "CNI_COMMAND": "GC", "CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": "", "CNI_ARGS": "",
        "CNI_PATH": str(stage.bin)}


def stale_stage(stage, cni, net_of, version="1.1.0"):
    net = net_of({"type": "a", "capabilities": {"mac": True}}, "b", version=version)
    for name in ("a", "b"):
        stage.answer(name, "ADD", out=ADDED % version)
    cni.add(net, RT)
    cni.add(net, RuntimeConf("old", "/run/netns/old", "eth1", [("K", "V")], {"mac": "m"}))
    cni.add(net_of("a", name="other", version=version), RT)
    stage.forget_calls()
    return net


def test_gc_deletes_stale_attachments_with_the_args_of_their_add(stage, cni, net_of):           # L16
    cni.gc(stale_stage(stage, cni, net_of), [("ctr", "eth0")])
    assert stage.called() == ["b DEL", "a DEL", "a GC", "b GC"]
    deleted = stage.calls()[1]
    assert [deleted.env[f"CNI_{name}"] for name in ("CONTAINERID", "NETNS", "IFNAME", "ARGS")] == [
        "old", "/run/netns/old", "eth1", "K=V"]
    assert deleted.stdin["runtimeConfig"] == {"mac": "m"}
    assert sorted(os.listdir(stage.cache / "results")) == ["net-ctr-eth0", "other-ctr-eth0"]


def test_gc_below_1_1_0_only_deletes(stage, cni, net_of):                                 # L17
    report = cni.gc(stale_stage(stage, cni, net_of, "0.3.1"), None)
    assert [it.skipped for it in report.plugins] == [
        'cniVersion "0.3.1" has no GC (since 1.1.0), and it is not one of fastcni\'s own plugins'] * 2
    assert stage.called() == ["b DEL", "a DEL"] * 2
    assert os.listdir(stage.cache / "results") == ["other-ctr-eth0"]


def test_gc_goes_on_and_reports_everything(stage, cni, net_of):  # L18
    stage.answer("a", "GC", out='{"code":5,"msg":"one"}', status=1)
    stage.answer("b", "GC", out=LATER, status=1)
    with pytest.raises(ManyErrors) as caught:
        cni.gc(net_of("a", "b"), [])
    assert str(caught.value) == ('plugin type="a" (index 0) failed (gc): one\n'
                                 'plugin type="b" (index 1) failed (gc): later; why')
    assert [error.code for error in caught.value.errors] == [5, 11]


def test_gc_reports_a_stale_attachment_that_stays(stage, cni, net_of):
    net = stale_stage(stage, cni, net_of)
    stage.answer("b", "DEL", out='{"code":5,"msg":"stuck"}', status=1)
    with pytest.raises(ManyErrors) as caught:
        cni.gc(net, [("ctr", "eth0")])
    assert str(caught.value) == (
        'failed to delete stale attachment old eth1: plugin type="b" (index 1) failed (delete): stuck')
    assert stage.called() == ["b DEL", "a GC", "b GC"]


def test_gc_without_a_readable_cache_deletes_nothing_and_fails(stage, cni, caplog, net_of):  # L19
    # Unlike fastcni, the Go library reports nothing.
    stage.cache.mkdir(parents=True)
    (stage.cache / "results").write_text("a file")
    report = cni.gc(net_of("a"), [])
    assert not stage.calls()
    assert report.skipped.startswith("list the result cache: ")
    assert "GC of network net was not run" in caplog.text


def test_disable_gc_prevents_gc(stage, cni, net_of):  # L20
    assert cni.gc(net_of("a", disableGC=True), []).skipped == "disableGC is true"
    assert not stage.calls()


class Own(Exec):
    """A runner for which the plugins "a" and "b" are fastcni's own."""

    def is_own(self, where):
        return where.endswith(("/a", "/b"))


@pytest.mark.parametrize("version", ["0.3.1", "1.0.0", "1.1.0"])
def test_fastcnis_plugins_collect_in_every_version_and_report_it(stage, cni, net_of, version):
    # libcni calls no plugin below 1.1.0, and the plugins that it calls report nothing.
    cni.runner = Own()
    stage.answer("a", "GC", out='{"released":[{"plugin":"host-local","what":"address 10.1.0.5","of":"x eth0"}]}')
    report = cni.gc(net_of("a", "b", "c", version=version), [("ctr", "eth0")])
    assert stage.called() == ["a GC", "b GC"] + ["c GC"] * (version == "1.1.0")
    assert [call.stdin.get("fastcni/report") for call in stage.calls()] == [True, True, None][:len(stage.calls())]
    assert stage.calls()[0].stdin["cni.dev/valid-attachments"] == [{"containerID": "ctr", "ifname": "eth0"}]
    assert report.plugins[0].released == (Released("host-local", "address 10.1.0.5", "x eth0"),)
    assert report.plugins[1].released is None
    assert bool(report.plugins[2].skipped) is (version != "1.1.0")


def test_a_report_of_gc_that_cannot_be_read_is_an_error(stage, cni, net_of):
    cni.runner = Own()
    stage.answer("a", "GC", out='{"released":5}')
    with pytest.raises(ManyErrors, match=r"the plugin's report of GC cannot be read"):
        cni.gc(net_of("a"), [])


# Which attachments live -------------------------------------------------------------------------

def test_gc_of_all_keeps_valid_attachments_only(tmp_path):
    remembered = [Attachment(name, network, "eth0", netns=netns) for name, network, netns in (
        ("alive", "net", "/proc/self/ns/net"), ("dead", "net", str(tmp_path / "x")), ("alive", "other", ""))]
    plan = collect.make_plan(remembered, "net", [("dead", "eth0")])
    assert [it.attachment.container_id for it in plan.kept] == ["alive", "dead"]
    assert not plan.stale
    plan = collect.make_plan(remembered, "net", [("dead", "eth0")], everything=True)
    assert [it.attachment.container_id for it in plan.stale] == ["alive"]


def test_an_add_that_ends_while_gc_runs_is_kept(stage, cni, net_of):
    # The plan comes from an earlier read of the cache. With only the plan's list, GC would release the new pod's
    # address.
    net = net_of("a")
    plan = collect.make_plan(cni.attachments(), "net")
    cni.add(net, RT)
    stage.forget_calls()
    collect.run(cni, net, plan)
    [call] = stage.calls()
    assert call.stdin["cni.dev/valid-attachments"] == [{"containerID": "ctr", "ifname": "eth0"}]


# STATUS, validation, cached values --------------------------------------------------------------

@pytest.mark.parametrize("version", ["1.0.0", None, "abc"])
def test_status_below_1_1_0_calls_no_plugin(stage, cni, version, net_of):  # L21
    report = cni.status(net_of("a", version=version))
    assert not stage.calls()
    assert not report.called
    assert report.skipped == f'cniVersion "{version or ""}" has no STATUS (since 1.1.0)'


def test_status_is_the_error_of_the_first_plugin_that_is_not_ready(stage, cni, net_of):  # L22
    stage.answer("b", "STATUS", out='{"code":50,"msg":"full"}', status=1)
    with pytest.raises(CniError) as caught:
        cni.status(net_of("a", "b", "c"))
    assert (caught.value.code, str(caught.value)) == (50, 'plugin type="b" (index 1) failed (status): full')
    assert [plugin.type for plugin in caught.value.done] == ["a"]
    assert stage.called() == ["a STATUS", "b STATUS"]
    assert stage.calls()[0].stdin == {"type": "a", "name": "net", "cniVersion": "1.1.0"}


def test_validation_reports_every_plugin(stage, net_of):  # L23
    stage.plugin("a")
    stage.answer("a", "VERSION", out='{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}')
    cni = CNI([stage.bin, "/d2"])
    with pytest.raises(ManyErrors) as caught:
        cni.validate(net_of("a", "b", version=None))
    assert str(caught.value) == ('[plugin a does not support config version "0.1.0" '
                                 f'failed to find plugin "b" in path [{stage.bin} /d2]]')
    two = net_of({"type": "a", "capabilities": {"x": True, "y": False}},
                 {"type": "a", "capabilities": {"z": True}}, version="0.4.0")
    assert cni.validate(two) == {"x", "z"}


def test_attachments_are_found_by_container(stage, cni, net_of):  # L38
    cni.add(net_of("a"), L1_RT)
    for container_id, count in (("ctr", 1), ("ct", 0), ("", 1), ("net", 0), ("eth0", 0)):
        assert len(cni.attachments(container_id)) == count
    [found] = cni.attachments("ctr")
    assert (found.container_id, found.network, found.ifname) == ("ctr", "net", "eth0")
    assert found.netns == "/run/netns/c"
    assert found.args == (("K", "V"), ("A", "x=y"))
    assert found.capability_args == L1_RT.capability_args
    assert found.config == net_of("a").raw


def test_a_single_plugin_has_its_own_commands(stage, cni):
    plugin = parse_plugin(b'{"type":"a","name":"net","cniVersion":"0.4.0","capabilities":{"x":true}}')
    stage.answer("a", "ADD", out=ADDED % "0.4.0")
    stage.answer("a", "VERSION", out='{"cniVersion":"0.4.0","supportedVersions":["0.4.0"]}')
    cni.add_plugin(plugin, RT)
    cached = json.loads((stage.cache / "results" / "net-ctr-eth0").read_bytes())
    assert cached["config"] == b64encode(plugin.raw).decode()
    cni.check_plugin(plugin, RT)
    assert cni.cached_result(plugin, RT)["cniVersion"] == "0.4.0"
    assert cni.validate_plugin(plugin) == {"x"}
    cni.delete_plugin(plugin, RT)
    assert stage.called() == ["a ADD", "a CHECK", "a VERSION", "a DEL"]
    assert ["prevResult" in call.stdin for call in stage.calls()] == [False, True, False, True]
    stage.answer("a", "DEL", out=LATER, status=1)
    with pytest.raises(CniError, match=r"^later; why$"):
        cni.delete_plugin(plugin, RT)


def test_a_single_configuration_makes_a_list_that_works(stage, cni):
    cni.add(list_of_plugin(parse_plugin(b'{"type":"a","name":"net","cniVersion":"1.0.0"}')), RT)
    assert stage.called() == ["a ADD"]
