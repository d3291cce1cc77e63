"""The address files of one host-local network, with the Go plugin's layout, lock and contents.

    <dataDir>/<network>/              0755
        lock                          0750, flock(2) LOCK_EX on it around every look and change
        10.1.2.5, fd00:9::2           0600, "<container id>\\r\\n<ifname>"; old files have only the id
        last_reserved_ip.<set>        0600, the textual address given out last, where the search goes on
        .fastcni.index                ours alone: see _ipam_bitmap.pyx. It may be removed at any time

The files are the truth, and both implementations can work on one directory. An address is taken by creating
its file exclusively, and a file is read and compared before it is removed. The index finds candidates; where
a file says something else the index is corrected. What the index cannot know is a change inside an existing
file (nobody makes one) and a change by somebody without the lock during our own few microseconds with it; the
first full range, GC or foreign change after it puts that right. Directories below are not looked into.

A crash or a power cut can leave a file empty or full of NUL bytes. No DEL will ever match it, so such an
address is free here, and reclaimed with a warning. Anything printable is respected, be it a note of an
operator.

With sync=True (`ipam.fsync`), file and directory are on disk before the answer. The default is off, as in the
reference: on ext4 over a virtio disk it took ADD from 0.08 to between 0.4 and 1.5 ms (bench_ipam.py), and what
it protects, an address of a pod that was lost in the same power cut, is what DEL and GC release after it.
"""

import errno
import posix

from fastcni import _ipam_bitmap
from fastcni._netlink import close_file, open_file, read_file, write_file
from fastcni.kernel import sysctl
from fastcni.spec import address
from fastcni.spec.errors import INVALID_CONFIG, IO_FAILURE, CniError

# Troubles of the moment, which say nothing about a file: it must not be taken for somebody else's.
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
USUAL, MOST = 512, 1 << 20          # bytes of a file: an owner is at most a name's length and 17; what is looked at
UNREADABLE = b"/"                   # held, and nobody's: neither an id nor an interface name has a slash
CONTROL = bytes(b for b in range(32) if b not in b"\t\n\r") + b"\x7f"
WRITE = posix.O_CREAT | posix.O_NOFOLLOW
CREATE = WRITE | posix.O_EXCL
known_boot_id = b""                 # of a process that has asked; it lasts as long as the boot
READ = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK


def owner_of(container_id, ifname=""):
    """The content of an address file."""
    return f"{container_id}\r\n{ifname}".strip().encode()


def is_torn(content):
    """Nothing that a whole write leaves: empty, or with bytes that no text has."""
    return not content or len(content.translate(None, CONTROL)) != len(content)


class Store:
    """A network's directory, open and locked inside `with`. Not for use by two threads at once.

    `with Store(...) as store` gives None when the directory does not exist and create is False.
    Raises CniError: 7 for a name that is no directory name, 5 with the path and the kernel's words otherwise.
    """

    __slots__ = ("changed", "create", "data_dir", "dir", "index", "lock", "network", "path", "sync", "warn")

    def __init__(self, data_dir, network, warn, create=False, sync=False):
        if not network or network in (".", "..") or "/" in network or "\0" in network:
            raise CniError(INVALID_CONFIG, "invalid characters found in network name", network)
        self.data_dir, self.network, self.warn, self.create, self.sync = data_dir, network, warn, create, sync
        self.path = f"{data_dir.rstrip('/')}/{network}"
        self.dir = self.lock = -1
        self.index, self.changed = None, False

    # -- open and close -------------------------------------------------------------------------------

    def __enter__(self):
        try:
            if not self._open_directory():
                return None
            try:
                self.lock = open_file("lock", posix.O_RDONLY | posix.O_CREAT, 0o750, folder=self.dir)
                _ipam_bitmap.lock(self.lock)
            except OSError as e:
                raise self._trouble("lock", "lock", e) from None
            self.index = _ipam_bitmap.Index(self.dir, boot_id())
            if not self.index.fresh:
                self.read_all()
            return self
        except BaseException:
            self._close()
            raise

    def __exit__(self, kind, error, trace):
        try:
            if self.index is None:
                return
            if self.sync and self.changed:
                posix.fsync(self.dir)
            # An error of our own left files and index in agreement; after any other, all files are read again.
            if self.index.dirty and (kind is None or issubclass(kind, CniError)):
                self.index.sign()
            if self.index.trouble:
                why = posix.strerror(self.index.trouble)
                self.warn(f"{self.path}/.fastcni.index: {why}; working without it")
        except OSError as e:
            raise self._trouble("fsync", "", e) from None
        finally:
            self._close()

    def _open_directory(self):
        flags = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC
        try:
            self.dir = posix.open(self.path, flags)
        except FileNotFoundError:
            if not self.create:
                return False
            try:
                from os import makedirs  # once in the life of a network; os itself costs 0.9 ms

                makedirs(self.path, 0o755, exist_ok=True)
                self.dir = posix.open(self.path, flags)
            except OSError as e:
                raise self._trouble("create", "", e) from None
        except OSError as e:
            raise self._trouble("open", "", e) from None
        return True

    def _close(self):
        if self.index is not None:
            self.index.close()
        if self.lock >= 0:
            _ipam_bitmap.unlock(self.lock)
            close_file(self.lock)
        if self.dir >= 0:
            close_file(self.dir)
        self.dir = self.lock = -1
        self.index = None

    # -- what is held ---------------------------------------------------------------------------------

    def addresses_of(self, owner):
        """The packed addresses whose files say `owner`, from the index, each file read."""
        return [packed for packed in self.index.addresses_of(owner) if self._agrees(packed, owner)]

    def read_all(self):
        """Read every file, make the index anew; returns ([(packed, owner)], [packed of a torn file])."""
        self.index.clear()
        held, torn = [], []
        for name in self._names():
            packed = address_of(name)
            content = self._read(name) if packed is not None else None
            if content is None:
                continue
            if is_torn(content):
                torn.append(packed)
                continue
            self.index.hold(packed, content)
            held.append((packed, content))
        if torn:
            some = " ".join(address.ip_text(packed) for packed in torn[:10])
            more = f" and {len(torn) - 10} more" if len(torn) > 10 else ""
            self.warn(f"{self.path}: empty or torn address files, taken as free: {some}{more}")
        return held, torn

    def recheck(self):
        """Before saying "full": are there as many files as the index says? If not read them; True if it helped.

        Names are counted, not read: 60,000 of them take 20 ms.
        """
        before = len(self.index)
        if len(self._names()) == before:
            return False
        self.read_all()
        return len(self.index) < before

    # -- taking and releasing -------------------------------------------------------------------------

    def take(self, packed, owner):
        """Make the address owner's. False when it is held by somebody, which the index then knows."""
        name = address.ip_text(packed)
        self.index.make_room()
        self.changed = True             # also by what fails: a file may have been there for a moment
        try:
            if not self._create(name, packed, owner):
                return False
        except OSError as e:
            raise self._trouble("create", name, e) from None
        if not self.index.hold(packed, owner):
            self.read_all()         # the index had it held, without a file: somebody worked without the lock
        return True

    def release(self, packed, owner):
        """Remove the address's file if it says `owner`; else leave it alone. Says whether it did."""
        if not self._agrees(packed, owner):
            return False
        self._unlink(address.ip_text(packed))
        self.index.drop(packed, owner)
        return True

    def release_torn(self, packed):
        """Remove the address's file if it is (still) empty or torn."""
        name = address.ip_text(packed)
        content = self._read(name)
        if content is not None and is_torn(content):
            self._unlink(name)

    # -- the cursor -----------------------------------------------------------------------------------

    def read_cursor(self, number):
        """The address given out last for range set `number`, or None. Losing it costs fairness only."""
        content = self._read(f"last_reserved_ip.{number}")
        try:
            return address.read_ip(content.decode("ascii")) if content else None
        except ValueError:
            return None

    def write_cursor(self, number, packed):
        """Note the address given out last. Not truncated to nothing first: ext4 would write it out on closing."""
        name, text = f"last_reserved_ip.{number}", address.ip_text(packed).encode()
        try:
            write_file(name, text, WRITE, self.dir, cut=True)
        except OSError as e:
            self.warn(str(self._trouble("write", name, e)))

    # -- files ----------------------------------------------------------------------------------------

    def _create(self, name, packed, owner):
        """Make the file of an address. False when somebody has the address. Raises OSError, and leaves no file."""
        for _ in range(3):
            try:
                write_file(name, owner, CREATE, self.dir, sync=self.sync)
                return True
            except FileExistsError:
                content = self._read(name)
            if content is None:
                continue                        # gone in between: somebody works without the lock
            if not is_torn(content):
                self.index.hold(packed, content)
                return False
            self.warn(f"{self.path}/{name}: empty or torn address file reclaimed")
            self._unlink(name)
        raise OSError(errno.EEXIST, posix.strerror(errno.EEXIST))

    def _agrees(self, packed, owner):
        """The file of this address says `owner`. If it does not, the index learns what it says."""
        content = self._read(address.ip_text(packed))
        if content == owner:
            return True
        self.index.drop(packed, owner)
        if content is not None and not is_torn(content):
            self.index.hold(packed, content)
        return False

    def _read(self, name):
        """The trimmed content of a file; None when there is none, UNREADABLE when it is no readable file."""
        try:
            content = read_file(name, READ, USUAL, self.dir)
            if len(content) == USUAL:
                content = read_file(name, READ, MOST, self.dir)
        except FileNotFoundError:
            return None
        except OSError as e:
            if e.errno in PASSING:
                raise self._trouble("read", name, e) from None
            return UNREADABLE
        return content.strip()

    def _names(self):
        """The names that look like addresses."""
        try:
            return [name for name in posix.listdir(self.dir) if name[0] in "0123456789abcdef:"]
        except OSError as e:
            raise self._trouble("list", "", e) from None

    def _unlink(self, name):
        self.changed = True
        try:
            posix.unlink(name, dir_fd=self.dir)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise self._trouble("remove", name, e) from None

    def _trouble(self, verb, name, error):
        path = f"{self.path}/{name}" if name else self.path
        return CniError(IO_FAILURE, f"{verb} {path}: {posix.strerror(error.errno)} (errno {error.errno})",
                        f'ipam.dataDir is "{self.data_dir}"; is that a directory that can be written, '
                        "with free space and inodes?")


def address_of(name):
    """The packed address that a file's name is, or None for what else lies there."""
    try:
        packed = address.read_ip(name)
    except ValueError:
        return None
    return packed if address.ip_text(packed) == name else None


def boot_id():
    """The 36 bytes of this boot's id (random(4)); b"" without /proc, and then no index is believed."""
    global known_boot_id
    if not known_boot_id:
        try:
            known_boot_id = sysctl.read("kernel/random/boot_id").encode()
        except OSError:
            return b""
    return known_boot_id
