# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: binding=False, embedsignature=False, auto_pickle=False
"""Which addresses of one network are held and by whom, in a mapped file. Bytes only: no names, no ranges.

The index never is the truth: the files of the directory are. It answers two questions without reading
them: "what is the next free address?" and "what does this owner hold?". It lies in `.fastcni.index`
beside the files, where no other implementation minds it. The tables are in _ipam_tables.pxd.

What makes it fresh. Nobody tells us about a change, but creating or removing a file moves the directory's
mtime. So `sign()` sets the mtime to a moment two seconds ago and notes it, with the ctime that this gives: no
later change can bring that mtime about (the clock is past it, whatever the granularity of the file system up
to a second; 128-byte ext4 inodes have one), and who sets it back by hand (tar, rsync, touch) moves the
ctime. Opening compares both, the inode of the directory, and:
- the dirty flag: set by the first change, cleared by sign(); a process that died in between leaves it;
- the boot id: pages of a shared mapping survive a killed process, but not a power cut, after which
  any of them may be old. A file written during another boot is not believed;
- magic, layout version, capacities and the size of the file.

When the file cannot be made or cannot grow (full disk), the index goes on in memory for as long as it is
open, the file stays dirty, and the answers are the same. Space is allocated before it is mapped
(posix_fallocate): a full disk never becomes a SIGBUS.

Sources: open(2), flock(2), mmap(2), posix_fallocate(3), utimensat(2), random(4) for the boot id.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EAGAIN, EINTR, EOPNOTSUPP, errno
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset
from posix.fcntl cimport O_CLOEXEC, O_CREAT, O_NONBLOCK, O_RDWR, openat, posix_fallocate
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, MAP_SHARED, mmap, munmap
from posix.mman cimport PROT_READ, PROT_WRITE
from posix.stat cimport fstat, struct_stat
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
from posix.types cimport mode_t, off_t
from posix.unistd cimport close, ftruncate, pwrite

from fastcni._ipam_tables cimport (
    BOOT_ID_SIZE, LAYOUT, MAX_CAPACITY, MIN_BLOCKS, MIN_OWNERS, Address, Block, Header, Owner, Tables,
    bit_of, count_held, crowded, find_block, find_owner, good_cap, mixed, point, put_all, put_block,
    put_owner, remove_block, remove_owner, seek_free, size_of,
)

cdef extern from "endian.h" nogil:
    uint64_t be64toh(uint64_t)
    uint64_t htobe64(uint64_t)

cdef extern from "sys/file.h" nogil:
    enum: LOCK_EX, LOCK_NB, LOCK_UN, O_NOFOLLOW
    int flock(int, int)

cdef extern from "sys/stat.h" nogil:
    enum: UTIME_OMIT
    int futimens(int, const timespec*)
    bint S_ISREG(mode_t)


cdef uint64_t owner_hash(bytes owner) noexcept:
    """FNV-1a, mixed. Whoever provokes a collision gains a file that is read in vain."""
    cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(owner)
    cdef uint64_t h = <uint64_t> 0xcbf29ce484222325
    cdef Py_ssize_t i
    for i in range(PyBytes_GET_SIZE(owner)):
        h = (h ^ p[i]) * <uint64_t> 0x100000001b3
    return mixed(h) | 1           # 0 is the empty entry


cdef int load(bytes packed, Address* a) except -1:
    """4 or 16 bytes to the two halves."""
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
    """The two halves to 4 or 16 bytes."""
    cdef uint64_t[2] halves = [htobe64(hi), htobe64(lo)]
    if hi == 0 and lo >> 32 == 0xffff:
        return PyBytes_FromStringAndSize(<const char*> halves + 12, 4)
    return PyBytes_FromStringAndSize(<const char*> halves, 16)


cdef int allocate(int fd, size_t size) noexcept nogil:
    """0, or the errno. musl does not emulate posix_fallocate where the file system lacks it: write then."""
    cdef char zeros[4096]
    cdef size_t at = 0
    cdef int refused = posix_fallocate(fd, 0, size)
    if refused != EOPNOTSUPP:
        return refused
    memset(zeros, 0, sizeof(zeros))
    while at < size:              # the caller has saved what was there
        if pwrite(fd, zeros, sizeof(zeros), at) != <Py_ssize_t> sizeof(zeros):
            return errno
        at += sizeof(zeros)
    return 0


def lock(int fd):
    """Wait for the exclusive flock(2) of an open file. Raises OSError; gives way to signal handlers."""
    cdef int refused = flock(fd, LOCK_EX | LOCK_NB)     # mostly free: then Python's lock is kept
    if refused and errno != EAGAIN and errno != EINTR:
        PyErr_SetFromErrno(OSError)
    while refused:
        with nogil:
            refused = flock(fd, LOCK_EX)
        if refused and errno != EINTR:
            PyErr_SetFromErrno(OSError)
        PyErr_CheckSignals()


def unlock(int fd):
    """Let the lock go at once; closing is not enough while a child just forked has the descriptor too."""
    flock(fd, LOCK_UN)


include "_ipam_maps.pxi"


@cython.final
cdef class Index:
    """The index of the directory open as `dirfd`, to be used under the directory's lock, then closed.

    boot is the 36 bytes of the kernel's boot id; with anything else the index is never believed later.
    `fresh` says whether the index tells what the directory holds. If not it is empty, and the caller
    holds() what it reads in the files. `trouble` is the errno that keeps it from being a file, or 0.
    """
    cdef int dirfd
    cdef int fd                   # -1: in memory
    cdef size_t size
    cdef uint64_t dev, ino        # of the file
    cdef Tables t
    cdef bytes boot
    cdef readonly bint fresh
    cdef readonly int trouble

    def __cinit__(self, int dirfd, bytes boot not None):
        self.dirfd = dirfd
        self.fd = -1
        self.t.head = NULL
        self.boot = boot if PyBytes_GET_SIZE(boot) == BOOT_ID_SIZE else b""
        self.open_file()
        self.fresh = self.is_fresh()
        if self.fresh:
            point(&self.t, self.t.head)
        else:
            self.clear()

    def __dealloc__(self):
        self.close_file()

    def close(self):
        """Give the file back. What was not signed will not be believed."""
        self.close_file()

    @property
    def dirty(self):
        """Whether something changed since sign()."""
        self.check_open()
        return self.t.head.dirty != 0

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
        """The first free address from first to last, both included, other than skip; None if all are held."""
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

    def count(self, bytes first not None, bytes last not None):
        """How many addresses from first to last are held."""
        cdef Address a, end
        self.check_open()
        load(first, &a)
        load(last, &end)
        return count_held(&self.t, a, end)

    def addresses_of(self, bytes owner not None):
        """The addresses held for exactly these owner bytes (by hash: read the file before acting on one)."""
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
        """Note that owner holds address. False, and nothing is changed, when it is held already."""
        cdef Address a
        cdef Block* block
        self.check_open()
        load(address, &a)
        block = find_block(&self.t, a.hi, a.lo)
        if block != NULL and bit_of(block, a.lo):
            return False
        self.make_room()          # may move the tables
        self.t.head.dirty = 1
        block = find_block(&self.t, a.hi, a.lo)
        if block == NULL:
            block = put_block(&self.t, a.hi, a.lo)
        block.words[(a.lo >> 6) & 63] |= <uint64_t> 1 << (a.lo & 63)
        block.count += 1
        put_owner(&self.t, owner_hash(owner), a.hi, a.lo)
        self.t.head.held += 1
        return True

    def drop(self, bytes address not None, bytes owner not None):
        """Forget that owner holds address. False, and nothing is changed, when that was not known."""
        cdef Address a
        cdef Block* block
        cdef Owner* entry
        self.check_open()
        load(address, &a)
        block = find_block(&self.t, a.hi, a.lo)
        entry = find_owner(&self.t, owner_hash(owner), a.hi, a.lo)
        if block == NULL or entry == NULL or not bit_of(block, a.lo):
            return False
        self.t.head.dirty = 1
        remove_owner(&self.t, entry)
        self.t.head.held -= 1
        block.words[(a.lo >> 6) & 63] &= ~(<uint64_t> 1 << (a.lo & 63))
        block.count -= 1
        if block.count == 0:
            remove_block(&self.t, block)
        return True

    def make_room(self):
        """See that the next hold() cannot fail. Raises MemoryError."""
        self.check_open()
        if crowded(self.t.head.held + 1, self.t.head.owner_cap):
            self.grow(self.t.head.block_cap, self.t.head.owner_cap * 2)
        if crowded(self.t.head.blocks + 1, self.t.head.block_cap):
            self.grow(self.t.head.block_cap * 2, self.t.head.owner_cap)

    def clear(self):
        """Empty the index and give the space back; it is not fresh until it was filled and signed."""
        self.fresh = False
        self.lay_out(MIN_BLOCKS, MIN_OWNERS)

    def sign(self):
        """Date the directory and note that the index is what it holds. False where that cannot be told."""
        cdef Header* head = self.t.head
        cdef struct_stat st
        cdef timespec times[2]
        self.check_open()
        if self.fd < 0 or self.boot == b"":
            return False
        head.dirty = 1
        clock_gettime(CLOCK_REALTIME, &times[1])
        times[1].tv_sec -= 2
        times[0].tv_sec = 0
        times[0].tv_nsec = UTIME_OMIT
        if futimens(self.dirfd, times) or fstat(self.dirfd, &st):
            return False          # not our directory: every opening will read all files
        if st.st_mtim.tv_sec > times[1].tv_sec or st.st_mtim.tv_sec < times[1].tv_sec - 1:
            return False          # somebody without the lock was here between the two calls
        head.dir_dev, head.dir_ino = st.st_dev, st.st_ino
        head.mtime_sec, head.mtime_nsec = st.st_mtim.tv_sec, st.st_mtim.tv_nsec
        head.ctime_sec, head.ctime_nsec = st.st_ctim.tv_sec, st.st_ctim.tv_nsec
        memcpy(head.boot, PyBytes_AS_STRING(self.boot), BOOT_ID_SIZE)
        head.dirty = 0
        self.fresh = True
        return True

    # -- the file -------------------------------------------------------------------------------------

    cdef int check_open(self) except -1:
        if self.t.head == NULL:
            raise ValueError("the index is closed")
        return 0

    cdef void open_file(self) noexcept:
        """Leaves fd -1 and trouble set when there can be no file; head NULL when there is none to believe."""
        cdef struct_stat st
        cdef int fd = openat(self.dirfd, b".fastcni.index",
                             O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0o600)
        if fd < 0:
            self.trouble = errno
        elif fstat(fd, &st) or not S_ISREG(st.st_mode):
            self.trouble = EOPNOTSUPP
            close(fd)
        else:
            self.fd, self.dev, self.ino = fd, st.st_dev, st.st_ino
            self.t.head, self.size = take_kept(self.dev, self.ino, st.st_size), st.st_size
            if self.t.head == NULL and st.st_size >= <off_t> size_of(MIN_BLOCKS, MIN_OWNERS):
                self.map(st.st_size)

    cdef bint is_fresh(self) noexcept:
        cdef Header* h = self.t.head
        cdef struct_stat st
        if h == NULL or fstat(self.dirfd, &st):
            return False
        return (memcmp(h.magic, b"fastcni\n", 8) == 0 and h.layout == LAYOUT and h.dirty == 0
                and good_cap(h.block_cap, h.blocks, MIN_BLOCKS) and good_cap(h.owner_cap, h.held, MIN_OWNERS)
                and size_of(h.block_cap, h.owner_cap) <= self.size
                and PyBytes_GET_SIZE(self.boot) == BOOT_ID_SIZE
                and memcmp(h.boot, PyBytes_AS_STRING(self.boot), BOOT_ID_SIZE) == 0
                and h.dir_dev == st.st_dev and h.dir_ino == st.st_ino
                and h.mtime_sec == st.st_mtim.tv_sec and h.mtime_nsec == st.st_mtim.tv_nsec
                and h.ctime_sec == st.st_ctim.tv_sec and h.ctime_nsec == st.st_ctim.tv_nsec)

    cdef bint map(self, size_t size) noexcept:
        """Map `size` bytes of the file, or of memory when there is none."""
        cdef int flags = MAP_SHARED if self.fd >= 0 else MAP_PRIVATE | MAP_ANONYMOUS
        cdef void* at = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, self.fd, 0)
        if at == MAP_FAILED:
            return False
        self.t.head = <Header*> at
        self.size = size
        return True

    cdef void unmap(self) noexcept:
        if self.t.head != NULL:
            munmap(self.t.head, self.size)
            self.t.head = NULL

    cdef void close_file(self) noexcept:
        if self.fd >= 0 and self.t.head != NULL:
            keep(Map(self.t.head, self.size, self.dev, self.ino))
            self.t.head = NULL
        self.unmap()
        if self.fd >= 0:
            close(self.fd)
            self.fd = -1

    cdef int lay_out(self, uint64_t block_cap, uint64_t owner_cap) except -1:
        """An empty index of these capacities, in the file if it can be, else in memory."""
        cdef size_t size = size_of(block_cap, owner_cap)
        cdef int refused = 0
        if self.t.head != NULL:
            self.t.head.dirty = 1         # outlives us in the file, whatever happens now
        self.unmap()
        if self.fd >= 0:
            refused = allocate(self.fd, size)
            if refused == 0 and (ftruncate(self.fd, size) or not self.map(size)):
                refused = errno
            if refused:
                self.trouble = refused
                self.close_file()
        if self.t.head == NULL and not self.map(size):
            raise MemoryError()
        memset(self.t.head, 0, size)
        self.t.head.dirty = 1
        memcpy(self.t.head.magic, b"fastcni\n", 8)
        self.t.head.layout = LAYOUT
        self.t.head.block_cap = block_cap
        self.t.head.owner_cap = owner_cap
        point(&self.t, self.t.head)
        return 0

    cdef int grow(self, uint64_t block_cap, uint64_t owner_cap) except -1:
        """Lay out anew and put every entry where it belongs now."""
        cdef Tables old
        cdef Header* copy = <Header*> malloc(self.size)
        if copy == NULL or block_cap > <uint64_t> MAX_CAPACITY or owner_cap > <uint64_t> MAX_CAPACITY:
            free(copy)
            raise MemoryError()
        memcpy(copy, self.t.head, self.size)
        point(&old, copy)
        try:
            self.lay_out(block_cap, owner_cap)
            put_all(&self.t, &old)
        finally:
            free(copy)
        return 0
