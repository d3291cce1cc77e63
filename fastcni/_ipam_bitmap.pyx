# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: binding=False, embedsignature=False, auto_pickle=False
"""An index of the held addresses of one network and their owners, in a file and in memory. The index knows bytes, but
no names and no ranges.

The address files of the directory are authoritative, never the index. The index answers two questions without reading
these files: "which address is free next?" and "which addresses does this owner hold?". Its file is `.fastcni.index` in
the same directory; the Go plugin ignores that file. The tables are in _ipam_tables.pxd.

The index reads the file into memory and writes changed pages back. It never maps the file. If the disk has no space for
a page of a mapped file, or another program truncates the file, SIGBUS ends the process. A slow read of a mapped page
stops all threads that wait for the GIL. A cached copy costs 4 to 8 us a request more than a mapping did; a one-shot
plugin reads 60,000 addresses in 0.5 ms.

The index notices changes by other programs, because creating or removing a file updates the directory's mtime. `sign()`
sets that mtime to two seconds ago and records it together with the resulting ctime. No later change can produce the
same mtime, because the clock is past that time, even on file systems with a granularity of a second (ext4 with 128-byte
inodes). A program that sets the mtime back (tar, rsync, touch) changes the ctime. Opening compares mtime, ctime, the
inode of the directory, and:
- the checksums of the header and of all pages. sign() writes the pages, then sets the mtime, then writes the first
  page with the header. A process that is killed while it writes leaves pages that do not match the header. A process
  that is killed earlier leaves the old file, which does not match the directory;
- the boot id. Written data survives a killed process, but after a power failure the directory and the file can be from
  different moments. So a file from another boot answers neither question. From such a file kit/ipam/before_reboot.py
  reads only the addresses that were held in that boot;
- magic, layout version, capacities and the size of the file.

If the file cannot be created or written (full disk), the index works in memory until it is closed, with the same
answers.

Sources: open(2), flock(2), pwrite(2), utimensat(2), random(4) for the boot id.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset
from posix.types cimport off_t
from posix.unistd cimport close, ftruncate

from fastcni._ipam_file cimport Found, is_local, open_index, read_pages, set_mtime, write_first, write_pages
from fastcni._ipam_tables cimport (
    BOOT_ID_SIZE, LAYOUT, MAX_CAPACITY, MIN_BLOCKS, MIN_OWNERS, PAGE, Address, Block, Header, Owner, Tables,
    bit_of, count_held, crowded, find_block, find_owner, good_cap, header_sum, memory_for, mixed, point, put_all,
    put_block, put_owner, remove_block, remove_owner, seek_free, seek_oldest, size_of, touch,
)

cdef extern from "<endian.h>" nogil:
    uint64_t be64toh(uint64_t)
    uint64_t htobe64(uint64_t)

cdef extern from "<sys/file.h>" nogil:
    enum: LOCK_UN
    int flock(int, int)


cdef uint64_t owner_hash(bytes owner) noexcept:
    """Return the FNV-1a hash of an owner, mixed. A collision, even a forced one, only costs reading one more file."""
    cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(owner)
    cdef uint64_t h = <uint64_t> 0xcbf29ce484222325
    cdef Py_ssize_t i
    for i in range(PyBytes_GET_SIZE(owner)):
        h = (h ^ p[i]) * <uint64_t> 0x100000001b3
    return mixed(h) | 1           # 0 is the empty entry


cdef int load(bytes packed, Address* a) except -1:
    """Set `a` to the address `packed`, 4 or 16 bytes. An IPv4 address becomes an IPv4-mapped IPv6 address."""
    cdef uint64_t halves[2]
    if PyBytes_GET_SIZE(packed) == 4:
        memset(halves, 0, 10)
        memset(<char*> halves + 10, 0xff, 2)
        memcpy(<char*> halves + 12, PyBytes_AS_STRING(packed), 4)
    elif PyBytes_GET_SIZE(packed) == 16:
        memcpy(halves, PyBytes_AS_STRING(packed), 16)
    else:
        raise ValueError("an address is 4 or 16 bytes")
    a.hi = be64toh(halves[0])
    a.lo = be64toh(halves[1])
    return 0


cdef bytes packed_of(uint64_t hi, uint64_t lo):
    """Return an Address as 4 or 16 bytes."""
    cdef uint64_t[2] halves = [htobe64(hi), htobe64(lo)]
    if hi == 0 and lo >> 32 == 0xffff:
        return PyBytes_FromStringAndSize(<const char*> halves + 12, 4)
    return PyBytes_FromStringAndSize(<const char*> halves, 16)


def unlock(int fd, int directory=-1):
    """Release the lock on the file `fd`, then close the file and the directory.

    Closing alone does not release the lock while a child that was just forked still has the descriptor.
    """
    with nogil:
        flock(fd, LOCK_UN)
        close(fd)
        if directory >= 0:
            close(directory)


# -- copies of closed files, for the next request of the same network ----------------------------------------
#
# A kept copy equals its file as long as both have the same header: the header has a checksum of all pages, and each
# write changes it. Without a copy, reading and checking 60,000 addresses takes 0.5 ms.

cdef enum:
    MAX_KEPT = 8
    MAX_KEPT_BYTES = 4194304      # the maximum size of one copy

cdef struct Copy:
    Header* head                  # NULL: no copy
    size_t size
    uint64_t dev, ino             # device and inode of the copied file

cdef Copy kept[MAX_KEPT]          # protected by the GIL
cdef int next_kept = 0


cdef void keep(Copy it) noexcept:
    """Keep a copy in place of the oldest copy. A copy of more than MAX_KEPT_BYTES is freed instead."""
    global next_kept
    if it.size > MAX_KEPT_BYTES:
        free(it.head)
        return
    free(kept[next_kept].head)
    kept[next_kept] = it
    next_kept = (next_kept + 1) % MAX_KEPT


cdef Header* take_kept(uint64_t dev, uint64_t ino, const Header* head) noexcept:
    """Return the kept copy of a file whose header is `head`, else NULL. An older copy of the file is freed."""
    cdef int i
    cdef Header* found = NULL
    for i in range(MAX_KEPT):
        if kept[i].head != NULL and kept[i].dev == dev and kept[i].ino == ino:
            if found == NULL and memcmp(kept[i].head, head, sizeof(Header)) == 0:
                found = kept[i].head
            else:
                free(kept[i].head)
            kept[i].head = NULL
    return found


def forget():
    """Free the kept copies."""
    cdef int i
    for i in range(MAX_KEPT):
        free(kept[i].head)
        kept[i].head = NULL


@cython.final
cdef class Index:
    """The index of the directory open as `dirfd`. The caller has the directory's lock, and closes the index.

    boot     the 36 bytes of the kernel's boot id; an index with any other value is not used when it is opened again
    fresh    whether the index matches the directory. If not, the index is empty, and the caller reads the files and
             calls hold() for each address
    former_ns  0, or if the file is from another boot: when it was written, in nanoseconds of the clock of that boot
    trouble  the errno because of which the index has no file; 0: it has a file
    plain    whether the directory is known to have no cluster-wide addresses; sign() records this
    """
    cdef int dirfd
    cdef int fd                   # the index file, -1: in memory
    cdef off_t length             # of the file
    cdef uint64_t dev, ino        # of the file
    cdef Tables t
    cdef bytes boot
    cdef readonly bint dirty      # the index has changed since sign()
    cdef readonly bint fresh
    cdef public bint plain
    cdef readonly int trouble
    cdef readonly object former_ns
    cdef Header former            # the header of the previous boot, valid if former_ns is not 0

    def __cinit__(self, int dirfd, bytes boot not None):
        cdef Found found
        cdef bint local
        self.dirfd = dirfd
        self.t.head = NULL
        self.boot = boot if PyBytes_GET_SIZE(boot) == BOOT_ID_SIZE else b""
        with nogil:
            open_index(dirfd, &found)
        self.fd, self.trouble = found.fd, found.trouble
        self.dev, self.ino, self.length = found.file.st_dev, found.file.st_ino, found.file.st_size
        self.fresh = self.is_valid(&found) and self.load(&found.head)
        self.plain = self.fresh and found.head.plain == 1
        self.former_ns = 0
        if not self.fresh:
            self.clear()
            if self.is_former(&found):
                with nogil:
                    local = is_local(dirfd)
                if local:
                    self.former = found.head
                    self.former_ns = found.head.ctime_sec * 1000000000 + found.head.ctime_nsec

    def __dealloc__(self):
        self.close()

    def close(self):
        """Close the file. Changes since the last sign() are lost; close() keeps a copy of a signed index."""
        cdef int fd = self.fd
        if self.t.head != NULL:
            if fd >= 0 and not self.dirty:
                keep(Copy(self.t.head, self.t.size, self.dev, self.ino))
            else:
                free(self.t.head)
            self.t.head = NULL
        self.fd = -1
        if fd >= 0:
            with nogil:
                close(fd)

    # -- questions ------------------------------------------------------------------------------------

    def __len__(self):
        self.check_open()
        return self.t.head.held

    def is_held(self, bytes address not None):
        cdef Address a
        cdef Block* block
        self.check_open()
        load(address, &a)
        block = find_block(&self.t, a.hi, a.lo)
        return block != NULL and bit_of(block, a.lo)

    def next_free(self, bytes first not None, bytes last not None, bytes skip=None):
        """Return the first free address other than `skip` from `first` to `last` (included); None if all are held."""
        cdef Address a, end, gateway
        self.check_open()
        load(first, &a)
        load(last, &end)
        if not seek_free(&self.t, &a, end):
            return None
        if skip is not None:
            load(skip, &gateway)
            if a.hi == gateway.hi and a.lo == gateway.lo:
                a.lo += 1
                a.hi += a.lo == 0
                if (a.hi == 0 and a.lo == 0) or not seek_free(&self.t, &a, end):
                    return None
        return packed_of(a.hi, a.lo)

    def oldest_free(self, bytes first not None, bytes times not None, uint32_t least):
        """Return (time, number) of the first free address with the least time; None if no time is below `least`.
        times: 4 bytes for each address from `first` on; `first` has number 0."""
        cdef Address a
        cdef Py_ssize_t number
        self.check_open()
        load(first, &a)
        number = seek_oldest(&self.t, a, PyBytes_AS_STRING(times), PyBytes_GET_SIZE(times) // sizeof(least), &least)
        return None if number < 0 else (least, number)

    def count(self, bytes first not None, bytes last not None):
        """Return how many addresses from first to last are held."""
        cdef Address a, end
        self.check_open()
        load(first, &a)
        load(last, &end)
        return count_held(&self.t, a, end)

    def addresses_of(self, bytes owner not None):
        """Return the addresses of this owner's hash. Other owners may have this hash: read the file of each address."""
        cdef uint64_t h = owner_hash(owner)
        cdef uint64_t i, _n, mask
        cdef Owner* entry
        cdef list found = []
        self.check_open()
        mask = self.t.head.owner_cap - 1
        i = h & mask
        for _n in range(self.t.head.owner_cap):
            entry = &self.t.owners[i]
            if entry.hash == 0:
                break
            if entry.hash == h:
                found.append(packed_of(entry.hi, entry.lo))
            i = (i + 1) & mask
        return found

    # -- changes --------------------------------------------------------------------------------------

    def hold(self, bytes address not None, bytes owner not None):
        """Record that owner holds address. Return False, without a change, if the address is held already."""
        cdef Address a
        cdef Block* block
        self.check_open()
        load(address, &a)
        block = find_block(&self.t, a.hi, a.lo)
        if block != NULL and bit_of(block, a.lo):
            return False
        self.reserve()            # may move the tables in memory
        self.dirty = True
        block = find_block(&self.t, a.hi, a.lo)
        if block == NULL:
            block = put_block(&self.t, a.hi, a.lo)
        block.words[(a.lo >> 6) & 63] |= <uint64_t> 1 << (a.lo & 63)
        block.count += 1
        touch(&self.t, block, sizeof(Block))
        put_owner(&self.t, owner_hash(owner), a.hi, a.lo)
        self.t.head.held += 1
        return True

    def drop(self, bytes address not None, bytes owner not None):
        """Remove the record that owner holds address. Return False, without a change, if there is no such record."""
        cdef Address a
        cdef Block* block
        cdef Owner* entry
        self.check_open()
        load(address, &a)
        block = find_block(&self.t, a.hi, a.lo)
        entry = find_owner(&self.t, owner_hash(owner), a.hi, a.lo)
        if block == NULL or entry == NULL or not bit_of(block, a.lo):
            return False
        self.dirty = True
        remove_owner(&self.t, entry)
        self.t.head.held -= 1
        block.words[(a.lo >> 6) & 63] &= ~(<uint64_t> 1 << (a.lo & 63))
        block.count -= 1
        touch(&self.t, block, sizeof(Block))
        if block.count == 0:
            remove_block(&self.t, block)
        return True

    def reserve(self):
        """Allocate memory for one more address, so that the next hold() cannot fail. Raises MemoryError."""
        self.check_open()
        if crowded(self.t.head.held + 1, self.t.head.owner_cap):
            self.grow(self.t.head.block_cap, self.t.head.owner_cap * 2)
        if crowded(self.t.head.blocks + 1, self.t.head.block_cap):
            self.grow(self.t.head.block_cap * 2, self.t.head.owner_cap)

    def clear(self):
        """Empty the index and shrink its tables. The index is not fresh until it is filled and signed."""
        cdef Header* old = self.t.head
        self.fresh = False
        self.lay_out(MIN_BLOCKS, MIN_OWNERS)
        free(old)

    def load_former(self):
        """Load the addresses that were held in the previous boot, for addresses_of(); then call clear(). Return False
        if the file is damaged; the index is then empty."""
        cdef Header* old = self.t.head
        cdef bint good
        if not self.former_ns or self.fd < 0:
            return False
        good = self.load(&self.former)
        free(old)
        if not good:
            self.clear()
        return good

    def sign(self):
        """Write the changes, and mark the index as fresh by the directory's mtime. Return False on an error."""
        cdef Header* head = self.t.head
        cdef int refused
        self.check_open()
        if self.fd < 0 or self.boot == b"":
            return False
        memcpy(head.boot, PyBytes_AS_STRING(self.boot), BOOT_ID_SIZE)
        head.plain = self.plain
        with nogil:
            refused = write_pages(self.fd, &self.t)
            if refused == 0 and self.length != <off_t> self.t.size and ftruncate(self.fd, self.t.size):
                refused = errno
            refused = refused or set_mtime(self.dirfd, head)
            refused = refused or write_first(self.fd, &self.t)
        if refused:
            self.trouble = refused if refused > 0 else self.trouble
            return False
        memset(self.t.touched, 0, self.t.size // PAGE)
        self.length = self.t.size
        self.dirty = False
        self.fresh = True
        return True

    # -- memory ---------------------------------------------------------------------------------------

    cdef int check_open(self) except -1:
        if self.t.head == NULL:
            raise ValueError("the index is closed")
        return 0

    cdef bint is_whole(self, const Header* h) noexcept:
        """Return whether this header is undamaged, and whether the boot id is known."""
        return (memcmp(h.magic, b"fastcni\n", 8) == 0 and h.layout == LAYOUT and h.header_sum == header_sum(h)
                and good_cap(h.block_cap, h.blocks, MIN_BLOCKS) and good_cap(h.owner_cap, h.held, MIN_OWNERS)
                and size_of(h.block_cap, h.owner_cap) <= <size_t> self.length
                and PyBytes_GET_SIZE(self.boot) == BOOT_ID_SIZE)

    cdef bint is_former(self, Found* found) noexcept:
        """Return whether this header was written for this directory, in another boot of this machine."""
        return (self.fd >= 0 and self.is_whole(&found.head) and found.head.dir_ino == found.directory.st_ino
                and memcmp(found.head.boot, PyBytes_AS_STRING(self.boot), BOOT_ID_SIZE) != 0)

    cdef bint is_valid(self, Found* found) noexcept:
        """Return whether this header is undamaged and was written for the directory as it is now."""
        cdef Header* h = &found.head
        return (self.is_whole(h) and memcmp(h.boot, PyBytes_AS_STRING(self.boot), BOOT_ID_SIZE) == 0
                and h.dir_dev == found.directory.st_dev and h.dir_ino == found.directory.st_ino
                and h.mtime_sec == found.directory.st_mtim.tv_sec and h.mtime_nsec == found.directory.st_mtim.tv_nsec
                and h.ctime_sec == found.directory.st_ctim.tv_sec and h.ctime_nsec == found.directory.st_ctim.tv_nsec)

    cdef bint load(self, Header* head) except -1:
        """Load the tables of this header from a kept copy or the file. Return whether the tables match the header."""
        cdef bint good = True
        cdef size_t size = size_of(head.block_cap, head.owner_cap)
        cdef Header* memory = take_kept(self.dev, self.ino, head)
        if memory != NULL:
            point(&self.t, memory, size)
            return True
        memory = <Header*> malloc(memory_for(size))
        if memory == NULL:
            raise MemoryError()
        memcpy(memory, head, sizeof(Header))
        point(&self.t, memory, size)
        with nogil:
            good = read_pages(self.fd, &self.t)
            memset(self.t.touched, 0, size // PAGE)
        return good

    cdef int lay_out(self, uint64_t block_cap, uint64_t owner_cap) except -1:
        """Allocate empty tables of these capacities. The caller frees the previous tables."""
        cdef size_t size = size_of(block_cap, owner_cap)
        cdef Header* head = <Header*> calloc(1, memory_for(size))
        if head == NULL:
            raise MemoryError()
        memcpy(head.magic, b"fastcni\n", 8)
        head.layout = LAYOUT
        head.block_cap = block_cap
        head.owner_cap = owner_cap
        point(&self.t, head, size)
        memset(self.t.touched, 1, size // PAGE)
        self.dirty = True
        return 0

    cdef int grow(self, uint64_t block_cap, uint64_t owner_cap) except -1:
        """Allocate larger tables and move all entries to them."""
        cdef Tables old = self.t
        if block_cap > <uint64_t> MAX_CAPACITY or owner_cap > <uint64_t> MAX_CAPACITY:
            raise MemoryError()
        self.lay_out(block_cap, owner_cap)
        put_all(&self.t, &old)
        free(old.head)
        return 0
