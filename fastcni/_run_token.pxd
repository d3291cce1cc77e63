# The run token for extension modules that wait: call give() before a call that may take long, and take() after it.

cdef enum:
    GONE = 2                    # the result of await_either() if the caller has left

cdef void take() noexcept nogil
cdef void give() noexcept nogil
cdef int await_either(int fd, int caller, int milliseconds) noexcept nogil
