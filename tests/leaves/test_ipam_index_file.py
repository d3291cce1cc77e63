"""The file of the index: when it is believed, what is made of damage and of a full disk."""

import os
import struct
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leaves.index import BOOT, HEADER, Directory, v4

from fastcni import _ipam_bitmap

# -- when it is believed ----------------------------------------------------------------------------------

def test_a_signed_index_is_believed_and_an_unsigned_one_is_not(directory):
    directory.filled(10)
    index = directory.open()
    assert index.fresh and not index.dirty
    index.hold(v4(100), b"x")
    assert index.dirty
    index.close()
    assert not directory.open().fresh


def test_somebody_elses_change_is_noticed_however_soon_it_comes(directory):
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


def test_an_index_copied_into_another_directory_is_not_believed(directory, tmp_path_factory):
    directory.filled(3)
    other = Directory(tmp_path_factory.mktemp("copy"))
    with open(directory.file(), "rb") as a, open(other.file(), "wb") as b:
        b.write(a.read())
    times = os.stat(directory.path)
    os.utime(other.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not other.open().fresh
    os.close(other.fd)


def test_an_index_of_another_boot_is_not_believed(directory):
    directory.filled(3)
    assert not directory.open(b"f" * 36).fresh
    directory.filled(3)
    assert directory.open().fresh


def test_without_a_boot_id_nothing_is_believed(directory):
    directory.filled(3)
    index = directory.open(b"")
    assert not index.fresh and not index.sign()
    index.close()
    assert not directory.open().fresh


def test_a_process_killed_in_between_leaves_an_index_that_is_not_believed(directory):
    directory.filled(3)
    pid = os.fork()
    if pid == 0:
        index = directory.open()
        index.hold(v4(50), b"x")
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert not directory.open().fresh


def test_the_mtime_lies_in_the_past_and_is_the_directorys(directory):
    directory.filled(3)
    with open(directory.file(), "rb") as f:
        fields = HEADER.unpack(f.read(HEADER.size))
    assert fields[0] == b"fastcni\n" and fields[2] == 0 and fields[-1] == BOOT
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
    assert not index.fresh and len(index) == 0 and index.trouble == 0
    assert index.hold(v4(1), b"a") and index.sign()
    index.close()
    assert directory.open().fresh


def test_a_file_cut_short_is_started_anew(directory):
    directory.filled(1000)
    os.truncate(directory.file(), 8192)
    index = directory.open()
    assert not index.fresh and index.hold(v4(1), b"a")


def test_damage_inside_gives_wrong_answers_but_no_crash_and_no_endless_loop(directory):
    """Every byte of the tables set: no empty entry is left for a search to end at."""
    for fill in (b"\xff", b"\x01", b"\x80"):
        directory.filled(10)
        with open(directory.file(), "r+b") as f:
            f.seek(256)
            f.write(fill * (os.path.getsize(directory.file()) - 256))
        index = directory.open()
        assert index.fresh                      # nothing in the header tells
        index.next_free(v4(0), v4(70000))
        index.count(v4(0), v4(70000))
        index.addresses_of(b"owner 1")
        for n in range(200):
            index.hold(v4(n), b"z%d" % n)
            index.drop(v4(n), b"z%d" % n)
            index.drop(v4(n), b"owner %d" % n)
        index.clear()
        assert len(index) == 0 and index.hold(v4(1), b"a")
        index.close()


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=256, max_size=6000), st.integers(16, 5000))
def test_any_bytes_in_the_file_are_survived(tmp_path_factory, noise, at):
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


SMALL_DISK = """
import os, subprocess, sys
sys.path.insert(0, {root!r})
from fastcni._ipam_bitmap import Index
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", {where!r}], check=True)
fd = os.open({where!r}, os.O_RDONLY)
index = Index(fd, {boot!r})
assert index.trouble == 0
for n in range(20000):
    assert index.hold(n.to_bytes(4, "big"), b"%d" % n)
assert index.trouble == 28, index.trouble
assert len(index) == 20000 and index.next_free(bytes(4), b"\\xff" * 4) == (20000).to_bytes(4, "big")
assert all(index.addresses_of(b"%d" % n) == [n.to_bytes(4, "big")] for n in range(0, 20000, 99))
assert not index.sign()
index.close()
again = Index(fd, {boot!r})
assert not again.fresh and again.trouble == 0 and again.hold(b"1234", b"a") and again.sign()
"""


def test_a_full_disk_is_neither_an_error_nor_a_signal(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small tmpfs in a mount namespace of its own")
    root = os.path.dirname(os.path.dirname(_ipam_bitmap.__file__))
    code = SMALL_DISK.format(root=root, where=str(tmp_path), boot=BOOT)
    done = subprocess.run(["unshare", "-m", sys.executable, "-c", code],
                          check=False, capture_output=True, text=True)
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


# -- maps that are kept --------------------------------------------------------------------------------------

def maps_of(directory):
    with open("/proc/self/maps") as file:
        return sum(directory.file() in line for line in file)


def test_the_map_of_a_closed_index_is_kept_until_it_is_let_go(directory):
    _ipam_bitmap.forget()
    for _ in range(3):
        directory.filled(0)
        assert maps_of(directory) == 1
    _ipam_bitmap.forget()
    assert maps_of(directory) == 0 and directory.open().fresh


@pytest.mark.parametrize("size", [0, 1, 5000, 1 << 20])
def test_a_file_of_another_size_is_mapped_anew(directory, size):
    """Touching what was cut off would end the process."""
    directory.filled(3)
    whole = os.stat(directory.file()).st_size
    os.truncate(directory.file(), size)
    index = directory.open()
    assert index.fresh == (size >= whole) and index.hold(v4(9), b"x")
    index.close()


def test_what_another_process_writes_is_seen_through_a_kept_map(directory):
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


def test_a_file_in_the_place_of_another_is_not_taken_for_it(directory):
    directory.filled(3)
    os.rename(directory.file(), f"{directory.file()}.old")
    index = directory.open()
    assert not index.fresh and len(index) == 0
    index.close()


def test_of_many_indexes_the_oldest_maps_go(tmp_path):
    made = []
    for n in range(20):
        (tmp_path / str(n)).mkdir()
        made.append(Directory(tmp_path / str(n)))
        made[-1].filled(n)
    for n, each in enumerate(made):
        index = each.open()
        assert index.fresh and len(index) == n
        index.close()
        os.close(each.fd)
    assert 1 <= sum(map(maps_of, made)) <= 8
