# Part of _netlink.pyx: the system calls that each request makes. One extension module is less to load than two, and
# a plugin that starts Python feels each.
#
# Those that wait for nobody keep Python's lock: a thread that lets go of it for a microsecond wakes another, which
# finds it taken again. With eight requests at once that costs a server more than the calls do.

from libc.errno cimport EAGAIN, EINTR, ENOSPC, errno
from libc.string cimport strerror
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from posix cimport unistd
from posix.fcntl cimport O_CLOEXEC, O_EXCL, O_WRONLY, openat
from posix.stat cimport fstat, struct_stat

cdef extern from *:
    """
    #include <sched.h>
    #include <sys/socket.h>
    """
    enum: AT_FDCWD, MSG_DONTWAIT
    bytes PyUnicode_EncodeFSDefault(str)
    int c_setns "setns"(int fd, int nstype)
    ssize_t c_send "send"(int fd, const void* data, size_t size, int flags) nogil
    ssize_t recv(int fd, void* buffer, size_t size, int flags)
    int unlinkat(int folder, const char* path, int flags) nogil


cdef uint8_t datagram[DATAGRAM]             # of whoever has Python's lock


def send(int fd, bytes data not None):
    """Send a datagram; back when the kernel has done what it asks for. Raises OSError."""
    cdef const char* at = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef int failed = EINTR
    while failed == EINTR:
        with nogil:
            give()
            failed = 0 if c_send(fd, at, size, 0) >= 0 else errno
            take()
        PyErr_CheckSignals()
    refuse(failed, None)


def receive(int fd, int milliseconds=-1, show=None):
    """The messages() of the next datagram, None where none has come within so many milliseconds (-1: for ever).

    show("<", bytes) is told of it. Raises OSError, with ENOBUFS where the kernel had to drop some.
    """
    cdef int come
    cdef ssize_t size = recv(fd, datagram, DATAGRAM, MSG_DONTWAIT)
    while size < 0:
        if errno != EAGAIN and errno != EINTR:
            PyErr_SetFromErrno(OSError)
        if errno == EAGAIN:
            if milliseconds == 0:
                return None
            with nogil:
                come = await_input(fd, milliseconds)
            PyErr_CheckSignals()
            if come == 0:
                return None
        size = recv(fd, datagram, DATAGRAM, MSG_DONTWAIT)
    if show is not None:
        show("<", PyBytes_FromStringAndSize(<char*>datagram, size))
    return take_apart(datagram, size)


def identity(int fd):
    """(device, inode) of an open file; raises OSError."""
    cdef struct_stat st
    if fstat(fd, &st):
        PyErr_SetFromErrno(OSError)
    return st.st_dev, st.st_ino


def setns(int fd):
    """Move the calling thread into the network namespace behind `fd` (setns(2)); raises OSError."""
    if c_setns(fd, CLONE_NEWNET):
        PyErr_SetFromErrno(OSError)


def open_file(str path not None, int flags, int mode=0, *, int folder=AT_FDCWD):
    """A descriptor, closed on exec, of what the kernel has at hand: a namespace, a file in a folder that is open. By a
    path that a configuration names use posix.open(): a file system that hangs must hold up nobody else. Raises
    OSError."""
    cdef int fd = openat(folder, PyBytes_AS_STRING(encoded(path)), flags | O_CLOEXEC, mode)
    if fd < 0:
        refuse(errno, path)
    return fd


def close_file(int fd):
    """Close a descriptor of which the kernel has no data to write. Raises OSError."""
    if unistd.close(fd):
        PyErr_SetFromErrno(OSError)


# -- small files, each in one go: the lock is let go of once, for a disk may take its time ----------------------

def read_file(str path not None, int flags, Py_ssize_t most, int folder=AT_FDCWD):
    """Up to `most` bytes from the beginning of a file below the open `folder`; flags as for open(2). Raises OSError."""
    cdef bytes name = encoded(path), found = PyBytes_FromStringAndSize(NULL, most)
    cdef const char* at = PyBytes_AS_STRING(name)
    cdef char* buffer = PyBytes_AS_STRING(found)
    cdef int fd, failed = 0
    cdef ssize_t size = 0
    with nogil:
        fd = openat(folder, at, flags | O_CLOEXEC)
        if fd < 0:
            failed = errno
        else:
            size = unistd.read(fd, buffer, most)
            if size < 0:
                failed = errno
            unistd.close(fd)
    refuse(failed, path if fd < 0 else None)
    return found[:size]


def write_file(str path not None, bytes data not None, int flags, int folder=AT_FDCWD, *, int mode=0o600,
               bint cut=False, bint sync=False):
    """Write `data` over the beginning of a file below the open `folder`, cut it off behind, have it on disk.

    What O_EXCL has made and could not be filled is gone again. Raises OSError.
    """
    cdef bytes name = encoded(path)
    cdef const char* at = PyBytes_AS_STRING(name)
    cdef const char* buffer = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef ssize_t written
    cdef struct_stat st
    cdef int fd, failed = 0
    with nogil:
        fd = openat(folder, at, flags | O_WRONLY | O_CLOEXEC, mode)
        if fd < 0:
            failed = errno
        else:
            written = unistd.write(fd, buffer, size)
            if written != size:
                failed = errno if written < 0 else ENOSPC       # room for a part of it
            elif cut and (fstat(fd, &st) or (st.st_size > size and unistd.ftruncate(fd, size))):
                failed = errno          # cutting off nothing takes ext4 longer than the write
            elif sync and unistd.fsync(fd):
                failed = errno
            unistd.close(fd)
            if failed and flags & O_EXCL:
                unlinkat(folder, at, 0)
    refuse(failed, path if fd < 0 else None)


cdef bytes encoded(str path):
    """As os.fsencode(); raises ValueError for a NUL in it."""
    cdef bytes name = PyUnicode_EncodeFSDefault(path)
    if memchr(PyBytes_AS_STRING(name), 0, PyBytes_GET_SIZE(name)) != NULL:
        raise ValueError("embedded null byte")
    return name


cdef int refuse(int failed, str path) except -1:
    """Raise an OSError for an errno; one of open(2) has the path as its filename."""
    if failed:
        raise OSError(failed, strerror(failed).decode(), path)
    return 0
