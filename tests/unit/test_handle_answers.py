"""The answers of handle(): errors, rollbacks, results and warnings."""

import json
import sys

import pytest
from unit.stub_plugin import FAULT, STDIN, call, error, row

from fastcni.kernel.wire import NetlinkError
from fastcni.spec.errors import CniError

pytestmark = pytest.mark.usefixtures("fake_sockets")

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
    (NetlinkError(22, "add", "no", 4), (999, "add: no (errno 22)", None)),
], ids=lambda value: f"S34-{type(value).__name__}" if isinstance(value, Exception) else "")
def test_any_other_exception_is_code_999(plugin, fail, expected):
    plugin.fail = fail
    assert error(call("ADD")) == expected


@pytest.mark.parametrize("why, code", [
    ("cannot open shared object file: Too many open files", 11), ("cannot read file data: Input/output error", 5),
    ("failed to map segment from shared object: Cannot allocate memory", 11),
    ("failed to map segment from shared object", 11), ("undefined symbol: PyNothing", 999)])
def test_a_module_that_the_kernel_cannot_read_is_no_fault_of_fastcni(plugin, why, code):
    """Descriptors can run out while a plugin imports a compiled module. Once, the error reported a fault of fastcni."""
    plugin.fail = ImportError(f"/usr/lib/_sha512.so: {why}", name="_sha512")
    found = error(call("ADD"))
    assert found[:2] == (code, f"/usr/lib/_sha512.so: {why}")
    assert ("this is a fault" in found[2]) == (code == 999)


def test_a_lack_of_memory_is_no_fault_of_fastcni_and_may_be_over_later(plugin):
    plugin.fail = MemoryError()
    assert error(call("ADD")) == (11, "MemoryError", "are too many files open (ulimit -n), or is memory short?")


def test_errors_of_the_rollback_are_in_the_details(plugin):
    def add(req, conf, undo):
        undo([].pop)
        raise CniError(7, "first", "because")

    plugin.module.add = add
    assert error(call("ADD")) == (7, "first", "because; while undoing: pop from empty list")


def test_an_add_whose_result_has_no_form_is_rolled_back(plugin):
    """Version 0.1.0 has no result without an address. handle() detects this only after the plugin has done its work."""
    undone = []

    def add(req, conf, undo):
        undo(undone.append, 1)
        return {}

    plugin.module.add = add
    assert error(call("ADD", {"name": "n"}))[1] == "cannot convert: no valid IP addresses"
    assert undone == [1]


@pytest.mark.parametrize("fail", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_an_exit_is_an_error_of_the_plugin(plugin, fail):
    """Once, the exit ended the server's worker."""
    plugin.fail = fail
    code, _, details = error(call("ADD"))
    assert (code, details) == (999, f'{type(fail).__name__}: this is a fault of the plugin "stub"')


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
        "stub", "DEL", "c1", "/none", "eth0")
    assert (gc.container_id, gc.netns, gc.ifname, gc.args) == ("", "", "", "")     # a GC is about no particular pod
    assert (req.args, req.path, req.env["X"], json.loads(req.stdin)["name"]) == ("A=B", "/bin", "y", "n")
    assert gc.valid_attachments == {("c9", "eth1")}
