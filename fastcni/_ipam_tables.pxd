# The two tables of the address index in memory. The functions use no file and no Python object, and cannot fail.
#
# The layout is the same in memory and in the file. Integers are in the machine's byte order, because the file stays on
# the machine.
#
#     0     Header, 256 bytes
#     256   Block[block_cap]   open addressing by the upper 116 bits of the address; count 0 = empty entry
#     ...   Owner[owner_cap]   open addressing by the owner's hash; hash 0 = empty entry
#
# A block is the bitmap of 4,096 neighbouring addresses. Blocks do not depend on ranges, so an edited configuration,
# several range sets and an IPv6 /64 need no special case. Blocks are not larger because addresses scattered over a /64
# take one block (536 bytes) each; a search through a full /16 still takes only 16 steps. IPv4 addresses are stored as
# ::ffff:a.b.c.d.
#
# The header has two checksums: `pages` is the sum of the checksums of all pages behind the header, `header_sum` is the
# checksum of the header's other bytes. A change marks its pages with touch(); sign() sums and writes only the marked
# pages again. The checksums detect damage and half-written files. They do not protect against forgery: a program
# that can write this file can also change the address files.
#
# The capacities bound every loop, and are checked against the size of the memory.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from *:
    int __builtin_ctzll(unsigned long long) nogil

cdef enum:
    LAYOUT = 2
    PAGE = 4096                   # bytes that have one checksum and are written together
    BLOCK_SIZE = 4096             # addresses in a block
    WORDS = 64                    # words of 64 bits in a block's bitmap
    MIN_BLOCKS = 4
    MIN_OWNERS = 64
    MAX_CAPACITY = 1 << 30        # entries of a table; a damaged header may have a larger number
    BOOT_ID_SIZE = 36

cdef struct Header:
    char magic[8]
    uint32_t layout
    uint32_t plain                # 1: the directory has no cluster-wide addresses; 0: unknown
    uint64_t block_cap            # capacities of the tables, powers of two
    uint64_t owner_cap
    uint64_t blocks               # used entries of the block table
    uint64_t held
    uint64_t dir_dev
    uint64_t dir_ino
    int64_t mtime_sec
    int64_t mtime_nsec
    int64_t ctime_sec
    int64_t ctime_nsec
    char boot[BOOT_ID_SIZE]
    char spare[240 - 96 - BOOT_ID_SIZE]
    uint64_t pages                # checksum of all pages without the header
    uint64_t header_sum           # checksum of the header up to here

cdef struct Address:              # the 128 bits, upper and lower half
    uint64_t hi
    uint64_t lo

cdef struct Block:
    uint64_t hi
    uint64_t lo                   # the lower 12 bits are zero
    uint64_t count                # number of held addresses
    uint64_t words[WORDS]

cdef struct Owner:
    uint64_t hash
    uint64_t hi
    uint64_t lo

cdef struct Tables:
    Header* head                  # NULL: the index is closed
    size_t size                   # bytes of header and tables, whole pages
    Block* blocks
    Owner* owners
    uint64_t* sums                # a checksum for each page
    uint8_t* touched              # a mark for each page: the page differs from the file


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    x = (x ^ (x >> 30)) * <uint64_t> 0xbf58476d1ce4e5b9
    x = (x ^ (x >> 27)) * <uint64_t> 0x94d049bb133111eb
    return x ^ (x >> 31)


cdef inline uint64_t block_hash(uint64_t hi, uint64_t lo) noexcept nogil:
    return mixed((lo >> 12) + hi * <uint64_t> 0x9e3779b97f4a7c15)


cdef inline bint beyond(Address a, Address b) noexcept nogil:
    return a.hi > b.hi or (a.hi == b.hi and a.lo > b.lo)


cdef inline size_t size_of(uint64_t block_cap, uint64_t owner_cap) noexcept nogil:
    cdef size_t size = sizeof(Header) + block_cap * sizeof(Block) + owner_cap * sizeof(Owner)
    return (size + PAGE - 1) & ~<size_t> (PAGE - 1)


cdef inline size_t memory_for(size_t size) noexcept nogil:
    """Return the bytes of memory for tables of `size` bytes, followed by a checksum and a mark for each page."""
    return size + size // PAGE * (sizeof(uint64_t) + 1)


cdef inline bint crowded(uint64_t used, uint64_t cap) noexcept nogil:
    return used > cap // 4 * 3    # at most three quarters: searches stay short, and one entry is always empty


cdef inline bint good_cap(uint64_t cap, uint64_t used, uint64_t least) noexcept nogil:
    return least <= cap <= <uint64_t> MAX_CAPACITY and cap & (cap - 1) == 0 and not crowded(used, cap)


cdef inline void point(Tables* t, Header* head, size_t size) noexcept nogil:
    """Set the pointers to the tables behind a header whose capacities are valid."""
    t.head = head
    t.size = size
    t.blocks = <Block*> (<char*> head + sizeof(Header))
    t.owners = <Owner*> (<char*> t.blocks + head.block_cap * sizeof(Block))
    t.sums = <uint64_t*> (<char*> head + size)
    t.touched = <uint8_t*> (t.sums + size // PAGE)


cdef inline void touch(Tables* t, const void* at, size_t size) noexcept nogil:
    """Mark the pages of `size` bytes that have changed."""
    cdef size_t first = <size_t> (<const char*> at - <const char*> t.head)
    cdef size_t page
    for page in range(first // PAGE, (first + size - 1) // PAGE + 1):
        t.touched[page] = 1


# -- checksums --------------------------------------------------------------------------------------------

cdef inline uint64_t step(uint64_t sum, uint64_t word) noexcept nogil:
    sum = (sum ^ word) * <uint64_t> 0x9e3779b97f4a7c15
    return sum << 29 | sum >> 35


cdef inline uint64_t sum_of(const void* at, size_t size, uint64_t seed) noexcept nogil:
    """Return the checksum of `size` bytes, a multiple of 8. Summing four words at a time takes 0.3 us for a page."""
    cdef const uint64_t* words = <const uint64_t*> at
    cdef size_t count = size // 8, i = 0
    cdef uint64_t a = seed, b = 2, c = 3, d = 4
    while i + 4 <= count:
        a = step(a, words[i])
        b = step(b, words[i + 1])
        c = step(c, words[i + 2])
        d = step(d, words[i + 3])
        i += 4
    while i < count:
        a = step(a, words[i])
        i += 1
    return mixed(step(step(step(a, b), c), d))


cdef inline uint64_t sum_of_page(Tables* t, size_t page) noexcept nogil:
    """Return a page's checksum. For the first page, leave out the header, which has its own checksum."""
    cdef size_t skip = 0 if page else sizeof(Header)
    return sum_of(<char*> t.head + page * PAGE + skip, PAGE - skip, page + 1)


cdef inline uint64_t header_sum(const Header* head) noexcept nogil:
    return sum_of(head, sizeof(Header) - sizeof(uint64_t), 1)


# -- bits -------------------------------------------------------------------------------------------------

cdef inline bint bit_of(const Block* block, uint64_t lo) noexcept nogil:
    return (block.words[(lo >> 6) & 63] >> (lo & 63)) & 1


# -- blocks -----------------------------------------------------------------------------------------------

cdef inline Block* find_block(Tables* t, uint64_t hi, uint64_t lo) noexcept nogil:
    """Return the block that has this address, or NULL."""
    cdef uint64_t mask = t.head.block_cap - 1
    cdef uint64_t i = block_hash(hi, lo) & mask
    cdef uint64_t _n
    lo &= ~<uint64_t> (BLOCK_SIZE - 1)
    for _n in range(t.head.block_cap):
        if t.blocks[i].count == 0:
            return NULL
        if t.blocks[i].lo == lo and t.blocks[i].hi == hi:
            return &t.blocks[i]
        i = (i + 1) & mask
    return NULL


cdef inline Block* put_block(Tables* t, uint64_t hi, uint64_t lo) noexcept nogil:
    """Return a new block for this address. Searches treat its entry as empty until the first bit is set."""
    cdef uint64_t mask = t.head.block_cap - 1
    cdef uint64_t i = block_hash(hi, lo) & mask
    cdef uint64_t _n
    for _n in range(mask):
        if t.blocks[i].count == 0:
            break
        i = (i + 1) & mask
    memset(&t.blocks[i], 0, sizeof(Block))
    t.blocks[i].hi = hi
    t.blocks[i].lo = lo & ~<uint64_t> (BLOCK_SIZE - 1)
    touch(t, &t.blocks[i], sizeof(Block))
    t.head.blocks += 1
    return &t.blocks[i]


cdef inline void remove_block(Tables* t, Block* block) noexcept nogil:
    """Empty an entry, and move later entries up, so that each search still finds its entry."""
    cdef uint64_t mask = t.head.block_cap - 1
    cdef uint64_t gap = block - t.blocks
    cdef uint64_t i = gap
    cdef uint64_t _n
    for _n in range(mask):
        i = (i + 1) & mask
        if t.blocks[i].count == 0:
            break
        if (i - block_hash(t.blocks[i].hi, t.blocks[i].lo)) & mask >= (i - gap) & mask:
            memcpy(&t.blocks[gap], &t.blocks[i], sizeof(Block))
            touch(t, &t.blocks[gap], sizeof(Block))
            gap = i
    t.blocks[gap].count = 0
    touch(t, &t.blocks[gap], sizeof(Block))
    t.head.blocks -= 1


cdef inline bint seek_free(Tables* t, Address* a, Address last) noexcept nogil:
    """Move `a` to the first free address up to `last`. Return False if all are held. Skip full blocks and words."""
    cdef Block* block
    cdef uint64_t word, bits
    while not beyond(a[0], last):
        block = find_block(t, a.hi, a.lo)
        if block == NULL:
            return True
        if block.count < <uint64_t> BLOCK_SIZE:
            word = (a.lo >> 6) & 63
            bits = ~block.words[word] & (~<uint64_t> 0 << (a.lo & 63))
            while bits == 0 and word < <uint64_t> (WORDS - 1):
                word += 1
                bits = ~block.words[word]
            if bits:
                a.lo = block.lo + word * 64 + __builtin_ctzll(bits)
                return not beyond(a[0], last)
        a.lo = (a.lo | (BLOCK_SIZE - 1)) + 1
        if a.lo == 0:
            a.hi += 1
            if a.hi == 0:
                return False
    return False


cdef inline Py_ssize_t seek_oldest(Tables* t, Address a, const char* times, Py_ssize_t count, uint32_t* least) \
        noexcept nogil:
    """Return the number of the free address with the least time below `least`, and set `least` to it; -1 if there is
    none. The first of `count` addresses is `a`."""
    cdef Block* block
    cdef uint32_t time
    cdef Py_ssize_t i, found = -1
    for i in range(count):
        memcpy(&time, times + i * sizeof(time), sizeof(time))
        if time < least[0]:
            block = find_block(t, a.hi, a.lo + i)
            if block == NULL or not bit_of(block, a.lo + i):
                least[0] = time
                found = i
    return found


cdef inline uint64_t count_held(Tables* t, Address first, Address last) noexcept nogil:
    """Return how many addresses from first to last are held. Read each block's count, and single bits only at both
    ends."""
    cdef uint64_t i, j, total = 0
    cdef Address low, high
    for i in range(t.head.block_cap):
        if t.blocks[i].count == 0:
            continue
        low.hi = high.hi = t.blocks[i].hi
        low.lo = t.blocks[i].lo
        high.lo = low.lo | (BLOCK_SIZE - 1)
        if beyond(low, last) or beyond(first, high):
            continue
        if not beyond(first, low) and not beyond(high, last):
            total += t.blocks[i].count
            continue
        for j in range(<uint64_t> BLOCK_SIZE):
            low.lo = t.blocks[i].lo + j
            total += bit_of(&t.blocks[i], j) and not beyond(first, low) and not beyond(low, last)
    return total


# -- owners -----------------------------------------------------------------------------------------------

cdef inline Owner* find_owner(Tables* t, uint64_t h, uint64_t hi, uint64_t lo) noexcept nogil:
    """Return the entry of this owner and this address, or NULL."""
    cdef uint64_t mask = t.head.owner_cap - 1
    cdef uint64_t i = h & mask
    cdef uint64_t _n
    for _n in range(t.head.owner_cap):
        if t.owners[i].hash == 0:
            return NULL
        if t.owners[i].hash == h and t.owners[i].hi == hi and t.owners[i].lo == lo:
            return &t.owners[i]
        i = (i + 1) & mask
    return NULL


cdef inline void put_owner(Tables* t, uint64_t h, uint64_t hi, uint64_t lo) noexcept nogil:
    cdef uint64_t mask = t.head.owner_cap - 1
    cdef uint64_t i = h & mask
    cdef uint64_t _n
    for _n in range(mask):
        if t.owners[i].hash == 0:
            break
        i = (i + 1) & mask
    t.owners[i].hash = h
    t.owners[i].hi = hi
    t.owners[i].lo = lo
    touch(t, &t.owners[i], sizeof(Owner))


cdef inline void remove_owner(Tables* t, Owner* entry) noexcept nogil:
    cdef uint64_t mask = t.head.owner_cap - 1
    cdef uint64_t gap = entry - t.owners
    cdef uint64_t i = gap
    cdef uint64_t _n
    for _n in range(mask):
        i = (i + 1) & mask
        if t.owners[i].hash == 0:
            break
        if (i - t.owners[i].hash) & mask >= (i - gap) & mask:
            t.owners[gap] = t.owners[i]
            touch(t, &t.owners[gap], sizeof(Owner))
            gap = i
    t.owners[gap].hash = 0
    touch(t, &t.owners[gap], sizeof(Owner))


cdef inline void put_all(Tables* t, Tables* old) noexcept nogil:
    """Copy all entries of `old` into these empty, larger tables."""
    cdef uint64_t i
    for i in range(old.head.block_cap):
        if old.blocks[i].count:
            memcpy(put_block(t, old.blocks[i].hi, old.blocks[i].lo), &old.blocks[i], sizeof(Block))
    for i in range(old.head.owner_cap):
        if old.owners[i].hash:
            put_owner(t, old.owners[i].hash, old.owners[i].hi, old.owners[i].lo)
    t.head.held = old.head.held
