"""The systemd units of the dhcp daemon: `fastcni install --systemd --dhcp`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from unit.dhcp.fixtures import FIRST
from unit.dhcp.process import RUN, Daemon, ok
from unit.dhcp.server import Server, addresses

from fastcni.cli.commands import cli
from fastcni.kit.dhcp.rpc import SOCKET_PATH
from fastcni.launcher import systemd, systemd_dhcp
from fastcni.launcher.install import Installed
from fastcni.testing.witnesses import eventually

needs_analyze = pytest.mark.skipif(not shutil.which("systemd-analyze"),
                                   reason="needs systemd-analyze (Debian: systemd)")
needs_setpriv = pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv (Debian: util-linux)")


@pytest.fixture
def units(tmp_path):
    """Return {name: path} of the units for the plugins in tmp_path/"bin of 100%"."""
    bin_dir = tmp_path / "bin of 100%"
    bin_dir.mkdir()
    (bin_dir / "dhcp").write_text("#!/bin/sh\n")
    (bin_dir / "dhcp").chmod(0o755)
    plugins = Installed(str(bin_dir), "/usr/bin/python3", {}, [])
    paths = systemd.install_units(tmp_path / "units", ["/bin/true"], plugins, dhcp=True)
    return {os.path.basename(path): path for path in paths}


def text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def values(key, unit):
    return [word for line in re.findall(rf"^{key}=(.*)$", unit, re.M) for word in line.split()]


def test_the_units_of_the_daemon_are_written_where_asked(units, tmp_path):
    assert list(units) == [*systemd.UNITS, *systemd_dhcp.NAMES]
    service = text(units["fastcni-dhcp.service"])
    assert f'ExecStart="{tmp_path}/bin of 100%%/dhcp" daemon\n' in service
    assert values("ListenStream", text(units["fastcni-dhcp.socket"])) == [SOCKET_PATH]
    without = systemd.install_units(tmp_path / "others", ["/bin/true"], Installed("/b", "/usr/bin/python3", {}, []))
    assert [os.path.basename(path) for path in without] == list(systemd.UNITS)


@needs_analyze
def test_systemd_reports_nothing_about_the_units_of_the_daemon(units):
    done = subprocess.run(["systemd-analyze", "verify", *(units[name] for name in systemd_dhcp.NAMES)],
                          capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_reinstall_writes_the_units_of_the_daemon_again_and_restarts_it(units):
    service = text(units["fastcni-reinstall.service"])
    assert re.search(r"^ExecStart=.* --dhcp$", service, re.M)
    assert "try-restart fastcni.service fastcni-reinstall.path fastcni-dhcp.service\n" in service


def test_the_next_command_and_uninstall_know_the_units_of_the_daemon(units):
    paths = list(units.values())
    assert systemd.next_command(paths).endswith("fastcni-reinstall.path fastcni-dhcp.service")
    assert systemd.next_command(paths[:4]) == systemd.NEXT
    page = text(Path(__file__).parents[3] / "docs" / "dhcp.md")
    assert systemd.next_command(paths).replace(" && ", "\n    ") in page
    assert systemd.installed_units(os.path.dirname(paths[0])) == paths


@pytest.mark.parametrize("words, message", [
    (["--dhcp"], "--dhcp needs --systemd"),
    (["--systemd", "--dhcp", "--plugin", "ptp"], "add --plugin dhcp"),
])
def test_units_of_the_daemon_without_systemd_or_without_the_plugin_are_refused(tmp_path, words, message):
    done = CliRunner().invoke(cli, ["install", "--bin-dir", str(tmp_path / "bin"), *words])
    assert done.exit_code == 2 and message in done.output
    assert not (tmp_path / "bin").exists()


def daemon_of_the_unit(directory):
    """Run a daemon with the capabilities of the unit."""
    kept = ",".join(["-all", *("+" + name.removeprefix("CAP_").lower() for name in systemd_dhcp.CAPABILITIES)])
    return Daemon(directory, command=["setpriv", "--inh-caps", "-all", "--bounding-set", kept, "--no-new-privs",
                                      sys.executable, "-c", RUN])


@pytest.mark.needs("root")
@needs_setpriv
def test_a_lease_is_acquired_renewed_and_released_with_the_capabilities_of_the_unit(network, tmp_path):
    pod = network.pod()
    with Server(network, 16, o58=(1).to_bytes(4, "big")) as server, daemon_of_the_unit(tmp_path) as daemon:
        ok("ADD", daemon.conf(), pod)
        subprocess.run(["ip", "-n", os.path.basename(pod), "addr", "add", FIRST, "dev", "eth0"], check=True)
        daemon.wait_for("lease_renewed")
        ok("DEL", daemon.conf(), pod)
        server.wait_for("release")
        assert addresses(pod) == [] and "level=warning" not in daemon.log()


@pytest.mark.needs("root")
@needs_setpriv
def test_a_pod_that_the_runtime_names_by_a_process_gets_a_lease(network, tmp_path):
    """nerdctl and cri-dockerd name the namespace by a process. Once, the unit lacked CAP_SYS_PTRACE: the kernel
    answered EACCES, because the pod's process has more capabilities than the daemon."""
    pod = network.pod()
    with Server(network) as server, daemon_of_the_unit(tmp_path) as daemon, subprocess.Popen(
            ["nsenter", f"--net={pod}", "sleep", "600"]) as sandbox:
        path = f"/proc/{sandbox.pid}/ns/net"
        try:
            assert eventually(lambda: os.path.samefile(path, pod))
            ok("ADD", daemon.conf(), path)
            ok("DEL", daemon.conf(), path)
            server.wait_for("release")
        finally:
            sandbox.kill()
