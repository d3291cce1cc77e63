# Names of files, and errors, for other extension modules with system calls.

cdef bytes encoded(str path)
cdef int refuse(int failed, str path) except -1
