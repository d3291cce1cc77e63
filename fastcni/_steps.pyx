# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: binding=False, auto_pickle=False
"""Record the steps and the phases of a running request, see server/records. A warm ADD has seven to thirty steps, and
up to ten phases."""

cimport cython
from cpython.bytes cimport PyBytes_GET_SIZE
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef enum:
    STEP_BYTES = 100            # the memory of a step in bytes, without its datagram
    LIMIT = 256

MAX_PHASES = LIMIT              # limit of a request's recorded phases; a GC of many attachments has more


cdef long long now_ns() noexcept nogil:
    """Return the time as time.perf_counter_ns() does."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * 1_000_000_000LL + now.tv_nsec


@cython.final
cdef class Steps:
    """The steps of one request. The object is the function kernel.waiting.Request.show of the request.

    entries: [(time by time.perf_counter_ns(), ">" sent or "<" received or "!" text, bytes)]. left: bytes of memory that
    further steps may use. dropped: the number of bytes of the steps for which no memory was left.
    """

    cdef readonly list entries
    cdef readonly Py_ssize_t left, dropped

    def __cinit__(self, Py_ssize_t left):
        self.entries, self.left, self.dropped = [], left, 0

    def __call__(self, str way not None, bytes data not None):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if size + STEP_BYTES > self.left:
            self.dropped += size
            return
        self.left -= size + STEP_BYTES
        self.entries.append((now_ns(), way, data))


cdef class PhaseTimes:
    """The base of server.records.ended.Phases, which documents the attributes."""

    cdef readonly list entries
    cdef readonly dict sums, merged

    def __cinit__(self):
        self.entries, self.sums, self.merged = [], {}, {}

    def note(self, what, long long started):
        """Record a phase that ends now; see kernel.waiting.Request.spent()."""
        cdef long long took = now_ns() - started
        self.sums[what] = self.sums.get(what, 0) + took
        if len(self.entries) < LIMIT:
            self.entries.append((what, started, took))
        else:
            self.merged[what] = self.merged.get(what, 0) + took
