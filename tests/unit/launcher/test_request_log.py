"""FASTCNI_LOG writes a line for each one-shot request. The answer stays the same."""

import json
import os
import socket
import stat
import struct
import subprocess

import pytest
from unit.launcher.stub_server import write_executable

from fastcni.kit.call import request_log
from fastcni.kit.call.request import Reply
from fastcni.launcher import pack
from fastcni.launcher.install import base_interpreter, checked_interpreter

CONF = {"cniVersion": "1.0.0", "name": "net-a", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}
ENV = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c-1", "CNI_IFNAME": "eth0", "CNI_NETNS": "/nowhere", "CNI_PATH": "/x"}
ERROR = b'{\n    "code": 7,\n    "msg": "a \\"bad\\" key"\n}'


@pytest.fixture(scope="module")
def host_local(directory):
    return write_executable(directory / "host-local", pack.pack(checked_interpreter(base_interpreter())))


@pytest.fixture
def call(host_local, tmp_path):
    """Return a function that runs host-local one-shot and returns (exit status, stdout)."""
    conf = {**CONF, "ipam": {**CONF["ipam"], "dataDir": str(tmp_path / "ipam")}}

    def call(log, **env):
        env = {**ENV, "FASTCNI_SOCKET": "", **({} if log is None else {"FASTCNI_LOG": str(log)}), **env}
        done = subprocess.run([host_local], env=env, input=json.dumps(conf).encode(), capture_output=True, timeout=60)
        assert done.stderr == b""
        return done.returncode, done.stdout
    return call


def fields_of(line):
    """Return {name: text} of a line in logfmt."""
    found, rest = {}, line.rstrip("\n")
    while rest:
        name, _, rest = rest.partition("=")
        value, end = json.JSONDecoder().raw_decode(rest) if rest[0] == '"' else (rest.split(" ")[0], None)
        rest = rest[len(value) if end is None else end:].lstrip(" ")
        found[name] = value
    return found


def test_each_request_appends_a_line_to_the_file(call, tmp_path):
    log = tmp_path / "log"
    before = call(None)
    assert call(log, CNI_COMMAND="DEL") == (0, b"") and before[0] == 0
    assert call(log)[0] == 0
    status, stdout = call(log)
    done, added, failed = map(fields_of, log.read_text().splitlines())
    assert status == 1 and json.loads(failed.pop("error")) == json.loads(stdout)
    assert [*failed] == [*done] == ["timestamp", "level", "event", "id", "pid", "caller", "command", "plugin",
                                    "network", "container", "ifname", "ms"]
    assert (done["event"], added["event"], failed["event"]) == ("request_done", "request_done", "request_failed")
    assert (done["command"], failed["command"], failed["level"]) == ("DEL", "ADD", "warning")
    assert [done[name] for name in ("plugin", "network", "container")] == ["host-local", "net-a", "c-1"]
    assert done["caller"] == str(os.getpid()) and float(done["ms"]) > 0
    assert len({each["id"] for each in (done, added, failed)}) == 3
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def make_fifo(path):
    os.mkfifo(path)


def make_link(path):
    path.symlink_to(path.with_suffix(".victim"))
    path.with_suffix(".victim").write_text("")


def make_read_only_directory(path):
    path.mkdir()


@pytest.mark.parametrize("make", [make_fifo, make_link, make_read_only_directory])
def test_a_fifo_link_or_directory_is_neither_written_nor_waited_for(call, tmp_path, make):
    make(tmp_path / "log")
    assert call(tmp_path / "log", CNI_COMMAND="DEL") == (0, b"")
    if make is make_link:
        assert (tmp_path / "log.victim").read_text() == ""


@pytest.mark.parametrize("log", ["/nonexistent/log", "relative", "", "/dev/full", "journal", "/proc/self/mem"])
def test_an_unusable_log_changes_no_answer(call, log):
    assert call(log, CNI_COMMAND="DEL") == (0, b"")
    status, stdout = call(log, CNI_IFNAME="a/b")
    assert status == 1 and json.loads(stdout)["code"] == 4


@pytest.fixture
def daemon(directory, monkeypatch):
    """Yield a socket that replaces the sockets of journald and of syslog."""
    path = str(directory / "log-daemon")
    monkeypatch.setattr(request_log, "JOURNAL", path)
    monkeypatch.setattr(request_log, "SYSLOG", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(30)
        yield sock
    os.unlink(path)


def entry():
    return request_log.Entry("bridge", {**ENV, "CNI_CONTAINERID": "c\n1"}, json.dumps(CONF).encode())


def test_journald_gets_a_field_for_each_value(daemon):
    entry().write("journald", Reply(1, ERROR))
    data, found = daemon.recv(1 << 16), {}
    while data:                     # the format is that of systemd.io/JOURNAL_NATIVE_PROTOCOL
        line, _, data = data.partition(b"\n")
        name, has_value, value = line.partition(b"=")
        if not has_value:
            size, = struct.unpack_from("<Q", data)
            value, data = data[8:8 + size], data[8 + size + 1:]
        found[name.decode()] = value.decode()
    assert (found["PRIORITY"], found["SYSLOG_IDENTIFIER"]) == ("4", "fastcni")
    assert found["FASTCNI_CONTAINER"] == "c\n1" and found["FASTCNI_NETWORK"] == "net-a"
    assert json.loads(found["FASTCNI_ERROR"]) == json.loads(ERROR)
    assert found["MESSAGE"].startswith("event=request_failed id=")


def test_a_warning_of_the_plugin_is_in_the_log(daemon):
    """Once, the log had only errors."""
    entry().write("syslog", Reply(0, b"{}", b"portmap: a\nportmap: b\n"))
    line = daemon.recv(1 << 16).decode()
    assert line.startswith("<28>") and 'warning="portmap: a; portmap: b"' in line


def test_syslog_gets_one_line(daemon):
    entry().write("syslog", Reply(0, b"{}"))
    line = daemon.recv(1 << 16).decode()
    assert line.startswith("<30>") and f" fastcni[{os.getpid()}]: event=request_done id=" in line
    assert "\n" not in line and 'container="c\\n1"' in line


def test_the_plugin_does_not_wait_for_a_log_daemon_that_does_not_read(daemon):
    daemon.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    for _ in range(2000):           # more datagrams than the socket's queue takes
        entry().write("journald", Reply(0, b"{}"))


@pytest.mark.parametrize("stdin", [b"", b"[]", b"{", b'{"name":5}', b"\xff"])
def test_a_configuration_without_a_name_is_logged_without_it(daemon, stdin):
    request_log.Entry("bridge", ENV, stdin).write("syslog", Reply(1, b"no document"))
    assert "event=request_failed" in daemon.recv(1 << 16).decode()
