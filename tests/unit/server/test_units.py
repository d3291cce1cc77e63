"""The systemd units: their text, their directory, and a server that has the same restrictions."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from lab.node import elements, links, rules

from fastcni.cli.commands import cli
from fastcni.kit.call import deadlines
from fastcni.launcher import files, systemd
from fastcni.launcher.install import Installed, InstallError

needs_analyze = pytest.mark.skipif(not shutil.which("systemd-analyze"),
                                   reason="needs systemd-analyze (Debian: systemd)")
ODD = ["with space", "percent%h", "dollar$HOME", "${HOME}", ";", "#x", "ü"]


@pytest.fixture
def units(tmp_path):
    """Install both units. Return their directory."""
    systemd.install_units(tmp_path / "units")
    return tmp_path / "units"


def values(key, text=None):
    """Return the words of all values that a key has in a unit's text."""
    return [word for line in re.findall(rf"^{key}=(.*)$", text or systemd.service(["/bin/true"]), re.M)
            for word in line.split()]


def analyze(*args):
    done = subprocess.run(["systemd-analyze", *map(str, args)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


# ---- the texts ----


@needs_analyze
def test_systemd_reports_nothing_about_the_units(units):
    assert analyze("verify", units / "fastcni.socket", units / "fastcni.service") == (0, "")


@needs_analyze
def test_the_exposure_is_below_four(units):
    status, output = analyze("security", "--offline=true", "--threshold=40", units / "fastcni.service")
    if "Unknown" in output or "unrecognized" in output:
        pytest.skip(f"systemd-analyze is too old: {output.strip()}")
    assert status == 0, output


def test_systemd_ends_a_stopped_server_before_its_callers_give_up():
    """The callers then get the answer of a plugin file without a server, and the server continues none of their
    requests later."""
    seconds = int(*values("WatchdogSec")) + int(*values("TimeoutAbortSec"))
    assert deadlines.UNREAD_S < seconds < deadlines.ANSWER_S
    assert values("Restart") == ["on-failure"]          # systemd regards a watchdog timeout as a failure


@needs_analyze
@pytest.mark.parametrize("odd", ODD)
def test_systemd_finds_a_program_under_an_odd_path(tmp_path, odd):
    """`verify` searches for the program, so it must read the same path that was written."""
    directory = tmp_path / odd
    directory.mkdir()
    program = directory / "python"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    systemd.install_units(tmp_path / "units", [program, "-m", "fastcni"])
    paths = [tmp_path / "units" / name for name in ("fastcni.socket", "fastcni.service")]
    assert analyze("verify", *paths) == (0, "")
    program.unlink()
    status, output = analyze("verify", *paths)
    assert status and str(program) in output


@pytest.mark.parametrize("args, line", [
    (["/usr/bin/python3", "-I"], "/usr/bin/python3 -I"),
    (["/a b/python", ""], '"/a b/python" ""'),
    (["/a%h/python"], '"/a%%h/python"'),
    (["/a$b/python", "-m"], ':"/a$b/python" -m'),
    (["/a", "$HOME"], ':/a "$HOME"'),
    (["/a", 'a"b\\c'], '/a "a\\"b\\\\c"'),
    (["/a", ";"], '/a ";"'),
])
def test_a_command_is_quoted_as_systemd_reads_it(args, line):
    assert systemd.command_line(args) == line


@pytest.mark.parametrize("args", [["python3"], ["/a\nb"], ["/a\udcff"], ["/a", "b\tc"], ['/a"b'], ["/a'b"], ["/a\\b"]])
def test_a_command_that_no_unit_can_have_is_refused(args):
    with pytest.raises(InstallError):
        systemd.command_line(args)


def test_the_server_is_started_by_this_python_without_what_a_user_set():
    assert systemd.own_command() == [sys.executable, "-I", "-m", "fastcni", "serve"]


def test_a_python_without_the_package_is_refused(tmp_path, monkeypatch):
    """Otherwise, the first pod would fail because the unit cannot start."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nprintf 'Traceback:\\nModuleNotFoundError: fastcni\\n' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(InstallError, match="has no fastcni server: ModuleNotFoundError"):
        systemd.install_units(tmp_path / "units")
    assert not (tmp_path / "units").exists()


@pytest.mark.parametrize("executable", [None, "", "python3"])
def test_a_python_that_does_not_know_its_path_is_refused(monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(InstallError, match="does not know its own path"):
        systemd.own_command()


def test_a_python_that_does_not_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(InstallError, match=r"missing -I does not run: .*No such file"):
        systemd.own_command()


def test_a_server_stops_within_the_timeout_of_systemd():
    from fastcni.server.service import DRAIN_TIMEOUT_S

    assert int(values("TimeoutStopSec")[0]) > DRAIN_TIMEOUT_S


def test_the_unit_allows_the_devices_that_plugins_and_server_open():
    from fastcni.kernel.devices import tun
    from fastcni.server import cpu_latency

    assert values("DeviceAllow") == [tun.PATH, "rw", cpu_latency.DEVICE, "w"]
    assert values("PrivateDevices") in ([], ["no"])


def test_socket_and_server_have_the_same_path():
    from fastcni.daemon import listening

    assert values("ListenSequentialPacket", systemd.SOCKET) == [listening.PATH]
    assert values("Backlog", systemd.SOCKET) == [str(listening.BACKLOG)]


# ---- their directory ----


def test_units_are_replaced_at_once_and_are_readable(tmp_path):
    directory = tmp_path / "units"
    paths = systemd.install_units(directory, ["/bin/true"])
    with open(paths[1]) as old:             # a process that has the old file open can read it to its end
        assert systemd.install_units(directory, ["/bin/false"]) == paths
        assert "ExecStart=/bin/true" in old.read() and "ExecStart=/bin/false" in Path(paths[1]).read_text()
    assert sorted(os.listdir(directory)) == ["fastcni.service", "fastcni.socket"]
    assert [os.stat(path).st_mode & 0o777 for path in (*paths, directory)] == [0o644, 0o644, 0o755]


def test_a_failure_leaves_the_old_units_and_nothing_else(tmp_path, monkeypatch):
    paths = systemd.install_units(tmp_path, ["/bin/true"])

    def full(path, data, mode, write=files.write):
        write(path, data[:100], mode)
        if "service" in path:
            raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(InstallError, match=r"write systemd units into .*No space left on device"):
        systemd.install_units(tmp_path, ["/bin/false"])
    assert sorted(os.listdir(tmp_path)) == ["fastcni.service", "fastcni.socket"]
    assert "ExecStart=/bin/true" in Path(paths[1]).read_text()


def fastcni(*args, tty=False):
    """Run the command, with a terminal in a separate process, or without one in this process. Return (exit status,
    output)."""
    words = [str(arg) for arg in args]
    if not tty:
        done = CliRunner().invoke(cli, words)
        return done.exit_code, done.output + str(done.exception or "")
    command = [sys.executable, "-m", "fastcni", *words]
    terminal, child_end = pty.openpty()
    status = subprocess.run(command, stdout=child_end, stderr=child_end, stdin=child_end, timeout=60).returncode
    os.close(child_end)
    output = os.read(terminal, 65536).decode().replace("\r\n", "\n")
    os.close(terminal)
    return status, output


def test_the_command_prints_the_next_command(tmp_path):
    args = ["install", "--bin-dir", tmp_path / "bin", "--plugin", "ptp", "--systemd", "--unit-dir", tmp_path / "units"]
    paths = [str(tmp_path / "units" / name) for name in systemd.UNITS]
    status, output = fastcni(*args, tty=True)
    assert status == 0
    assert "next: systemctl daemon-reload && systemctl enable --now fastcni.socket fastcni-reinstall.path\n" in output
    again = fastcni(*args)
    assert again[0] == 0 and again[1].splitlines()[-2:] == output.splitlines()[-2:], "a pipe gets the same text"
    status, output = fastcni(*args, "--json")
    assert status == 0 and json.loads(output)["units"] == paths
    assert sorted(os.listdir(tmp_path / "units")) == sorted(systemd.UNITS)


def test_idle_exit_is_in_the_service_and_in_its_reinstall():
    plugins = Installed("/opt/cni/bin", "/usr/bin/python3", {}, [])
    command = ["/usr/bin/python3", "-m", "fastcni", "serve", "--idle-exit", "60"]
    assert "ExecStart=/usr/bin/python3 -m fastcni serve --idle-exit 60\n" in systemd.service(command)
    assert " --idle-exit 60\n" in systemd.reinstall(plugins, "/units", (), command)["fastcni-reinstall.service"]
    assert "--idle-exit" not in systemd.reinstall(plugins, "/units", (), command[:4])["fastcni-reinstall.service"]


def test_a_reinstall_repeats_the_arguments_of_the_install(tmp_path):
    plugins = Installed(str(tmp_path / "bin"), "/usr/bin/python3", {}, [], netavark_dir="/usr/libexec/podman")
    text = systemd.reinstall(plugins, "/units", ("ptp", "host-local"), ["/bin/true"], dhcp=True)
    words = ["--bin-dir", plugins.bin_dir, "--systemd", "--unit-dir", "/units", "--netavark-dir", "/usr/libexec/podman",
             "--plugin", "ptp", "--plugin", "host-local", "--dhcp"]
    command = f"fastcni-reinstall /usr/bin/python3 {sys.executable} {' '.join(words)}\n"
    assert command in text["fastcni-reinstall.service"]
    assert "--netavark-dir" not in systemd.reinstall(
        Installed("/bin", "/usr/bin/python3", {}, []), "/units", (), ["/bin/true"])["fastcni-reinstall.service"]


def test_each_unit_names_the_directory_for_changes_in_its_first_line(tmp_path):
    plugins = Installed(str(tmp_path / "bin"), "/usr/bin/python3", {}, [])
    for path in map(Path, systemd.install_units(tmp_path / "units", ["/bin/true"], plugins, dhcp=True)):
        assert path.read_text().splitlines()[:2] == [
            "# Written by `fastcni install --systemd`, which overwrites it. Put changes into "
            f"{path.name}.d/*.conf.", "[Unit]"]


def test_a_dry_run_names_the_units_and_writes_none(tmp_path):
    plugins = Installed(str(tmp_path / "bin"), "/usr/bin/python3", {}, [])
    paths = systemd.install_units(tmp_path / "units", ["/bin/true"], plugins, dry_run=True)
    assert paths == [str(tmp_path / "units" / name) for name in systemd.UNITS]
    assert not (tmp_path / "units").exists()


@pytest.mark.parametrize("path", ["/a b ", " /a", "/a\n", "/a\udcff"])
def test_a_path_that_systemd_cannot_watch_is_refused(path):
    with pytest.raises(InstallError, match="cannot watch"):
        systemd.quoted_path(path)


def test_only_units_that_fastcni_has_written_are_removed(units, monkeypatch):
    """systemd does not run, as in a container or while an image is built."""
    monkeypatch.setenv("PATH", "/nowhere")
    (units / "fastcni-reinstall.path").write_text("[Path]\nPathChanged=/usr/bin/python3\n")
    paths = systemd.installed_units(units)
    assert [os.path.basename(path) for path in paths] == ["fastcni.socket", "fastcni.service"]
    os.unlink(paths[0])
    assert systemd.remove_units(paths) == []
    assert os.listdir(units) == ["fastcni-reinstall.path"]


def test_units_are_stopped_only_if_systemd_has_loaded_these_files(units, tmp_path, monkeypatch):
    """A loaded unit of the same name from another directory belongs to another installation. The tests with the real
    systemd are in tests/packages."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "link").symlink_to(units)
    program = tmp_path / "bin" / "systemctl"
    program.write_text(f"""#!/bin/sh
echo "$*" >> {tmp_path}/log
case "$*" in *fastcni.socket) echo {tmp_path}/link/fastcni.socket ;; show*) echo /usr/lib/fastcni.service ;; esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    assert systemd.remove_units(systemd.installed_units(units)) == ["fastcni.socket"]
    show = "show --property=FragmentPath --value"
    assert (tmp_path / "log").read_text().splitlines() == [
        f"{show} fastcni.socket", f"{show} fastcni.service", "disable --now fastcni.socket", "daemon-reload"]
    assert os.listdir(units) == []


def test_a_unit_that_cannot_be_removed_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "fastcni.socket").mkdir()
    with pytest.raises(InstallError, match=r"remove systemd units: .*fastcni\.socket"):
        systemd.remove_units([str(tmp_path / "fastcni.socket")])


def test_an_error_of_systemctl_has_its_text_or_the_systems(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallError, match=r"systemctl daemon-reload: .*No such file"):
        systemd.systemctl("daemon-reload")
    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\necho Access denied >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(InstallError, match=r"systemctl daemon-reload: Access denied$"):
        systemd.systemctl("daemon-reload")
    program.write_text("#!/bin/sh\necho $2\n")
    assert systemd.systemctl("show", "x") == "x\n"


def test_a_unit_dir_without_systemd_is_refused(tmp_path):
    status, output = fastcni("install", "--bin-dir", tmp_path / "bin", "--unit-dir", tmp_path / "units")
    assert status and "--systemd" in output
    assert not (tmp_path / "units").exists()


def test_a_unit_directory_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    unit_dir = tmp_path / "file" / "x"
    status, output = fastcni("install", "--bin-dir", tmp_path / "bin", "--systemd", "--unit-dir", unit_dir)
    assert status == 1 and "write systemd units into" in output


# ---- the server with their restrictions ----

needs_setpriv = pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv (Debian: util-linux)")
FILTER = """
import ctypes, os, sys
lib = ctypes.CDLL("libseccomp.so.2")
lib.seccomp_init.restype = ctypes.c_void_p
context = ctypes.c_void_p(lib.seccomp_init(ctypes.c_uint32(0x00050000 | 1)))       # the others: EPERM
for name in sys.argv[1].split():
    number = lib.seccomp_syscall_resolve_name(name.encode())
    if number >= 0:
        assert lib.seccomp_rule_add_array(context, ctypes.c_uint32(0x7fff0000), number, 0, None) == 0, name
assert lib.seccomp_load(context) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""


def confined(names):
    """Return the beginning of a command line that limits a command to these capabilities for ever, as systemd does."""
    kept = ",".join(["-all", *("+" + name.removeprefix("CAP_").lower() for name in names)])
    return ["setpriv", "--inh-caps", "-all", "--bounding-set", kept, "--no-new-privs"]


@pytest.fixture
def go_through(node, pod_netns, start):
    """Return a function go_through(words before the server's command) that makes each kind of request that a node
    makes. It returns the names of those that failed."""
    def run(before):
        server, failed = start(before=before), []
        if before[0] == "setpriv":
            assert len(set(capabilities_of(server.process.pid))) == 1
        ipam = node.host_local(routes=[{"dst": "0.0.0.0/0"}])
        confs = {
            "bridge": node.conf(isDefaultGateway=True, ipMasq=True, hairpinMode=True),
            "bridge, iptables": node.conf(isGateway=True, ipMasq=True, ipMasqBackend="iptables", name="net-i",
                                          bridge="br1"),
            "ptp": {"cniVersion": "1.0.0", "name": "net-p", "type": "ptp", "ipMasq": True, "ipam": ipam},
            "loopback": {"cniVersion": "1.0.0", "name": "lo", "type": "loopback"},
            "tap": {"cniVersion": "1.0.0", "name": "net-t", "type": "tap", "owner": 70001, "mtu": 1400, "ipam": ipam},
            "host-local": {"cniVersion": "1.0.0", "name": "net-h", "type": "host-local", "ipam": ipam},
        }
        for name, conf in confs.items():
            pod = pod_netns()
            added = server.call("ADD", conf, pod)
            if added.status != 0:
                failed.append(f"{name} ADD")
            else:
                conf["prevResult"] = added.document
                failed += [f"{name} {command}" for command in ("CHECK", "DEL")
                           if server.call(command, conf, pod).status != 0]
        assert server.stop() == 0
        return failed
    return run


def capabilities_of(pid):
    """Return the permitted, the effective and the bounding set of a process."""
    with open(f"/proc/{pid}/status") as file:
        return [line.split()[1] for line in file if line.startswith(("CapPrm", "CapEff", "CapBnd"))]


def legacy_iptables(before):
    """Return whether the legacy iptables has the capabilities that it needs. Otherwise it prints `you must be root`."""
    done = subprocess.run([*before, "iptables-legacy", "-t", "nat", "-S"], capture_output=True, text=True, timeout=20)
    return "must be root" not in done.stderr


@needs_setpriv
def test_everything_works_with_the_capabilities_of_the_unit(node, go_through):
    before = confined(values("CapabilityBoundingSet"))
    assert go_through(before) == []
    assert node.held() == {} and elements("pods4") == []
    assert not [name for name in links() if name.startswith("veth")]
    assert not [rule for rule in rules() if "CNI-" in str(rule)]
    if shutil.which("iptables-legacy"):
        assert legacy_iptables(before)


@needs_setpriv
@pytest.mark.parametrize("less", systemd.CAPABILITIES)
def test_every_capability_of_the_unit_is_needed(node, go_through, less):
    before = confined([name for name in values("CapabilityBoundingSet") if name != less])
    if less != "CAP_NET_RAW":
        assert go_through(before)
    elif not shutil.which("iptables-legacy"):
        pytest.skip("needs iptables-legacy (Debian: iptables): nothing else here opens raw sockets")
    else:
        assert not legacy_iptables(before)


@needs_analyze
def test_everything_works_with_the_system_calls_of_the_unit(node, go_through):
    names = {name for group in values("SystemCallFilter") for name in calls(group)}
    try:
        import ctypes
        ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("needs libseccomp.so.2 (systemd has it)")
    assert go_through([sys.executable, "-I", "-c", FILTER, " ".join(sorted(names))]) == []


def calls(group):
    """Yield the names of the system calls in one of systemd's groups. The argument can also be the name of one system
    call."""
    if not group.startswith("@"):
        yield group
        return
    _, output = analyze("syscall-filter", "--no-pager", group)
    for word in (line.strip() for line in output.splitlines()[1:]):
        if word.startswith("@"):
            yield from calls(word)
        elif word and not word.startswith("#"):
            yield word
