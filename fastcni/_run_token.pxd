# The run token for extension modules that wait: give() before a call that may take long, take() behind it.

cdef enum:
    GONE = 2                    # of await_either()

cdef void take() noexcept nogil
cdef void give() noexcept nogil
cdef int await_either(int fd, int caller, int milliseconds) noexcept nogil
