"""The result or the error of a plugin process, through kit.invoke and the version probe. Comments such as L25 number
the cases of libcni's behaviour."""

import errno
import os
import subprocess
import sys
import threading
import time
from io import BytesIO

import pytest

import fastcni
from fastcni.kit.call import invoke, search
from fastcni.runtime import CNI, CniError, Exec, InProcess, Trace

ENV = {"PATH": "/usr/bin:/bin"}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"


def script(stage, body, name="p"):
    file = stage.bin / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return str(file)


def failure(stage, body, **how):
    with pytest.raises(CniError) as caught:
        invoke.execute(script(stage, body), ENV, b"", **how)
    return caught.value


ENDS = [
    ("L24-silent", "exit 3", "netplugin failed with no error message: exit status 3"),
    ("L24-stderr", "echo oops >&2; exit 3", 'netplugin failed: "oops\\n": exit status 3'),
    ("signal", "kill -9 $$", "netplugin failed with no error message: signal: killed"),
]


@pytest.mark.parametrize("body, message", [row[1:] for row in ENDS], ids=[row[0] for row in ENDS])
def test_a_plugin_that_fails_without_a_document(stage, body, message):
    error = failure(stage, body)
    assert (error.code, error.msg, error.details) == (0, message, "")


def test_output_that_is_no_document_is_in_the_error():                                      # L25
    error = invoke.read_failure(b"not json", b"", "exit status 3")
    assert error.code == 0
    assert error.msg.startswith('netplugin failed but error parsing its diagnostic message "not json": ')


def test_the_valid_members_of_a_damaged_document_are_kept():
    error = invoke.read_failure(b'{"code":"x","msg":5,"details":"why"}', b"", "exit status 3")
    assert error.msg.startswith("netplugin failed but error parsing its diagnostic message ")
    assert (error.code, error.details) == (0, "why")
    assert invoke.read_failure(b'{"code":11,"msg":5}', b"", "").code == 11


@pytest.mark.parametrize("document", [
    b"[]", b"5", b'{"code":-1}', b'{"code":true}', b'{"code":1.5}', b"{}{}"])
def test_documents_of_the_wrong_shape_are_damaged(document):
    assert "diagnostic message" in invoke.read_failure(document, b"", "").msg


def test_the_keys_of_an_error_are_matched_in_any_case(stage):                      # L26
    error = failure(stage, """echo '{"CODE":11,"Msg":"try","more":1}'; echo noise >&2; exit 3""")
    assert (error.code, error.msg, error.details) == (11, "try", "")


@pytest.mark.parametrize("document", [b"{}", b"null"])
def test_an_empty_document_is_an_empty_error(document):
    error = invoke.read_failure(document, b"", "exit status 1")
    assert (error.code, error.msg) == (0, "")


def test_a_flood_of_output_is_cut_in_the_message():
    error = invoke.read_failure(b"", b"x" * 100_000, "exit status 1")
    assert len(error.msg) < 10_000


ADDED = [
    ("L27", b'{"code":7,"msg":"not an error"}', "0.4.0", "0.4.0"),
    ("L29-null", b"null", "1.0.0", "1.0.0"),
    ("L29-number", b'{"cniVersion":5}', "0.4.0", "0.4.0"),
    ("L29-case", b'{"CNIVersion":"0.4.0"}', "1.0.0", "1.0.0"),
    ("lower-case", b'{"cniversion":"0.4.0"}', "1.0.0", "1.0.0"),
    ("other-version", b'{"cniVersion":"0.4.0"}', "1.0.0", "0.4.0"),
    ("L3", b"{}", "", "0.1.0"),
]


@pytest.mark.parametrize("stdout, config_version, version", [row[1:] for row in ADDED],
                         ids=[row[0] for row in ADDED])
def test_a_result_has_its_own_version_or_the_configurations(stdout, config_version, version):
    result = invoke.read_add_output(stdout, config_version)
    assert result["cniVersion"] == version
    assert not result.get("ips")


@pytest.mark.parametrize("stdout", [b"", b"nonsense", b"[]", b"5", b'{"a":1}{"b":2}'])
def test_output_that_is_no_result_is_refused(stdout):                              # L28
    with pytest.raises(CniError, match=r"^failed to unmarshal raw result: "):
        invoke.read_add_output(stdout, "1.0.0")


def test_a_result_of_an_unknown_version_is_refused():                              # L30
    with pytest.raises(CniError) as caught:
        invoke.read_add_output(b'{"cniVersion":"9.0.0"}', "1.0.0")
    assert str(caught.value) == 'unsupported CNI result version "9.0.0"'


def test_stderr_of_a_plugin_that_succeeds_is_forwarded(stage):                     # L31
    stream = BytesIO()
    path = script(stage, "echo hello >&2; echo out")
    assert Exec(stderr=stream).run(path, {}, b"", None) == b"out\n"
    assert stream.getvalue() == b"hello\n"


def test_the_error_of_find_gives_the_reason(stage):                                      # L32
    stage.plugin("a")
    (stage.bin / "directory").mkdir()
    for name, dirs, message in (
        ("", ["/x"], "no plugin name provided"),
        ("../x", ["/x"], "invalid plugin name: ../x"),
        ("a", [], "no paths provided"),
        ("b", ["/d1", "/d2"], 'failed to find plugin "b" in path [/d1 /d2]'),
        ("..", ["/d1"], 'failed to find plugin ".." in path [/d1]'),
        ("directory", [str(stage.bin)], f'failed to find plugin "directory" in path [{stage.bin}]'),
    ):
        with pytest.raises(CniError) as caught:
            search.find(name, dirs)
        assert str(caught.value) == message
    assert search.find("a", ["/d1", f"{stage.bin}/../bin/", "/d2"]) == f"{stage.bin}/a"


def test_an_empty_directory_is_the_current_one(stage, monkeypatch):
    # Unlike fastcni, the Go library then searches PATH.
    stage.plugin("a")
    monkeypatch.chdir(stage.bin)
    assert search.find("a", ["/d1", ""]) == "./a"


def test_the_error_of_a_plugin_that_cannot_be_started_gives_the_reason(stage):                          # L33
    path = script(stage, "exit 0")
    os.chmod(path, 0o644)
    with pytest.raises(CniError) as caught:
        invoke.execute(path, ENV, b"")
    assert str(caught.value) == f"netplugin failed with no error message: fork/exec {path}: permission denied"
    (stage.bin / "text").write_text("no program")
    (stage.bin / "text").chmod(0o755)
    with pytest.raises(CniError, match=r"exec format error$"):
        invoke.execute(str(stage.bin / "text"), ENV, b"")


def test_a_busy_program_is_tried_again(stage):                                     # L34, with shorter sleeps
    path = script(stage, "echo ran")
    writer = os.open(path, os.O_WRONLY)
    timer = threading.Timer(0.3, os.close, (writer,))
    timer.start()
    try:
        assert invoke.execute(path, ENV, b"")[0] == b"ran\n"
    finally:
        timer.join()


def test_a_program_that_stays_busy_is_an_error(stage, monkeypatch):
    # For the Go library, this is a success without a result.
    monkeypatch.setattr(invoke, "BUSY_PAUSES_S", (0.0,) * 5)
    path = script(stage, "echo ran")
    with open(path, "ab"), pytest.raises(CniError, match=r"fork/exec .*: text file busy$"):
        invoke.execute(path, ENV, b"")


def test_a_plugin_that_takes_too_long_is_killed(stage):                            # L35
    start = time.monotonic()
    error = failure(stage, "exec sleep 60", timeout=0.2)
    assert str(error) == "netplugin failed with no error message: signal: killed"
    assert time.monotonic() - start < 10
    assert str(failure(stage, "exit 0", timeout=0)) == (
        "netplugin failed with no error message: context deadline exceeded")


def test_a_nul_in_a_variable_is_a_failure_to_start(stage):
    with pytest.raises(CniError, match=r"fork/exec .*: invalid argument$"):
        invoke.execute(script(stage, "exit 0"), {"CNI_NETNS": "a\0b"}, b"")


PROBES = [
    ("L36-0.2.0", '{"cniVersion":"0.2.0"}', 0, ["0.1.0", "0.2.0"]),
    ("L36-unknown", '{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}', 1, ["0.1.0"]),
    ("list", '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}', 0, ["0.4.0", "1.0.0"]),
]


@pytest.mark.parametrize("out, status, versions", [row[1:] for row in PROBES], ids=[row[0] for row in PROBES])
def test_a_plugin_is_asked_for_its_versions(stage, out, status, versions):
    stage.plugin("a")
    stage.answer("a", "VERSION", out=out, status=status)
    assert CNI([stage.bin]).version_info("a") == versions
    [call] = stage.calls()
    assert call.raw == b'{"cniVersion":"1.1.0"}'
    assert [call.env[name] for name in ("CNI_NETNS", "CNI_IFNAME", "CNI_PATH")] == ["dummy"] * 3
    assert call.env["CNI_CONTAINERID"] == call.env["CNI_ARGS"] == ""


def test_another_failure_of_the_version_probe_is_raised(stage):
    stage.plugin("a")
    stage.answer("a", "VERSION", out='{"code":11,"msg":"later"}', status=1)
    with pytest.raises(CniError) as caught:
        CNI([stage.bin]).version_info("a")
    assert (caught.value.code, caught.value.msg) == (11, "later")


def test_a_trace_reaches_the_plugin(stage):                                        # L39
    stage.plugin("a")
    stage.answer("a", "VERSION", out='{"cniVersion":"0.2.0"}')
    cni = CNI([stage.bin], runner=Exec(ENV))
    cni.version_info("a", trace=Trace(f"{PARENT}-ff", "vendor=1", "user=7"))
    cni.version_info("a", trace=Trace(f"{PARENT}-00"))
    cni.version_info("a")
    names = ("TRACEPARENT", "TRACESTATE", "BAGGAGE")
    traces = [{name: call.env[name] for name in names if name in call.env} for call in stage.calls()]
    assert traces == [
        {"TRACEPARENT": f"{PARENT}-01", "TRACESTATE": "vendor=1", "BAGGAGE": "user=7"},
        {"TRACEPARENT": f"{PARENT}-00"},
        {},
    ]


def test_a_trace_without_a_span_passes_nothing_to_the_plugin():
    assert Trace(f"00-{'0' * 32}-b7ad6b7169203331-01", baggage="a=1").variables() == {}
    assert Trace(f"00-{'1' * 32}-{'0' * 16}-01").variables() == {}


@pytest.mark.parametrize("fields", [
    ("",), ("00-x-y-01",), (f"{PARENT.upper()}-01",), (f"ff{PARENT[2:]}-01",), (f"{PARENT}-01\n",),
    (f"{PARENT}-01", "a=1\nPATH=/evil"), (f"{PARENT}-01", "", "\0"), (f"{PARENT}-01", "x" * 9000),
])
def test_a_malformed_trace_is_refused(fields):
    with pytest.raises(ValueError):
        Trace(*fields)


def test_a_delegate_sees_the_command_it_is_given(stage, monkeypatch):              # L40
    monkeypatch.setenv("CNI_COMMAND", "DEL")
    monkeypatch.setenv("CNI_IFNAME", "eth5")
    stage.plugin("a")
    invoke.execute(f"{stage.bin}/a", invoke.child_env(os.environ, "ADD"), b"{}")
    assert stage.called() == ["a ADD"]
    assert stage.calls()[0].env["CNI_IFNAME"] == "eth5"
    assert os.environ["CNI_COMMAND"] == "DEL"


def test_our_launchers_are_known_by_their_mark(stage):
    file = stage.bin / "bridge"
    file.write_bytes(b"\x7fELF\x02\x01\x01\x00\x00fastcni\x02\x00")
    assert search.is_own(str(file))
    assert not search.is_own(sys.executable)
    assert not search.is_own(str(stage.bin))
    assert not search.is_own(str(stage.bin / "absent"))
    file.write_bytes(b"short")
    assert not search.is_own(str(file))


@pytest.mark.parametrize("error, code", [(errno.EMFILE, 11), (errno.ENOMEM, 11), (errno.EIO, 5)])
def test_a_launcher_that_cannot_be_read_now_is_not_taken_for_a_foreign_plugin(stage, monkeypatch, error, code):
    """Once, without a free descriptor, the runtime executed the launcher. The launcher also failed, with an error of
    code 0."""
    file = stage.bin / "host-local"
    file.write_bytes(b"\x7fELF\x02\x01\x01\x00\x00fastcni\x02\x00")

    def refuse(*_):
        raise OSError(error, "")

    with monkeypatch.context() as patch:
        patch.setattr(search, "read_file", refuse)
        with pytest.raises(CniError, match=f"read plugin {file}: {os.strerror(error)}") as caught:
            search.is_own(str(file))
    assert caught.value.code == code
    assert search.is_own(str(file))


def test_the_invoker_costs_a_one_shot_plugin_no_imports():
    code = f"""if 1:
        import sys
        sys.path.append({os.path.dirname(os.path.dirname(fastcni.__file__))!r})
        import fastcni.kit.call.invoke, fastcni.kernel.process
        print(*sys.modules)"""
    out = subprocess.run([sys.executable, "-ISc", code], check=True, capture_output=True, text=True).stdout
    assert not set(out.split()) & {
        "json", "re", "dataclasses", "typing", "ipaddress", "socket", "subprocess", "logging",
        "pathlib", "enum", "contextlib", "functools", "collections"}


def test_an_in_process_call_answers_like_an_executable(stage):
    stage.plugin("other")
    stage.answer("other", "VERSION", out='{"cniVersion":"0.2.0"}')
    cni = CNI([stage.bin], runner=InProcess())
    assert "1.1.0" in cni.version_info("loopback")
    assert cni.version_info("other") == ["0.1.0", "0.2.0"]
    assert stage.called() == ["other VERSION"]
