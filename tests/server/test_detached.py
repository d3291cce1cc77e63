"""A server that a plugin file has started leaves the caller's cgroups, signals and limits."""

import os
import subprocess
import sys

import pytest

from fastcni.server import detached

LEAVES = """\
import os, signal
from fastcni.server.detached import detach
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM, signal.SIGUSR1}})
os.umask(0o077)
os.nice(3)
detach({cgroups!r})
print(os.getcwd(), oct(os.umask(0)), signal.getsignal(signal.SIGHUP).name, signal.getsignal(signal.SIGPIPE).name,
      signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.getpriority(os.PRIO_PROCESS, 0))
print(open("/proc/self/cgroup").read())
"""


def leave(cgroups, **more):
    code = LEAVES.format(cgroups=str(cgroups))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, **more)
    first, _, groups = done.stdout.partition("\n")
    return first, groups


def test_server_has_the_usual_settings_of_a_process(tmp_path):
    nice = 0 if os.geteuid() == 0 else 3
    assert leave(tmp_path)[0] == f"/ 0o22 SIG_DFL SIG_IGN set() {nice}"


@pytest.fixture
def group():
    """A cgroup of one hierarchy: (its directory, the hierarchy's, the end of its root's line in /proc/PID/cgroup)."""
    for hierarchy, line in (("/sys/fs/cgroup/pids", "pids:/"), ("/sys/fs/cgroup", "::/")):
        directory = f"{hierarchy}/fastcni-test-{os.getpid()}"
        if os.path.exists(f"{hierarchy}/cgroup.procs") and os.access(hierarchy, os.W_OK):
            try:
                os.mkdir(directory)
            except OSError:
                continue
            yield directory, hierarchy, line
            os.rmdir(directory)
            return
    pytest.skip("no cgroup hierarchy can be changed here")


def test_server_moves_to_the_root_cgroup(group, tmp_path):
    """Only the test's hierarchy is where detach() looks."""
    directory, hierarchy, line = group
    (tmp_path / ("pids" if line.startswith("pids") else "unified")).symlink_to(hierarchy)

    def enter():
        with open(f"{directory}/cgroup.procs", "w") as file:
            file.write("0")

    groups = leave(tmp_path, preexec_fn=enter)[1].split()
    assert [entry for entry in groups if "fastcni-test" in entry] == []
    assert any(entry.endswith(line) for entry in groups)


def hierarchy(directory, name):
    (directory / name).mkdir()
    (directory / name / "cgroup.controllers").touch()
    (directory / name / "cgroup.procs").touch()
    return directory / name


def test_server_moves_to_its_own_cgroup_where_the_root_takes_none(tmp_path):
    """cgroups(7): outside the real root, a cgroup has either processes or controllers for its children."""
    root = hierarchy(tmp_path, "unified")
    (root / "cgroup.procs").unlink()
    (root / "cgroup.procs").mkdir()         # EISDIR in the place of EBUSY
    (root / "fastcni").mkdir()
    (root / "fastcni" / "cgroup.procs").touch()
    detached.move(str(root))
    assert (root / "fastcni" / "cgroup.procs").read_text() == str(os.getpid())


@pytest.mark.parametrize("controllers, found", [("", ["unified"]), ("cpu,cpuacct", ["cpu,cpuacct"]),
                                                ("name=systemd", ["systemd"])])
def test_hierarchies_are_where_they_are_mounted_by_custom(tmp_path, controllers, found):
    hierarchy(tmp_path, "unified")
    assert detached.mounts(str(tmp_path), controllers) == [f"{tmp_path}/{name}" for name in found]


def test_unified_hierarchy_may_be_the_only_one(tmp_path):
    (tmp_path / "cgroup.controllers").touch()
    assert detached.mounts(str(tmp_path), "") == [str(tmp_path)]
