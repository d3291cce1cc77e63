"""The errors of bootstrap.py, which has no other module of fastcni when it reports them."""

import errno
import json
import os

import pytest
from project.plugin_file import INTERPRETER, PATH, write_executable
from unit.launcher.stub_server import run

from fastcni.launcher import bootstrap, pack

LINKER = "/usr/lib/_socket.so: "


def os_error(number):
    return OSError(number, os.strerror(number))


@pytest.fixture
def written(monkeypatch):
    """{descriptor: the bytes that were written to it}; report_failure() writes the traceback by sys.__excepthook__."""
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
    """A lack of memory had code 999 or 5, which tells the runtime not to try again."""
    assert bootstrap.report_failure("bridge", error) == 1
    document = json.loads(written[1])
    assert (document["code"], document["msg"]) == (code, f"bridge: {type(error).__name__}: {error}")


def test_an_error_for_podman_is_in_netavarks_form(written):
    assert bootstrap.report_failure("netavark", KeyError('"')) == 1
    assert json.loads(written[1]) == {"error": "netavark: KeyError: '\"'"}


@pytest.mark.parametrize("name, args, expected", [
    ("bridge", (), {"code": 5, "msg": "error reading from stdin: Bad file descriptor",
                    "details": "stdin has to be the network configuration"}),
    ("netavark", ("setup", "/nowhere"), {"error": "error reading from stdin: Bad file descriptor"})])
def test_stdin_that_cannot_be_read_is_an_error_in_the_form_of_the_protocol(tmp_path, name, args, expected):
    """podman got a document of CNI, and printed an empty error."""
    plugin = write_executable(tmp_path / name, pack.pack(INTERPRETER))
    env = {"PATH": PATH, "FASTCNI_SOCKET": "", "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "x"}
    with open(os.devnull, "wb") as unreadable:
        status, stdout, stderr = run(plugin, *args, env=env, stdin=unreadable)
    assert (status, json.loads(stdout), stderr) == (1, expected, b"")
