"""The address files of a network: pods take and release them, kills leave incomplete files, other programs change them.
The index only saves time."""

import fcntl
import os
import posix
import random
import resource
import signal
import stat
import subprocess
import sys
import time

import pytest

import fastcni
from fastcni.kernel import waiting
from fastcni.kit.ipam import address_files
from fastcni.kit.ipam import store as store_module
from fastcni.kit.ipam.address_files import address_of, is_torn, owner_of
from fastcni.kit.ipam.store import Store
from fastcni.spec import address
from fastcni.spec.errors import CniError

POD, OTHER = owner_of("pod", "eth0"), owner_of("other", "eth0")


def ip(text):
    return address.read_ip(text)


class Place:
    """A data directory. `warnings` has the warnings about it."""

    def __init__(self, root):
        self.root, self.path, self.warnings = root, root / "net", []

    def __call__(self, create=True, **more):
        return Store(str(self.root), "net", self.warnings.append, create=create, **more)

    def addresses(self):
        return sorted(name for name in os.listdir(self.path) if name[0] in "0123456789abcdef:")

    def put(self, name, content=b"", directory=None):
        (self.path / name).write_bytes(content)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


# -- the files on the disk --------------------------------------------------------------------------------------------

def test_files_are_those_of_the_go_plugin(place):
    with place() as store:
        assert store.take(ip("10.1.0.2"), owner_of("pod", "eth0"))
        assert store.take(ip("fd00:9::2"), POD)
        store.files.write_cursor(0, ip("10.1.0.2"))
    assert (place.path / "10.1.0.2").read_bytes() == b"pod\r\neth0"
    assert (place.path / "last_reserved_ip.0").read_bytes() == b"10.1.0.2"
    modes = {name: stat.S_IMODE(os.stat(place.path / name).st_mode) for name in os.listdir(place.path)}
    umask = os.umask(0o22)
    os.umask(umask)
    assert modes == {"10.1.0.2": 0o600, "fd00:9::2": 0o600, "last_reserved_ip.0": 0o600,
                     "lock": 0o750 & ~umask, ".fastcni.index": 0o600}
    assert stat.S_IMODE(os.stat(place.path).st_mode) == 0o755 & ~umask


def test_a_released_address_leaves_no_file(place):
    with place() as store:
        store.take(ip("10.1.0.2"), POD)
        assert not store.release(ip("10.1.0.2"), OTHER)
        assert store.release(ip("10.1.0.2"), POD)
        assert not store.release(ip("10.1.0.2"), POD)
        assert len(store.index) == 0
    assert place.addresses() == []


def test_nothing_is_created_unless_asked(place):
    with place(create=False) as store:
        assert store is None
    assert not place.path.exists()


def test_a_shorter_address_replaces_a_longer_one_in_the_cursor(place):
    with place() as store:
        assert store.files.read_cursor(0) is None
        store.files.write_cursor(0, ip("10.100.100.100"))
        store.files.write_cursor(0, ip("10.1.0.2"))
        assert store.files.read_cursor(0) == ip("10.1.0.2")
        assert store.files.read_cursor(1) is None
    place.put("last_reserved_ip.0", b"nonsense")
    with place() as store:
        assert store.files.read_cursor(0) is None
    place.put("last_reserved_ip.0", b"\xff\xfe")
    with place() as store:
        assert store.files.read_cursor(0) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "/etc", "a\0b"])
def test_a_name_that_leads_out_of_the_data_directory_is_refused(tmp_path, name):
    with pytest.raises(CniError) as e:
        Store(str(tmp_path), name, print)
    assert e.value.code == 7


@pytest.mark.parametrize("name", ["lock", "last_reserved_ip.0", ".fastcni.index", "10.1.0.2.tmp", "10.1.0.02",
                                  "fd00:9:0::2", "FD00::1", "::ffff:10.1.0.2", "deadbeef", "face"])
def test_other_names_are_no_addresses(name):
    assert address_of(name) is None


# -- the index follows the files --------------------------------------------------------------------------

def test_the_index_is_used_again_and_not_rebuilt(place, monkeypatch):
    with place() as store:
        store.take(ip("10.1.0.2"), POD)
    monkeypatch.setattr(Store, "read_all", lambda self: pytest.fail("read all files without need"))
    with place() as store:
        assert store.addresses_of(POD) == [ip("10.1.0.2")]
        store.release(ip("10.1.0.2"), POD)
    with place() as store:
        assert store.addresses_of(POD) == [] and not store.index.is_held(ip("10.1.0.2"))


def test_files_of_another_program_are_found(place):
    with place():
        pass
    place.put("10.1.0.7", b"other\r\neth0")
    with place() as store:
        assert store.index.is_held(ip("10.1.0.7"))
        assert store.addresses_of(OTHER) == [ip("10.1.0.7")]
        assert not store.take(ip("10.1.0.7"), POD)
    (place.path / "10.1.0.7").unlink()
    with place() as store:
        assert store.take(ip("10.1.0.7"), POD)


def test_the_index_may_be_removed_or_damaged_at_any_time(place):
    with place() as store:
        store.take(ip("10.1.0.2"), POD)
    index = place.path / ".fastcni.index"
    for damage in (index.unlink, lambda: index.write_bytes(b""), lambda: os.truncate(index, 5000),
                   lambda: index.write_bytes(b"\xff" * 8192), lambda: index.write_bytes(os.urandom(10000))):
        damage()
        with place() as store:
            assert store.addresses_of(POD) == [ip("10.1.0.2")] and len(store.index) == 1
    assert place.warnings == []


def test_an_index_that_cannot_be_a_file_is_reported_and_not_used(place):
    with place() as store:
        store.take(ip("10.1.0.2"), POD)
    (place.path / ".fastcni.index").unlink()
    (place.path / ".fastcni.index").mkdir()
    with place() as store:
        assert store.addresses_of(POD) == [ip("10.1.0.2")] and not store.take(ip("10.1.0.2"), OTHER)
        assert store.take(ip("10.1.0.3"), OTHER)
    assert place.warnings and ".fastcni.index" in place.warnings[0]
    with place() as store:
        assert store.addresses_of(OTHER) == [ip("10.1.0.3")]


def test_an_index_of_an_earlier_boot_is_read_anew(place, monkeypatch):
    """After a power failure, the file of the index may be older than the address files."""
    with place() as store:
        store.take(ip("10.1.0.2"), POD)
        store.index.drop(ip("10.1.0.2"), POD)       # an older index lacks this owner
    with place() as store:
        assert store.addresses_of(POD) == []        # in the same boot, the store trusts the index
    monkeypatch.setattr(store_module, "boot_id", lambda: b"1" * 36)
    with place() as store:
        assert store.addresses_of(POD) == [ip("10.1.0.2")]


def test_a_process_killed_after_making_a_file_leaves_nothing_wrong(place):
    with place() as store:
        store.take(ip("10.1.0.2"), OTHER)
    pid = os.fork()
    if pid == 0:
        store = place().__enter__()
        store.take(ip("10.1.0.3"), POD)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    with place() as store:
        assert store.addresses_of(POD) == [ip("10.1.0.3")] and len(store.index) == 2


def test_killed_anywhere_files_and_index_agree_afterwards(place):
    rng = random.Random(7)
    for _ in range(40):
        pid = os.fork()
        if pid == 0:
            while True:
                who = b"p%d" % rng.randrange(20)
                with place() as store:
                    if not [store.release(packed, who) for packed in store.addresses_of(who)]:
                        store.take(store.index.next_free(ip("10.1.0.1"), ip("10.1.0.99")), who)
        time.sleep(rng.uniform(0.001, 0.01))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with place() as store:
            files = {name: (place.path / name).read_bytes() for name in place.addresses()}
            whole = {name: content for name, content in files.items() if content}
            assert len(store.index) == len(whole)  # a killed process may leave an empty file, which holds no address
            for name, content in whole.items():
                assert ip(name) in store.index.addresses_of(content)
        rng.random()


def test_the_file_of_another_owner_is_left_and_authoritative(place):
    with place() as store:
        store.take(ip("10.1.0.2"), POD)
        store.take(ip("10.1.0.3"), POD)
        place.put("10.1.0.2", b"other\r\neth0")             # a write in place does not change the directory's mtime
        os.unlink(place.path / "10.1.0.3")
        assert store.addresses_of(POD) == []
        assert store.addresses_of(OTHER) == [ip("10.1.0.2")]
        assert not store.release(ip("10.1.0.2"), POD)
        assert store.take(ip("10.1.0.3"), POD)
    assert place.addresses() == ["10.1.0.2", "10.1.0.3"]


def test_an_index_that_missed_a_removal_is_corrected_when_the_address_is_allocated(place):
    """A program removed a file without the lock. The next allocation of the address records the new owner in the
    index."""
    with place() as store:
        store.take(ip("10.1.0.2"), OTHER)
        os.unlink(place.path / "10.1.0.2")
        assert store.take(ip("10.1.0.2"), POD)
        assert store.addresses_of(POD) == [ip("10.1.0.2")] and store.addresses_of(OTHER) == []


def test_full_is_checked_against_the_number_of_files(place):
    with place() as store:
        store.take(ip("10.1.0.2"), OTHER)
        assert not store.recheck()
        os.unlink(place.path / "10.1.0.2")
        assert store.recheck() and not store.index.is_held(ip("10.1.0.2"))


# -- incomplete files -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("content", [b"", b"\0" * 9, b"\r\n", b"  ", b"pod\r\n\0\0\0\0", b"po\x01"])
def test_an_empty_or_torn_file_is_free_and_reclaimed_with_a_warning(place, content):
    with place():
        pass
    place.put("10.1.0.2", content)
    with place() as store:
        assert place.warnings == [f"{place.path}: empty or torn address files, taken as free: 10.1.0.2"]
        assert not store.index.is_held(ip("10.1.0.2"))
        assert store.take(ip("10.1.0.2"), POD)
        assert place.warnings[1:] == [f"{place.path}/10.1.0.2: empty or torn address file reclaimed"]
    assert (place.path / "10.1.0.2").read_bytes() == POD


def test_a_file_that_another_program_writes_this_moment_is_not_reclaimed(place, monkeypatch):
    """`echo note > 10.1.0.2` first creates an empty file. Once, an ADD at that moment took the address."""
    monkeypatch.setattr(waiting, "readable", lambda *_: [place.put(name, b"note") for name in ("10.1.0.2", "10.1.0.3")])
    with place() as store:
        place.put("10.1.0.2")
        assert not store.take(ip("10.1.0.2"), POD)
        place.put("10.1.0.3")
        store.release_torn([ip("10.1.0.3")])
        assert store.index.is_held(ip("10.1.0.2"))
    assert place.warnings == []
    assert [(place.path / name).read_bytes() for name in ("10.1.0.2", "10.1.0.3")] == [b"note", b"note"]


@pytest.mark.parametrize("content", [b"pod\r\neth0", b"pod", b"pod\r\neth0\n", b"reserved: ask Ann",
                                     b"a b\nc\n"])
def test_what_can_be_read_is_respected(place, content):
    assert not is_torn(content)
    with place():
        pass
    place.put("10.1.0.2", content)
    with place() as store:
        assert not store.take(ip("10.1.0.2"), OTHER)
        assert place.warnings == []
        assert store.addresses_of(content.strip()) == [ip("10.1.0.2")]


def test_a_directory_or_a_pipe_named_like_an_address_holds_it(place):
    with place():
        pass
    (place.path / "10.1.0.2").mkdir()
    os.mkfifo(place.path / "10.1.0.3")
    os.symlink("/etc/hostname", place.path / "10.1.0.4")
    with place() as store:
        for text in ("10.1.0.2", "10.1.0.4"):
            assert not store.take(ip(text), POD)
    assert sorted(os.listdir(place.path)) == [".fastcni.index", "10.1.0.2", "10.1.0.3", "10.1.0.4", "lock"]


def test_a_very_long_id_is_read_whole(place):
    long = owner_of("a" * 10000, "eth0")
    with place() as store:
        store.take(ip("10.1.0.2"), long)
        store.take(ip("10.1.0.3"), owner_of("a" * 4096))
    (place.path / ".fastcni.index").unlink()
    with place() as store:
        assert store.addresses_of(long) == [ip("10.1.0.2")]
        assert store.addresses_of(b"a" * 4096) == [ip("10.1.0.3")]


# -- errors -----------------------------------------------------------------------------------------------

def test_a_data_directory_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CniError) as e, Store(str(tmp_path / "file"), "net", print, create=True):
        pass
    assert e.value.code == 5
    assert e.value.msg == f"open {tmp_path}/file/net: Not a directory (errno 20)"
    assert f'ipam.dataDir is "{tmp_path}/file"' in e.value.details


def test_a_write_that_fails_leaves_no_file(place):
    """On a full disk, the kernel creates the file but cannot write its content."""
    with place() as store:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3, before[1]))
        try:
            with pytest.raises(CniError) as e:
                store.take(ip("10.1.0.2"), POD)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert e.value.msg == f"create {place.path}/10.1.0.2: No space left on device (errno 28)"
        assert not store.index.is_held(ip("10.1.0.2"))
    assert place.addresses() == []


def test_an_error_of_another_kind_leaves_an_index_that_is_read_anew(place):
    with pytest.raises(ZeroDivisionError), place() as store:
        store.take(ip("10.1.0.2"), POD)
        store.index.drop(ip("10.1.0.2"), POD)
        raise ZeroDivisionError
    with place() as store:
        assert store.index.is_held(ip("10.1.0.2"))


def test_a_failing_lock_is_an_error(place, monkeypatch):
    with place():
        pass

    def refuse(fd):
        raise OSError(37, os.strerror(37))

    monkeypatch.setattr(waiting, "try_lock", refuse)
    with pytest.raises(CniError) as e, place():
        pass
    assert e.value.msg == f"lock {place.path}/lock: No locks available (errno 37)"


def test_no_descriptor_and_no_lock_is_left_open(place, collector_off):
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with place() as store:
            store.take(ip("10.1.0.2"), POD)
        with pytest.raises(ZeroDivisionError), place():
            raise ZeroDivisionError
    assert os.listdir("/proc/self/fd") == before
    with open(place.path / "lock") as f:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_fsync_is_done_for_the_file_and_the_directory(place, monkeypatch):
    synced, write_file = [], address_files.write_file

    def write(name, *args, sync=False, **kwargs):
        synced.extend([str(place.path / name)] if sync else [])
        write_file(name, *args, sync=sync, **kwargs)

    monkeypatch.setattr(address_files, "write_file", write)
    monkeypatch.setattr(posix, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    with place() as store:
        store.take(ip("10.1.0.2"), POD)
    assert synced == []
    with place(sync=True) as store:
        store.take(ip("10.1.0.3"), POD)
    assert synced == [str(place.path / "10.1.0.3"), str(place.path)]


def test_two_processes_never_take_the_same_address(place):
    """Several processes try to take 300 addresses in the same order, each time under the lock."""
    with place():
        pass
    children = []
    for who in (b"a", b"b", b"c"):
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            taken = []
            try:
                for _ in range(100):
                    with place() as store:
                        packed = store.index.next_free(ip("10.1.0.1"), ip("10.1.1.44"))
                        if store.take(packed, who):
                            taken.append(address.ip_text(packed))
                os.write(w, " ".join(taken).encode())
            finally:
                os._exit(0)
        os.close(w)
        children.append((pid, r))
    taken = []
    for pid, r in children:
        with os.fdopen(r) as f:
            taken += f.read().split()
        os.waitpid(pid, 0)
    assert len(taken) == 300 and len(set(taken)) == 300
    assert len(place.addresses()) == 300


SMALL_DISK = """
import os, subprocess, sys
sys.path.insert(0, {root!r})
from fastcni.kit.ipam.store import Store
from fastcni.spec.errors import CniError
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=40", "tmpfs", {where!r}], check=True)
taken, warnings = 0, []
try:
    while True:
        with Store({where!r}, "net", warnings.append, create=True) as store:
            packed = store.index.next_free(b"\\x0a\\0\\0\\1", b"\\x0a\\0\\xff\\xff")
            assert store.take(packed, b"owner%d" % taken)
            taken += 1
except CniError as e:
    assert "No space left on device (errno 28)" in e.msg and "10.0.0." in e.msg, e
assert taken > 20
os.unlink({where!r} + "/net/.fastcni.index")
open({where!r} + "/net/last_reserved_ip.9", "w").close()     # the last inode: no index can be made
for n in range(taken):
    with Store({where!r}, "net", warnings.append) as store:
        assert [store.release(p, b"owner%d" % n) for p in store.addresses_of(b"owner%d" % n)] == [True]
assert sorted(os.listdir({where!r} + "/net")) == [".fastcni.index", "last_reserved_ip.9", "lock"]
assert any(".fastcni.index: No space left on device; working without it" in text for text in warnings)
"""


def test_a_full_disk_refuses_add_with_a_text_and_never_del(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small tmpfs in a new mount namespace")
    root = os.path.dirname(os.path.dirname(fastcni.__file__))
    code = SMALL_DISK.format(root=root, where=str(tmp_path))
    done = subprocess.run(["unshare", "-m", sys.executable, "-c", code],
                          check=False, capture_output=True, text=True)
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
