"""Errors that bootstrap.py reports itself, before another module of fastcni is loaded."""

import errno
import json
import os
import subprocess
import sys
import threading

import pytest
from project.plugin_file import INTERPRETER, PATH, write_executable
from unit.launcher.stub_server import run

from fastcni.kernel import waiting, wire
from fastcni.kit.links import find
from fastcni.launcher import bootstrap, interpreters, pack

LINKER = "/usr/lib/_socket.so: "


def os_error(number):
    return OSError(number, os.strerror(number))


@pytest.fixture
def written(monkeypatch):
    """Replace write(). Return {descriptor: bytes written}. report_failure() writes the traceback by
    sys.__excepthook__."""
    found = {}
    monkeypatch.setattr(bootstrap, "write", lambda fd, data: found.update({fd: found.get(fd, b"") + data}))
    monkeypatch.setattr(bootstrap.sys, "__excepthook__", lambda *_: None)
    return found


@pytest.mark.parametrize("error, code", [
    (os_error(errno.EIO), 5), (ImportError(LINKER + "file too short"), 5),
    (ModuleNotFoundError("No module named 'x'"), 999), (KeyError("x"), 999),
    (MemoryError(), 11), (ImportError(LINKER + "failed to map segment from shared object"), 11),
    *((os_error(number), 11) for number in (errno.ENOMEM, errno.ENFILE, errno.EMFILE)),
    *((ImportError(LINKER + os.strerror(number)), 11) for number in (errno.ENOMEM, errno.ENFILE, errno.EMFILE))])
def test_an_error_that_may_be_over_later_has_code_11_and_an_unreadable_file_code_5(written, error, code):
    """Once, a lack of memory gave code 999 or 5, which tells the runtime not to try again."""
    assert bootstrap.report_failure("bridge", error) == 1
    document = json.loads(written[1])
    assert (document["code"], document["msg"]) == (code, f"bridge: {type(error).__name__}: {error}")


def test_an_error_for_podman_is_in_netavarks_form(written):
    assert bootstrap.report_failure("netavark", KeyError('"')) == 1
    assert json.loads(written[1]) == {"error": "netavark: KeyError: '\"'"}


def test_an_exception_before_the_request_is_one_document_and_status_1(written, monkeypatch):
    ended = []
    monkeypatch.setattr(bootstrap.posix, "_exit", ended.append)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    bootstrap.main("bridge", -1, ({}, b"", "", [], {"bridge": [(0, 1)]}))
    assert ended == [1] and json.loads(written[1])["msg"] == "bridge: OSError: [Errno 9] Bad file descriptor"


@pytest.mark.parametrize("name, args, expected", [
    ("bridge", (), {"code": 5, "msg": "error reading from stdin: Bad file descriptor",
                    "details": "stdin has to be the network configuration"}),
    ("netavark", ("setup", "/nowhere"), {"error": "error reading from stdin: Bad file descriptor"})])
def test_stdin_that_cannot_be_read_is_an_error_in_the_form_of_the_protocol(tmp_path, name, args, expected):
    """Once, podman got an error document of CNI, and printed an empty error."""
    plugin = write_executable(tmp_path / name, pack.pack(INTERPRETER))
    env = {"PATH": PATH, "FASTCNI_SOCKET": "", "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "x"}
    with open(os.devnull, "wb") as unreadable:
        status, stdout, stderr = run(plugin, *args, env=env, stdin=unreadable)
    assert (status, json.loads(stdout), stderr) == (1, expected, b"")


WRITES = """import os, sys
from fastcni.launcher.bootstrap import write
os.set_inheritable(1, True), os.set_inheritable(2, True)
write(2, b"error"), write(1, b"x" * {size})
write(2, b" %d %d" % (os.get_inheritable(1), os.get_inheritable(2)))
"""


def test_a_full_stdout_that_does_not_block_gets_the_complete_answer():
    """The process sets FD_CLOEXEC of the stdout that write() waits for. A program that inherited stdout would keep the
    runtime waiting."""
    size, pieces = 1 << 20, []
    there, here = os.pipe()
    os.set_blocking(here, False)
    with subprocess.Popen([sys.executable, "-c", WRITES.format(size=size)], stdout=here, stderr=subprocess.PIPE) as run:
        os.close(here)
        assert run.stderr.read(5) == b"error"

        def read():
            while piece := os.read(there, 4096):
                pieces.append(len(piece))

        reader = threading.Timer(0.2, read)
        reader.start()
        assert run.stderr.read() == b" 0 1"
        reader.join()
    os.close(there)
    assert sum(pieces) == size and run.returncode == 0


@pytest.mark.parametrize("argv, words", [
    (["-c", "dhcp", "3", "daemon", "-x"], ["daemon", "-x"]), (["-c", "dhcp", "3"], []), (["-c", "daemon", "3"], []),
    (["/opt/cni/bin/dhcp", "daemon"], ["daemon"]), (["/opt/cni/bin/dhcp", "add", "daemon"], [])])
def test_the_words_of_the_daemon_follow_the_plugins_name_and_its_descriptor(argv, words):
    assert bootstrap.daemon_words(argv) == words


def test_a_wire_trace_goes_to_stderr_alone(written, monkeypatch):
    monkeypatch.setattr(waiting.here, "request", waiting.here.request)
    bootstrap.trace_wire()
    sock = wire.open_socket()
    find.all_links(sock)
    sock.close()
    assert written.keys() == {2} and written[2].startswith(b">")


@pytest.mark.parametrize("core", [True, False], ids=["python_core", "interpreter"])
def test_a_program_that_a_plugin_runs_gets_no_descriptor_but_its_streams(tmp_path, core):
    path = interpreters.core_of(INTERPRETER) if core else ""
    if core and not path:
        pytest.skip("python_core.elf is not there, or of another build")
    plugin = write_executable(tmp_path / "ptp", pack.pack(INTERPRETER, core=path))
    write_executable(tmp_path / "own-ipam", b"#!/bin/sh\nexec >&2\nexec ls /proc/self/fd\n")
    conf = {"cniVersion": "1.0.0", "name": "net", "type": "ptp", "ipam": {"type": "own-ipam"}}
    env = {"PATH": PATH, "FASTCNI_SOCKET": "", "CNI_COMMAND": "DEL", "CNI_CONTAINERID": "x", "CNI_IFNAME": "eth0",
           "CNI_PATH": str(tmp_path)}
    status, stdout, stderr = run(plugin, env=env, stdin=json.dumps(conf).encode())
    # descriptor 3 is the directory that ls lists
    assert (status, stdout, stderr.split()) == (0, b"", [b"0", b"1", b"2", b"3"])


def test_the_word_daemon_starts_a_daemon_in_the_plugin_dhcp_alone(tmp_path):
    image = pack.pack(INTERPRETER)
    env = {"PATH": PATH, "FASTCNI_SOCKET": "", "CNI_COMMAND": "STATUS", "CNI_PATH": "/nowhere"}
    answers = [run(write_executable(tmp_path / name, image), "daemon", "-no-such-option", env=env)
               for name in ("dhcp", "bridge")]
    assert answers[0][:2] == (2, b"") and b"no-such-option" in answers[0][2]
    assert answers[1][0] == 1 and json.loads(answers[1][1])["code"] == 7
