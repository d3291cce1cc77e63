"""Keep the held addresses of one host-local network: its files, their lock, and an index to find addresses fast.

    <dataDir>/<network>/
        lock                          0750, flock(2) LOCK_EX around every read and change; the reference plugin's file
        10.1.2.5, fd00:9::2 ...       see address_files.py
        .fastcni.index                only fastcni's, see _ipam_bitmap.pyx. The index may be removed at any time

The files decide which addresses are held, so fastcni and the reference plugin can use one directory. The index finds
candidates. Before fastcni removes a file, it reads the file; if the file contradicts the index, fastcni corrects the
index.

The index misses two changes: a change inside an existing file (no program makes such a change), and a change by a
program without the lock in the microseconds in which fastcni has the lock. fastcni corrects the index when a range is
full, at GC, or after the next change by another program.

The index records a file that cannot be read, and each request reads that file again. A request that may concern the
file fails with code 5 and the file's name; ADD allocates other addresses.
"""

from __future__ import annotations

import posix

from fastcni import _ipam_bitmap
from fastcni._system import open_regular
from fastcni.kernel import sysctl, waiting
from fastcni.kit.ipam.address_files import NO_OWNER, UNKNOWN, WRITE, AddressFiles, address_of, is_torn, wait_for_content
from fastcni.spec import address
from fastcni.spec.errors import TRY_AGAIN_LATER, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

LOCK = posix.O_RDONLY | WRITE
SPACE_DIRECTORY = ".cluster"           # the directory of a cluster-wide address space, see cluster/node_state.py
MAX_LISTED = 10                     # most addresses that a warning names
known_boot_id = b""                 # the boot id, read once per process


class Store:
    """A network's directory, open and locked inside `with`. Two threads must not use an object at the same time.

    `with Store(...) as store` returns None if the directory does not exist and create is False. The first Store after a
    reboot releases the addresses of the previous boot, see before_reboot.py; `released` lists these addresses as
    (packed, owner). With release_former=False the Store leaves these addresses and the index to the next Store.

    Methods raise CniError: 7 for a network name that cannot be a directory's name, 11 if another process holds the lock
    too long, otherwise 5 with the path and the kernel's message.
    """

    __slots__ = ("create", "files", "index", "lock", "network", "release_former", "released", "signs")
    FILES: type[AddressFiles] = AddressFiles

    def __init__(self, data_dir: str, network: str, warn: Callable[[str], object], create: bool = False,
                 sync: bool = False, release_former: bool = True) -> None:
        self.files = self.FILES(data_dir, network, warn, sync)
        self.network, self.create, self.release_former = network, create, release_former
        self.released: list[tuple[bytes, bytes]] = []
        self.lock, self.signs = -1, True
        self.index: Any = None          # the open _ipam_bitmap.Index, or None

    # -- open and close -------------------------------------------------------------------------------

    def __enter__(self) -> Store | None:
        try:
            if not self.files.open(self.create):
                return None
            try:
                self.lock = open_regular("lock", LOCK, 0o750, directory=self.files.fd)
                self._take_lock()
            except OSError as e:
                raise self.files.error("lock", "lock", e) from None
            index = self.index = _ipam_bitmap.Index(self.files.fd, boot_id())
            if self._is_of_another_kind() or (index.former_ns and not self.release_former):
                self.signs = self.release_former = False
            if index.fresh:
                self._read_unknown()
            elif index.former_ns and self.release_former:
                self._begin_boot()
            else:
                self.read_all()
            return self
        except BaseException:
            self._close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            index = self.index
            if index is None:
                return
            self.files.write_out()
            # A CniError leaves files and index in agreement. After any other error, do not write the index, so that the
            # next request reads the files of a changed directory again.
            if self.signs and index.dirty and (kind is None or issubclass(kind, CniError)):
                index.sign()
            if index.trouble:
                why = posix.strerror(index.trouble)
                self.files.warn(f"{self.files.path}/.fastcni.index: {why}; working without it")
        finally:
            self._close()

    def _is_of_another_kind(self) -> bool:
        """Return whether this directory is that of a cluster-wide address space, whose files have more lines than an
        owner. Only requests for that address space release its addresses of an earlier boot and write its index."""
        if not self.index.plain:
            self.index.plain = not posix.access(SPACE_DIRECTORY, posix.F_OK, dir_fd=self.files.fd)
        return not self.index.plain

    def _take_lock(self) -> None:
        if not waiting.lock(self.lock, waiting.LOCK_TIMEOUT_S):
            seconds, path = waiting.limit(waiting.LOCK_TIMEOUT_S), f"{self.files.path}/lock"
            raise CniError(TRY_AGAIN_LATER, f"lock {path}: not free within {seconds:g} s",
                           f"`fuser -v {path}` shows which process holds it; a plugin needs milliseconds")

    def _close(self) -> None:
        if self.index is not None:
            self.index.close()
        if self.lock >= 0:
            _ipam_bitmap.unlock(self.lock, self.files.fd)       # closes both descriptors
        elif self.files.fd >= 0:
            posix.close(self.files.fd)
        self.files.fd = self.lock = -1
        self.index = None

    # -- held addresses ---------------------------------------------------------------------------------

    def addresses_of(self, owner: bytes) -> list[bytes]:
        """Return the packed addresses of this owner. The index finds candidates; read and compare the file of each."""
        return [packed for packed in self.index.addresses_of(owner) if self._has_owner(packed, owner)]

    def read_all(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Read every file and rebuild the index. Return ([(packed, owner)], [packed address of a torn file])."""
        self.index.clear()
        self.files.unreadable.clear()
        held, torn = [], []
        for name in self.files.names():
            packed = address_of(name)
            if packed is None or (content := self.files.read_owner(name)) is None:
                continue
            if is_torn(content):
                torn.append(packed)
                continue
            self.index.hold(packed, content)
            if content not in (NO_OWNER, UNKNOWN):
                held.append((packed, content))
        if torn:
            some = " ".join(address.ip_text(packed) for packed in torn[:MAX_LISTED])
            more = f" and {len(torn) - MAX_LISTED} more" if len(torn) > MAX_LISTED else ""
            self.files.warn(f"{self.files.path}: empty or torn address files, taken as free: {some}{more}")
        return held, torn

    def _begin_boot(self) -> None:
        """Release the addresses of the previous boot, and read the other files."""
        from fastcni.kit.ipam import before_reboot

        found = before_reboot.find(self)
        self.read_all()
        self.released = before_reboot.release(self, found)

    def _read_unknown(self) -> None:
        """Read the unreadable files again, and record in the index the owners of the files that can be read now."""
        for packed in self.index.addresses_of(UNKNOWN):
            content = self.files.read_owner(address.ip_text(packed))
            if content != UNKNOWN:
                self._correct(packed, UNKNOWN, content)

    def network_of(self, name: str) -> str:
        """Return the network of the attachment that has an address file. Call network_of() after reading the file."""
        return self.network

    def check_all_read(self) -> None:
        """Raise CniError 5 if a file could not be read: the address may belong to the caller's container."""
        if self.files.unreadable:
            raise self.files.unreadable[0]

    def recheck(self) -> bool:
        """Read all files if their number differs from the index. Return True if the index now has fewer addresses. Call
        recheck() before a range counts as full.

        recheck() counts the names in the directory, which takes 20 ms for 60,000 names.
        """
        before = len(self.index)
        if len(self.files.names()) == before:
            return False
        self.read_all()
        return len(self.index) < before

    # -- taking and releasing -------------------------------------------------------------------------

    def take(self, packed: bytes, owner: bytes) -> bool:
        """Allocate the address to `owner`. If another owner holds the address, record that owner in the index and
        return False."""
        self.index.reserve()
        holder = self.files.create(address.ip_text(packed), owner)
        if holder is not None:
            self.index.hold(packed, holder)
            return False
        if not self.index.hold(packed, owner):
            self.read_all()         # the index was wrong: a program without the lock had removed the file
        return True

    def release(self, packed: bytes, owner: bytes) -> bool:
        """Remove the address's file if `owner` has it. Return whether the file was removed."""
        if not self._has_owner(packed, owner):
            return False
        self.files.remove(address.ip_text(packed))
        self.index.drop(packed, owner)
        return True

    def release_torn(self, torn: list[bytes]) -> None:
        """Remove the files of these addresses that are still empty or torn."""
        if torn:
            wait_for_content()
        for packed in torn:
            name = address.ip_text(packed)
            content = self.files.read(name)
            if content is not None and is_torn(content):
                self.files.remove(name)

    def _has_owner(self, packed: bytes, owner: bytes) -> bool:
        """Return whether the address's file has this owner. If not, correct the index. Raises Unreadable."""
        content = self.files.read(address.ip_text(packed))
        if content == owner:
            return True
        self._correct(packed, owner, content)
        return False

    def _correct(self, packed: bytes, owner: bytes, content: bytes | None) -> None:
        """Correct the index entry of this address: the index has `owner`, but the file has `content`."""
        self.index.drop(packed, owner)
        if content is not None and not is_torn(content):
            self.index.hold(packed, content)


def boot_id() -> bytes:
    """Return the 36 bytes of this boot's id (random(4)). Return b"" without /proc; Store uses no index in this
    case."""
    global known_boot_id
    if not known_boot_id:
        try:
            known_boot_id = sysctl.boot_id().encode()
        except OSError:
            return b""
    return known_boot_id
