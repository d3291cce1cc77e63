"""The Debian packages: build, check by lintian, install by apt alone or together with containernetworking-plugins,
purge."""

import json
import os

import pytest
from packages.clean_system import ROOT, CleanSystem, call

GO = "containernetworking-plugins"
CORE = "/usr/lib/python3/dist-packages/fastcni/launcher/python_core.elf"
# Run VERSION repeatedly without a pause until the file /stop exists. If a VERSION fails, create /failed.
LOOP = """
( while ! test -e /stop; do CNI_COMMAND=VERSION /usr/lib/cni/bridge > /dev/null || touch /failed; done ) &
loop=$!
"""
END = """
touch /stop
wait $loop
rm /stop
! test -e /failed
"""
# Make one request to the package's server.
SERVE = """
python3 -I -m fastcni serve --socket /run/test.sock 2> /log &
until grep -q server_ready /log; do sleep 0.1; done
FASTCNI_SOCKET=/run/test.sock CNI_COMMAND=VERSION /usr/lib/fastcni/cni/bridge > /dev/null
kill $!
wait $!
cat /log
"""


@pytest.fixture(scope="module")
def debs():
    """Return the paths of the packages, built from this checkout."""
    call("make", "deb", cwd=ROOT)
    return sorted((ROOT / "dist").glob("*.deb"))


@pytest.fixture
def system(debs, tmp_path):
    """Return a clean Debian 12 with the packages in /src."""
    system = CleanSystem("bookworm", tmp_path / "system")
    for deb in debs:
        system.copy(deb, f"/src/{deb.name}")
    return system


def sums(system):
    return system.run("cd /usr/lib/cni; sha256sum *")


def version(system, path):
    return json.loads(system.run(f"CNI_COMMAND=VERSION {path}"))["supportedVersions"][-1]


def test_lintian_has_no_objection(debs, tmp_path):
    temporary = {**os.environ, "TMPDIR": str(tmp_path)}         # lintian does not remove all its files
    assert call("lintian", "--allow-root", "--fail-on", "error,warning", *debs, env=temporary) == ""


def test_apt_installs_the_packages_and_a_purge_leaves_nothing(system):
    system.run("apt-get install -qq -y --no-install-recommends /src/fastcni_*.deb man-db")
    shown = system.run("cd /; fastcni --version; man -P cat fastcni-install | head -4")
    assert shown.startswith("fastcni ") and "fastcni-install - Write" in shown
    assert version(system, "/usr/lib/fastcni/cni/bridge") == "1.1.0"
    system.run("test ! -e /usr/lib/cni; cd /; python3 -c 'import fastcni.runtime'")
    assert CORE in system.run("grep -a -o -m 1 '/[a-z0-9/._-]*python_core.elf' /usr/lib/fastcni/cni/bridge")
    assert system.run(f"{CORE} --version").startswith("3.")
    completion = system.run("bash -c '. /usr/share/bash-completion/completions/fastcni; complete -p fastcni'")
    assert completion.startswith("complete -o")
    units = system.run("cat /lib/systemd/system/fastcni.socket /lib/systemd/system/fastcni.service")
    assert "ExecStart=/usr/bin/python3 -I -m fastcni serve" in units and "/etc/systemd/system/fastcni.socket.d" in units
    system.run("test -L /etc/systemd/system/sockets.target.wants/fastcni.socket")
    log = system.run(SERVE)
    assert "event=request_done" in log and "event=server_stopped" in log
    system.run("apt-get purge -qq -y --autoremove fastcni man-db")
    assert system.named("*fastcni*") == []


def test_fastcni_plugins_replaces_the_go_plugins_and_puts_them_back(system):
    system.run(f"apt-get install -qq -y --no-install-recommends {GO} /src/fastcni_*.deb")
    go = sums(system)
    assert version(system, "/usr/lib/cni/bridge") == "1.0.0"
    system.run(f"{LOOP} apt-get install -qq -y /src/fastcni-plugins_*.deb {END}")
    assert version(system, "/usr/lib/cni/bridge") == version(system, "/usr/lib/cni/flannel") == "1.1.0"
    assert version(system, "/usr/lib/cni/bridge.distrib") == "1.0.0"
    ours = sums(system)
    system.run(f"{LOOP} apt-get install -qq -y --reinstall {GO} /src/fastcni-plugins_*.deb {END}")
    assert sums(system) == ours
    system.run(f"{LOOP} apt-get remove -qq -y fastcni-plugins {END}")
    assert sums(system) == go and "fastcni" not in system.run("dpkg-divert --list")


def test_the_go_plugins_can_come_later_and_leave_first(system):
    system.run("apt-get install -qq -y --no-install-recommends /src/fastcni_*.deb /src/fastcni-plugins_*.deb")
    system.run(f"{LOOP} apt-get install -qq -y {GO} {END}")
    assert version(system, "/usr/lib/cni/bridge") == "1.1.0"
    assert version(system, "/usr/lib/cni/bridge.distrib") == "1.0.0"
    system.run(f"{LOOP} apt-get purge -qq -y {GO} {END}")
    assert system.named("*.distrib") == [] and version(system, "/usr/lib/cni/bridge") == "1.1.0"
    system.run("apt-get purge -qq -y fastcni-plugins fastcni")
    system.run("test ! -e /usr/lib/cni")
    assert system.named("*fastcni*") == []
