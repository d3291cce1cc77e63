"""One request in, one answer out: the order of work of the reference's plugin skeleton, row by row.

fastcni deviates on purpose in these rows:
  - S2: there is always an about text.
  - S29, S31: CNI_NETNS is compared before anything is changed, so stdout carries the error alone.
  - S33: Python has no chain of wrapped errors to search; a CniError is raised as it is.
  - S34: an exception that is neither a CniError nor an OSError is a fault of the plugin, and details say so.
"""

import json
import os
import subprocess
import sys
import types

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastcni import handle as door
from fastcni import plugins
from fastcni.handle import handle
from fastcni.kernel.netns import OWN
from fastcni.kernel.wire import NetlinkError
from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import MAX_STDIN_BYTES
from fastcni.spec.errors import CniError

VERSIONS = ("0.1.0", "0.4.0", "1.0.0", "1.1.0")
REPLY = b'{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.4.0","1.0.0","1.1.0"]}\n'
STDIN = {"name": "n", "cniVersion": "1.1.0", "cni.dev/valid-attachments": []}
RESULT = {"ips": [{"address": "10.0.0.2/24"}]}
MISSING = "required env variables [{}] missing".format
FAULT = 'this is a fault of the plugin "stand-in"'
INCOMPATIBLE = "incompatible CNI versions"
PLUGIN_SPEAKS = 'plugin supports ["0.1.0" "0.4.0" "1.0.0" "1.1.0"]'


class StandIn:
    """A plugin of the skeleton's tests: `ran` are the requests that reached it, `fail` is what it raises."""

    def __init__(self):
        self.ran, self.fail = [], None
        self.module = types.ModuleType("stand_in")
        self.module.VERSIONS = VERSIONS
        self.module.read = lambda req: None
        self.module.add = lambda req, conf, undo: self.run(req) or RESULT
        for name in ("delete", "check", "gc", "status"):
            setattr(self.module, name, lambda req, conf: self.run(req))

    def run(self, req):
        if self.fail:
            raise self.fail
        self.ran.append(req)


@pytest.fixture
def plugin(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setitem(plugins.TABLE, "stand-in", "stand_in")
    monkeypatch.setitem(sys.modules, "stand_in", stand_in.module)
    return stand_in


def call(command, stdin=STDIN, **env):
    """A request with the base environment; a variable of None is left out."""
    env = {"CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_NETNS": "/none", "CNI_IFNAME": "eth0",
           "CNI_PATH": "/bin"} | env
    env = {name: value for name, value in env.items() if value is not None}
    return handle("stand-in", env, stdin if isinstance(stdin, bytes) else json.dumps(stdin).encode(), Mode())


def error(reply):
    """(code, msg, details or None) of an error; every error has the form of S36."""
    assert reply.status == 1
    found = json.loads(reply.stdout)
    assert list(found) in (["code", "msg"], ["code", "msg", "details"])
    lines = reply.stdout.decode().split("\n")
    assert lines[0] == "{" and lines[-1] == "}" and all(line.startswith('    "') for line in lines[1:-1])
    return found["code"], found["msg"], found.get("details")


def row(number):
    """Marks a case with the name of its row in the conformance table."""
    return pytest.param(number, id=number)


# -- variables ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("s", [row("S1"), row("S2")])
def test_without_a_command_a_plugin_prints_its_about_text(plugin, s):
    reply = handle("stand-in", {}, b"", Mode())
    about, versions = reply.stderr.decode().splitlines()
    assert (reply.status, reply.stdout) == (0, b"")
    assert about.startswith("CNI stand-in plugin fastcni ")
    assert versions == "CNI protocol versions supported: 0.1.0, 0.4.0, 1.0.0, 1.1.0"


@pytest.mark.parametrize("command, env, words", [
    pytest.param("ADD", dict.fromkeys(("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH")),
                 MISSING("CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"), id="S3"),
    pytest.param("ADD", {"CNI_NETNS": "", "CNI_PATH": ""}, MISSING("CNI_NETNS,CNI_PATH"), id="S3-empty"),
    pytest.param("GC", {"CNI_PATH": None}, MISSING("CNI_PATH"), id="S5"),
    pytest.param("STATUS", {"CNI_PATH": None}, MISSING("CNI_PATH"), id="S5-STATUS"),
])
def test_missing_variables_are_listed(plugin, command, env, words):
    assert error(call(command, **env)) == (4, words, None)
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


@pytest.mark.parametrize("stdin, code, words", [
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
def test_a_configuration_that_cannot_be_used_is_refused(plugin, stdin, code, words):
    found = error(call("ADD", stdin))
    assert found[0] == code
    assert found[1].startswith(words)
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
    """The entry point that reads stdin answers: here one-shot, with a stdin that is open for writing only."""
    script = "from fastcni.launcher.bootstrap import main; main('loopback', 0, ({}, {}))"
    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/none", "CNI_IFNAME": "eth0",
           "CNI_PATH": "/bin", "PYTHONPATH": os.pathsep.join(sys.path)}
    with open("/dev/null", "wb") as stdin:
        done = subprocess.run([sys.executable, "-c", script], stdin=stdin, capture_output=True, env=env)
    code, words, _ = error(types.SimpleNamespace(status=done.returncode, stdout=done.stdout))
    assert (code, words) == (5, "error reading from stdin: Bad file descriptor")


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
    code, words, _ = error(call("CHECK", {"name": "n", "cniVersion": "x.y"}))
    assert code == 6
    assert words.startswith('failed to convert major version part "x": ')


@pytest.mark.parametrize("stdin", [pytest.param(b"", id="S19"), pytest.param(b'{"cniVersion":"0.4.0"}', id="S20")])
def test_version_needs_nothing(plugin, stdin):
    reply = handle("stand-in", {"CNI_COMMAND": "VERSION"}, stdin, Mode())
    assert (reply.status, reply.stdout, reply.stderr) == (0, REPLY, b"")
    assert not door.needs_stdin({"CNI_COMMAND": "VERSION"})
    assert door.needs_stdin({"CNI_COMMAND": "ADD"})


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
    code, words, _ = error(handle(name, {"CNI_COMMAND": "ADD"}, b"", Mode()))
    assert (code, words) == (7, f'unknown plugin type "{name}"')


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

    reply = handle("stand-in", {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/none",
                                "CNI_IFNAME": "eth0", "CNI_PATH": "/bin"}, json.dumps(STDIN).encode(), Opened())
    assert error(reply) == SAME
    with pytest.raises(OSError):
        os.fstat(fd)                    # handle() has closed it


@pytest.mark.parametrize("command, env", [
    *[pytest.param("ADD", {"CNI_NETNS_OVERRIDE": word}, id=f"S30-{word}") for word in ("1", "true", "TRUE")],
    pytest.param("CHECK", {}, id="S32"),
])
def test_the_callers_namespace_is_accepted_with_the_override(plugin, command, env):
    assert call(command, CNI_NETNS=OWN, **env).status == 0
    assert len(plugin.ran) == 1


# -- what a plugin raises ----------------------------------------------------------------------------------

@pytest.mark.parametrize("s", [row("S33")])
def test_a_cni_error_keeps_its_code_and_is_escaped_as_go_does(plugin, s):
    plugin.fail = CniError(111, "inner <&>")
    reply = call("ADD")
    assert error(reply) == (111, "inner <&>", None)
    assert b'"msg": "inner \\u003c\\u0026\\u003e"' in reply.stdout


@pytest.mark.parametrize("fail, expected", [
    (RuntimeError("plain err"), (999, "plain err", f"RuntimeError: {FAULT}")),
    (KeyError("k"), (999, "'k'", f"KeyError: {FAULT}")),
    (ValueError(), (999, "ValueError", f"ValueError: {FAULT}")),
    (NetlinkError(17, "create veth v0"), (999, "create veth v0: File exists (errno 17)", None)),
    (NetlinkError(22, "add", "no", 4), (999, "add: no (errno 22)", "the kernel says: no")),
], ids=lambda value: f"S34-{type(value).__name__}" if isinstance(value, Exception) else "")
def test_any_other_exception_is_code_999(plugin, fail, expected):
    plugin.fail = fail
    assert error(call("ADD")) == expected


@pytest.mark.parametrize("why, code", [
    ("cannot open shared object file: Too many open files", 11), ("cannot read file data: Input/output error", 5),
    ("failed to map segment from shared object: Cannot allocate memory", 11),
    ("failed to map segment from shared object", 11), ("undefined symbol: PyNothing", 999)])
def test_a_module_that_the_kernel_cannot_read_is_no_fault_of_fastcni(plugin, why, code):
    """Descriptors can run out while a plugin imports a compiled module. The error blamed fastcni."""
    plugin.fail = ImportError(f"/usr/lib/_sha512.so: {why}", name="_sha512")
    found = error(call("ADD"))
    assert found[:2] == (code, f"/usr/lib/_sha512.so: {why}")
    assert ("this is a fault" in found[2]) == (code == 999)


def test_errors_of_the_rollback_are_in_the_details(plugin):
    def add(req, conf, undo):
        undo([].pop)
        raise CniError(7, "first", "because")

    plugin.module.add = add
    assert error(call("ADD")) == (7, "first", "because; while undoing: pop from empty list")


def test_an_add_whose_result_has_no_form_is_rolled_back(plugin):
    """0.1.0 has no result without an address. handle() detects that after the plugin has done its work."""
    undone = []

    def add(req, conf, undo):
        undo(undone.append, 1)
        return {}

    plugin.module.add = add
    assert error(call("ADD", {"name": "n"}))[1] == "cannot convert: no valid IP addresses"
    assert undone == [1]


@pytest.mark.parametrize("fail", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_an_exit_is_an_error_of_the_plugin(plugin, fail):
    """In a server it ended the worker."""
    plugin.fail = fail
    code, _, details = error(call("ADD"))
    assert (code, details) == (999, f'{type(fail).__name__}: this is a fault of the plugin "stand-in"')


def test_a_rollback_goes_on_after_a_step_that_exits(plugin):
    undone = []

    def add(req, conf, undo):
        undo(undone.append, 1)
        undo(sys.exit, 3)
        raise CniError(7, "first")

    plugin.module.add = add
    assert error(call("ADD"))[:2] == (7, "first")
    assert undone == [1]


# -- what is printed ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("version, expected", [
    ("1.1.0", {"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}]}),
    ("0.4.0", {"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.0.0.2/24"}], "dns": {}}),
    ("0.1.0", {"cniVersion": "0.1.0", "ip4": {"ip": "10.0.0.2/24"}, "dns": {}}),
])
def test_a_result_has_the_shape_of_the_configurations_version(plugin, version, expected):
    reply = call("ADD", {"name": "n", "cniVersion": version})
    assert (reply.status, json.loads(reply.stdout)) == (0, expected)


@pytest.mark.parametrize("command", ["DEL", "CHECK", "GC", "STATUS"])
def test_only_add_prints_a_result(plugin, command):
    reply = call(command)
    assert (reply.status, reply.stdout, reply.stderr) == (0, b"", b"")


def test_warnings_go_to_stderr_also_beside_an_error(plugin):
    def delete(req, conf):
        req.warn("odd: \udc80")
        raise CniError(7, "no")

    plugin.module.delete = delete
    reply = call("DEL")
    assert error(reply)[:2] == (7, "no")
    assert reply.stderr == b"odd: ?\n"


def test_a_request_carries_the_input_of_its_entry_point(plugin):
    call("DEL", STDIN, CNI_ARGS="A=B", X="y")
    call("GC", STDIN | {"cni.dev/valid-attachments": [{"containerID": "c9", "ifname": "eth1"}]}, CNI_ARGS="A=B", X="y")
    req, gc = plugin.ran
    assert (req.plugin, req.command, req.container_id, req.netns, req.ifname) == (
        "stand-in", "DEL", "c1", "/none", "eth0")
    assert (gc.container_id, gc.netns, gc.ifname, gc.args) == ("", "", "", "")     # it is about no pod
    assert (req.args, req.path, req.env["X"], json.loads(req.stdin)["name"]) == ("A=B", "/bin", "y", "n")
    assert gc.valid_attachments == {("c9", "eth1")}


# -- garbage -----------------------------------------------------------------------------------------------

# Also what is nearly right: it is read further before it is refused.
NEARLY = st.sampled_from(["", "net", "10.22.0.0/16", "10.22.0.9", "10.22.0.9/24", "fd00::/64", "0.0.0.0/0", "1.0.0",
                          "host-local", "static", "0a:58:0a:16:00:05", "\0", -1, 0, 1, 4095, 1 << 31, 1 << 63])
NAMES = st.sampled_from(["subnet", "dst", "gw", "address", "gateway", "mac", "ips", "ipRanges", "cni", "type", "name",
                         "interfaces", "routes", "minID", "maxID", "id", "nameservers", "mtu", "containerID"])
JSON = st.recursive(NEARLY | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(), inner, max_size=4),
                    max_leaves=10)
KEYS = ("cniVersion", "name", "bridge", "isGateway", "isDefaultGateway", "forceAddress", "mtu", "hairpinMode",
        "promiscMode", "vlan", "vlanTrunk", "macspoofchk", "ipMasq", "ipMasqBackend", "dns", "ipam", "args",
        "runtimeConfig", "prevResult", "cni.dev/valid-attachments", "enabledad", "disableContainerInterface")
IPAM_KEYS = ("type", "subnet", "rangeStart", "rangeEnd", "gateway", "ranges", "routes", "addresses", "dns")
COMMANDS = st.sampled_from(["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"])
ONCE = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def answered(reply):
    """One JSON document or none, and a status that fits it."""
    if reply.status:
        code, words, details = error(reply)
        assert words
        assert "this is a fault of" not in (details or ""), (code, words, details)
    elif reply.stdout:
        json.loads(reply.stdout)


@ONCE
@given(COMMANDS, st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_stdin_gets_one_answer(plugin, command, stdin):
    answered(call(command, stdin))


@pytest.mark.parametrize("kind", ["bridge", "ptp", "loopback", "host-local", "static"])
def test_any_value_of_any_key_gets_one_answer(calls, kind):
    """On the model of a node: what is accepted is also carried out there."""
    @ONCE
    @given(COMMANDS, st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3),
           st.dictionaries(st.sampled_from(IPAM_KEYS), JSON, max_size=2))
    def fuzz(command, keys, ipam):
        calls.fresh()
        conf = calls.conf(kind, **keys)
        if isinstance(conf["ipam"], dict):      # never without a directory of our own
            conf["ipam"] = {**conf["ipam"], **ipam, "dataDir": str(calls.data)}
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_NETNS": next(iter(calls.pods)),
               "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere"}
        answered(handle(kind, env, json.dumps(conf).encode(), calls.mode()))

    fuzz()
