"""A server that a plugin file has started leaves the caller's cgroups, signal handlers and limits."""

import errno
import os
import re
import resource
import signal
import subprocess
import sys

import pytest

from fastcni.launcher import systemd
from fastcni.server import detached

LEAVES = """\
import os, resource, signal
from fastcni.server.detached import detach
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM, signal.SIGUSR1}})
os.umask(0o077)
os.nice(3)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for limit in {limits}:
    resource.setrlimit(limit, (1 << 40, resource.getrlimit(limit)[1]))
os.sched_setaffinity(0, [*os.sched_getaffinity(0)][:1])
detach({cgroups!r})
print(os.getcwd(), oct(os.umask(0)), signal.getsignal(signal.SIGHUP).name, signal.getsignal(signal.SIGPIPE).name,
      signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.getpriority(os.PRIO_PROCESS, 0))
print(os.sched_getscheduler(0), *resource.getrlimit(resource.RLIMIT_NOFILE),
      {{resource.getrlimit(limit) for limit in {limits}}},
      os.sched_getaffinity(0) == os.sched_getaffinity(1))
print(open("/proc/self/cgroup").read())
"""
ROOT = os.geteuid() == 0
OTHER_LIMITS = [resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE]


def leave(cgroups, **more):
    code = LEAVES.format(cgroups=str(cgroups), limits=OTHER_LIMITS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, **more)
    first, limits, groups = done.stdout.split("\n", 2)
    return first, limits, groups


def test_server_has_the_usual_settings_of_a_process(tmp_path):
    assert leave(tmp_path)[0] == f"/ 0o22 SIG_DFL SIG_IGN set() {0 if ROOT else 3}"


@pytest.mark.skipif(not ROOT, reason="needs root: limits are raised")
def test_server_has_the_limits_of_its_unit(tmp_path):
    """Once, the server kept the caller's CPU affinity, and its ulimits of CPU time, memory and file sizes."""
    limit = of_unit("LimitNOFILE")
    assert leave(tmp_path)[1] == f"{os.SCHED_OTHER} {limit} {limit} {{(-1, -1)}} True"


def of_unit(key):
    return re.search(rf"^{key}=(.*)$", systemd.SERVICE, re.M)[1]


def test_server_works_without_the_changes_that_the_node_does_not_permit(tmp_path, monkeypatch):
    def refused(*args):
        tried.append(args)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    tried, left = [], []
    for module, name in ((os, "chdir"), (os, "umask"), (signal, "signal"), (signal, "pthread_sigmask")):
        monkeypatch.setattr(module, name, lambda *_: None)
    for module, name in ((resource, "setrlimit"), (os, "sched_setscheduler"), (detached, "write"),
                         (os, "sched_setaffinity")):
        monkeypatch.setattr(module, name, refused)
    monkeypatch.setattr(detached, "leave_cgroups", left.append)
    detached.detach(str(tmp_path))
    assert len(tried) == len(detached.LIMITS) + 3
    assert tried[-2] == ("/proc/self/oom_score_adj", of_unit("OOMScoreAdjust"))
    assert left == [str(tmp_path)]


@pytest.fixture
def group():
    """Yield a cgroup of one hierarchy: (the cgroup's directory, the hierarchy's directory, the end of the line of the
    hierarchy's root in /proc/PID/cgroup)."""
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
    """tmp_path is in the place of /sys/fs/cgroup, and has only the test's hierarchy."""
    directory, hierarchy, line = group
    (tmp_path / ("pids" if line.startswith("pids") else "unified")).symlink_to(hierarchy)

    def enter():
        with open(f"{directory}/cgroup.procs", "w") as file:
            file.write("0")

    groups = leave(tmp_path, preexec_fn=enter)[2].split()
    assert [entry for entry in groups if "fastcni-test" in entry] == []
    assert any(entry.endswith(line) for entry in groups)


def hierarchy(directory, name):
    (directory / name).mkdir()
    (directory / name / "cgroup.controllers").touch()
    (directory / name / "cgroup.procs").touch()
    return directory / name


def test_server_moves_to_its_own_cgroup_where_the_root_takes_none(tmp_path):
    """cgroups(7): outside the real root, a cgroup has either processes, or controllers for its children."""
    root = hierarchy(tmp_path, "unified")
    (root / "cgroup.procs").unlink()
    (root / "cgroup.procs").mkdir()         # the write fails with EISDIR, instead of EBUSY
    (root / "fastcni").mkdir()
    (root / "fastcni" / "cgroup.procs").touch()
    detached.move(str(root))
    assert (root / "fastcni" / "cgroup.procs").read_text() == str(os.getpid())


@pytest.mark.parametrize("controllers, found", [("", ["unified"]), ("cpu,cpuacct", ["cpu,cpuacct"]),
                                                ("name=systemd", ["systemd"])])
def test_hierarchies_are_where_they_are_mounted_by_custom(tmp_path, controllers, found):
    hierarchy(tmp_path, "unified")
    assert detached.mounts(str(tmp_path), controllers) == [f"{tmp_path}/{name}" for name in found]


def test_of_two_unified_hierarchies_the_one_next_to_v1_is_left(tmp_path):
    hierarchy(tmp_path, "unified")
    (tmp_path / "cgroup.controllers").touch()
    assert detached.mounts(str(tmp_path), "") == [f"{tmp_path}/unified"]


def test_unified_hierarchy_may_be_the_only_one(tmp_path):
    (tmp_path / "cgroup.controllers").touch()
    assert detached.mounts(str(tmp_path), "") == [str(tmp_path)]
