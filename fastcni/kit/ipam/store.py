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

A file that cannot be read (EIO, ESTALE, EACCES) has an unknown owner. The index notes that, and each request reads the
file again. A request that may be about it fails with code 5 and the file's name; ADD gives other addresses.
A pipe, a folder or a symbolic link named like an address holds it for nobody.

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
from fastcni._netlink import check_request, open_regular, read_file, write_file
from fastcni.kernel import sysctl, waiting
from fastcni.spec import address
from fastcni.spec.errors import INVALID_CONFIG, IO_FAILURE, TRY_AGAIN_LATER, CniError

# Errors of the moment, which are not about a file: the whole request fails.
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
NOT_A_FILE = (errno.EISDIR, errno.EOPNOTSUPP, errno.ELOOP, errno.ENXIO, errno.ENODEV)     # a folder, a pipe, a link ...
USUAL, MOST = 512, 1 << 20          # bytes of a file: an owner is at most a name's length and 17; what is looked at
NOBODY = b"/"                       # the owner of what is no file: neither an id nor an interface name has a slash
UNKNOWN = b"//"                     # the owner whose file could not be read
CONTROL = bytes(b for b in range(32) if b not in b"\t\n\r") + b"\x7f"
WRITE = posix.O_CREAT | posix.O_NOFOLLOW
CREATE = WRITE | posix.O_EXCL
LOCK = posix.O_RDONLY | WRITE
known_boot_id = b""                 # of a process that has asked; it lasts as long as the boot
READ = posix.O_RDONLY | posix.O_NOFOLLOW


def owner_of(container_id, ifname=""):
    """The content of an address file."""
    return f"{container_id}\r\n{ifname}".strip().encode()


def is_torn(content):
    """Nothing that a whole write leaves: empty, or with bytes that no text has."""
    return not content or len(content.translate(None, CONTROL)) != len(content)


class Unreadable(CniError):
    """An address file that is there and cannot be read, with its path and errno; its owner is not known."""


class Store:
    """A network's directory, open and locked inside `with`. Not for use by two threads at once.

    `with Store(...) as store` gives None when the directory does not exist and create is False.
    Raises CniError: 7 for a name that is no directory name, 5 with the path and the kernel's words otherwise.
    """

    __slots__ = ("changed", "create", "data_dir", "dir", "index", "lock", "network", "path", "sync",
                 "unreadable", "warn")

    def __init__(self, data_dir, network, warn, create=False, sync=False):
        if not network or network in (".", "..") or "/" in network or "\0" in network:
            raise CniError(INVALID_CONFIG, "invalid characters found in network name", network)
        self.data_dir, self.network, self.warn, self.create, self.sync = data_dir, network, warn, create, sync
        self.path = f"{data_dir.rstrip('/')}/{network}"
        self.dir = self.lock = -1
        self.index, self.changed = None, False
        self.unreadable = []            # an Unreadable for each file that could not be read

    # -- open and close -------------------------------------------------------------------------------

    def __enter__(self):
        try:
            if not self._open_directory():
                return None
            try:
                self.lock = open_regular("lock", LOCK, 0o750, folder=self.dir)
                self._take_lock()
            except OSError as e:
                raise self._trouble("lock", "lock", e) from None
            self.index = _ipam_bitmap.Index(self.dir, boot_id())
            if self.index.fresh:
                self._read_unknown()
            else:
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
            # After a CniError files and index agree. After any other error the index is not written, so that the files
            # of a changed folder are read again.
            if self.index.dirty and (kind is None or issubclass(kind, CniError)):
                self.index.sign()
            if self.index.trouble:
                why = posix.strerror(self.index.trouble)
                self.warn(f"{self.path}/.fastcni.index: {why}; working without it")
        except OSError as e:
            raise self._trouble("fsync", "", e) from None
        finally:
            self._close()

    def _take_lock(self):
        if not waiting.lock(self.lock, waiting.LOCK_TIMEOUT_S):
            seconds = waiting.limit(waiting.LOCK_TIMEOUT_S)
            raise CniError(TRY_AGAIN_LATER, f"lock {self.path}/lock: not free within {seconds:g} s",
                           f"`fuser -v {self.path}/lock` shows which process holds it; a plugin needs milliseconds")

    def _open_directory(self):
        flags = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC
        try:
            self.dir = posix.open(self.path, flags)
        except FileNotFoundError:
            if not self.create:
                return False
            try:
                from fastcni.kit.call.files import make_folders

                make_folders(self.path, 0o755)
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
            _ipam_bitmap.unlock(self.lock, self.dir)
        elif self.dir >= 0:
            posix.close(self.dir)
        self.dir = self.lock = -1
        self.index = None

    # -- what is held ---------------------------------------------------------------------------------

    def addresses_of(self, owner):
        """The packed addresses whose files say `owner`, from the index, each file read."""
        return [packed for packed in self.index.addresses_of(owner) if self._agrees(packed, owner)]

    def read_all(self):
        """Read every file, make the index anew; returns ([(packed, owner)], [packed of a torn file])."""
        self.index.clear()
        self.unreadable.clear()
        held, torn = [], []
        for name in self._names():
            packed = address_of(name)
            content = self._read_owner(name) if packed is not None else None
            if content is None:
                continue
            if is_torn(content):
                torn.append(packed)
                continue
            self.index.hold(packed, content)
            if content not in (NOBODY, UNKNOWN):
                held.append((packed, content))
        if torn:
            some = " ".join(address.ip_text(packed) for packed in torn[:10])
            more = f" and {len(torn) - 10} more" if len(torn) > 10 else ""
            self.warn(f"{self.path}: empty or torn address files, taken as free: {some}{more}")
        return held, torn

    def _read_unknown(self):
        """Read the files again that could not be read; the index learns the owners of those that can be now."""
        for packed in self.index.addresses_of(UNKNOWN):
            content = self._read_owner(address.ip_text(packed))
            if content != UNKNOWN:
                self._correct(packed, UNKNOWN, content)

    def check_all_read(self):
        """Raise the CniError 5 of the files that could not be read: any of them may be the caller's."""
        if self.unreadable:
            raise self.unreadable[0]

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
        try:
            content = self._read(f"last_reserved_ip.{number}")
            return address.read_ip(content.decode("ascii")) if content else None
        except ValueError:
            return None
        except Unreadable as e:
            self.warn(e.msg)
            return None

    def write_cursor(self, number, packed):
        """Note the address given out last. Not truncated to nothing first: ext4 would write it out on closing."""
        name, text = f"last_reserved_ip.{number}", address.ip_text(packed).encode()
        try:
            write_file(name, text, WRITE, self.dir, cut=True, regular=True)
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
                content = self._read_owner(name)
            if content is None:
                continue                        # gone in between: somebody works without the lock
            if not is_torn(content):
                self.index.hold(packed, content)
                return False
            self.warn(f"{self.path}/{name}: empty or torn address file reclaimed")
            self._unlink(name)
        raise OSError(errno.EEXIST, posix.strerror(errno.EEXIST))

    def _agrees(self, packed, owner):
        """The file of this address says `owner`. If not, the index learns what it says. Raises Unreadable."""
        content = self._read(address.ip_text(packed))
        if content == owner:
            return True
        self._correct(packed, owner, content)
        return False

    def _correct(self, packed, owner, content):
        """The index had `owner` for this address, its file has `content`."""
        self.index.drop(packed, owner)
        if content is not None and not is_torn(content):
            self.index.hold(packed, content)

    def _read_owner(self, name):
        """As _read(), but UNKNOWN, which is noted in self.unreadable, where the file cannot be read."""
        try:
            return self._read(name)
        except Unreadable as e:
            self.unreadable.append(e)
            self.warn(e.msg)
            return UNKNOWN

    def _read(self, name):
        """The trimmed content of a file; None when there is none, NOBODY when it is no file. Raises Unreadable."""
        try:
            content = read_file(name, READ, USUAL, self.dir, regular=True)
            if len(content) == USUAL:
                content = read_file(name, READ, MOST, self.dir, regular=True)
        except FileNotFoundError:
            return None
        except OSError as e:
            if e.errno in NOT_A_FILE:
                return NOBODY
            if e.errno in PASSING:
                raise self._trouble("read", name, e) from None
            raise Unreadable(IO_FAILURE, f"read {self.path}/{name}: {e.strerror} (errno {e.errno})",
                             "it says which pod has the address; is the disk sound, may root read it?") from None
        return content.strip()

    def _names(self):
        """The names that look like addresses."""
        try:
            return [name for name in posix.listdir(self.dir) if name[0] in "0123456789abcdef:"]
        except OSError as e:
            raise self._trouble("list", "", e) from None

    def _unlink(self, name):
        check_request()
        self.changed = True
        try:
            posix.unlink(name, dir_fd=self.dir)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise self._trouble("remove", name, e) from None

    def _trouble(self, verb, name, error):
        path = f"{self.path}/{name}" if name else self.path
        return CniError(IO_FAILURE, f"{verb} {path}: {error.strerror} (errno {error.errno})",
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
