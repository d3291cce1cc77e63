# Part of _netlink.pyx: the run token, which decides which worker of a server runs Python.
#
# Each system call that might block releases Python's own lock, and wakes a thread that then mostly finds the lock
# taken again. Workers wait here for the token instead. A worker passes it on before a long wait: for the kernel's work
# on a request, an announcement, the next request.
#
# A thread without the token is only slower, not wrong. So no worker waits for ever: after PATIENCE_MS it takes the
# token from a thread that hangs, in a file system for instance.

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
    static __thread int takes_turns;
    """
    int takes_turns                         # does this thread?

cdef enum:
    PATIENCE_MS = 50
    GONE = 2                                # of await_either()

cdef pthread_mutex_t guard                  # of the two below
cdef pthread_t holder
cdef bint held = False
cdef pthread_cond_t given
cdef pthread_condattr_t by_monotonic_clock

pthread_mutex_init(&guard, NULL)
pthread_condattr_init(&by_monotonic_clock)
pthread_condattr_setclock(&by_monotonic_clock, CLOCK_MONOTONIC)
pthread_cond_init(&given, &by_monotonic_clock)


cdef void take() noexcept nogil:
    """Wait for the turn, where this thread takes turns and does not have it."""
    global holder, held
    cdef timespec until
    cdef int late = 0
    if not takes_turns:
        return
    clock_gettime(CLOCK_MONOTONIC, &until)
    until.tv_nsec += PATIENCE_MS * 1_000_000
    until.tv_sec += until.tv_nsec // 1_000_000_000
    until.tv_nsec %= 1_000_000_000
    pthread_mutex_lock(&guard)
    while held and not late and not pthread_equal(holder, pthread_self()):
        late = pthread_cond_timedwait(&given, &guard, &until)
    holder, held = pthread_self(), True
    pthread_mutex_unlock(&guard)


cdef void give() noexcept nogil:
    """Let go of the turn, where this thread has it."""
    global held
    if not takes_turns:
        return
    pthread_mutex_lock(&guard)
    if held and pthread_equal(holder, pthread_self()):
        held = False
        pthread_cond_signal(&given)
    pthread_mutex_unlock(&guard)


def take_turn():
    """Wait for the turn. From now on this thread takes turns: what waits in here gives it up meanwhile."""
    global takes_turns
    takes_turns = 1
    with nogil:
        take()


def give_turn():
    """Let go of the turn, before a wait that is not in here."""
    give()


def await_event(int events, int milliseconds):
    """Wait so long for an event of an epoll(7) instance, -1: for ever. The descriptor that it is about, -1: none."""
    cdef epoll_event event
    cdef int found
    with nogil:
        give()
        found = epoll_wait(events, &event, 1, milliseconds)
        take()
    return event.data.fd if found > 0 else -1


cdef int await_either(int fd, int caller, int milliseconds) noexcept nogil:
    """poll(2) for something to read from `fd`, and for the other end of the connection `caller` to close; a descriptor
    of -1 is left out. 1: there is something to read, or an error; 0: not in time; GONE: the caller has left; -1: a
    signal came."""
    cdef pollfd both[2]
    cdef int found
    both[0].fd, both[0].events, both[0].revents = fd, POLLIN, 0
    both[1].fd, both[1].events, both[1].revents = caller, POLLRDHUP, 0
    give()
    found = poll(both, 2, milliseconds)
    take()
    return found if found <= 0 else 1 if both[0].revents else GONE


def await_input(int fd, int caller, int milliseconds):
    """Wait so long (-1: for ever) for something to read from `fd`, or for `caller` to leave: 1, 0, 2 or -1, as
    await_either(). Raises what a signal's handler raises."""
    cdef int come
    with nogil:
        come = await_either(fd, caller, milliseconds)
    PyErr_CheckSignals()
    return come


def await_message(int conn, int milliseconds):
    """Wait so long for something to read."""
    with nogil:
        await_either(conn, -1, milliseconds)


@cython.final
cdef class Gate:
    """wait() until another thread calls open(), once each."""

    cdef sem_t opened

    def __cinit__(self):
        sem_init(&self.opened, 0, 0)

    def __dealloc__(self):
        sem_destroy(&self.opened)

    def open(self):
        sem_post(&self.opened)

    def wait(self, int milliseconds):
        """Is it open within so many milliseconds? If the node's clock is set meanwhile, a wait that fails may take
        longer."""
        cdef timespec until
        cdef int failed = EINTR
        clock_gettime(CLOCK_REALTIME, &until)           # the only one that semaphores know before glibc 2.30
        until.tv_nsec += milliseconds * 1_000_000
        until.tv_sec += until.tv_nsec // 1_000_000_000
        until.tv_nsec %= 1_000_000_000
        with nogil:
            give()
            while failed == EINTR:
                failed = errno if sem_timedwait(&self.opened, &until) else 0
            take()
        return not failed
