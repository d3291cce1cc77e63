"""The index file: when host-local uses it, and what happens after damage or on a full disk."""

import os
import struct
import subprocess
import sys
import time
from shutil import which

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.kit.ipam.index import BOOT, HEADER, Directory, v4

from fastcni import _ipam_bitmap

# -- when it is used --------------------------------------------------------------------------------------

def test_signed_changes_are_kept_and_others_are_lost(directory):
    directory.filled(10)
    index = directory.open()
    assert index.fresh and not index.dirty
    index.hold(v4(100), b"x")
    assert index.dirty
    index.close()
    index = directory.open()
    assert index.fresh
    assert len(index) == 10
    assert index.addresses_of(b"x") == []
    (directory.path / "10.0.0.100").touch()
    index.hold(v4(100), b"x")
    index.close()
    assert not directory.open().fresh


def test_a_change_by_another_program_is_noticed_however_soon_it_comes(directory):
    for n in range(200):
        directory.filled(3)
        (directory.path / str(n)).touch()
        assert not directory.open().fresh
        directory.filled(3)
        (directory.path / str(n)).unlink()
        assert not directory.open().fresh


def test_setting_the_time_of_the_directory_back_does_not_help(directory):
    directory.filled(3)
    before = os.stat(directory.path)
    (directory.path / "10.0.0.9").touch()
    os.utime(directory.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(directory.path).st_mtime_ns == before.st_mtime_ns
    assert not directory.open().fresh


def test_an_index_copied_into_another_directory_is_not_used(directory, tmp_path_factory):
    directory.filled(3)
    other = Directory(tmp_path_factory.mktemp("copy"))
    with open(directory.file(), "rb") as a, open(other.file(), "wb") as b:
        b.write(a.read())
    times = os.stat(directory.path)
    os.utime(other.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not other.open().fresh
    os.close(other.fd)


def test_an_index_of_another_boot_is_not_used(directory):
    directory.filled(3)
    assert not directory.open(b"f" * 36).fresh
    assert directory.open().fresh


def test_without_a_boot_id_no_index_is_used(directory):
    directory.filled(3)
    index = directory.open(b"")
    assert not index.fresh
    assert len(index) == 0
    assert not index.sign()
    index.close()
    assert not directory.open(b"").fresh


def test_a_process_killed_in_between_leaves_an_index_that_is_not_used(directory):
    directory.filled(3)
    pid = os.fork()
    if pid == 0:
        index = directory.open()
        index.hold(v4(50), b"x")
        (directory.path / "10.0.0.50").touch()
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert not directory.open().fresh


STEPS = """
import os
from fastcni._ipam_bitmap import Index
fd = os.open({path!r}, os.O_RDONLY)
index = Index(fd, {boot!r})
assert index.fresh
os.close(os.open("10.0.0.50", os.O_CREAT, 0o600, dir_fd=fd))
assert index.hold({address!r}, b"x") and index.sign()
"""


@pytest.mark.parametrize("call", ["pwrite64", "utimensat"])
def test_a_process_killed_while_it_signs_leaves_an_index_that_is_not_used(directory, call):
    """The process is killed before its n-th system call that changes the file. Such an index must not count as
    fresh."""
    if not which("strace"):
        pytest.skip("needs strace: kills a process at a system call")
    directory.filled(5000)                      # the header is on the first page, the changed owner on another page
    killed = 0
    for n in range(1, 10):
        (directory.path / "10.0.0.50").unlink(missing_ok=True)
        index = directory.open()                # the index as it is in the file
        index.clear()
        for held in range(5000):
            index.hold(v4(held), b"owner %d" % held) if held != 50 else None
        assert index.sign()
        index.close()
        _ipam_bitmap.forget()
        code = STEPS.format(path=os.fspath(directory.path), boot=BOOT, address=v4(50))
        done = subprocess.run(["strace", "-o", "/dev/null", "-e", f"inject={call}:error=EIO:signal=KILL:when={n}",
                               sys.executable, "-c", code], check=False, capture_output=True, text=True)
        if done.returncode == 0:
            break
        assert done.returncode in (-9, 137), done.stderr
        killed += 1
        index = directory.open()
        assert not index.fresh
        index.close()
    assert killed == {"pwrite64": 2, "utimensat": 1}[call] and directory.open().fresh


def test_that_a_directory_is_plain_is_known_until_the_directory_changes(directory):
    """With the mark `plain`, host-local need not check at each request whether the directory belongs to cluster-wide
    addresses."""
    index = directory.open()
    assert not index.plain
    index.plain = True
    assert index.sign()
    index.close()
    assert directory.open().plain
    (directory.path / ".cluster").mkdir()
    index = directory.open()
    assert not index.fresh and not index.plain


def test_the_mtime_lies_in_the_past_and_is_the_directorys(directory):
    directory.filled(3)
    with open(directory.file(), "rb") as f:
        fields = HEADER.unpack(f.read(HEADER.size))
    assert fields[0] == b"fastcni\n"
    assert fields[2] == 0
    assert fields[-1] == BOOT
    assert fields[9] * 10**9 + fields[10] == os.stat(directory.path).st_mtime_ns
    assert 0.5 < time.time() - os.stat(directory.path).st_mtime < 60


# -- damage -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("damage", [
    b"", b"x", b"\0" * 4096, b"\0" * 8192, b"\xff" * 9000,
    b"fastcni\n" + b"\xff" * 8184, b"fastcni\n" + struct.pack("=IIQQQQ", 1, 0, 4, 2**60, 0, 0) + b"\0" * 9000,
    b"fastcni\n" + struct.pack("=IIQQQQ", 1, 0, 2**60, 64, 0, 0) + b"\0" * 9000,
    b"fastcni\n" + struct.pack("=IIQQQQ", 1, 0, 3, 65, 0, 0) + b"\0" * 9000,
    b"fastcni\n" + struct.pack("=IIQQQQ", 1, 0, 0, 0, 0, 0) + b"\0" * 9000,
])
def test_a_damaged_header_is_started_anew(directory, damage):
    with open(directory.file(), "wb") as f:
        f.write(damage)
    index = directory.open()
    assert not index.fresh
    assert len(index) == 0
    assert index.trouble == 0
    assert index.hold(v4(1), b"a") and index.sign()
    index.close()
    assert directory.open().fresh


def test_a_file_cut_short_is_started_anew(directory):
    directory.filled(1000)
    os.truncate(directory.file(), 8192)
    index = directory.open()
    assert not index.fresh and index.hold(v4(1), b"a")


@pytest.mark.parametrize("held", [3, 300])
def test_a_flipped_byte_anywhere_makes_an_index_that_is_not_used(directory, held):
    """Once, one byte of the tables was damaged. host-local used the index, and a DEL did not remove its file."""
    directory.filled(held)
    with open(directory.file(), "r+b", buffering=0) as file:
        whole = file.read()
        for at, byte in enumerate(whole):
            os.pwrite(file.fileno(), bytes([byte ^ 1 << at % 8]), at)
            _ipam_bitmap.forget()
            index = directory.open()
            assert not index.fresh and len(index) == 0, at
            index.close()
            os.pwrite(file.fileno(), bytes([byte]), at)
    assert directory.open().fresh


@pytest.mark.parametrize("page", range(1, 6))
def test_a_page_that_was_lost_or_is_of_an_earlier_moment_is_noticed(directory, page):
    directory.filled(300)
    with open(directory.file(), "r+b", buffering=0) as file:
        before = file.read()
        assert len(before) > 4096 * (page + 1) or page > 2
        index = directory.open()
        for n in range(0, 300, 2):
            assert index.drop(v4(n), b"owner %d" % n)
        assert index.sign()
        index.close()
        file.seek(0)
        after = file.read()
        for old in (bytes(4096), before[page * 4096:][:4096]):
            if page * 4096 < len(after) and old != after[page * 4096:][:4096]:
                os.pwrite(file.fileno(), old, page * 4096)
                _ipam_bitmap.forget()
                assert not directory.open().fresh
        os.pwrite(file.fileno(), after, 0)
    assert directory.open().fresh


def test_damage_on_the_disk_does_not_reach_a_process_that_has_a_copy(directory):
    directory.filled(300)
    with open(directory.file(), "r+b") as file:
        file.seek(256)
        file.write(b"\xff" * 3000)
    index = directory.open()
    assert index.fresh
    assert len(index) == 300
    assert index.addresses_of(b"owner 7") == [v4(7)]
    index.close()


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=256, max_size=6000), st.integers(16, 5000))
def test_any_bytes_in_the_file_are_handled(tmp_path_factory, noise, at):
    d = Directory(tmp_path_factory.mktemp("noise"))
    d.filled(20)
    with open(d.file(), "r+b") as f:
        f.seek(at)
        f.write(noise)
    index = d.open()
    for n in range(100):
        index.hold(v4(n), b"%d" % n)
        index.drop(v4(n // 2), b"%d" % (n // 2))
    index.close()
    os.close(d.fd)


def test_a_directory_or_a_link_in_its_place_means_memory(directory):
    for make in (os.mkdir, lambda path: os.symlink("/etc/hostname", path), os.mkfifo):
        make(directory.file())
        index = directory.open()
        assert index.trouble and not index.fresh
        assert index.hold(v4(1), b"a") and index.next_free(v4(1), v4(2)) == v4(2)
        assert not index.sign()
        index.close()
        os.rmdir(directory.file()) if os.path.isdir(directory.file()) else os.unlink(directory.file())


LIVE = """
import os
from fastcni._ipam_bitmap import Index
fd = os.open({path!r}, os.O_RDONLY)
index = Index(fd, {boot!r})
assert index.fresh
os.truncate({file!r}, {size})
assert index.addresses_of(b"owner 299") == [{address!r}]
assert all(index.drop((0x0A000000 + n).to_bytes(4, "big"), b"owner %d" % n) for n in range(300))
index.sign()
index.close()
index = Index(fd, {boot!r})
assert index.hold({address!r}, b"x") and index.sign()
"""


@pytest.mark.parametrize("size", [0, 100, 4096, 8192])
def test_a_file_that_is_cut_short_while_it_is_open_ends_no_process(directory, size):
    """Once, the file was mapped. An access to the missing part ended the server by SIGBUS."""
    directory.filled(300)
    code = LIVE.format(path=os.fspath(directory.path), file=directory.file(), boot=BOOT, size=size, address=v4(299))
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)


def in_a_mount_namespace(code):
    """Run Python code as root in a new mount namespace."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small tmpfs in a new mount namespace")
    root = os.path.dirname(os.path.dirname(_ipam_bitmap.__file__))
    done = subprocess.run(["unshare", "-m", sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{code}"],
                          check=False, capture_output=True, text=True)
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, (done.returncode, done.stderr)


SPARSE = """
import os, subprocess
from errno import ENOSPC
from fastcni._ipam_bitmap import Index
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", {where!r}], check=True)
os.chdir({where!r})
fd = os.open(".", os.O_RDONLY)
index = Index(fd, {boot!r})
for n in range(3000):
    assert index.hold(n.to_bytes(4, "big"), b"%d" % n)
assert index.sign()
index.close()
with open(".fastcni.index", "r+b") as file:                 # the copy of a backup: zeros are holes in it
    content = file.read()
    file.truncate(0)
    file.truncate(len(content))
    file.write(content[:{kept}])
with open("filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError as e:
        assert e.errno == ENOSPC
for _ in range(3):
    index = Index(fd, {boot!r})
    assert not index.fresh and index.trouble == 0
    for n in range(3000):
        assert index.hold(n.to_bytes(4, "big"), b"%d" % n)
    assert index.addresses_of(b"77") == [(77).to_bytes(4, "big")]
    assert not index.sign() and index.trouble == 28
    index.close()
os.unlink("filler")
index = Index(fd, {boot!r})
assert not index.fresh and index.hold(b"1234", b"a") and index.sign()
"""


@pytest.mark.parametrize("kept", [0, 256, 4096])
def test_a_sparse_file_on_a_full_disk_ends_no_process(tmp_path, kept):
    """Once, such a file was mapped. The first write to a hole ended the server, and again after each restart."""
    in_a_mount_namespace(SPARSE.format(where=str(tmp_path), boot=BOOT, kept=kept))


SMALL_DISK = """
import os, subprocess
from fastcni._ipam_bitmap import Index
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", {where!r}], check=True)
fd = os.open({where!r}, os.O_RDONLY)
index = Index(fd, {boot!r})
assert index.trouble == 0
for n in range(20000):
    assert index.hold(n.to_bytes(4, "big"), b"%d" % n)
assert index.trouble == 0 and not index.sign() and index.trouble == 28, index.trouble
assert len(index) == 20000 and index.next_free(bytes(4), b"\\xff" * 4) == (20000).to_bytes(4, "big")
assert all(index.addresses_of(b"%d" % n) == [n.to_bytes(4, "big")] for n in range(0, 20000, 99))
assert not index.sign()
index.close()
again = Index(fd, {boot!r})
assert not again.fresh and again.trouble == 0 and again.hold(b"1234", b"a") and again.sign()
"""


def test_a_full_disk_is_neither_an_error_nor_a_signal(tmp_path):
    in_a_mount_namespace(SMALL_DISK.format(where=str(tmp_path), boot=BOOT))


# -- copies that are kept ------------------------------------------------------------------------------------

READS = """
import os
from fastcni import _ipam_bitmap
fds = [os.open(path, os.O_RDONLY) for path in {paths!r}]
for n, forget in enumerate([True, False, False, True]):
    print(n, file=open("/dev/null", "w"))
    if forget:
        _ipam_bitmap.forget()
    for fd in fds:
        index = _ipam_bitmap.Index(fd, {boot!r})
        assert index.fresh
        index.close()
"""


def pages_read(*directories):
    """Return how many reads, in each of four rounds that open the indexes, read more than a header."""
    if not which("strace"):
        pytest.skip("needs strace: counts reads")
    code = READS.format(paths=[os.fspath(each.path) for each in directories], boot=BOOT)
    done = subprocess.run(["strace", "-e", "trace=pread64,openat", sys.executable, "-c", code], check=True,
                          capture_output=True, text=True)
    rounds = done.stderr.split('"/dev/null"')[1:]
    return [sum("pread64(" in line and not line.endswith(" 256, 0) = 256") for line in each.splitlines())
            for each in rounds]


def test_a_file_is_read_once_until_its_copy_is_freed(directory):
    directory.filled(300)
    assert pages_read(directory) == [1, 0, 0, 1]


def test_eight_copies_are_kept(tmp_path):
    made = []
    for n in range(9):
        (tmp_path / str(n)).mkdir()
        made.append(Directory(tmp_path / str(n)))
        made[-1].filled(n)
    assert pages_read(*made[:8]) == [8, 0, 0, 8] and pages_read(*made) == [9, 9, 9, 9]
    for each in made:
        os.close(each.fd)


@pytest.mark.parametrize("size", [0, 1, 5000, 1 << 20])
def test_a_file_of_another_size_is_taken_as_it_is(directory, size):
    directory.filled(3)
    whole = os.stat(directory.file()).st_size
    os.truncate(directory.file(), size)
    index = directory.open()
    assert index.fresh == (size >= whole) and index.hold(v4(9), b"x")
    index.close()


def test_what_another_process_writes_is_read_in_place_of_the_copy(directory):
    directory.filled(3)
    code = f"""
import os
from fastcni._ipam_bitmap import Index
index = Index(os.open({os.fspath(directory.path)!r}, os.O_RDONLY), {BOOT!r})
assert index.fresh and index.hold({v4(9)!r}, b"other")
assert index.sign()
index.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    index = directory.open()
    assert index.fresh and index.addresses_of(b"other") == [v4(9)]
    index.close()


def test_a_file_that_replaces_another_is_not_confused_with_it(directory):
    directory.filled(3)
    os.rename(directory.file(), f"{directory.file()}.old")
    index = directory.open()
    assert not index.fresh and len(index) == 0
    index.close()
