"""The index of held addresses: against a model, on damage, on a full disk, across directories' lives."""

import os
import struct
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcni import _ipam_bitmap
from fastcni._ipam_bitmap import Index

BOOT = b"0f8b1c2d-1111-4222-8333-444455556666"
FILE = ".fastcni.index"
# magic, layout, dirty flag, capacities, counts, device and inode, mtime, ctime, boot id
HEADER = struct.Struct("=8sIIQQQQQQqqqq36s")


def v4(n):
    return (0x0A000000 + n).to_bytes(4, "big")


def v6(n):
    return (0xFD00_0009 << 96 | n).to_bytes(16, "big")


class Directory:
    def __init__(self, path):
        self.path = path
        self.fd = os.open(path, os.O_RDONLY)

    def open(self, boot=BOOT):
        return Index(self.fd, boot)

    def file(self):
        return os.path.join(self.path, FILE)

    def filled(self, count):
        """An index with that many addresses, signed and closed."""
        index = self.open()
        for n in range(count):
            assert index.hold(v4(n), b"owner %d" % n)
        assert index.sign()
        index.close()


@pytest.fixture
def directory(tmp_path):
    d = Directory(tmp_path)
    yield d
    os.close(d.fd)


# -- what it answers --------------------------------------------------------------------------------------

def test_a_new_index_is_empty_and_not_fresh(directory):
    index = directory.open()
    assert not index.fresh and len(index) == 0 and index.trouble == 0
    assert index.next_free(v4(1), v4(9)) == v4(1)


def test_the_next_free_address_skips_what_is_held_and_the_gateway(directory):
    index = directory.open()
    for n in range(1, 6):
        index.hold(v4(n), b"x")
    assert index.next_free(v4(1), v4(20)) == v4(6)
    assert index.next_free(v4(1), v4(20), v4(6)) == v4(7)
    assert index.next_free(v4(1), v4(6), v4(6)) is None
    assert index.next_free(v4(2), v4(5)) is None
    assert index.next_free(v4(9), v4(5)) is None


def test_a_full_sixteen_is_full_and_one_hole_is_found_from_everywhere(directory):
    index = directory.open()
    for n in range(65536):
        index.hold(v4(n), b"%d" % n)
    assert index.next_free(v4(0), v4(65535)) is None
    assert index.count(v4(0), v4(65535)) == 65536
    assert index.next_free(v4(0), v4(65536)) == v4(65536)
    index.drop(v4(40000), b"40000")
    for start in (0, 1, 4095, 4096, 39999, 40000):
        assert index.next_free(v4(start), v4(65535)) == v4(40000)
    assert index.next_free(v4(40001), v4(65535)) is None


def test_an_address_is_held_once(directory):
    index = directory.open()
    assert index.hold(v4(1), b"a")
    assert not index.hold(v4(1), b"b")
    assert index.addresses_of(b"a") == [v4(1)] and index.addresses_of(b"b") == []
    assert not index.drop(v4(1), b"b") and not index.drop(v4(2), b"a")
    assert index.drop(v4(1), b"a") and not index.drop(v4(1), b"a")
    assert len(index) == 0


def test_both_families_live_in_one_index(directory):
    index = directory.open()
    index.hold(v4(1), b"pod")
    index.hold(v6(1), b"pod")
    assert sorted(index.addresses_of(b"pod"), key=len) == [v4(1), v6(1)]
    mapped = b"\0" * 10 + b"\xff\xff" + v4(1)
    assert index.is_held(mapped) and not index.hold(mapped, b"pod")


def test_a_sixty_four_needs_no_bitmap_of_its_size(directory):
    index = directory.open()
    first, last = v6(1), v6(2**64 - 1)
    far = v6(2**63)
    index.hold(far, b"far")
    index.hold(last, b"last")
    for n in range(1, 5000):
        index.hold(v6(n), b"%d" % n)
    assert index.next_free(first, last) == v6(5000)
    assert index.next_free(far, last) == v6(2**63 + 1)
    assert index.next_free(last, last) is None
    assert index.count(first, last) == 5001
    assert os.path.getsize(directory.file()) < 1 << 20


def test_the_end_of_the_address_space_is_an_end(directory):
    index = directory.open()
    top = b"\xff" * 16
    index.hold(top, b"x")
    assert index.next_free(top, top) is None
    assert index.next_free(b"\xff" * 15 + b"\xfe", top, b"\xff" * 15 + b"\xfe") is None
    for n in range(256):
        index.hold(b"\xff" * 15 + bytes([n]), b"%d" % n)
    assert index.next_free(b"\xff" * 15 + b"\x00", top) is None


def test_only_whole_addresses_are_taken(directory):
    index = directory.open()
    for wrong in (b"", b"123", b"12345", b"1" * 17):
        with pytest.raises(ValueError):
            index.hold(wrong, b"x")
    with pytest.raises(TypeError):
        index.hold("10.0.0.1", b"x")
    with pytest.raises(TypeError):
        index.hold(v4(1), "x")
    index.close()
    with pytest.raises(ValueError):
        index.next_free(v4(1), v4(2))
    index.close()


def test_no_argument_of_none_reaches_memory(directory):
    index = directory.open()
    for call, *arguments in ((index.hold, None, b"x"), (index.hold, v4(1), None), (index.drop, v4(1), None),
                             (index.drop, None, b"x"), (index.addresses_of, None), (index.is_held, None),
                             (index.next_free, None, None), (index.count, v4(1), None)):
        with pytest.raises(TypeError):
            call(*arguments)


addresses = st.one_of(
    st.integers(0, 40).map(v4), st.integers(4080, 4120).map(v4), st.binary(min_size=4, max_size=4),
    st.integers(0, 40).map(v6), st.integers(0, 2**64 - 1).map(v6), st.binary(min_size=16, max_size=16))
owners = st.sampled_from([b"a", b"b", b"c\r\neth0", b"", b"d" * 200])
steps = st.lists(st.tuples(st.sampled_from(["hold", "hold", "drop", "free", "reopen", "clear"]),
                           addresses, addresses, owners), max_size=300)


def plain(address):
    """As the index gives it back: a mapped address is an IPv4 address."""
    return address[12:] if address.startswith(b"\0" * 10 + b"\xff\xff") else address


def number(address):
    return int.from_bytes(address if len(address) == 16 else b"\0" * 10 + b"\xff\xff" + address, "big")


@settings(max_examples=150, deadline=None)
@given(steps)
def test_it_agrees_with_a_dict(tmp_path_factory, script):
    d = Directory(tmp_path_factory.mktemp("model"))
    index, model = d.open(), {}
    try:
        for what, address, other, owner in script:
            address = plain(address)
            if what == "hold":
                assert index.hold(address, owner) == (address not in model)
                model.setdefault(address, owner)
            elif what == "drop":
                assert index.drop(address, owner) == (model.get(address) == owner)
                if model.get(address) == owner:
                    del model[address]
            elif what == "free" and len(address) == len(plain(other)):
                first, last = sorted((number(address), number(other)))
                held = {number(a) for a in model}
                near = range(first, min(last, first + len(held)) + 1)
                expected = next((n for n in near if n not in held), None)
                found = index.next_free(first.to_bytes(16, "big"), last.to_bytes(16, "big"))
                assert (found and number(found)) == expected
                assert index.count(first.to_bytes(16, "big"), last.to_bytes(16, "big")) == \
                    sum(first <= n <= last for n in held)
            elif what == "reopen":
                assert index.sign()
                index.close()
                index = d.open()
                assert index.fresh
            elif what == "clear":
                index.clear()
                model.clear()
            assert len(index) == len(model)
            assert sorted(index.addresses_of(owner)) == sorted(a for a, o in model.items() if o == owner)
            assert index.is_held(address) == (address in model)
    finally:
        index.close()
        os.close(d.fd)


def test_it_grows_and_keeps_everything(directory):
    count = 5000
    directory.filled(count)
    index = directory.open()
    assert index.fresh and len(index) == count
    for n in range(0, count, 7):
        assert index.addresses_of(b"owner %d" % n) == [v4(n)]
    for n in range(count):
        assert index.drop(v4(n), b"owner %d" % n)
    assert len(index) == 0 and index.next_free(v4(0), v4(9)) == v4(0)
    index.clear()
    assert os.path.getsize(directory.file()) <= 8192


def test_strewn_addresses_cost_a_block_each_and_give_it_back(directory):
    index = directory.open()
    strewn = [(0xFD << 120 | n << 20).to_bytes(16, "big") for n in range(3000)]
    for a in strewn:
        index.hold(a, a)
    size = os.path.getsize(directory.file())
    assert size < 4096 * (544 + 48) * 1.1
    for a in strewn:
        assert index.drop(a, a)
    for n in range(3000):
        index.hold((0xFE << 120 | n << 20).to_bytes(16, "big"), b"x%d" % n)
    assert os.path.getsize(directory.file()) == size


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


# -- the lock ---------------------------------------------------------------------------------------------

def test_the_lock_waits_without_holding_up_other_threads(tmp_path):
    (tmp_path / "lock").touch()
    first, second = (os.open(tmp_path / "lock", os.O_RDONLY) for _ in range(2))
    _ipam_bitmap.lock(first)
    order = []

    def wait():
        _ipam_bitmap.lock(second)
        order.append("second")

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.1)
    order.append("first")
    _ipam_bitmap.unlock(first)
    waiting.join(10)
    assert order == ["first", "second"]
    os.close(first)
    os.close(second)


def test_a_lock_that_cannot_be_had_is_an_error():
    with pytest.raises(OSError):
        _ipam_bitmap.lock(-1)


def test_importing_it_loads_nothing_else():
    root = os.path.dirname(os.path.dirname(_ipam_bitmap.__file__))
    code = (f"import sys; sys.path.append({root!r}); import fastcni; before = set(sys.modules)\n"
            "import fastcni._ipam_bitmap; print(*sorted(set(sys.modules) - before))")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if not name.startswith(("_cython", "cython_runtime"))}
    assert loaded == {"fastcni._ipam_bitmap"}
