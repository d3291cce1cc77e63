# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: binding=False, auto_pickle=False
"""The run token, which decides which worker of a server runs Python, and the waits that pass the token on.

A system call that may block releases the GIL. The thread that this wakes usually finds the GIL taken again. So
workers wait for the token instead. A worker gives the token back before a long wait, such as a wait for the kernel, a
notification or the next request.

A thread without the token works correctly, but more slowly. So no worker waits forever: after MAX_WAIT_MS it takes the
token from a thread that hangs, for instance in a file system. For a thread that never called take_token(), the
functions of this module only wait.

Sources: pthread_cond_timedwait(3), sem_timedwait(3), poll(2), epoll_wait(2).
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    pthread_t pthread_self()
    int pthread_equal(pthread_t, pthread_t)
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_condattr_init(pthread_condattr_t*)
    int pthread_condattr_setclock(pthread_condattr_t*, int)
    int pthread_cond_init(pthread_cond_t*, pthread_condattr_t*)
    int pthread_cond_signal(pthread_cond_t*)
    int pthread_cond_timedwait(pthread_cond_t*, pthread_mutex_t*, timespec*)

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t*, int, unsigned int)
    int sem_destroy(sem_t*)
    int sem_post(sem_t*)
    int sem_timedwait(sem_t*, timespec*)

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        epoll_data_t data
    int epoll_wait(int events, epoll_event* found, int most, int milliseconds)

cdef extern from "<poll.h>" nogil:
    enum: POLLIN, POLLRDHUP
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* fds, unsigned long count, int milliseconds)

cdef extern from *:
    """
    static __thread int needs_token;
    """
    int needs_token                         # 1 after this thread has called take_token()

cdef enum:
    MAX_WAIT_MS = 50

cdef pthread_mutex_t guard                  # protects `holder` and `held`
cdef pthread_t holder
cdef bint held = False
cdef pthread_cond_t given
cdef pthread_condattr_t by_monotonic_clock

pthread_mutex_init(&guard, NULL)
pthread_condattr_init(&by_monotonic_clock)
pthread_condattr_setclock(&by_monotonic_clock, CLOCK_MONOTONIC)
pthread_cond_init(&given, &by_monotonic_clock)


cdef void take() noexcept nogil:
    """Wait for the token if this thread needs it and does not hold it."""
    global holder, held
    cdef timespec until
    cdef int late = 0
    if not needs_token:
        return
    clock_gettime(CLOCK_MONOTONIC, &until)
    add_milliseconds(&until, MAX_WAIT_MS)
    pthread_mutex_lock(&guard)
    while held and not late and not pthread_equal(holder, pthread_self()):
        late = pthread_cond_timedwait(&given, &guard, &until)
    holder, held = pthread_self(), True
    pthread_mutex_unlock(&guard)


cdef void give() noexcept nogil:
    """Give the token back if this thread holds it."""
    global held
    cdef bint mine
    if not needs_token:
        return
    pthread_mutex_lock(&guard)
    mine = held and pthread_equal(holder, pthread_self())
    if mine:
        held = False
    pthread_mutex_unlock(&guard)
    if mine:
        pthread_cond_signal(&given)     # after the unlock: the woken thread would have to wait for the mutex


cdef void add_milliseconds(timespec* moment, int milliseconds) noexcept nogil:
    moment.tv_nsec += milliseconds * 1_000_000L
    moment.tv_sec += moment.tv_nsec // 1_000_000_000
    moment.tv_nsec %= 1_000_000_000


def take_token():
    """Wait for the token. From now on this thread needs the token: each wait in this module gives the token back until
    the wait ends."""
    global needs_token
    needs_token = 1
    with nogil:
        take()


def give_token():
    """Give the token back before a wait outside of this module."""
    give()


def await_event(int events, int milliseconds):
    """Wait at most `milliseconds` (-1: no limit) for an event of an epoll(7) instance. Return the event's descriptor,
    -1 without an event."""
    cdef epoll_event event
    cdef int found
    with nogil:
        give()
        found = epoll_wait(events, &event, 1, milliseconds)
        take()
    return event.data.fd if found > 0 else -1


cdef int await_either(int fd, int caller, int milliseconds) noexcept nogil:
    """poll(2) until `fd` is readable or the other end of the connection `caller` closes. A descriptor of -1 is not
    polled. Return 1 if `fd` is readable or has an error; 0 after `milliseconds`; GONE if the caller has left; -1 after
    a signal."""
    cdef pollfd both[2]
    cdef int found
    both[0].fd, both[0].events, both[0].revents = fd, POLLIN, 0
    both[1].fd, both[1].events, both[1].revents = caller, POLLRDHUP, 0
    give()
    found = poll(both, 2, milliseconds)
    take()
    return found if found <= 0 else 1 if both[0].revents else GONE


def await_input(int fd, int caller, int milliseconds):
    """Wait at most `milliseconds` (-1: no limit) until `fd` is readable or `caller` leaves. Return the result of
    await_either(). Raises the exception of a signal handler."""
    cdef int come
    with nogil:
        come = await_either(fd, caller, milliseconds)
    PyErr_CheckSignals()
    return come


def await_message(int conn, int milliseconds):
    """Wait at most `milliseconds` until the connection is readable."""
    with nogil:
        await_either(conn, -1, milliseconds)


@cython.final
cdef class Gate:
    """A gate that one thread opens for another: wait() returns when open() is called. Call each method only once."""

    cdef sem_t opened

    def __cinit__(self):
        sem_init(&self.opened, 0, 0)

    def __dealloc__(self):
        sem_destroy(&self.opened)

    def open(self):
        sem_post(&self.opened)

    def wait(self, int milliseconds):
        """Wait at most `milliseconds`; return whether the gate is open. If the node's clock is set back during the
        wait, the wait may take longer."""
        cdef timespec until
        cdef int failed = EINTR
        clock_gettime(CLOCK_REALTIME, &until)           # before glibc 2.30, semaphores can only use CLOCK_REALTIME
        add_milliseconds(&until, milliseconds)
        with nogil:
            give()
            while failed == EINTR:
                failed = errno if sem_timedwait(&self.opened, &until) else 0
            take()
        return not failed
