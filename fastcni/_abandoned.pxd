# The check before each change, for extension modules whose functions change the kernel or files.

cdef int check() except -1
