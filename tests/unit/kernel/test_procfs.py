"""The server reads the pods' sysctls through its own mounts of proc."""

import os
import posix

import pytest

from fastcni import _system
from fastcni.kernel import netns, procfs, sysctl
from fastcni.testing.namespaces import run

pytestmark = pytest.mark.needs("root")
SYSCTL = "net/ipv4/conf/lo/arp_notify"


@pytest.fixture
def mounts(monkeypatch):
    """Return Mounts that the lookup itself replaces, without another thread."""
    made = procfs.Mounts(lambda fn: fn())
    monkeypatch.setattr(sysctl, "mounts", made)
    return made


def test_sysctls_are_those_of_the_namespace_that_the_thread_is_in(mounts, pod_netns):
    home, pod = netns.open_own(), netns.open_path(f"/run/netns/{pod_netns()}")
    try:
        with netns.inside(pod, home):
            sysctl.write(SYSCTL, "1")
            assert sysctl.read(SYSCTL) == "1" and sysctl.exists(SYSCTL) and not sysctl.exists("net/ipv4/no_such")
        assert sysctl.read(SYSCTL) == "0"
    finally:
        os.close(home)
        os.close(pod)


def test_an_error_names_the_file_below_proc(mounts):
    with pytest.raises(FileNotFoundError) as e:
        sysctl.read("net/ipv4/no_such")
    assert e.value.filename == "/proc/sys/net/ipv4/no_such"


def test_a_mount_is_replaced_after_its_uses_and_ends(mounts):
    renewed, before = [], os.listdir("/proc/self/fd")
    mounts.later = lambda fn: (fn(), renewed.append(id(mounts.mount)))
    for _ in range(10 * procfs.USES):
        sysctl.read(SYSCTL)
    assert len(renewed) == 10 and len(os.listdir("/proc/self/fd")) == len(before)


def test_a_mount_in_use_does_not_end(mounts):
    kept = mounts.current()
    for _ in range(2 * procfs.USES):
        sysctl.read(SYSCTL)
    assert mounts.mount is not kept and sysctl.read_at(kept.fd, "sys/" + SYSCTL) == "0"


def test_the_former_mount_is_used_if_there_is_no_other(mounts, monkeypatch):
    def refused():
        raise PermissionError

    monkeypatch.setattr(procfs, "mount_procfs", refused)
    for _ in range(3 * procfs.USES):
        assert sysctl.read(SYSCTL) == "0"


def test_a_read_only_proc_sys_stays_read_only(monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda path: type("St", (), {"f_flag": os.ST_RDONLY}))
    with pytest.raises(OSError, match="read-only"):
        procfs.Mounts(lambda fn: fn())


def test_a_mount_has_no_path():
    # other tests mount namespaces at the same time, so only mounts of proc count
    before = run("findmnt", "--types", "proc", "--noheadings")
    fd = _system.mount_procfs()
    try:
        assert run("findmnt", "--types", "proc", "--noheadings") == before
        assert posix.access("sys/net/ipv4", os.F_OK, dir_fd=fd)
    finally:
        os.close(fd)
