"""`fastcni install` keeps the files that it replaces, and `fastcni uninstall` restores them, also after a failure at
any step."""

import errno
import os
import shutil
import stat
import threading

import pytest
from project.plugin_dir import FOREIGN, KEPT, fill, state
from project.plugin_file import INTERPRETER, write_executable

from fastcni.launcher import install as installing
from fastcni.launcher import interpreters, pack, replaced
from fastcni.launcher.identify import is_own_file
from fastcni.launcher.install import InstallError, install_plugins
from fastcni.launcher.uninstall import uninstall_plugins

NAMES = ["bridge", "host-local", "portmap", "tap"]


@pytest.fixture(scope="module")
def image():
    """Return the bytes of a plugin file."""
    return pack.pack(INTERPRETER)


@pytest.fixture
def bin_dir(tmp_path, image, monkeypatch):
    """Return a plugin directory with files of other programs that have unusual modes and times. `fastcni install` uses
    `image` and packs nothing."""
    monkeypatch.setattr(pack, "pack", lambda *_, **__: image)
    monkeypatch.setattr(installing, "checked_interpreter", lambda path: path)
    monkeypatch.setattr(interpreters, "core_of", lambda _: "")
    return fill(tmp_path / "bin")


def no_links(*_, **__):
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def installed(before):
    return {**before, **dict.fromkeys(NAMES, "fastcni")}


def test_uninstall_restores_all_that_install_replaced(bin_dir):
    before = state(bin_dir)
    done = install_plugins(bin_dir, names=NAMES)
    assert (done.kept, list(done.plugins)) == (sorted(FOREIGN), NAMES)
    assert state(bin_dir) == installed(before)
    assert stat.S_IMODE(os.stat(bin_dir / KEPT).st_mode) == 0o755
    undone = uninstall_plugins(bin_dir)
    assert (list(undone.restored), undone.removed, undone.left) == (sorted(FOREIGN), ["tap"], {})
    assert state(bin_dir) == before
    assert KEPT not in os.listdir(bin_dir)


def test_the_kept_file_is_the_same_file(bin_dir):
    """`fastcni install` renames the file that it replaces. A copy would lose hard links, attributes and
    capabilities."""
    before = os.stat(bin_dir / "bridge")
    os.link(bin_dir / "bridge", bin_dir / "dhcp2")
    install_plugins(bin_dir, names=NAMES)
    assert os.path.samestat(os.stat(bin_dir / KEPT / "bridge"), before)
    uninstall_plugins(bin_dir)
    assert os.path.samestat(os.stat(bin_dir / "bridge"), os.stat(bin_dir / "dhcp2"))


def test_a_second_install_keeps_the_first_originals(bin_dir):
    before = state(bin_dir)
    install_plugins(bin_dir, names=NAMES)
    assert install_plugins(bin_dir, names=NAMES).kept == []
    assert (bin_dir / KEPT / "bridge").read_bytes() == FOREIGN["bridge"]
    uninstall_plugins(bin_dir)
    assert state(bin_dir) == before


def test_a_file_that_came_after_fastcni_is_left_by_uninstall_and_kept_by_the_next_install(bin_dir):
    """For example, an upgrade of the distribution's plugins writes such a file."""
    install_plugins(bin_dir, names=NAMES)
    (bin_dir / "bridge").unlink()
    write_executable(bin_dir / "bridge", b"#!/bin/sh\necho newer\n")
    undone = uninstall_plugins(bin_dir)
    assert (list(undone.restored), list(undone.left)) == (["host-local", "portmap"], ["bridge"])
    assert b"newer" in (bin_dir / "bridge").read_bytes()
    assert (bin_dir / KEPT / "bridge").read_bytes() == FOREIGN["bridge"]
    assert install_plugins(bin_dir, names=NAMES).kept == sorted(FOREIGN)
    uninstall_plugins(bin_dir)
    assert b"newer" in (bin_dir / "bridge").read_bytes()
    assert KEPT not in os.listdir(bin_dir)


@pytest.mark.parametrize("target", ["dhcp", "/bin/true", "/nowhere", "../bin/portmap", "/"])
def test_a_symbolic_link_is_kept_and_restored_as_one(bin_dir, target):
    (bin_dir / "tap").symlink_to(target)
    before = state(bin_dir)
    install_plugins(bin_dir, names=NAMES)
    assert state(bin_dir) == installed(before)
    uninstall_plugins(bin_dir)
    assert state(bin_dir) == before


def test_a_file_system_without_hard_links_keeps_copies(bin_dir, monkeypatch):
    (bin_dir / "tap").symlink_to("dhcp")
    if os.geteuid() == 0:
        os.chown(bin_dir / "portmap", 70001, 70002)
        (bin_dir / "portmap").chmod(0o6750)             # set-user-ID, which chown() of a copy would clear
    before, owner = state(bin_dir), os.stat(bin_dir / "portmap")
    monkeypatch.setattr(os, "link", no_links)
    install_plugins(bin_dir, names=NAMES)
    uninstall_plugins(bin_dir)
    assert state(bin_dir) == before
    after = os.stat(bin_dir / "portmap")
    assert (after.st_uid, after.st_gid) == (owner.st_uid, owner.st_gid)
    assert KEPT not in os.listdir(bin_dir)


def test_a_dry_run_tells_what_would_be_done_and_changes_nothing(bin_dir):
    before, directory = state(bin_dir), os.stat(bin_dir).st_mtime_ns
    planned = install_plugins(bin_dir, names=NAMES, dry_run=True)
    assert (planned.kept, planned.paths) == (sorted(FOREIGN), [str(bin_dir / name) for name in NAMES])
    assert state(bin_dir) == before and os.stat(bin_dir).st_mtime_ns == directory
    install_plugins(bin_dir, names=NAMES)
    before, directory = state(bin_dir), os.stat(bin_dir).st_mtime_ns
    planned = uninstall_plugins(bin_dir, dry_run=True)
    assert (list(planned.restored), planned.removed, planned.left) == (sorted(FOREIGN), ["tap"], {})
    assert state(bin_dir) == before and os.stat(bin_dir).st_mtime_ns == directory


def test_a_directory_that_does_not_exist_has_nothing_to_uninstall(tmp_path):
    undone = uninstall_plugins(tmp_path / "bin")
    assert (undone.restored, undone.removed, undone.left) == ({}, [], {})


def test_commands_for_one_directory_wait_for_each_other(bin_dir):
    entered = threading.Event()

    def enter():
        with replaced.locked(str(bin_dir)):
            entered.set()

    with replaced.locked(str(bin_dir)):
        other = threading.Thread(target=enter, daemon=True)
        other.start()
        assert not entered.wait(0.2)
    assert entered.wait(30)
    other.join()


def test_files_are_on_disk_before_they_get_their_names_and_the_names_before_the_end(bin_dir, monkeypatch):
    """After a power cut, an empty plugin file would keep the node from starting pods."""
    events, rename, fsync = [], os.rename, os.fsync

    def renamed(old, new):
        events.append(("rename", os.path.basename(new)))
        rename(old, new)

    def synced(file):
        path = os.readlink(f"/proc/self/fd/{file}")
        events.append(("sync", "directory" if os.path.isdir(path) else "file"))
        fsync(file)

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "fsync", synced)
    install_plugins(bin_dir, names=["tap"])
    assert events == [("sync", "file"), ("rename", "tap"), ("sync", "directory")]
    events.clear()
    uninstall_plugins(bin_dir)
    assert events == [("sync", "directory")]
    events.clear()
    monkeypatch.setattr(os, "link", no_links)
    install_plugins(bin_dir, names=["portmap"])         # keeps the file that uninstall restores
    assert events == [*[("sync", "file"), ("rename", "portmap")] * 2, ("sync", "directory")]


class Killed(BaseException):
    """The process is killed at this step: every later change fails, too."""


def at_each_step(monkeypatch, act, fault):
    """Run act() repeatedly: in the first run the first change of the disk fails, in the second run the second, and so
    on. Yield after each run. Return after the first run without a failure. fault: an OSError, or Killed; after Killed
    every later change of the run fails, too."""
    originals = {name: getattr(os, name) for name in ("link", "rename", "unlink", "mkdir", "rmdir", "fsync")}
    number = 0
    while True:
        number, left = number + 1, number
        dead = False

        def counted(name):
            def call(*args, **more):
                nonlocal left, dead
                if dead or left == 0:
                    dead = fault is Killed
                    left -= 1
                    raise fault() if fault is Killed else OSError(fault, os.strerror(fault))
                left -= 1
                return originals[name](*args, **more)
            return call

        with monkeypatch.context() as patch:
            for name in originals:
                patch.setattr(os, name, counted(name))
            try:
                act()
                failed = False
            except (InstallError, Killed):
                failed = True
        yield number, failed
        if left >= 0:
            return


@pytest.mark.parametrize("fault", [errno.ENOSPC, Killed], ids=["ENOSPC", "killed"])
@pytest.mark.parametrize("then", ["install", "uninstall"])
@pytest.mark.parametrize("what", ["install", "uninstall"])
def test_after_a_failure_at_any_step_each_name_is_complete_and_either_command_finishes(
        bin_dir, image, monkeypatch, what, then, fault):
    before, commands = state(bin_dir), {
        "install": lambda: install_plugins(bin_dir, names=NAMES), "uninstall": lambda: uninstall_plugins(bin_dir)}
    failures = 0
    steps = at_each_step(monkeypatch, commands[what], fault)
    for number, failed in steps:
        for name in NAMES:                  # the old or the new file; a new name may be missing
            path = bin_dir / name
            assert not path.exists() or is_own_file(str(path)) or path.read_bytes() == FOREIGN.get(name), (number, name)
            assert path.exists() or name == "tap", (number, name)
            assert not is_own_file(str(path)) or path.stat().st_size == len(image), (number, name)
        failures += failed
        commands[then]()
        assert state(bin_dir) == (installed(before) if then == "install" else before), number
        assert (KEPT in os.listdir(bin_dir)) == (then == "install")
        commands["uninstall"]()             # repeats the complete uninstall
        assert state(bin_dir) == before
        if what == "uninstall":
            install_plugins(bin_dir, names=NAMES)
    assert failures > 5


def test_a_go_plugin_is_asked_for_its_version(tmp_path):
    from fastcni.launcher.identify import go_version

    path = write_executable(tmp_path / "bridge", b"#!/bin/sh\necho CNI bridge plugin $ANSWER >&2; echo more >&2\n")
    assert go_version(str(path)) == ""
    for printed, version in (("v1.9.1", "v1.9.1"), ("version unknown", ""), ("version v1.2", "v1.2")):
        write_executable(path, f"#!/bin/sh\necho CNI bridge plugin {printed} >&2; echo more >&2\n".encode())
        assert go_version(str(path)) == version
    shutil.copy("/bin/true", path)
    assert go_version(str(path)) == ""
