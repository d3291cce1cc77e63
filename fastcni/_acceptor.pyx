# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: binding=False, auto_pickle=False
"""The system calls of the server's socket, unix(7) SEQPACKET: accept a connection, receive a message, send a message.
Also the timer for the server's epoll instance. No call waits.

None of these calls releases the GIL, see _system.pyx. A socket.socket would first ask the kernel for the socket's name,
and each of its methods would release the GIL.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetFromErrno
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, errno
from libc.string cimport memchr, memcpy, memset
from posix.time cimport CLOCK_MONOTONIC, itimerspec

cdef extern from *:
    """
    #include <linux/sockios.h>
    #include <poll.h>
    #include <sys/ioctl.h>
    #include <sys/socket.h>
    #include <sys/timerfd.h>
    #include <unistd.h>
    """
    enum: MSG_DONTWAIT, MSG_NOSIGNAL, MSG_CMSG_CLOEXEC, MSG_TRUNC, MSG_CTRUNC, SCM_RIGHTS
    enum: SOCK_CLOEXEC, SOL_SOCKET, SO_PEERCRED, POLLHUP, POLLRDHUP, SIOCGSKNS
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd*, unsigned long, int)
    ctypedef unsigned int socklen_t
    struct ucred:
        int pid
        unsigned int uid
        unsigned int gid
    struct iovec:
        void* iov_base
        size_t iov_len
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
        void* msg_control
        size_t msg_controllen
        int msg_flags
    struct cmsghdr:
        size_t cmsg_len
        int cmsg_level
        int cmsg_type
    int ioctl(int, unsigned long)
    int accept4(int, void*, socklen_t*, int)
    int getsockopt(int, int, int, void*, socklen_t*)
    ssize_t recvmsg(int, msghdr*, int)
    ssize_t send(int, const void*, size_t, int)
    int close(int)
    enum: TFD_NONBLOCK, TFD_CLOEXEC
    int timerfd_create(int, int)
    int timerfd_settime(int, int, itimerspec*, itimerspec*)
    cmsghdr* CMSG_FIRSTHDR(msghdr*)
    cmsghdr* CMSG_NXTHDR(msghdr*, cmsghdr*)
    unsigned char* CMSG_DATA(cmsghdr*)
    size_t CMSG_LEN(size_t)

cdef enum:
    MESSAGE_BYTES = 262144
    # Has space for more descriptors than a request may have; the kernel closes further descriptors
    ANCILLARY_BYTES = 128

MAX_MESSAGE = MESSAGE_BYTES
# The thread that has the GIL uses this buffer. Pages that no message fills take no memory.
cdef char message[MESSAGE_BYTES]


def accept(int listener):
    """Accept the next connection: return (descriptor, user id, process id of the peer), or None if no connection waits.
    Raises OSError."""
    cdef ucred peer
    cdef socklen_t size = sizeof(peer)
    cdef int conn = accept4(listener, NULL, NULL, SOCK_CLOEXEC)
    if conn < 0:
        if errno in (EAGAIN, ECONNABORTED, EINTR):
            return None
        PyErr_SetFromErrno(OSError)
    if getsockopt(conn, SOL_SOCKET, SO_PEERCRED, &peer, &size):
        close(conn)
        PyErr_SetFromErrno(OSError)
    return conn, peer.uid, peer.pid


def receive(int conn):
    """Receive the waiting message. Return (bytes, [descriptor], whether the message was cut short); None if no message
    waits. Raises OSError."""
    cdef iovec piece
    cdef msghdr head
    cdef cmsghdr* part
    cdef size_t ancillary[ANCILLARY_BYTES / 8]
    cdef int fd
    cdef size_t i
    cdef list fds = []
    cdef ssize_t size
    piece.iov_base, piece.iov_len = message, MESSAGE_BYTES
    memset(&head, 0, sizeof(head))
    head.msg_iov, head.msg_iovlen = &piece, 1
    head.msg_control, head.msg_controllen = ancillary, sizeof(ancillary)
    size = recvmsg(conn, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)
    if size < 0:
        if errno in (EAGAIN, EINTR):
            return None
        PyErr_SetFromErrno(OSError)
    part = CMSG_FIRSTHDR(&head)
    while part != NULL:
        if part.cmsg_level == SOL_SOCKET and part.cmsg_type == SCM_RIGHTS:
            for i in range((part.cmsg_len - CMSG_LEN(0)) // sizeof(int)):
                memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int))
                fds.append(fd)
        part = CMSG_NXTHDR(&head, part)
    return PyBytes_FromStringAndSize(message, size), fds, head.msg_flags & (MSG_TRUNC | MSG_CTRUNC) != 0


def read_strings(bytes block not None):
    """Read NUL-terminated strings: a first string, then strings NAME=VALUE. Return (first string, {name: value}).

    The strings are decoded like os.environ. If a name is repeated, the first value is used, as in the launcher. Raises
    ValueError.
    """
    cdef const char* at = PyBytes_AS_STRING(block)
    cdef const char* end = at + PyBytes_GET_SIZE(block)
    cdef const char* stop
    cdef const char* equals
    cdef str first = None
    cdef dict found = {}
    while at < end:
        stop = <const char*>memchr(at, 0, end - at)
        if stop == NULL:
            raise ValueError("an environment without its end")
        if first is None:
            first = PyUnicode_DecodeUTF8(at, stop - at, "surrogateescape")
        else:
            equals = <const char*>memchr(at, b"=", stop - at)
            if equals == NULL:
                raise ValueError("a variable without a value")
            name = PyUnicode_DecodeUTF8(at, equals - at, "surrogateescape")
            if name not in found:
                found[name] = PyUnicode_DecodeUTF8(equals + 1, stop - equals - 1, "surrogateescape")
        at = stop + 1
    if first is None:
        raise ValueError("an environment without its end")
    return first, found


def namespace_of(int conn):
    """Return a descriptor of the network namespace in which the peer made its end of the connection. Raises OSError."""
    cdef int fd = ioctl(conn, SIOCGSKNS)
    if fd < 0:
        PyErr_SetFromErrno(OSError)
    return fd


def is_closed(int conn):
    """Return whether the peer has closed its end."""
    cdef pollfd state
    state.fd, state.events, state.revents = conn, POLLRDHUP, 0
    return poll(&state, 1, 0) > 0 and state.revents & (POLLHUP | POLLRDHUP) != 0


def send_message(int conn, bytes data not None):
    """Send a message. Raises OSError: EPIPE if the peer has left, EAGAIN if the peer does not read."""
    if send(conn, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_NOSIGNAL | MSG_DONTWAIT) < 0:
        PyErr_SetFromErrno(OSError)


def open_timer():
    """Return the descriptor of a timer that is not set: timerfd_create(2). Raises OSError."""
    cdef int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
    if fd < 0:
        PyErr_SetFromErrno(OSError)
    return fd


def set_timer(int timer, double seconds):
    """Set a timer, whose descriptor becomes readable after so many seconds. Raises OSError."""
    cdef itimerspec due
    memset(&due, 0, sizeof(due))
    due.it_value.tv_sec = <long>seconds
    # At least 1 ns, because 0 would stop the timer
    due.it_value.tv_nsec = <long>((seconds - <long>seconds) * 1e9) or 1
    if timerfd_settime(timer, 0, &due, NULL):
        PyErr_SetFromErrno(OSError)
