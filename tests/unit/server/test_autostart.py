"""`fastcni install --autostart`: plugin files that start a server if none runs."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from project.plugin_file import INTERPRETER
from unit.launcher.stub_server import write_executable
from unit.server.other_node import ANSWER, DIRECTORY, INSTEAD_OF_PYTHON, OtherNode

from fastcni.cli.commands import cli
from fastcni.cli.install import lines
from fastcni.launcher import pack
from fastcni.launcher.core import NO_CORE
from fastcni.launcher.install import Installed
from fastcni.launcher.modules import PackError
from fastcni.node import server_process
from fastcni.testing.witnesses import eventually

STATUS = '{"cniVersion": "1.1.0", "name": "n", "type": "loopback"}'
SERVER = [sys.executable, "-I", "-m", "fastcni", "serve", "--log-to", "stderr", "--detached"]
COUNTS = "#!/bin/sh\necho started >> {file}\nexit {status}\n"


@pytest.fixture
def node():
    with OtherNode() as made:
        if not made.ready:
            pytest.skip(f"no mounts here: {made.outside.stderr.read().strip()}")
        yield made


@pytest.fixture(scope="module")
def image():
    return pack.pack(INTERPRETER, server=SERVER)


def with_fields(image, interpreter, server):
    """Return the plugin file's bytes with another interpreter and another server command."""
    at = image.find(pack.CONFIG_MAGIC)
    fields = list(pack.CONFIG.unpack_from(image, at))
    fields[1], fields[4] = pack.as_field([interpreter]), pack.as_field(server)
    return image[:at] + pack.CONFIG.pack(*fields) + image[at + pack.CONFIG.size:]


@pytest.fixture
def make(tmp_path, image):
    """Return a function make(*server command) that writes a plugin file. The file executes a script instead of
    Python."""
    python = str(write_executable(tmp_path / "python", INSTEAD_OF_PYTHON.encode()))
    return lambda *server: write_executable(tmp_path / "loopback", with_fields(image, python, map(str, server)))


@pytest.fixture
def counting(tmp_path, make):
    """Return (plugin, starts): a plugin file whose server notes its start and ends, and a function that returns the
    number of starts."""
    starts = tmp_path / "starts"
    starts.touch()
    script = write_executable(tmp_path / "server", COUNTS.format(file=starts, status=1).encode())
    return make(script), lambda: len(starts.read_text().splitlines())


@pytest.mark.needs("root")
def test_request_without_a_server_starts_one_and_later_requests_find_it(node, tmp_path, image):
    plugin = write_executable(tmp_path / "loopback", image)
    assert node.call(plugin, stdin=STATUS) == ""
    node.server()
    assert node.call(plugin, stdin=STATUS) == ""
    assert eventually(lambda: node.log().count("event=request_done") == 1), node.log()


@pytest.mark.needs("root")
def test_server_keeps_nothing_of_the_request(node, make):
    """A runtime waits until no process has the plugin's stdout open. call() waits in the same way."""
    with open("/dev/null") as inherited:
        held = node.start(make(*SERVER), pass_fds=[inherited.fileno()], env={"CNI_COMMAND": "STATUS", "SECRET": "1"})
        assert held.communicate("", timeout=60)[0].strip() == ANSWER
    pid = node.server()
    proc = Path(f"/proc/{pid}")
    assert [os.readlink(proc / "fd" / fd) for fd in "012"] == ["/dev/null", "/dev/null", f"{DIRECTORY}/server.log"]
    for fd in (proc / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):    # the new server has closed the descriptor meanwhile
            assert int(fd.name) <= 2 or os.readlink(fd) != "/dev/null"
    assert (os.readlink(proc / "cwd"), os.getsid(pid), os.getpgid(pid)) == ("/", pid, pid)
    assert {line.partition("=")[0] for line in (proc / "environ").read_text().strip("\0").split("\0")} == {"PATH"}
    assert "Umask:\t0022" in (proc / "status").read_text()


@pytest.mark.needs("root")
def test_a_hundred_requests_at_once_start_one_server(node, counting):
    plugin, starts = counting
    calls = [node.start(plugin, env={"CNI_COMMAND": "STATUS"}) for _ in range(100)]
    assert {call.communicate("", timeout=60)[0].strip() for call in calls} == {ANSWER}
    assert eventually(starts) == 1
    time.sleep(0.1)
    assert starts() == 1


@pytest.mark.needs("root")
def test_server_that_fails_to_start_is_tried_again_a_minute_later(node, counting):
    plugin, starts = counting
    for _ in range(3):
        assert node.call(plugin) == ANSWER
    assert eventually(starts) == 1
    node.set_last_attempt(58)
    node.call(plugin)
    assert starts() == 1
    node.set_last_attempt(61)
    node.call(plugin)
    assert eventually(lambda: starts() == 2)


@pytest.mark.needs("root")
def test_attempt_of_another_boot_does_not_count(node, counting):
    plugin, starts = counting
    node.path(DIRECTORY).mkdir()
    node.set_last_attempt(-1000)
    node.call(plugin)
    assert eventually(starts) == 1


@pytest.mark.needs("root")
def test_server_that_cannot_be_executed_is_named_in_the_log(node, make):
    assert node.call(make("/nowhere/python", "-m", "fastcni")) == ANSWER
    assert eventually(node.log) == "cannot execute /nowhere/python\n"


@pytest.mark.needs("root")
@pytest.mark.parametrize("option", ["--user", "--mount", "--net", "--pid"])
def test_request_in_another_namespace_starts_none(node, counting, option):
    plugin, starts = counting
    assert node.call("unshare", "--map-root-user" if option == "--user" else "--fork", option, plugin) == ANSWER
    attempt = node.path(f"{DIRECTORY}/autostart")
    assert not attempt.exists() or attempt.stat().st_size == 0
    assert not starts()


@pytest.mark.needs("root")
def test_request_of_another_user_starts_none(node, counting, tmp_path):
    below_tmp = [directory for directory in tmp_path.parents if directory.name.startswith(("pytest-", "popen-"))]
    for directory in (tmp_path, *below_tmp):
        directory.chmod(directory.stat().st_mode | 0o055)
    assert node.call("setpriv", "--reuid=12345", "--clear-groups", counting[0]) == ANSWER
    assert not node.path(DIRECTORY).exists()


@pytest.mark.needs("root")
@pytest.mark.parametrize("path", [f"{DIRECTORY}/fastcni.sock", ""], ids=["another socket", "no socket"])
def test_a_request_that_names_its_socket_starts_none(node, counting, path):
    assert node.call(counting[0], env={"FASTCNI_SOCKET": path}) == ANSWER
    assert not node.path(DIRECTORY).exists()


@pytest.mark.needs("root")
def test_version_starts_none(node, counting):
    assert "supportedVersions" in node.call(counting[0], env={"CNI_COMMAND": "VERSION"})
    assert not node.path(DIRECTORY).exists()


@pytest.mark.needs("root")
def test_plugin_installed_without_the_option_starts_none(node, make):
    assert node.call(make()) == ANSWER
    assert not node.path(DIRECTORY).exists()


@pytest.mark.needs("root")
def test_busy_server_is_not_taken_for_none(node, counting):
    """The server's backlog is full, so connect(2) fails with EAGAIN."""
    node.path(DIRECTORY).mkdir()
    plugin, starts = counting
    listener = ("import os, socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
                f"s.bind('{DIRECTORY}/fastcni.sock'); s.listen(0); "
                "c = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
                f"c.connect('{DIRECTORY}/fastcni.sock'); print('full', flush=True); sys.stdin.read()")
    busy = node.start(sys.executable, "-c", listener)
    assert busy.stdout.readline() == "full\n"
    assert node.call(plugin) == ANSWER
    busy.communicate()
    assert not node.path(f"{DIRECTORY}/autostart").exists()
    assert node.call(plugin) == ANSWER          # the socket's file still exists, so connect(2) fails with ECONNREFUSED
    assert eventually(starts) == 1


@pytest.mark.needs("root")
def test_idle_server_ends_and_the_next_request_starts_another(node, make):
    plugin = make(*SERVER, "--idle-exit", "0.01")
    node.call(plugin)
    first = node.server()
    assert eventually(lambda: not node.processes("--detached"))
    assert "event=server_idle" in node.log() and "event=server_stopped" in node.log()
    node.call(plugin)
    assert node.server() != first


@pytest.mark.needs("root")
def test_second_server_does_not_listen_beside_the_first(node, make):
    node.call(make(*SERVER))
    node.server()
    second = node.start(*SERVER, stderr=subprocess.PIPE)
    assert "another fastcni server listens" in "".join(second.communicate("", timeout=60))
    assert len(node.processes("--detached")) == 1


def recorded(plugin):
    """Return the server's command line that a plugin file has."""
    image = plugin.read_bytes()
    field = pack.CONFIG.unpack_from(image, image.find(pack.CONFIG_MAGIC))[4]
    return field.rstrip(b"\0").decode().split("\0")


@pytest.mark.parametrize("options, minutes", [((), "60"), (("--idle-exit", "2.5"), "2.5"), (("--idle-exit", "0"), "")])
def test_install_records_the_servers_command(tmp_path, monkeypatch, image, options, minutes):
    monkeypatch.setattr(pack, "pack", lambda _, server, **__: with_fields(image, "/nowhere", server))
    CliRunner().invoke(cli, ["install", "--bin-dir", str(tmp_path), "--autostart", *options], catch_exceptions=False)
    own = [sys.executable, "-I", "-m", "fastcni", "serve"]
    assert recorded(tmp_path / "loopback") == [*own, *(["--idle-exit", minutes] if minutes else []), "--detached"]


@pytest.mark.parametrize("pid, told", [(0, False), (1, False), (4242, True)])
def test_install_tells_how_to_end_a_server_of_before(monkeypatch, pid, told):
    monkeypatch.setattr(server_process, "listener", lambda path: pid)
    text = "\n".join(lines(Installed("/opt/cni/bin", "/usr/bin/python3", {}, [], SERVER), [], False))
    assert ("kill 4242" in text) == told
    assert "a request that finds no server starts one: " in text


@pytest.mark.parametrize("options", [("--autostart", "--systemd"), ("--idle-exit", "5")])
def test_install_refuses_options_that_do_not_fit(tmp_path, options):
    done = CliRunner().invoke(cli, ["install", "--bin-dir", str(tmp_path), *options])
    assert done.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["/bin/true"] * 16, ["/bin/true", ""], ["/" + "x" * 1023]])
def test_command_that_the_launcher_cannot_hold_is_refused(image, command):
    with pytest.raises(PackError):
        pack.configured(image, ["/bin/true"], b"", command, [], NO_CORE, pack.DEADLINES, b"")
