# Part of _ipam_bitmap.pyx: the file of an index, and copies of it that are kept in memory. Each function that touches
# the disk is one visit without Python's lock: a file system that hangs holds up its own request only.

cdef struct Found:                # of an index file that was opened
    int fd                        # -1: none, and `trouble` says why
    int trouble
    struct_stat file, folder
    Header head                   # zeros: not readable


cdef void open_index(int dirfd, Found* found) noexcept nogil:
    """Open the file, or make it, and read its header."""
    memset(found, 0, sizeof(Found))
    found.fd = openat(dirfd, b".fastcni.index", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0o600)
    if found.fd < 0:
        found.trouble = errno
    elif fstat(found.fd, &found.file) or not S_ISREG(found.file.st_mode):
        found.trouble = EOPNOTSUPP
        close(found.fd)
        found.fd = -1
    elif (pread(found.fd, &found.head, sizeof(Header), 0) != <Py_ssize_t> sizeof(Header)
            or fstat(dirfd, &found.folder)):
        memset(&found.head, 0, sizeof(Header))


cdef bint read_pages(int fd, Tables* t) noexcept nogil:
    """Read what is behind the header, which is there. False when it is not what the header was written for."""
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


cdef int write_pages(int fd, Tables* t) noexcept nogil:
    """Sum and write the touched pages, neighbours together. 0, or the errno; then the file fits no header."""
    cdef size_t count = t.size // PAGE, page = 0, at, end
    cdef uint64_t sum
    cdef int refused
    while page < count:
        at = page * PAGE
        while page < count and t.touched[page]:
            sum = sum_of_page(t, page)
            t.head.pages += sum - t.sums[page]
            t.sums[page] = sum
            page += 1
        end = page * PAGE
        if at == 0:
            at = sizeof(Header)
        if at < end:
            refused = write_at(fd, <char*> t.head + at, end - at, at)
            if refused:
                return refused
        page += 1
    return 0


cdef int write_at(int fd, const char* data, size_t size, off_t at) noexcept nogil:
    """0, or the errno."""
    cdef Py_ssize_t written = pwrite(fd, data, size, at)
    if written < 0:
        return errno
    return 0 if <size_t> written == size else ENOSPC


cdef int date(int dirfd, Header* head) noexcept nogil:
    """Set the directory's mtime to two seconds ago and note it. Other than 0 when that cannot be, or has not lasted."""
    cdef struct_stat st
    cdef timespec times[2]
    clock_gettime(CLOCK_REALTIME, &times[1])
    times[1].tv_sec -= 2
    times[0].tv_sec = 0
    times[0].tv_nsec = UTIME_OMIT
    if futimens(dirfd, times) or fstat(dirfd, &st):
        return -1                 # not our directory: every opening will read all files
    if st.st_mtim.tv_sec > times[1].tv_sec or st.st_mtim.tv_sec < times[1].tv_sec - 1:
        return -1                 # another program without the lock was here between the two calls
    head.dir_dev, head.dir_ino = st.st_dev, st.st_ino
    head.mtime_sec, head.mtime_nsec = st.st_mtim.tv_sec, st.st_mtim.tv_nsec
    head.ctime_sec, head.ctime_nsec = st.st_ctim.tv_sec, st.st_ctim.tv_nsec
    return 0


# -- copies of files that were closed, for the next request of the same network ------------------------------
#
# A kept copy equals its file as long as the file's header equals the copy's: the header has a checksum of all pages,
# and each write changes it. Reading and checking 60,000 addresses anew takes 0.5 ms.

cdef enum:
    MAX_KEPT = 8
    MAX_KEPT_BYTES = 4194304      # of one copy

cdef struct Copy:
    Header* head                  # NULL: none
    size_t size
    uint64_t dev, ino             # of its file

cdef Copy kept[MAX_KEPT]          # protected by Python's lock
cdef int next_kept = 0


cdef void keep(Copy it) noexcept:
    """Keep a copy in place of the oldest, unless it is too large for that."""
    global next_kept
    if it.size > MAX_KEPT_BYTES:
        free(it.head)
        return
    free(kept[next_kept].head)
    kept[next_kept] = it
    next_kept = (next_kept + 1) % MAX_KEPT


cdef Header* take_kept(uint64_t dev, uint64_t ino, const Header* head) noexcept:
    """The copy of a file that has this header now; NULL if there is none. An older copy of that file is freed."""
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
