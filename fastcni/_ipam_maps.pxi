# Part of _ipam_bitmap.pyx: maps of files that were closed, for the next who opens the same file. Mapping one, touching
# its pages for the first time and unmapping it take longer than what is done with it, and with many threads each
# unmapping interrupts the other processors.

cdef enum:
    MOST_KEPT = 8
    LARGEST_KEPT = 4194304        # bytes

cdef struct Map:
    Header* head                  # NULL: none
    size_t size
    uint64_t dev, ino             # of its file, whose number no other file gets as long as it is mapped

cdef Map kept[MOST_KEPT]          # of whoever has Python's lock
cdef int next_kept = 0


cdef void keep(Map it) noexcept:
    """Keep a map in place of the oldest, unless it is too large for that."""
    global next_kept
    if it.size > LARGEST_KEPT:
        drop_map(&it)
        return
    drop_map(&kept[next_kept])
    kept[next_kept] = it
    next_kept = (next_kept + 1) % MOST_KEPT


cdef Header* take_kept(uint64_t dev, uint64_t ino, size_t size) noexcept:
    """The map of a file, if it was kept and the file has the same size still; else NULL."""
    cdef int i
    cdef Header* head
    for i in range(MOST_KEPT):
        if kept[i].head != NULL and kept[i].dev == dev and kept[i].ino == ino:
            if kept[i].size == size:
                head = kept[i].head
                kept[i].head = NULL
                return head
            drop_map(&kept[i])
    return NULL


cdef void drop_map(Map* it) noexcept:
    if it.head != NULL:
        munmap(it.head, it.size)
        it.head = NULL


def forget():
    """Let go of the maps that are kept: then their file systems can be unmounted, and files that were removed give
    their space back."""
    cdef int i
    for i in range(MOST_KEPT):
        drop_map(&kept[i])
