"""handle() gives one answer to one request. The tests cover the rows of the table for the plugin skeleton of the CNI
reference, in the order of its work.

fastcni deviates from the reference on purpose in these rows:
  - S2: without a command, a plugin always prints an about text.
  - S29, S31: the plugin checks CNI_NETNS before it changes anything, so stdout has only the error.
  - S33: a CniError is raised as it is, because Python has no chain of wrapped errors that could contain one.
  - S34: any exception other than CniError and OSError is a fault of the plugin, and the error's details report it.
"""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from unit.stub_plugin import INCOMPATIBLE, MISSING, PLUGIN_SPEAKS, REPLY, STDIN, call, error, row

from fastcni.handle import handle, needs_stdin
from fastcni.kernel.netns import OWN
from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import MAX_STDIN_BYTES

pytestmark = pytest.mark.usefixtures("fake_sockets")

# -- variables ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("s", [row("S1"), row("S2")])
def test_without_a_command_a_plugin_prints_its_about_text(plugin, s):
    reply = handle("stub", {}, b"", Mode())
    about, versions = reply.stderr.decode().splitlines()
    assert (reply.status, reply.stdout) == (0, b"")
    assert about.startswith("CNI stub plugin fastcni ")
    assert versions == "CNI protocol versions supported: 0.1.0, 0.4.0, 1.0.0, 1.1.0"


@pytest.mark.parametrize("command, env, msg", [
    pytest.param("ADD", dict.fromkeys(("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH")),
                 MISSING("CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"), id="S3"),
    pytest.param("ADD", {"CNI_NETNS": "", "CNI_PATH": ""}, MISSING("CNI_NETNS,CNI_PATH"), id="S3-empty"),
    pytest.param("GC", {"CNI_PATH": None}, MISSING("CNI_PATH"), id="S5"),
    pytest.param("STATUS", {"CNI_PATH": None}, MISSING("CNI_PATH"), id="S5-STATUS"),
])
def test_missing_variables_are_listed(plugin, command, env, msg):
    assert error(call(command, **env)) == (4, msg, None)
    assert plugin.ran == []


@pytest.mark.parametrize("command, env", [
    pytest.param("DEL", {"CNI_NETNS": None}, id="S4"),
    pytest.param("GC", {"CNI_CONTAINERID": "@@@"}, id="S6"),
    pytest.param("ADD", {"CNI_IFNAME": "a" * 15}, id="S9"),
    pytest.param("ADD", {"CNI_IFNAME": "..."}, id="S10"),
])
def test_variables_that_are_not_required_are_not_checked(plugin, command, env):
    assert call(command, **env).status == 0
    assert [req.command for req in plugin.ran] == [command]


@pytest.mark.parametrize("env, expected", [
    pytest.param({"CNI_CONTAINERID": "-bad", "CNI_NETNS": None, "CNI_IFNAME": None, "CNI_PATH": None},
                 (4, "invalid characters in containerID", "-bad"), id="S7"),
    pytest.param({"CNI_CONTAINERID": "a\n"}, (4, "invalid characters in containerID", "a\n"), id="S8"),
    pytest.param({"CNI_IFNAME": "a" * 16},
                 (4, "interface name is too long", "interface name should be less than 16 characters"), id="S9"),
    *[pytest.param({"CNI_IFNAME": name}, (4, "interface name contains / or : or whitespace characters", None),
                   id=f"S10-{name!r}") for name in ("a/b", "a:b", "a b", "a\tb")],
    *[pytest.param({"CNI_IFNAME": name}, (4, "interface name is . or ..", None), id=f"S10-{name}")
      for name in (".", "..")],
])
def test_a_bad_variable_is_refused_before_the_missing_ones(plugin, env, expected):
    assert error(call("ADD", **env)) == expected
    assert plugin.ran == []


# -- stdin -------------------------------------------------------------------------------------------------

UNMARSHALL = "error unmarshall network config: "


@pytest.mark.parametrize("stdin, code, msg", [
    pytest.param(b"", 6, UNMARSHALL + "unexpected end of JSON input", id="S11"),
    pytest.param({"name": ""}, 7, "missing network name", id="S12"),
    pytest.param(b"null", 7, "missing network name", id="S12-null"),
    pytest.param({}, 7, "missing network name", id="S12-absent"),
    pytest.param({"name": "a b"}, 7, "invalid characters found in network name", id="S13"),
    pytest.param({"name": "../x"}, 7, "invalid characters found in network name", id="S13-path"),
    pytest.param({"name": 5}, 6, UNMARSHALL, id="S14"),
    pytest.param(b'{"name":"n"} x', 6, UNMARSHALL + "invalid character 'x' after top-level value", id="S15"),
    pytest.param(b"[]", 6, UNMARSHALL, id="not an object"),
    pytest.param(b'"n"', 6, UNMARSHALL, id="a string"),
    pytest.param({"name": "n", "cniVersion": 1.1}, 6, UNMARSHALL, id="version is a number"),
    pytest.param(b"[" * 100000, 6, UNMARSHALL, id="too deep"),
    pytest.param(b" " * (MAX_STDIN_BYTES + 1), 6, UNMARSHALL + f"more than {MAX_STDIN_BYTES} bytes", id="too long"),
    pytest.param(b"\xff\xfe{", 6, UNMARSHALL, id="not UTF-8"),
])
def test_a_configuration_that_cannot_be_used_is_refused(plugin, stdin, code, msg):
    found = error(call("ADD", stdin))
    assert found[0] == code
    assert found[1].startswith(msg)
    if "a b" in str(stdin):
        assert found[2] == "a b"
    assert plugin.ran == []


@pytest.mark.parametrize("stdin", [
    pytest.param({"NAME": "n", "CNIVERSION": "1.0.0"}, id="S16"),
    pytest.param({"name": "n"}, id="S22"),
])
def test_keys_in_any_case_and_a_missing_version_are_accepted(plugin, stdin):
    assert call("ADD", stdin).status == 0
    assert plugin.ran[0].name == "n"
    assert plugin.ran[0].version == stdin.get("CNIVERSION", "0.1.0")


@pytest.mark.parametrize("s", [row("S35")])
def test_stdin_that_cannot_be_read_is_code_5(s):
    """The error comes from the entry point that reads stdin. Here this is the one-shot entry point, whose stdin is open
    only for writing."""
    script = "from fastcni.launcher.bootstrap import main; main('loopback', 0, ({}, b'', '', [], {}))"
    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/none", "CNI_IFNAME": "eth0",
           "CNI_PATH": "/bin", "PYTHONPATH": os.pathsep.join(sys.path)}
    with open("/dev/null", "wb") as stdin:
        done = subprocess.run([sys.executable, "-c", script], stdin=stdin, capture_output=True, env=env)
    code, msg, _ = error(SimpleNamespace(status=done.returncode, stdout=done.stdout))
    assert (code, msg) == (5, "error reading from stdin: Bad file descriptor")


# -- commands and versions ---------------------------------------------------------------------------------

@pytest.mark.parametrize("command, stdin, expected", [
    pytest.param("NOPE", STDIN, (4, "unknown CNI_COMMAND: NOPE", None), id="S17"),
    pytest.param("add", STDIN, (4, "unknown CNI_COMMAND: add", None), id="S18"),
    pytest.param("ADD", {"name": "n", "cniVersion": "9.9.9"},
                 (1, INCOMPATIBLE, f'config is "9.9.9", {PLUGIN_SPEAKS}'), id="S21"),
    pytest.param("DEL", {"name": "n", "cniVersion": "x.y"}, (1, INCOMPATIBLE, f'config is "x.y", {PLUGIN_SPEAKS}'),
                 id="S21-DEL"),
    pytest.param("CHECK", {"name": "n", "cniVersion": "0.3.1"}, (1, "config version does not allow CHECK", None),
                 id="S23"),
    pytest.param("CHECK", {"name": "n", "cniVersion": "0.5.0"},
                 (1, INCOMPATIBLE, f'config is "0.5.0", {PLUGIN_SPEAKS}'), id="S24"),
    pytest.param("CHECK", {"name": "n", "cniVersion": "2.0.0"}, (1, "plugin version does not allow CHECK", None),
                 id="S25"),
    pytest.param("GC", {"name": "n", "cniVersion": "1.0.0"}, (1, "config version does not allow GC", None), id="S27"),
    pytest.param("STATUS", {"name": "n", "cniVersion": "1.0.0"}, (1, "config version does not allow STATUS", None),
                 id="S27-STATUS"),
])
def test_an_unsupported_command_or_version_is_refused(plugin, command, stdin, expected):
    assert error(call(command, stdin)) == expected
    assert plugin.ran == []


@pytest.mark.parametrize("s", [row("S17")])
def test_an_unknown_command_needs_a_configuration_all_the_same(plugin, s):
    assert error(call("NOPE", b""))[0] == 6


@pytest.mark.parametrize("s", [row("S26")])
def test_an_invalid_version_is_code_6(plugin, s):
    code, msg, _ = error(call("CHECK", {"name": "n", "cniVersion": "x.y"}))
    assert code == 6
    assert msg.startswith('failed to convert major version part "x": ')


@pytest.mark.parametrize("stdin", [pytest.param(b"", id="S19"), pytest.param(b'{"cniVersion":"0.4.0"}', id="S20")])
def test_version_needs_nothing(plugin, stdin):
    reply = handle("stub", {"CNI_COMMAND": "VERSION"}, stdin, Mode())
    assert (reply.status, reply.stdout, reply.stderr) == (0, REPLY, b"")
    assert not needs_stdin({"CNI_COMMAND": "VERSION"})
    assert needs_stdin({"CNI_COMMAND": "ADD"})


@pytest.mark.parametrize("s", [row("S28")])
@pytest.mark.parametrize("command, name", [("STATUS", "status"), ("GC", "gc")])
def test_a_plugin_without_the_commands_function_succeeds(plugin, s, command, name):
    delattr(plugin.module, name)
    reply = call(command)
    assert (reply.status, reply.stdout) == (0, b"")


@pytest.mark.parametrize("more", [{}, {"cni.dev/valid-attachments": None}])
def test_gc_without_valid_attachments_releases_nothing_and_warns(plugin, more):
    reply = call("GC", {"name": "n", "cniVersion": "1.1.0", **more})
    assert (reply.status, reply.stdout, plugin.ran) == (0, b"", [])
    assert b'GC of network "n": no "cni.dev/valid-attachments", nothing is released' in reply.stderr


@pytest.mark.parametrize("name", ["nope", "", "../bridge", "os"])
def test_a_plugin_type_that_is_not_in_the_table_is_refused(name):
    code, msg, _ = error(handle(name, {"CNI_COMMAND": "ADD"}, b"", Mode()))
    assert (code, msg) == (7, f'unknown plugin type "{name}"')


# -- the namespace -----------------------------------------------------------------------------------------

SAME = (8, "plugin's netns and netns from CNI_NETNS should not be the same", None)


@pytest.mark.parametrize("env", [pytest.param({}, id="S29"), pytest.param({"CNI_NETNS_OVERRIDE": "yes"}, id="S31")])
@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_the_callers_namespace_is_refused_before_any_change(plugin, command, env):
    assert error(call(command, CNI_NETNS=OWN, **env)) == SAME
    assert plugin.ran == []


def test_the_callers_namespace_is_recognized_by_its_descriptor_too(plugin):
    fd = os.open(OWN, os.O_RDONLY)

    class Opened(Mode):
        def open_netns(self, path):
            return fd

    reply = handle("stub", {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/none",
                                "CNI_IFNAME": "eth0", "CNI_PATH": "/bin"}, json.dumps(STDIN).encode(), Opened())
    assert error(reply) == SAME
    with pytest.raises(OSError):
        os.fstat(fd)                    # fstat() fails because handle() has closed the descriptor


@pytest.mark.parametrize("command, env", [
    *[pytest.param("ADD", {"CNI_NETNS_OVERRIDE": word}, id=f"S30-{word}") for word in ("1", "true", "TRUE")],
    pytest.param("CHECK", {}, id="S32"),
])
def test_the_callers_namespace_is_accepted_with_the_override(plugin, command, env):
    assert call(command, CNI_NETNS=OWN, **env).status == 0
    assert len(plugin.ran) == 1
