"""host-local's files when one file cannot be read, is not a regular file, or is on a file system that hangs."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest
from unit.kit.call.not_files import KINDS
from unit.kit.ipam.node import SMALL, Node

from fastcni.kit.ipam import address_files
from fastcni.kit.ipam.store import Store

ERRORS = [errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM]
POD, OTHER, FIRST, SECOND = b"pod\r\neth0", b"other\r\neth0", "10.1.0.2", "10.1.0.3"
ROOT = str(Path(__file__).parents[4])


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.fixture
def refuse(monkeypatch):
    """Return a function refuse(errno, name...). After the call, reading files of these names fails; without names, all
    reads succeed."""
    read_file, refused = address_files.read_file, {}

    def read(name, *args, **more):
        if name in refused:
            raise OSError(refused[name], os.strerror(refused[name]))
        return read_file(name, *args, **more)

    def refuse(number, *names):
        refused.clear()
        refused.update(dict.fromkeys(names, number))

    monkeypatch.setattr(address_files, "read_file", read)
    return refuse


@pytest.fixture(params=["known", "lost"])
def index(request, node):
    """Return a function that removes the index, or does nothing. Tests call it before a file becomes unreadable."""
    def lose():
        if request.param == "lost":
            (node.path / ".fastcni.index").unlink()
    return lose


# -- an address file that cannot be read --------------------------------------------------------------------

@pytest.mark.parametrize("number", ERRORS)
def test_del_of_a_pod_whose_file_cannot_be_read_says_so_and_a_later_one_releases_it(node, refuse, index, number):
    """Once, DEL succeeded and the index recorded a wrong owner. The address was never released."""
    node.add(SMALL)
    node.add(SMALL, "other")
    index()
    refuse(number, FIRST)
    for command in ("DEL", "CHECK", "DEL"):
        error = node.refused(command, SMALL)
        assert (error.code, error.msg) == (5, f"read {node.path}/{FIRST}: {os.strerror(number)} (errno {number})")
    refuse(0)
    node.call("CHECK", SMALL)
    node.call("DEL", SMALL)
    assert node.files() == {SECOND: OTHER}


def test_an_unreadable_file_stops_no_other_pod(node, refuse, index):
    node.add(SMALL)
    node.add(SMALL, "other")
    index()
    refuse(errno.EIO, FIRST)
    node.call("CHECK", SMALL, "other")
    assert node.add(SMALL, "third") == ["10.1.0.4"]
    for who in ("other", "third"):
        node.call("DEL", SMALL, who)
    assert node.files() == {FIRST: POD}


def test_gc_keeps_and_names_what_it_cannot_read_and_releases_the_rest(node, refuse, index):
    """Once, an unreadable file had no valid owner, so GC removed the file of a running pod."""
    node.add(SMALL)
    node.add(SMALL, "other")
    index()
    refuse(errno.EIO, FIRST)
    valid = {"cni.dev/valid-attachments": [{"containerID": "pod", "ifname": "eth0"}]}
    for _ in range(2):
        error = node.refused("GC", SMALL, **valid)
        assert error.code == 5 and f"{node.path}/{FIRST}: Input/output error (errno 5)" in error.msg
        assert node.files() == {FIRST: POD}
    refuse(0)
    node.call("GC", SMALL, **valid)
    node.call("CHECK", SMALL)
    node.call("GC", SMALL)
    assert node.files() == {}


def test_del_of_half_a_pod_reports_the_file_it_cannot_read(node, refuse):
    """The pod has two addresses, and the file of the first cannot be read. DEL releases the second address, and fails
    until the first file is readable."""
    ranges = {"ranges": [[{"subnet": "10.1.0.0/29"}], [{"subnet": "fd00::/64"}]]}
    node.add(ranges)
    (node.path / ".fastcni.index").unlink()
    refuse(errno.EIO, FIRST)
    assert FIRST in node.refused("DEL", ranges).msg and list(node.files()) == [FIRST]
    refuse(0)
    node.call("DEL", ranges)
    assert node.files() == {}


def test_an_address_whose_file_cannot_be_read_is_held_by_an_owner_that_is_read_later(node, refuse):
    with Store(str(node.root), "net", print, create=True) as store:
        (node.path / FIRST).write_bytes(POD)            # another program writes the file, without the lock
        refuse(errno.EIO, FIRST)
        packed = bytes([10, 1, 0, 2])
        assert not store.take(packed, OTHER) and store.index.is_held(packed)
        assert store.addresses_of(OTHER) == store.addresses_of(POD) == []
    assert node.refused("DEL", SMALL).code == 5
    refuse(0)
    node.call("DEL", SMALL)
    assert node.files() == {}


def test_the_index_goes_on_being_used_beside_an_unreadable_file(node, refuse, monkeypatch):
    """One unreadable file among 60,000 must not make each request read all files."""
    node.add(SMALL)
    node.add(SMALL, "other")
    (node.path / ".fastcni.index").unlink()
    refuse(errno.EIO, FIRST)
    assert node.refused("CHECK", SMALL).code == 5
    monkeypatch.setattr(Store, "read_all", lambda self: pytest.fail("read all files without need"))
    node.call("DEL", SMALL, "other")
    assert node.refused("DEL", SMALL).code == 5
    refuse(0)
    node.call("DEL", SMALL)
    assert node.files() == {}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_process_without_descriptors_takes_no_file_for_another_pods(node, refuse, index, number):
    node.add(SMALL)
    index()
    refuse(number, FIRST)
    assert node.refused("DEL", SMALL).code == 11
    refuse(0)
    node.call("DEL", SMALL)
    assert node.files() == {}


CALL = """
import sys
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
from pathlib import Path
from unit.kit.ipam.node import SMALL, Node
node = Node(Path({where!r}))
try:
    print(node.call({command!r}, SMALL))
except Exception as e:
    print(type(e).__name__, e)
print(*node.warnings, sep="\\n")
"""


def run(node, command, *wrapper):
    """Run one plugin call in a new process, and return its output. wrapper: words before the command line."""
    code = CALL.format(root=ROOT, where=str(node.root), command=command)
    done = subprocess.run([*wrapper, sys.executable, "-c", code], check=False, capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_the_right_to_read_a_file_del_says_so(node):
    """The server's systemd unit has no CAP_DAC_OVERRIDE, so the server cannot read a file with mode 0."""
    if os.geteuid() != 0 or not which("setpriv"):
        pytest.skip("needs root and setpriv: runs DEL without CAP_DAC_OVERRIDE")
    node.add(SMALL)
    (node.path / FIRST).chmod(0)
    os.chown(node.path / FIRST, 12345, 12345)
    printed = run(node, "DEL", "setpriv", "--bounding-set=-dac_override,-dac_read_search")
    assert f"read {node.path}/{FIRST}: Permission denied (errno 13)" in printed
    node.call("DEL", SMALL)
    assert node.files() == {}


@pytest.mark.parametrize("command", ["DEL", "CHECK", "GC"])
def test_a_disk_that_fails_to_read_a_file_once_loses_nothing(node, command):
    if not which("strace"):
        pytest.skip("needs strace: makes a read(2) fail")
    node.add(SMALL)
    printed = run(node, command, "strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "-P", str(node.path / FIRST),
               "-e", "trace=read", "-e", "inject=read:error=EIO")
    assert f"read {node.path}/{FIRST}: Input/output error (errno 5)" in printed
    assert node.files() == {FIRST: POD}
    node.call("CHECK", SMALL)
    node.call("DEL", SMALL)
    assert node.files() == {}


# -- objects that are no regular files --------------------------------------------------------------------------------

@pytest.fixture(params=KINDS)
def put(request, node):
    """Return a function put(name) that creates an object of another type (a FIFO, a directory, ...) in place of a
    file."""
    def put(name):
        node.path.mkdir(exist_ok=True)
        KINDS[request.param](str(node.path / name))
    return put


def test_a_lock_that_is_no_file_is_refused_and_not_waited_for(node, put):
    """open(2) of a FIFO waits for a writer. Once, the server waited with the GIL, so all its requests waited."""
    put("lock")
    for command in ("ADD", "DEL"):
        assert f"CniError lock {node.path}/lock: " in run(node, command)


def test_a_cursor_that_is_no_file_is_named_and_not_used(node, put):
    put("last_reserved_ip.0")
    printed = run(node, "ADD")
    assert f"'{FIRST}/29'" in printed and f"write {node.path}/last_reserved_ip.0: " in printed
    node.call("DEL", SMALL)
    assert node.files() == {}


def test_an_index_that_is_no_file_is_named_and_not_used(node, put):
    put(".fastcni.index")
    assert node.add(SMALL) == [FIRST] and f"{node.path}/.fastcni.index: " in node.warnings[-1]
    node.call("CHECK", SMALL)
    node.call("DEL", SMALL)
    assert node.files() == {}


def test_an_address_that_is_no_file_is_held_by_nobody_and_stays(node, put):
    """Once, a FIFO counted as an empty file, and its address was given to a pod. GC removed a socket."""
    put(FIRST)
    before = os.lstat(node.path / FIRST)
    assert node.add(SMALL) == [SECOND]
    for command in ("CHECK", "DEL", "DEL", "GC"):
        node.call(command, SMALL)
    after = os.lstat(node.path / FIRST)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert sorted(name for name in os.listdir(node.path) if name[0] == "1") == [FIRST]


# -- a file system that hangs ------------------------------------------------------------------------------------

HANGS = """
import sys, threading, time
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
from pathlib import Path
from unit.kit.ipam.node import SMALL, Node
node, tid, done = Node(Path({where!r})), [], []

def work():
    tid.append(threading.get_native_id())
    node.call({command!r}, SMALL)
    done.append(True)

thread = threading.Thread(target=work)
thread.start()
seen = 0
while not done:
    with open(f"/proc/self/task/{{tid[0]}}/stat" if tid else "/proc/self/stat") as file:
        stopped = file.read().rpartition(")")[2].split()[0] == "t"
    seen = seen + 1 if stopped else 0
    if seen == 3:
        print("another thread goes on")
        break
    time.sleep(0.01)
thread.join()
"""


@pytest.mark.parametrize(("command", "call", "name"), [
    ("ADD", "openat", "lock"), ("ADD", "flock", "net/lock"), ("ADD", "openat", ".fastcni.index"),
    ("ADD", "pread64", "net/.fastcni.index"),
    ("ADD", "pwrite64", "net/.fastcni.index"), ("ADD", "utimensat", "net"), ("ADD", "close", "net/.fastcni.index"),
    ("ADD", "close", "net/lock"), ("ADD", "linkat", SECOND), ("ADD", "openat", "last_reserved_ip.0"),
    ("DEL", "openat", FIRST), ("DEL", "read", f"net/{FIRST}"), ("DEL", "unlinkat", FIRST)])
def test_a_file_system_that_hangs_holds_up_its_own_request_only(node, command, call, name):
    """Once, the server opened the lock and the index, and read the index's pages, without releasing the GIL."""
    if not which("strace"):
        pytest.skip("needs strace: delays a system call")
    node.add(SMALL, "pod" if command == "DEL" else "other")
    path = str(node.root / name) if "/" in name or name == "net" else name
    code = HANGS.format(root=ROOT, where=str(node.root), command=command)
    strace = ["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "-P", path, "-e", f"trace={call}",
              "-e", f"inject={call}:delay_enter=500000:when=1"]
    done = subprocess.run([*strace, sys.executable, "-c", code], check=False, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0 and done.stdout == "another thread goes on\n", done.stderr


# -- directories ------------------------------------------------------------------------------------------------------

def test_whatever_the_umask_nobody_else_may_write_to_the_directories(tmp_path):
    """Once, with umask 0, the directories above a network's directory had mode 0777."""
    before = os.umask(0)
    try:
        node = Node(tmp_path / "lib" / "cni" / "networks")
        node.add(SMALL)
    finally:
        os.umask(before)
    for directory in (node.path, *node.path.parents):
        if directory == tmp_path:
            break
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o755, directory
