# The check before each change, for leaves whose calls change something.

cdef int check() except -1
