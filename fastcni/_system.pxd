# Encode file names and raise errors, for other extension modules that make system calls.

cdef bytes encoded(str path)
cdef int refuse(int failed, str path) except -1
