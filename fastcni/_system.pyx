# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: binding=False, auto_pickle=False
"""Make the system calls of a request: for descriptors, network namespaces and small files.

Calls that do not block keep the GIL. A thread that releases the GIL for a microsecond wakes another thread, which finds
the GIL taken again. With eight requests at the same time, this costs a server more than the calls themselves.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport EAGAIN, EEXIST, EISDIR, ENOSPC, EOPNOTSUPP, errno
from libc.string cimport memchr, memcpy, memset, strerror
from posix cimport unistd
from posix.fcntl cimport O_CLOEXEC, O_EXCL, O_NONBLOCK, O_WRONLY, openat
from posix.stat cimport S_ISDIR, S_ISREG, fstat, struct_stat

from fastcni._abandoned cimport check

cdef extern from *:
    """
    #include <fcntl.h>
    #include <linux/sockios.h>
    #include <poll.h>
    #include <sched.h>
    #include <sys/file.h>
    #include <sys/ioctl.h>
    #include <sys/socket.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    #ifndef SYS_fsopen              /* headers before Linux 5.2; the numbers are those of all machines */
    #define SYS_fsopen 430
    #define SYS_fsconfig 431
    #define SYS_fsmount 432
    #endif
    """
    enum: SYS_fsopen, SYS_fsconfig, SYS_fsmount
    enum: AT_EMPTY_PATH, AT_FDCWD, CLONE_NEWNET, O_TMPFILE, LOCK_EX, LOCK_NB, LOCK_UN, SIOCGSKNS, SYS_bpf
    long syscall(long number, ...) nogil
    int ioctl(int, unsigned long)
    bytes PyUnicode_EncodeFSDefault(str)
    int c_setns "setns"(int fd, int nstype)
    int c_getsockopt "getsockopt"(int fd, int level, int name, void* value, unsigned int* size) nogil
    int flock(int fd, int operation) nogil
    enum: POLLIN
    struct pollfd:
        int fd
        short events
    int poll(pollfd* fds, unsigned long count, int milliseconds)
    int linkat(int old, const char* old_path, int directory, const char* path, int flags) nogil
    int unlinkat(int directory, const char* path, int flags) nogil
    enum: STATX_BTIME, STATX_MTIME
    struct statx_timestamp:
        long long tv_sec
        unsigned int tv_nsec
    struct statx_times "statx":
        unsigned int stx_mask
        statx_timestamp stx_btime, stx_mtime
    int statx(int directory, const char* path, int flags, unsigned int mask, statx_times* found)

cdef enum:
    FSOPEN_CLOEXEC = 1          # linux/mount.h
    FSCONFIG_CMD_CREATE = 6
    FSMOUNT_CLOEXEC = 1
    MOUNT_ATTR_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
    LARGE_BYTES = 65536         # for answers of this size or more, getsockopt() releases the GIL


def getsockopt(int fd, int level, int name, bytes question not None, unsigned int size):
    """Read a socket option whose buffer has the question first and then the answer; Python's getsockopt() cannot pass
    the question. Raises OSError.

    size: the bytes of the buffer, at least the size of the question. Bytes that the kernel does not write are 0. The
    kernel takes some 1.4 us for each kB of a large answer.
    """
    cdef bytes answer = PyBytes_FromStringAndSize(NULL, size)
    cdef char* data = PyBytes_AS_STRING(answer)
    cdef unsigned int failed, asked = min(<unsigned int> PyBytes_GET_SIZE(question), size)
    memcpy(data, PyBytes_AS_STRING(question), asked)
    memset(data + asked, 0, size - asked)
    if size > LARGE_BYTES:
        with nogil:
            failed = c_getsockopt(fd, level, name, data, &size)
    else:
        failed = c_getsockopt(fd, level, name, data, &size)
    if failed:
        refuse(errno, None)
    return answer


def address_of(bytearray buffer not None):
    """Return the address of a buffer, for bpf(). The caller must keep the buffer, and not change its size, until bpf()
    has returned."""
    return <size_t>PyByteArray_AS_STRING(buffer)


def bpf(int command, bytearray attributes not None):
    """Call bpf(2) with a union bpf_attr, into which the kernel may write. Return a descriptor or 0. Raises OSError."""
    cdef char* attr = PyByteArray_AS_STRING(attributes)
    cdef long done, size = PyByteArray_GET_SIZE(attributes)
    with nogil:                 # loading a program takes milliseconds
        done = syscall(SYS_bpf, command, attr, size)
    refuse(errno if done < 0 else 0, None)
    return done


def identity(int fd):
    """Return (device, inode) of an open file. Raises OSError."""
    cdef struct_stat st
    if fstat(fd, &st):
        PyErr_SetFromErrno(OSError)
    return st.st_dev, st.st_ino


def directory_times(str path not None):
    """Return (time of birth, time of the last change) of a directory in unix seconds. The time of birth is None if the
    file system does not record it. Python's os.stat() does not return the time of birth. Raises OSError. Source:
    statx(2)."""
    cdef statx_times found
    if statx(AT_FDCWD, PyBytes_AS_STRING(encoded(path)), 0, STATX_BTIME | STATX_MTIME, &found):
        refuse(errno, path)
    changed = found.stx_mtime.tv_sec + 1e-9 * found.stx_mtime.tv_nsec
    if not found.stx_mask & STATX_BTIME:
        return None, changed
    return found.stx_btime.tv_sec + 1e-9 * found.stx_btime.tv_nsec, changed


def setns(int fd):
    """Move the calling thread into the network namespace `fd` (setns(2)). Raises OSError."""
    if c_setns(fd, CLONE_NEWNET):
        PyErr_SetFromErrno(OSError)


def namespace_of(int sock):
    """Return a descriptor, closed on exec, of the network namespace of a socket. The descriptor belongs to no mount:
    umount(2) of a mount fails with EBUSY while a descriptor opened through the mount is open. Raises OSError."""
    cdef int fd = ioctl(sock, SIOCGSKNS)
    if fd < 0:
        PyErr_SetFromErrno(OSError)
    return fd


def open_file(str path not None, int flags, int mode=0, *, int directory=AT_FDCWD):
    """Return a descriptor, closed on exec, of a file that is not on a disk, for instance a namespace. For a file on a
    disk use open_regular(), which releases the GIL: then a file system that hangs delays only its own request. Raises
    OSError."""
    cdef int fd = openat(directory, PyBytes_AS_STRING(encoded(path)), flags | O_CLOEXEC, mode)
    if fd < 0:
        refuse(errno, path)
    return fd


def close_file(int fd):
    """Close a descriptor for which the kernel has no data to write. Raises OSError."""
    if unistd.close(fd):
        PyErr_SetFromErrno(OSError)


def try_lock(int fd):
    """Take the exclusive flock(2) of an open file. Return False if another process has it. Raises OSError.

    The call releases the GIL: LOCK_NB does not wait for another holder, but for the server of a network file system.
    """
    cdef int failed = 0
    with nogil:
        if flock(fd, LOCK_EX | LOCK_NB):
            failed = errno
    if failed != EAGAIN:
        refuse(failed, None)
    return not failed


def unlock(int fd):
    """Release the flock(2) of a namespace. close() does not release the lock while a child that was just forked also
    has the descriptor. The call keeps the GIL, because a namespace's file is on no disk."""
    flock(fd, LOCK_UN)


def has_input(int fd):
    """Return whether a datagram or an error waits on a socket. Source: poll(2)."""
    cdef pollfd asked
    asked.fd, asked.events = fd, POLLIN
    return poll(&asked, 1, 0) != 0


# -- small files; each function releases the GIL once, because a disk may be slow ----------------------

cdef int open_checked(int directory, const char* name, int flags, int mode, struct_stat* st,
                      int* failed) noexcept nogil:
    """Return a descriptor; or -1, with the errno in `failed`. If `st` is not NULL, fill it in, and fail with EISDIR for
    a directory, EOPNOTSUPP for a pipe, a socket and a device."""
    cdef int fd = openat(directory, name, flags | O_CLOEXEC | (O_NONBLOCK if st != NULL else 0), mode)
    if fd < 0:
        failed[0] = errno
    elif st != NULL:
        if fstat(fd, st):
            failed[0] = errno
        elif not S_ISREG(st.st_mode):
            failed[0] = EISDIR if S_ISDIR(st.st_mode) else EOPNOTSUPP
        if failed[0]:
            unistd.close(fd)
            fd = -1
    return fd


def open_regular(str path not None, int flags, int mode=0, *, int directory=AT_FDCWD):
    """Return a descriptor of a regular file below the open `directory`, closed on exec. Raises OSError."""
    cdef bytes name = encoded(path)
    cdef const char* at = PyBytes_AS_STRING(name)
    cdef struct_stat st
    cdef int fd, failed = 0
    with nogil:
        fd = open_checked(directory, at, flags, mode, &st, &failed)
    refuse(failed, path)
    return fd


def mount_procfs():
    """Return a descriptor of a new procfs for this process's PID namespace. The procfs has no path; the kernel unmounts
    it when the descriptor is closed. The mount takes some 50 us, the last close() some milliseconds. Raises OSError."""
    cdef int context, mount = -1, failed = 0
    with nogil:
        context = <int> syscall(SYS_fsopen, <const char*> "proc", FSOPEN_CLOEXEC)
        if context < 0:
            failed = errno
        else:
            if syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0:
                mount = <int> syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID_NODEV_NOEXEC)
            if mount < 0:
                failed = errno
            unistd.close(context)
    refuse(failed, None)
    return mount


def read_file(str path not None, int flags, Py_ssize_t most, int directory=AT_FDCWD, *, bint regular=False):
    """Return up to `most` bytes from the beginning of a file below the open `directory`. flags: as for open(2). Raises
    OSError.

    regular: fail with EOPNOTSUPP for all other kinds of files, and never wait for the writer of a pipe.
    """
    cdef bytes name = encoded(path), found = PyBytes_FromStringAndSize(NULL, most)
    cdef const char* at = PyBytes_AS_STRING(name)
    cdef char* buffer = PyBytes_AS_STRING(found)
    cdef struct_stat st
    cdef int fd, failed = 0
    cdef ssize_t size = 0
    with nogil:
        fd = open_checked(directory, at, flags, 0, &st if regular else NULL, &failed)
        if fd >= 0:
            size = unistd.read(fd, buffer, most)
            if size < 0:
                failed = errno
            unistd.close(fd)
    refuse(failed, path if fd < 0 else None)
    return found[:size]


cdef bint create_whole(int directory, const char* name, const char* data, Py_ssize_t size, int mode, bint sync,
                       int* failed) noexcept nogil:
    """Create a file together with its content, so that a killed process leaves no empty file. Set `failed` to 0 or
    EEXIST. Return False, without a file, if the file system has no O_TMPFILE (open(2)), or this process may not use
    AT_EMPTY_PATH (link(2))."""
    cdef int fd = openat(directory, b".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode)
    cdef bint made
    if fd < 0:
        return False
    made = unistd.write(fd, data, size) == size and not (sync and unistd.fsync(fd))
    failed[0] = 0
    if made and linkat(fd, b"", directory, name, AT_EMPTY_PATH):
        failed[0] = errno
        made = failed[0] == EEXIST
    unistd.close(fd)
    return made


def write_file(str path not None, bytes data not None, int flags, int directory=AT_FDCWD, *, int mode=0o600,
               bint cut=False, bint sync=False, bint regular=False):
    """Replace the content of a file below the open `directory` by `data`, and wait until it is on disk.

    With O_EXCL, create the file together with its content if the file system supports this; otherwise remove a file
    whose content cannot be written. regular: as for read_file(). Raises OSError, Abandoned.
    """
    cdef bytes name = encoded(path)
    cdef const char* at = PyBytes_AS_STRING(name)
    cdef const char* buffer = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef ssize_t written
    cdef struct_stat st
    cdef int fd, failed = 0
    cdef bint whole = flags & O_EXCL and memchr(at, c'/', PyBytes_GET_SIZE(name)) == NULL
    check()
    with nogil:
        if whole and create_whole(directory, at, buffer, size, mode, sync, &failed):
            fd = -1
        else:
            failed = 0
            fd = open_checked(directory, at, flags | O_WRONLY, mode, &st if regular else NULL, &failed)
        if fd >= 0:
            written = unistd.write(fd, buffer, size)
            if written != size:
                failed = errno if written < 0 else ENOSPC       # the disk has taken only a part of the data
            elif cut and ((not regular and fstat(fd, &st)) or (st.st_size > size and unistd.ftruncate(fd, size))):
                failed = errno          # ext4 takes longer for a needless ftruncate() than for the write
            elif sync and unistd.fsync(fd):
                failed = errno
            unistd.close(fd)
            if failed and flags & O_EXCL:
                unlinkat(directory, at, 0)
    refuse(failed, path if fd < 0 else None)


cdef bytes encoded(str path):
    """Encode a path like os.fsencode(). Raises ValueError for a NUL in the path."""
    cdef bytes name = PyUnicode_EncodeFSDefault(path)
    if memchr(PyBytes_AS_STRING(name), 0, PyBytes_GET_SIZE(name)) != NULL:
        raise ValueError("embedded null byte")
    return name


cdef int refuse(int failed, str path) except -1:
    """Raise the OSError for an errno other than 0. An error of open(2) has the path as its filename."""
    if failed == EOPNOTSUPP and path is not None:
        raise OSError(failed, "not a regular file", path)
    if failed:
        raise OSError(failed, strerror(failed).decode(), path)
    return 0
