"""The fastcni command: cnitool's rows T1 to T10, and what is for people.

Deviation in all rows: an error is said once and without the usage block, where cnitool says it twice.
"""

import json
import os
import pty
import subprocess
import sys

import pytest

import fastcni as package
from fastcni.cli import door
from fastcni.cli.show import printable

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
    """Run one command with the stage's directories."""
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
        status = door.run([command, *args, *cached])
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
def test_args_that_are_no_pairs(fastcni, monkeypatch, text, pair):                # T4
    monkeypatch.setenv("CNI_ARGS", text)
    answer = fastcni("add", "net", "/ns/x")
    assert (answer.status, answer.out, answer.err) == (1, "", f'Error: invalid CNI_ARGS pair "{pair}"\n')


@pytest.mark.parametrize("text", ["[1]", "{", "x"])
def test_capability_args_that_are_no_object(fastcni, monkeypatch, text):          # T5
    monkeypatch.setenv("CAP_ARGS", text)
    answer = fastcni("add", "net", "/ns/x")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.count("Error: ") == 1


@pytest.mark.parametrize("command", ["add", "check", "del"])
def test_netns_has_to_be_given(fastcni, command):                                 # T6, in click's words
    answer = fastcni(command, "net")
    assert (answer.status, answer.out) == (1, "")
    assert "Missing argument 'NETNS'" in answer.err


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["add", "--help"]])
def test_help_is_on_stdout(capsys, argv):                                         # T7
    assert door.run(argv) == 0
    out, err = capsys.readouterr()
    assert "Usage: fastcni" in out and not err


def test_a_network_that_is_not_there(stage, fastcni):                             # T8
    answer = fastcni("add", "nope", "/ns/x")
    assert answer.status == 1
    assert answer.err.splitlines()[0] == f'Error: no net configuration with name "nope" in {stage.net_d}'


def test_gc_deletes_every_attachment(stage, fastcni):                             # T9
    fastcni("add", "net", "/ns/x")
    fastcni("add", "net", "/ns/x", "-i", "eth1")
    stage.forget_calls()
    answer = fastcni("gc", "net")
    assert (answer.status, answer.out, answer.err) == (0, "", "")
    assert stage.called() == ["b DEL", "a DEL"] * 2 + ["a GC", "b GC"]
    assert "cni.dev/valid-attachments" not in stage.calls()[-1].stdin
    assert os.listdir(stage.cache / "results") == []


def test_gc_keeps_what_is_valid(stage, fastcni):
    fastcni("add", "net", "/ns/x")
    fastcni("add", "net", "/ns/x", "-i", "eth1")
    stage.forget_calls()
    assert fastcni("gc", "net", "/ns/x", "--valid", f"{ID}/eth0").status == 0
    assert os.listdir(stage.cache / "results") == [f"net-{ID}-eth0"]
    assert stage.calls()[-1].stdin["cni.dev/valid-attachments"] == [{"containerID": ID, "ifname": "eth0"}]
    assert "expected CONTAINERID/IFNAME" in fastcni("gc", "net", "--valid", "nonsense").err


def test_delete_without_plugin_directories(fastcni, monkeypatch):                 # T10
    monkeypatch.setenv("CNI_PATH", "")
    answer = fastcni("del", "net", "/ns/x")
    assert answer.status == 1
    assert answer.err.splitlines() == ['Error: plugin type="b" failed (delete): no paths provided',
                                       "Hint: say where the plugins are with --bin-dir or CNI_PATH"]


@pytest.mark.parametrize("command", ["check", "del", "status"])
def test_success_says_nothing_in_a_pipe(stage, fastcni, command):
    answer = fastcni(command, "net", "/ns/x")
    assert (answer.status, answer.out, answer.err) == (0, "", "")
    assert {call.command for call in stage.calls()} == {command.upper()}


def test_options_stand_for_the_variables(stage, fastcni, monkeypatch):
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
        "code": 11, "msg": 'plugin type="b" failed (add): later', "details": "why"}
    assert json.loads(fastcni("add", "net", "--json").out)["code"] == 4


def test_a_failed_add_can_be_undone(stage, fastcni):
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


def test_version_lists_what_is_spoken(stage, fastcni):
    document = json.loads(fastcni("version").out)
    assert document["cniVersion"] == "1.1.0"
    assert document["supportedVersions"][0] == "0.1.0"
    stage.answer("a", "VERSION", out='{"cniVersion":"0.2.0"}')
    assert json.loads(fastcni("version", "a").out)["plugins"] == {"a": ["0.1.0", "0.2.0"]}


def test_stderr_of_a_plugin_is_forwarded(stage, fastcni):
    stage.answer("a", "ADD", out=json.dumps(RESULT), err="a word\n")
    answer = fastcni("add", "net", "/ns/x")
    assert (answer.status, answer.err) == (0, "a word\n")


# On a terminal ----------------------------------------------------------------------------------

def on_terminal(stage, *argv, keys=b""):
    """Run the command with a terminal for all three streams; return (status, what it showed)."""
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
    except OSError:            # the terminal's other side is closed: the program has ended
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
    for command, line in (("check", "is as it should be"), ("del", "is deleted"), ("status", "net is ready")):
        status, shown = on_terminal(stage, command, "net", "/ns/x")
        assert status == 0 and line in shown and shown.count("\n") == 1
    assert json.loads(on_terminal(stage, "add", "net", "/ns/x", "--json")[1]) == RESULT
    assert "1. a" in on_terminal(stage, "netconf", "net")[1]


def test_gc_on_a_terminal_asks_first(stage, fastcni):
    fastcni("add", "net", "/ns/x")
    stage.forget_calls()
    status, shown = on_terminal(stage, "gc", "net", keys=b"n\n")
    assert status == 1 and "Delete every remembered attachment of net (1)?" in shown
    assert not stage.calls()
    assert on_terminal(stage, "gc", "net", keys=b"y\n")[0] == 0
    assert on_terminal(stage, "gc", "net", "--yes")[0] == 0
    assert stage.called() == ["b DEL", "a DEL", "a GC", "b GC", "a GC", "b GC"]


def test_what_a_plugin_says_cannot_command_the_terminal(stage, fastcni):
    stage.answer("a", "ADD", out='{"code":5,"msg":"bad \\u001b[2Jname"}', status=1)
    status, shown = on_terminal(stage, "add", "net", "/ns/x")
    assert status == 1 and "\x1b" not in shown and "bad" in shown
    assert printable("a\x1b[1m\u202e\nb") == "a\ufffd[1m\ufffd\nb"
