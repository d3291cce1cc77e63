"""A caller with resource limits, see setrlimit(2)."""

import json
import os
import resource

import pytest
from project import plugin_file
from project.plugin_file import ADD, INTERPRETER, write_executable
from unit.launcher.stub_server import LONG, reply, run, serving, variables

from fastcni.launcher import interpreters, pack

CONF = {"cniVersion": "1.0.0", "name": "net", "type": "bridge"}
SHOWS_LIMIT = b"#!/bin/sh\nshift 5\ncat\nulimit -f\n"
NOBODY = 65534


def limit(what, soft):
    """Return a function that sets the soft limit of a resource, for subprocess's preexec_fn."""
    return lambda: resource.setrlimit(what, (soft, resource.getrlimit(what)[1]))


def test_a_limit_of_file_sizes_does_not_stop_a_long_request(directory):
    """If a request is too long for a message, the launcher writes it to a memory file. Once, SIGXFSZ ended such a
    request. Python gets the caller's limit: 1,024 bytes are two blocks of ulimit."""
    python = write_executable(directory / "shows-limit", SHOWS_LIMIT)
    plugin = write_executable(directory / "limited", pack.pack(str(python)))
    with serving(directory, reply(0, b"warm")) as server:
        answer = run(plugin, env=variables(server), stdin=LONG, preexec_fn=limit(resource.RLIMIT_FSIZE, 1024))
    assert answer == (0, LONG + b"2\n", b"")


@pytest.mark.needs("root")
def test_a_limit_that_the_caller_may_not_raise_is_an_error(directory):
    def prepare():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)

    directory.chmod(0o755)
    python = write_executable(directory / "shows-limit", SHOWS_LIMIT)
    plugin = write_executable(directory / "limited", pack.pack(str(python)))
    with serving(directory, reply(0, b"warm")) as server:
        os.chmod(server.path, 0o777)
        status, stdout, stderr = run(plugin, env=variables(server), stdin=LONG, preexec_fn=prepare)
    assert (status, stderr, json.loads(stdout)["code"]) == (1, b"", 5)
    assert "File too large (errno 27)" in json.loads(stdout)["msg"] and "ulimit -f" in json.loads(stdout)["details"]


@pytest.mark.parametrize("files", range(3, 13))
@pytest.mark.parametrize("start", ["python_core", "interpreter"])
def test_a_limit_of_open_files_gives_the_result_or_code_11(tmp_path, start, files):
    """Once, with few files, the error had code 999 and advised to install fastcni again, or the request had no
    answer."""
    core = interpreters.core_of(INTERPRETER) if start == "python_core" else ""
    if start == "python_core" and not core:
        pytest.skip("python_core.elf is not there, or of another build")
    plugin = write_executable(tmp_path / "host-local", pack.pack(INTERPRETER, core=core))
    ipam = {"type": "host-local", "subnet": "10.9.0.0/24", "dataDir": str(tmp_path / "data")}
    status, answer, stderr = plugin_file.run(plugin, stdin=json.dumps(CONF | {"ipam": ipam}).encode(), env=ADD,
                                             preexec_fn=limit(resource.RLIMIT_NOFILE, files))
    assert stderr == ""
    if status:
        assert answer["code"] == 11 and "Too many open files (errno 24)" in answer["msg"]
        assert answer["details"] == "are too many files open (ulimit -n), or is memory short?"
    assert (status == 0) == (files >= 9)
    assert not status or not any((tmp_path / "data").glob("net/10.*"))
