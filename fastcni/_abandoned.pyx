# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: binding=False, auto_pickle=False
"""Check whether the request of this thread may still change the kernel or files.

While a server is stopped (SIGSTOP, a frozen cgroup, a debugger), launchers give up. The runtime then deletes the
attachment one-shot, and may add it again, or another pod with the same host port. When the server continues, the
abandoned request must change nothing more and must not roll back, because the present state belongs to other requests.
The request ends as if the server had died; the runtime's DEL removes the request's changes.

So each call that changes something checks the clock first, and note_running() checks it at least once a second. If no
check happened for longer than a stall, the server was stopped. Then the requests whose callers left during the stop are
abandoned. Every request that takes longer than its caller waits is abandoned, too.
"""

from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef extern from *:
    """
    #include <poll.h>
    static __thread int request_conn = -1;
    static __thread long request_end, request_stalls;

    static int peer_has_closed(int conn)
    {
        struct pollfd state = { conn, POLLRDHUP, 0 };
        return poll(&state, 1, 0) > 0 && state.revents & (POLLHUP | POLLRDHUP);
    }
    """
    # The descriptor of the caller's connection, -1: this thread works on no request
    int request_conn
    # The end in ns of CLOCK_MONOTONIC; the number of stalls after which the caller was still connected
    long request_end, request_stalls
    bint peer_has_closed(int conn)

# The length of a stall in ns, the time of the last check in ns, the number of stalls; protected by the GIL.
cdef long stall = 0, last_check = 0, stalls = 0


class Abandoned(BaseException):
    """The request is abandoned: neither continue it nor roll it back. Abandoned is not an Exception, so that no error
    handler continues or rolls back."""


def note_running(double stall_seconds=0):
    """Record that this process is not stopped. stall_seconds: set the length of a stall; 0: do not change it."""
    global stall
    if stall_seconds:
        stall = <long>(stall_seconds * 1e9)
    read_clock()


def begin_request(int conn, double seconds):
    """Begin to check changes of this thread for a request. conn: the caller's connection. seconds: how long the caller
    waits."""
    global request_conn, request_end, request_stalls
    request_end = read_clock() + <long>(seconds * 1e9)
    request_conn, request_stalls = conn, stalls


def end_request():
    """End the checks of begin_request(): this thread works on no request."""
    global request_conn
    request_conn = -1


def check_request():
    """Check the request before a change that no function of the extension modules makes. Raises Abandoned."""
    check()


cdef int check() except -1:
    global request_stalls
    cdef long now
    if request_conn < 0:
        return 0
    now = read_clock()
    if request_stalls != stalls:
        if peer_has_closed(request_conn):
            raise Abandoned("the server was stopped, and its caller has left since")
        request_stalls = stalls             # the caller still waits, so no other request has changed this attachment
    if now > request_end:
        raise Abandoned("the request has taken longer than its caller waits")
    return 0


cdef long read_clock() noexcept:
    """Return the time, and add one to `stalls` if a stall ends now."""
    global last_check, stalls
    cdef timespec clock
    cdef long now
    clock_gettime(CLOCK_MONOTONIC, &clock)
    now = clock.tv_sec * 1_000_000_000 + clock.tv_nsec
    if stall and last_check and now - last_check > stall:
        stalls += 1
    last_check = now
    return now
