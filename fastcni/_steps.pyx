# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: binding=False, auto_pickle=False
"""Record the steps of a running request, see server/records/stories.py. A warm ADD has seven to thirty steps."""

cimport cython
from cpython.bytes cimport PyBytes_GET_SIZE
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef enum:
    STEP_BYTES = 100            # the memory of a step in bytes, without its datagram


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
        cdef timespec now
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if size + STEP_BYTES > self.left:
            self.dropped += size
            return
        self.left -= size + STEP_BYTES
        clock_gettime(CLOCK_MONOTONIC, &now)
        self.entries.append((now.tv_sec * 1_000_000_000 + now.tv_nsec, way, data))
