# Names of files, and errors, for leaves that call the system as well.

cdef bytes encoded(str path)
cdef int refuse(int failed, str path) except -1
