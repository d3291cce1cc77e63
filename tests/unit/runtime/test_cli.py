"""The command `fastcni`: ten cases of cnitool, T1 to T10 in comments, and fastcni's own output.

In all cases, fastcni differs from cnitool in one point: it prints an error once and without the usage.
"""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import namespace_files
import pytest

import fastcni as package
from fastcni.cli import entry_point
from fastcni.cli.text.show import printable

RESULT = {"cniVersion": "1.1.0", "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/ns/x"}],
          "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 1}],
          "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}], "dns": {"nameservers": ["10.0.0.1"]}}
ID = "cnitool-d2b79a61ea63f17359dd"
ROOT = os.path.dirname(os.path.dirname(package.__file__))


class Answer:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def fastcni(stage, monkeypatch, capfd):
    """Return a function that runs one command with the stage's directories."""
    for name in ("NETCONFPATH", "CNI_PATH", "CNI_ARGS", "CAP_ARGS", "CNI_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETCONFPATH", str(stage.net_d))
    monkeypatch.setenv("CNI_PATH", str(stage.bin))
    stage.plugin("a", "b")
    stage.answer("a", "ADD", out=json.dumps(RESULT))
    stage.answer("b", "ADD", out=json.dumps(RESULT))
    stage.conf("net.conflist", {"name": "net", "cniVersion": "1.1.0", "plugins": [
        {"type": "a", "capabilities": {"mac": True}}, {"type": "b"}]})

    def run(command, *args):
        cached = [] if command in ("version", "install") else ["--cache-dir", str(stage.cache)]
        status = entry_point.run([command, *args, *cached])
        out, err = capfd.readouterr()
        return Answer(status, out, err)
    return run


def test_add_prints_the_result_as_cnitool_does(stage, fastcni):                   # T1
    answer = fastcni("add", "net", "/ns/x")
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.startswith('{\n    "cniVersion": "1.1.0",\n    "dns": {')
    assert answer.out.endswith("}")
    assert json.loads(answer.out) == RESULT
    env = stage.calls()[0].env
    assert [env[f"CNI_{name}"] for name in ("CONTAINERID", "NETNS", "IFNAME")] == [ID, "/ns/x", "eth0"]


def test_the_option_beats_the_variable(stage, fastcni, monkeypatch):              # T2
    monkeypatch.setenv("CNI_IFNAME", "net7")
    fastcni("add", "net", "/ns/x", "-i", "net8")
    fastcni("add", "net", "/ns/x")
    assert [call.env["CNI_IFNAME"] for call in stage.calls()[::2]] == ["net8", "net7"]


def test_a_relative_path_is_the_absolute_one(stage, fastcni, monkeypatch):        # T3
    monkeypatch.chdir("/")
    fastcni("add", "net", "ns/../ns/x")
    assert stage.calls()[0].env["CNI_CONTAINERID"] == ID
    assert stage.calls()[0].env["CNI_NETNS"] == "/ns/x"


@pytest.mark.parametrize("text, pair", [("A=", "A="), ("A", "A"), ("A=1;", ""), ("A=b=c", "A=b=c")])
def test_args_that_are_not_pairs_are_refused(fastcni, monkeypatch, text, pair):   # T4
    monkeypatch.setenv("CNI_ARGS", text)
    answer = fastcni("add", "net", "/ns/x")
    assert (answer.status, answer.out, answer.err) == (1, "", f'Error: invalid CNI_ARGS pair "{pair}"\n')


@pytest.mark.parametrize("text", ["[1]", "{", "x"])
def test_capability_args_that_are_not_an_object_are_refused(fastcni, monkeypatch, text):      # T5
    monkeypatch.setenv("CAP_ARGS", text)
    answer = fastcni("add", "net", "/ns/x")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.count("Error: ") == 1


@pytest.mark.parametrize("command", ["add", "check", "del"])
def test_netns_has_to_be_given(fastcni, command):                                 # T6, with click's text
    answer = fastcni(command, "net")
    assert (answer.status, answer.out) == (1, "")
    assert "Missing argument 'NETNS'" in answer.err


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["add", "--help"]])
def test_help_is_on_stdout(capsys, argv):                                         # T7
    assert entry_point.run(argv) == 0
    out, err = capsys.readouterr()
    assert "Usage: fastcni" in out
    assert not err


def test_an_unknown_network_is_an_error(stage, fastcni):                          # T8
    answer = fastcni("add", "nope", "/ns/x")
    assert answer.status == 1
    assert answer.err.splitlines()[0] == f'Error: no net configuration with name "nope" in {stage.net_d}'


# GC. cnitool's case T9 deletes each attachment, also those of running containers. fastcni deletes only dead
# attachments.

@pytest.fixture
def alive_and_dead(stage, fastcni, tmp_path):
    """Add two attachments. The namespace of eth1 no longer exists."""
    fastcni("add", "net", "/proc/self/ns/net", "--container-id", "alive")
    fastcni("add", "net", str(tmp_path / "gone"), "--container-id", "dead", "-i", "eth1")
    namespace_files.end(tmp_path / "gone")
    stage.forget_calls()


KEPT = [{"containerID": "alive", "ifname": "eth0"}]
BOTH = ["net-alive-eth0", "net-dead-eth1"]


def test_gc_deletes_the_dead_and_keeps_the_living(stage, fastcni, alive_and_dead):
    # Once, if stdout was a pipe, GC deleted each attachment of running pods without a message, and gave the plugins no
    # list.
    answer = fastcni("gc", "net", "--json")
    assert (answer.status, answer.err) == (0, "")
    assert stage.called() == ["b DEL", "a DEL", "a GC", "b GC"]
    assert stage.calls()[-1].stdin["cni.dev/valid-attachments"] == KEPT
    assert os.listdir(stage.cache / "results") == BOTH[:1]
    document = json.loads(answer.out)
    assert [it["containerID"] for it in document["kept"]] == ["alive"]
    assert [(it["containerID"], it.get("error")) for it in document["deleted"]] == [("dead", None)]
    assert [(it["type"], it["called"], it["released"]) for it in document["plugins"]] == [
        ("a", True, None), ("b", True, None)]


def test_gc_with_dry_run_calls_no_plugin(stage, fastcni, alive_and_dead):
    answer = fastcni("gc", "net", "--dry-run", "--json")
    document = json.loads(answer.out)
    assert answer.status == 0
    assert not stage.calls()
    assert document["dryRun"]
    assert [it["containerID"] for it in document["deleted"]] == ["dead"]
    assert sorted(os.listdir(stage.cache / "results")) == BOTH
    assert json.loads(fastcni("gc", "net", "--dry-run", "--all", "--json").out)["kept"] == []


def test_gc_deletes_the_living_only_with_all_and_yes(stage, fastcni, alive_and_dead):
    for options in (["--yes"], ["--valid", "dead/eth1"], ["--valid", "dead/eth1", "--yes"]):
        fastcni("gc", "net", *options)
        assert "net-alive-eth0" in os.listdir(stage.cache / "results")
    stage.forget_calls()
    answer = fastcni("gc", "net", "--all")
    assert answer.status == 1
    assert "confirm with --yes" in answer.err
    assert not stage.calls()
    assert fastcni("gc", "net", "--all", "--yes").status == 0
    assert os.listdir(stage.cache / "results") == []
    assert stage.calls()[-1].stdin["cni.dev/valid-attachments"] == []


def test_gc_with_all_keeps_valid_attachments(stage, fastcni, alive_and_dead):
    assert fastcni("gc", "net", "--all", "--yes", "--valid", "dead/eth1").status == 0
    assert os.listdir(stage.cache / "results") == ["net-dead-eth1"]
    assert stage.calls()[-1].stdin["cni.dev/valid-attachments"] == [{"containerID": "dead", "ifname": "eth1"}]
    assert "expected CONTAINERID/IFNAME" in fastcni("gc", "net", "--valid", "nonsense").err


def test_gc_refuses_if_the_living_attachments_are_unknown(stage, fastcni):
    answer = fastcni("gc", "net")
    assert answer.status == 1
    assert f"no attachment of network net is cached in {stage.cache}/results" in answer.err
    assert not stage.calls()
    assert fastcni("gc", "net", "--valid", "x/eth0").status == 0
    assert fastcni("gc", "net", "--all", "--yes").status == 0
    assert stage.called() == ["a GC", "b GC"] * 2


def test_gc_refuses_if_a_cached_result_cannot_be_read(stage, fastcni, alive_and_dead):
    # The pod of the damaged result may be alive. Without this pod in the list, GC would release the pod's addresses.
    (stage.cache / "results" / "net-alive-eth0").write_text("{")
    answer = fastcni("gc", "net")
    assert answer.status == 1
    assert f"{stage.cache}/results/net-alive-eth0 " in answer.err
    assert not stage.calls()


def test_gc_reports_failures_and_ends_with_1(stage, fastcni, alive_and_dead):
    stage.answer("b", "DEL", out='{"code":5,"msg":"stuck"}', status=1)
    stage.answer("a", "GC", out='{"code":5,"msg":"broken"}', status=1)
    answer = fastcni("gc", "net", "--json")
    document = json.loads(answer.out)
    assert answer.status == 1
    assert stage.called() == ["b DEL", "a GC", "b GC"]
    assert document["deleted"][0]["error"]["code"] == document["plugins"][0]["error"]["code"] == 5
    assert document["plugins"][0]["error"]["msg"] == (
        f'plugin type="a" (index 0 in {stage.net_d}/net.conflist) failed (gc): broken')


def test_a_disabled_gc_is_reported(stage, fastcni):
    stage.conf("off.conflist", {"name": "off", "cniVersion": "1.1.0", "disableGC": True, "plugins": [{"type": "a"}]})
    answer = fastcni("gc", "off", "--all", "--yes", "--json")
    assert answer.status == 0
    assert json.loads(answer.out)["skipped"] == "disableGC is true"
    assert not stage.calls()


def test_without_plugin_directories_the_usual_ones_are_searched(stage, fastcni, monkeypatch):
    """Once, without CNI_PATH, `fastcni gc` took fastcni's own plugins for other projects' plugins."""
    monkeypatch.setenv("CNI_PATH", "")
    answer = fastcni("del", "net", "/ns/x")
    assert answer.status == 1
    assert answer.err.splitlines()[0] == (
        f'Error: plugin type="b" (index 1 in {stage.net_d}/net.conflist) failed (delete): '
        'failed to find plugin "b" in path [/opt/cni/bin /usr/lib/cni /usr/libexec/cni]')


@pytest.mark.parametrize("command, words", [("check", []), ("del", []), ("status", ["--json"])])
def test_success_is_a_document_in_a_pipe(stage, fastcni, command, words):
    # Unlike fastcni, cnitool prints nothing, even if it called no plugin.
    fastcni("add", "net", "/ns/x")
    stage.forget_calls()
    answer = fastcni(command, "net", "/ns/x", *words)
    document = json.loads(answer.out)
    assert (answer.status, answer.err) == (0, "")
    assert (document["command"], document["skipped"], document["unknown"]) == (command.upper(), "", "")
    assert sorted(it["type"] for it in document["called"]) == ["a", "b"]
    assert {call.command for call in stage.calls()} == {command.upper()}


def test_a_skipped_command_is_not_reported_as_success(stage, fastcni):
    stage.conf("old.conflist", {"name": "old", "cniVersion": "1.0.0", "disableCheck": True, "plugins": [{"type": "a"}]})
    for command, text in (("status", "readiness unknown, no plugin was called: cniVersion"),
                           ("check", "was not checked: disableCheck is true"),
                           ("del", "no result of its ADD is cached in")):
        status, shown = on_terminal(stage, command, "old", "/ns/x")
        assert status == 0, shown
        assert text in shown.replace("\n", " "), shown
        document = json.loads(fastcni(command, "old", "/ns/x", "--json").out)
        assert bool(document["skipped"]) is (command != "del")
        assert bool(document["unknown"]) is (command == "del")


def test_the_error_of_a_chain_names_the_plugin_its_index_and_its_file(stage, fastcni):
    stage.answer("b", "STATUS", out='{"code":50,"msg":"full"}', status=1)
    answer = fastcni("status", "net")
    assert answer.err.splitlines() == [
        f'Error: plugin type="b" (index 1 in {stage.net_d}/net.conflist) failed (status): full',
        "Called before with success: a"]


def test_a_broken_file_is_named_and_the_network_is_used(stage, fastcni):
    stage.conf("00-other.conflist", '{"name": "other", ')
    answer = fastcni("add", "net", "/ns/x")
    assert answer.status == 0
    assert json.loads(answer.out) == RESULT
    assert answer.err.startswith(f"Warning: skipped a broken network configuration: {stage.net_d}/00-other.conflist: ")
    answer = fastcni("add", "other", "/ns/x")
    assert answer.status == 1
    assert answer.err.startswith(f"Error: {stage.net_d}/00-other.conflist: ")


def test_options_replace_the_variables(stage, fastcni, monkeypatch):

    for name in ("NETCONFPATH", "CNI_PATH"):
        monkeypatch.setenv(name, "/nonexistent")
    fastcni("add", "net", "/ns/x", "--conf-dir", str(stage.net_d), "--bin-dir", "/d1",
            "--bin-dir", str(stage.bin), "--container-id", "own", "--args", "K=V",
            "--capability-args", '{"mac":"m","other":1}')
    call = stage.calls()[0]
    assert call.env["CNI_PATH"] == f"/d1:{stage.bin}"
    assert (call.env["CNI_CONTAINERID"], call.env["CNI_ARGS"]) == ("own", "K=V")
    assert call.stdin["runtimeConfig"] == {"mac": "m"}


def test_a_failure_in_json_is_the_error_document(stage, fastcni):
    stage.answer("b", "ADD", out='{"code":11,"msg":"later","details":"why"}', status=1)
    answer = fastcni("add", "net", "/ns/x", "--json")
    assert (answer.status, answer.err) == (1, "")
    assert json.loads(answer.out) == {
        "code": 11, "msg": f'plugin type="b" (index 1 in {stage.net_d}/net.conflist) failed (add): later',
        "details": "why"}
    assert json.loads(fastcni("add", "net", "--json").out)["code"] == 4


def test_a_failed_add_can_be_rolled_back(stage, fastcni):
    stage.answer("b", "ADD", out='{"code":11,"msg":"later"}', status=1)
    assert fastcni("add", "net", "/ns/x", "--rollback").status == 1
    assert stage.called() == ["a ADD", "b ADD", "b DEL", "a DEL"]


def test_netconf_shows_what_would_be_sent(stage, fastcni):
    fastcni("add", "net", "/ns/x")
    stage.forget_calls()
    first = json.loads(fastcni("netconf", "net", "/ns/x").out)[0]
    assert (first["type"], first["path"]) == ("a", f"{stage.bin}/a")
    assert first["stdin"] == {
        "capabilities": {"mac": True}, "cniVersion": "1.1.0", "name": "net", "type": "a"}
    assert first["env"]["CNI_CONTAINERID"] == ID
    deleted = json.loads(fastcni("netconf", "net", "/ns/x", "--command", "DEL").out)
    assert [step["type"] for step in deleted] == ["b", "a"]
    assert deleted[0]["stdin"]["prevResult"] == RESULT
    for command in ("GC", "status"):
        step = json.loads(fastcni("netconf", "net", "--command", command).out)[0]
        assert step["env"]["CNI_CONTAINERID"] == ""
    assert not stage.calls()


def test_netconf_strict_prints_what_the_page_shows(stage, fastcni):
    stage.plugin("bridge", "portmap")
    stage.conf("net.conflist", {"name": "net", "cniVersion": "1.1.0", "plugins": [
        {"type": "bridge", "isGatway": True, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"},
         "capabilities": {"portMappings": True}},
        {"type": "portmap", "masqAll": "yes", "capabilities": {"portMappings": True}}]})
    status, text = on_terminal(stage, "netconf", "--strict", "net")
    file, _, text = text.partition("\n")
    page = (Path(ROOT) / "docs" / "validate.md").read_text(encoding="utf-8")
    assert status == 1
    assert file == f"{stage.net_d}/net.conflist"
    shown = "".join(text.split()).replace(str(stage.bin), "/opt/cni/bin")     # the terminal breaks lines and paths
    assert f"```{shown}```" in "".join(page.split())

    found = json.loads(fastcni("netconf", "--strict", "net").out)
    assert [it["severity"] for it in found] == ["error", "warning", "warning", "error"]
    assert stage.calls() == []


def test_netconf_strict_says_that_it_finds_nothing(stage, fastcni):
    assert on_terminal(stage, "netconf", "--strict", "net") == (0, "Network net: nothing found.\n")
    assert fastcni("netconf", "--strict", "net").out == "[]\n"


def test_netconf_names_the_plugins_that_would_not_be_called(stage, fastcni, alive_and_dead):
    [a, b] = json.loads(fastcni("netconf", "net", "--command", "GC").out)
    assert a["stdin"]["cni.dev/valid-attachments"] == KEPT
    assert (a["skipped"], b["skipped"]) == ("", "")
    stage.conf("old.conflist", {"name": "old", "cniVersion": "1.0.0", "disableCheck": True, "plugins": [{"type": "a"}]})
    for command, why in (("STATUS", "has no STATUS"), ("GC", "has no GC"), ("CHECK", "disableCheck is true")):
        [step] = json.loads(fastcni("netconf", "old", "/ns/x", "--command", command).out)
        assert why in step["skipped"]
    assert "not called: disableCheck is true" in on_terminal(stage, "netconf", "old", "/ns/x", "--command", "CHECK")[1]


def test_version_lists_the_supported_versions(stage, fastcni):
    document = json.loads(fastcni("version", "--json").out)
    assert document["cniVersion"] == "1.1.0"
    assert document["supportedVersions"][0] == "0.1.0"
    stage.answer("a", "VERSION", out='{"cniVersion":"0.2.0"}')
    assert json.loads(fastcni("version", "a", "--json").out)["plugins"] == {"a": ["0.1.0", "0.2.0"]}


def test_stderr_of_a_plugin_is_forwarded(stage, fastcni):
    stage.answer("a", "ADD", out=json.dumps(RESULT), err="a word\n")
    answer = fastcni("add", "net", "/ns/x")
    assert (answer.status, answer.err) == (0, "a word\n")


# On a terminal ----------------------------------------------------------------------------------

def on_terminal(stage, *argv, keys=b""):
    """Run the command with a terminal as stdin, stdout and stderr. Return (status, output)."""
    main, other = pty.openpty()
    env = {**os.environ, "NETCONFPATH": str(stage.net_d), "CNI_PATH": str(stage.bin), "COLUMNS": "100",
           "TERM": "dumb"}
    done = subprocess.Popen([sys.executable, "-m", "fastcni", *argv, "--cache-dir", str(stage.cache)],
                            stdin=other, stdout=other, stderr=other, env=env, cwd=ROOT)
    os.close(other)
    os.write(main, keys)
    shown = b""
    try:
        while part := os.read(main, 4096):
            shown += part
    except OSError:            # the program has ended, so no process has the other end of the terminal open
        pass
    os.close(main)
    return done.wait(), shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_a_table_and_one_line_of_success(stage, fastcni):
    status, shown = on_terminal(stage, "add", "net", "/ns/x")
    assert status == 0
    for text in (f"{ID} in net", "interface", "eth0", "10.0.0.2/24", "10.0.0.1", "/ns/x", "host",
                 "route  0.0.0.0/0 via 10.0.0.1", "dns    nameservers: 10.0.0.1"):
        assert text in shown
    assert "cniVersion" not in shown
    for command, line in (("check", "is as ADD made it; checked by a, b"), ("del", "is deleted by b, a"),
                          ("status", "network net is ready; checked by a, b")):
        status, shown = on_terminal(stage, command, "net", "/ns/x")
        assert status == 0
        assert line in shown
        assert shown.count("\n") == 1
    assert json.loads(on_terminal(stage, "add", "net", "/ns/x", "--json")[1]) == RESULT
    assert "1. a" in on_terminal(stage, "netconf", "net")[1]


def test_gc_on_a_terminal_asks_before_it_deletes_the_living(stage, alive_and_dead):
    status, shown = on_terminal(stage, "gc", "net", "--all", keys=b"n\n")
    assert status == 1
    assert "Delete every attachment of network net (2 are cached)" in shown
    assert not stage.calls()
    assert on_terminal(stage, "gc", "net", "--all", keys=b"y\n")[0] == 0
    assert stage.called() == ["b DEL", "a DEL"] * 2 + ["a GC", "b GC"]


def test_gc_on_a_terminal_shows_kept_and_deleted_attachments_with_the_reason(stage, alive_and_dead):
    status, shown = on_terminal(stage, "gc", "net", "--dry-run")
    assert status == 0
    for text in ("kept          alive eth0  (/proc/self/ns/net exists)", "would delete  dead eth1  (",
                 "would call    a, b", "attachments kept 1, deleted 1; dry run"):
        assert text in shown
    status, shown = on_terminal(stage, "gc", "net")
    for text in ("deleted       dead eth1  (", "called        a: the plugin does not report what it released",
                 "network net: attachments kept 1, deleted 1; other things released 0; failed 0"):
        assert text in shown


def test_control_characters_of_a_plugin_do_not_reach_the_terminal(stage, fastcni):
    stage.answer("a", "ADD", out='{"code":5,"msg":"bad \\u001b[2Jname"}', status=1)
    status, shown = on_terminal(stage, "add", "net", "/ns/x")
    assert status == 1
    assert "\x1b" not in shown
    assert "bad" in shown
    assert printable("a\x1b[1m\u202e\nb") == "a\ufffd[1m\ufffd\nb"


def test_ctrl_c_while_the_command_is_imported_prints_no_traceback(monkeypatch):
    class Interrupted:
        def find_spec(self, name, path, target=None):
            if name == "fastcni.cli.entry_point":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "fastcni.cli.entry_point")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit, match="Error: aborted"):
        package.cli.main()
