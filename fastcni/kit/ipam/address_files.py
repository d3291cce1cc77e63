"""Read, create and remove the address files of one host-local network, with the reference plugin's layout and contents.

    <dataDir>/<network>/              0755
        10.1.2.5, fd00:9::2           0600, "<container id>\\r\\n<ifname>"; old files have only the id
        last_reserved_ip.<set>        0600, the cursor: the last allocated address of a range set, as text

Creating an address's file exclusively (O_EXCL) allocates the address. fastcni ignores subdirectories.

A file that cannot be read (EIO, ESTALE, EACCES) has an unknown owner. A pipe, a directory or a symbolic link with the
name of an address keeps the address from being allocated, and has no owner.

A crash or a power cut can leave a file empty or full of NUL bytes. No DEL ever matches such a torn file, so fastcni
treats its address as free, and removes the file with a warning. A file with any printable content holds its address:
the content may be an operator's remark. fastcni reads an empty file again after EMPTY_S seconds, because a program
without the lock may have just created the file.

With sync=True (`ipam.fsync`), fastcni writes file and directory to disk before it answers the request. The default is
off, as in the reference. On ext4 over a virtio disk, an ADD takes 0.08 ms without and 0.4 to 1.5 ms with sync
(bench_ipam.py).
sync protects the addresses of pods that were added just before a power cut. Without sync, DEL and GC release these
addresses after the power cut.
"""

from __future__ import annotations

import errno
import posix

from fastcni._abandoned import check_request
from fastcni._system import read_file, write_file
from fastcni.kernel import waiting
from fastcni.spec import address
from fastcni.spec.errors import INVALID_CONFIG, IO_FAILURE, CniError, of_errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# With these errors (too many open files, no memory, a signal) the request fails, because they say nothing about the
# file.
TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
NOT_A_FILE = (errno.EISDIR, errno.EOPNOTSUPP, errno.ELOOP, errno.ENXIO, errno.ENODEV)     # directory, pipe, link ...
OWNER_BYTES = 512                   # longer than any owner: a container id (255 bytes), CRLF, an interface name
MAX_BYTES = 1 << 20                 # most bytes read of a file: an operator's remark may be longer than an owner
NO_OWNER = b"/"                     # owner of files that are not regular: no id and no interface name has a slash
UNKNOWN = b"//"                     # owner of a file that could not be read
CONTROL = bytes(b for b in range(32) if b not in b"\t\n\r") + b"\x7f"
READ = posix.O_RDONLY | posix.O_NOFOLLOW
WRITE = posix.O_CREAT | posix.O_NOFOLLOW
CREATE = WRITE | posix.O_EXCL
DIRECTORY = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC
EMPTY_S = 0.01                      # seconds; a program needs much less from creating a file to writing it
FIRST_CHARACTERS = "0123456789abcdef:"      # characters that begin an address


def owner_of(container_id: str, ifname: str = "") -> bytes:
    """Return the content of an address file."""
    return f"{container_id}\r\n{ifname}".strip().encode()


def owner_text(owner: bytes) -> str:
    """Return an owner as text for people: "id eth0"."""
    return " ".join(owner.decode("utf-8", "replace").split())


def is_attachment(owner: bytes) -> bool:
    """Return whether ADD wrote this content: an id alone, or an id and an interface. An operator's remark has another
    form."""
    return len(owner.split(None)) == (2 if b"\r\n" in owner else 1)


def is_torn(content: bytes) -> bool:
    """Return whether the content is torn, that is, empty or with bytes that are not text. No complete write leaves such
    content."""
    return not content or len(content.translate(None, CONTROL)) != len(content)


def wait_for_content() -> None:
    """Wait EMPTY_S seconds, so that a program without the lock can write a file that it has created."""
    waiting.readable(-1, EMPTY_S, waiting.LOCK)


def address_of(name: str) -> bytes | None:
    """Return the packed address of a file's name; None if the name is not the canonical text of an address."""
    try:
        packed = address.read_ip(name)
    except ValueError:
        return None
    return packed if address.ip_text(packed) == name else None


class Unreadable(CniError):
    """An address file that exists and cannot be read: CniError 5 with the path and errno. The file's owner is
    unknown."""


class AddressFiles:
    """The directory of a network. Two threads must not use an object at the same time.

    path        the directory's path
    fd          the directory's descriptor while it is open, otherwise -1
    changed     True after an attempt to create or remove a file
    unreadable  an Unreadable for each file that could not be read
    warn        warn(text) prints a warning for the operator
    sync        whether to write changes to disk, see above

    Methods raise CniError 5 with the path and the kernel's message, unless their docstring names another error.
    """

    __slots__ = ("changed", "data_dir", "fd", "path", "sync", "unreadable", "warn")

    def __init__(self, data_dir: str, network: str, warn: Callable[[str], object], sync: bool = False) -> None:
        """Open nothing. Raises CniError 7 for a network name that cannot be a directory's name."""
        if not network or network in (".", "..") or "/" in network or "\0" in network:
            raise CniError(INVALID_CONFIG, "invalid characters found in network name", network)
        self.data_dir, self.warn, self.sync = data_dir, warn, sync
        self.path = f"{data_dir.rstrip('/')}/{network}"
        self.fd, self.changed = -1, False
        self.unreadable: list[Unreadable] = []

    def open(self, create: bool) -> bool:
        """Open the directory. Without `create`, return False if it does not exist."""
        try:
            self.fd = posix.open(self.path, DIRECTORY)
        except FileNotFoundError:
            if not create:
                return False
            try:
                from fastcni.kit.call.files import make_directories

                make_directories(self.path, 0o755)
                self.fd = posix.open(self.path, DIRECTORY)
            except OSError as e:
                raise self.error("create", "", e) from None
        except OSError as e:
            raise self.error("open", "", e) from None
        return True

    def write_out(self) -> None:
        """If sync is on, have the kernel write a changed directory to the disk."""
        if self.sync and self.changed:
            try:
                posix.fsync(self.fd)
            except OSError as e:
                raise self.error("fsync", "", e) from None

    def names(self) -> list[str]:
        """Return the names that begin like an address."""
        try:
            return [name for name in posix.listdir(self.fd) if name[0] in FIRST_CHARACTERS]
        except OSError as e:
            raise self.error("list", "", e) from None

    def read(self, name: str) -> bytes | None:
        """Return the trimmed content of a file; None if it does not exist, NO_OWNER if it is no regular file. Raises
        Unreadable."""
        try:
            content = read_file(name, READ, OWNER_BYTES, self.fd, regular=True)
            if len(content) == OWNER_BYTES:
                content = read_file(name, READ, MAX_BYTES, self.fd, regular=True)
        except FileNotFoundError:
            return None
        except OSError as e:
            if e.errno in NOT_A_FILE:
                return NO_OWNER
            if e.errno in TRANSIENT:
                raise self.error("read", name, e) from None
            raise Unreadable(IO_FAILURE, f"read {self.path}/{name}: {e.strerror} (errno {e.errno})",
                             "the file names the address's pod; is the disk sound, may root read the file?") from None
        return content.strip()

    def read_owner(self, name: str) -> bytes | None:
        """Return read(), which is None for a missing file. For a file that cannot be read, return UNKNOWN, add the file
        to `unreadable`, and warn."""
        try:
            return self.read(name)
        except Unreadable as e:
            self.unreadable.append(e)
            self.warn(e.msg)
            return UNKNOWN

    def create(self, name: str, owner: bytes) -> bytes | None:
        """Create the file of an address. Return None, or the owner of an existing file.

        Replace a torn file. If create() raises an error, no new file is left.
        """
        self.changed = True             # also after a failure: the file may have existed for a moment
        for _ in range(3):
            try:
                write_file(name, owner, CREATE, self.fd, sync=self.sync)
                return None
            except FileExistsError:
                content = self.read_owner(name)
            except OSError as e:
                raise self.error("create", name, e) from None
            if content == b"":
                wait_for_content()
                content = self.read_owner(name)
            if content is None:
                continue                        # a program without the lock has just removed the file
            if not is_torn(content):
                return content
            self.warn(f"{self.path}/{name}: empty or torn address file reclaimed")
            self.remove(name)
        raise self.error("create", name, FileExistsError(errno.EEXIST, posix.strerror(errno.EEXIST)))

    def remove(self, name: str) -> None:
        """Remove a file; success if it does not exist."""
        check_request()
        self.changed = True
        try:
            posix.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise self.error("remove", name, e) from None

    def read_cursor(self, number: int) -> bytes | None:
        """Return the last allocated address of range set `number`, packed, or None. If that address is lost, only the
        order of allocation changes."""
        try:
            content = self.read(f"last_reserved_ip.{number}")
            return address.read_ip(content.decode("ascii")) if content else None
        except ValueError:
            return None
        except Unreadable as e:
            self.warn(e.msg)
            return None

    def write_cursor(self, number: int, packed: bytes) -> None:
        """Write the last allocated address; a failure is a warning.

        Overwrite the file, then cut it to the new length. After a truncation to 0, ext4 would write the file to the
        disk on close.
        """
        name, text = f"last_reserved_ip.{number}", address.ip_text(packed).encode()
        try:
            write_file(name, text, WRITE, self.fd, cut=True, regular=True)
        except OSError as e:
            self.warn(str(self.error("write", name, e)))

    def error(self, verb: str, name: str, error: OSError) -> CniError:
        """Return the CniError, 5 or 11, for a kernel error. name "": the directory itself."""
        path = f"{self.path}/{name}" if name else self.path
        return CniError(of_errno(error.errno or 0), f"{verb} {path}: {error.strerror} (errno {error.errno})",
                        f'ipam.dataDir is "{self.data_dir}"; is that a directory that can be written, '
                        "with free space and inodes?")
