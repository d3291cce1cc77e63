"""The small files of plugins. fastcni rejects a path that is no regular file, and a write is complete or an error."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import threading

import pytest
from unit.kit.call.not_files import KINDS

from fastcni._system import write_file
from fastcni.kit.call import files
from fastcni.kit.flannel_files import Saved, read_subnet
from fastcni.kit.ipam.address_files import CREATE
from fastcni.kit.links.attribute_backup import Backup
from fastcni.spec.errors import CniError


class Request:
    container_id, ifname, name = "pod", "eth0", "net"


@pytest.fixture
def umask():
    """Yield os.umask. The fixture restores the umask after the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def refused(function, *args):
    """Return the message of the CniError 5 that a call raises. The call runs in a thread, because opening a FIFO can
    block for ever."""
    errors = []

    def call():
        try:
            function(*args)
        except CniError as e:
            errors.append(e)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits"
    assert [e.code for e in errors] == [5]
    return errors[0].msg


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"link"}))
def test_anything_but_a_regular_file_is_neither_read_nor_written(tmp_path, kind):
    path = str(tmp_path / "file")
    KINDS[kind](path)
    assert refused(files.read, path).startswith(f"read {path}: ")
    assert refused(files.write, path, b"content").startswith(f"write {path}: ")
    assert refused(read_subnet, path).startswith(f"read {path}: ")
    assert refused(Saved(str(tmp_path), "file", "net").keep, {}, None).startswith(f"read {path}: ")


def test_a_link_is_followed_to_be_read_and_never_written(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert files.read(str(tmp_path / "link")) == b"content"
    assert "errno 40" in refused(files.write, str(tmp_path / "link"), b"other")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_that_is_no_file_is_refused(tmp_path, kind):
    """Once, a FIFO counted as an empty backup. The write to the FIFO then waited for a reader."""
    backup = Backup(Request, str(tmp_path))
    KINDS[kind](backup.path)
    assert refused(backup.read).startswith(f"read {backup.path}: ")
    assert refused(backup.keep, {"mtu": 1400}, None).startswith(f"read {backup.path}: ")
    assert refused(backup.write, {"mtu": 1400}).startswith(f"write {backup.path}: ")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM])
def test_a_backup_that_cannot_be_read_is_not_an_empty_one(tmp_path, monkeypatch, number):
    def refuse(path, *args, **more):
        raise OSError(number, os.strerror(number), path)

    backup = Backup(Request, str(tmp_path))
    backup.write({"mtu": 1400})
    monkeypatch.setattr(files, "read_file", refuse)
    assert refused(backup.read) == f"read {backup.path}: {os.strerror(number)} (errno {number})"
    assert refused(backup.keep, {"mtu": 1500}, None)
    monkeypatch.undo()
    assert backup.read() == {"mtu": 1400}


def test_a_write_to_a_full_disk_is_an_error(tmp_path):
    """Once, the plugin wrote only the first bytes, and returned success."""
    path = str(tmp_path / "file")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, before[1]))
    try:
        assert refused(files.write, path, b"content") == f"write {path}: No space left on device (errno 28)"
        assert "errno 28" in refused(Backup(Request, str(tmp_path)).write, {"mtu": 1400})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_second_add_on_a_full_disk_keeps_the_backup_of_the_first(tmp_path):
    """Once, the plugin emptied the file and wrote the same content again. On a full disk, this write failed."""
    backup, saved = Backup(Request, str(tmp_path)), Saved(str(tmp_path), "pod", "net")
    undone = []
    for _ in range(2):
        backup.keep({"mtu": 1500}, lambda *step: undone.append(step))
        saved.keep({"name": "net", "type": "bridge"}, lambda *step: undone.append(step))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            backup.keep({"mtu": 1400}, lambda *step: undone.append(step))
            saved.keep({"name": "net", "type": "bridge"}, lambda *step: undone.append(step))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert backup.read() == {"mtu": 1500} and saved.read() == {"name": "net", "type": "bridge"}
    assert len(undone) == 2


def test_whatever_the_umask_nobody_else_may_write_to_the_directories(tmp_path, umask):
    """Once, with umask 0, the plugin made the parent directories with mode 0777."""
    umask(0)
    files.write(str(tmp_path / "var" / "lib" / "flannel" / "pod"), b"{}")
    Backup(Request, str(tmp_path / "run" / "cni" / "tuning")).write({"mtu": 1400})
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.lstat().st_mode)
             for path in tmp_path.rglob("*") if not path.is_symlink()}
    assert modes == {
        "var": 0o755, "var/lib": 0o755, "var/lib/flannel": 0o700, "var/lib/flannel/pod": 0o600,
        "run": 0o755, "run/cni": 0o755, "run/cni/tuning": 0o755, "run/cni/tuning/pod_eth0.json": 0o600,
        "run/cni/tuning/.fastcni": 0o755, "run/cni/tuning/.fastcni/net": 0o755}


@pytest.mark.parametrize("path", ["a/b/c", "a/b/c/", "a//b/c", "./a/b/c"])
def test_directories_are_made_however_their_path_is_written(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        files.make_directories(path, 0o700)
    assert (tmp_path / "a" / "b" / "c").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        files.make_directories("file/below", 0o700)


def test_a_file_system_without_directories_is_an_error():
    with pytest.raises(FileNotFoundError):
        files.make_directories("/proc/nowhere/at/all", 0o700)


def test_a_process_that_is_killed_while_it_writes_a_new_file_leaves_none(tmp_path):
    """Once, one of a hundred killed ADDs left an empty address file. No DEL removes such a file, because the file names
    no pod."""
    code = ("import os, posix, resource, signal, sys\nfrom fastcni._system import write_file\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
            "flags = posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW\n"
            "write_file('10.0.0.2', b'c1', flags, os.open(sys.argv[1], os.O_RDONLY))")
    done = subprocess.run([sys.executable, "-c", code, tmp_path])
    assert done.returncode == -signal.SIGXFSZ           # the write causes SIGXFSZ
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_appears_with_its_content_or_not_at_all(tmp_path):
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        write_file("10.0.0.2", b"c1", CREATE, directory)
        with pytest.raises(FileExistsError):
            write_file("10.0.0.2", b"c2", CREATE, directory)
        assert (tmp_path / "10.0.0.2").read_bytes() == b"c1" and (tmp_path / "10.0.0.2").stat().st_nlink == 1
    finally:
        os.close(directory)
