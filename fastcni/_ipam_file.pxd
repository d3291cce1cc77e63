# Open, read and write the file of an address index, and set the directory's mtime. The functions are inline, so this
# module is never loaded. Call the functions without the GIL: then a file system that hangs delays only the request that
# uses the file.

from libc.errno cimport ENOSPC, EOPNOTSUPP, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from posix.fcntl cimport O_CLOEXEC, O_CREAT, O_NONBLOCK, O_RDWR, openat
from posix.stat cimport S_ISREG, fstat, struct_stat
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
from posix.types cimport off_t
from posix.unistd cimport close, pread, pwrite

from fastcni._ipam_tables cimport PAGE, Header, Tables, header_sum, sum_of_page

cdef extern from "<fcntl.h>" nogil:
    enum: O_NOFOLLOW

cdef extern from "<sys/vfs.h>" nogil:
    cdef struct statfs_t "statfs":
        long f_type
    int fstatfs(int, statfs_t*)

cdef extern from "<sys/stat.h>" nogil:
    enum: UTIME_OMIT
    int futimens(int, const timespec*)

cdef extern from *:
    """
    enum { EXT = 0xef53, XFS = 0x58465342, F2FS = (int)0xf2f52010, BTRFS = (int)0x9123683e, OVERLAY = 0x794c7630,
           ZFS = 0x2fc12fc1, BCACHEFS = (int)0xca451a4e, TMPFS = 0x01021994 };
    """
    enum: EXT, XFS, BTRFS, F2FS, OVERLAY, ZFS, BCACHEFS, TMPFS

cdef struct Found:                # an index file that was opened
    int fd                        # -1: the file cannot be opened; `trouble` is the errno
    int trouble
    struct_stat file, directory
    Header head                   # zeros: the header cannot be read


cdef inline void open_index(int dirfd, Found* found) noexcept nogil:
    """Open the file, or create it, and read its header."""
    memset(found, 0, sizeof(Found))
    found.fd = openat(dirfd, b".fastcni.index", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0o600)
    if found.fd < 0:
        found.trouble = errno
    elif fstat(found.fd, &found.file) or not S_ISREG(found.file.st_mode):
        found.trouble = EOPNOTSUPP
        close(found.fd)
        found.fd = -1
    elif (pread(found.fd, &found.head, sizeof(Header), 0) != <Py_ssize_t> sizeof(Header)
            or fstat(dirfd, &found.directory)):
        memset(&found.head, 0, sizeof(Header))


cdef inline bint is_local(int dirfd) noexcept nogil:
    """Return whether no other machine can change this directory. False for an unknown file system. statfs(2) lists the
    file systems' numbers."""
    cdef statfs_t st
    cdef uint32_t kind
    if fstatfs(dirfd, &st):
        return False
    kind = <uint32_t> st.f_type
    return (kind == EXT or kind == XFS or kind == BTRFS or kind == F2FS or kind == OVERLAY or kind == ZFS
            or kind == BCACHEFS or kind == TMPFS)


cdef inline bint read_pages(int fd, Tables* t) noexcept nogil:
    """Read the pages after the header, which is already in memory. Return False if the checksum of the pages is not the
    header's."""
    cdef size_t at = sizeof(Header), page
    cdef uint64_t pages = 0
    cdef Py_ssize_t got
    while at < t.size:
        got = pread(fd, <char*> t.head + at, t.size - at, at)
        if got <= 0:
            return False
        at += got
    for page in range(t.size // PAGE):
        t.sums[page] = sum_of_page(t, page)
        pages += t.sums[page]
    return pages == t.head.pages


cdef inline int write_at(int fd, const char* data, size_t size, off_t at) noexcept nogil:
    """Write to the file at the offset `at`. Return 0 or the errno."""
    cdef Py_ssize_t written = pwrite(fd, data, size, at)
    if written < 0:
        return errno
    return 0 if <size_t> written == size else ENOSPC


cdef inline void sum_again(Tables* t, size_t page) noexcept nogil:
    """Compute the checksum of a changed page, and update the header's checksum of all pages."""
    cdef uint64_t sum = sum_of_page(t, page)
    t.head.pages += sum - t.sums[page]
    t.sums[page] = sum


cdef inline int write_pages(int fd, Tables* t) noexcept nogil:
    """Compute the checksums of the changed pages, and write all of them but the first; write adjacent pages by one
    call. Return 0 or the errno. After an error, no header matches the file."""
    cdef size_t count = t.size // PAGE, page = 1, at, end
    cdef int refused
    if t.touched[0]:
        sum_again(t, 0)
    while page < count:
        at = page * PAGE
        while page < count and t.touched[page]:
            sum_again(t, page)
            page += 1
        end = page * PAGE
        if at < end:
            refused = write_at(fd, <char*> t.head + at, end - at, at)
            if refused:
                return refused
        page += 1
    return 0


cdef inline int write_first(int fd, Tables* t) noexcept nogil:
    """Write the header, or if the rest of the first page has changed, the complete page. Return 0 or the errno."""
    t.head.header_sum = header_sum(t.head)
    return write_at(fd, <char*> t.head, PAGE if t.touched[0] else sizeof(Header), 0)


cdef inline int set_mtime(int dirfd, Header* head) noexcept nogil:
    """Set the directory's mtime to two seconds ago and record it. Return -1 if the file system rejects the change, or
    immediately undoes it."""
    cdef struct_stat st
    cdef timespec times[2]
    clock_gettime(CLOCK_REALTIME, &times[1])
    times[1].tv_sec -= 2
    times[0].tv_sec = 0
    times[0].tv_nsec = UTIME_OMIT
    if futimens(dirfd, times) or fstat(dirfd, &st):
        return -1                 # the directory is another user's: each opening will read all address files
    if st.st_mtim.tv_sec > times[1].tv_sec or st.st_mtim.tv_sec < times[1].tv_sec - 1:
        return -1                 # another program has changed the directory between the two calls, without the lock
    head.dir_dev, head.dir_ino = st.st_dev, st.st_ino
    head.mtime_sec, head.mtime_nsec = st.st_mtim.tv_sec, st.st_mtim.tv_nsec
    head.ctime_sec, head.ctime_nsec = st.st_ctim.tv_sec, st.st_ctim.tv_nsec
    return 0
