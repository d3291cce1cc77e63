# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: binding=False, auto_pickle=False
"""Start the processes of a request: programs, and processes that finish a system call for the request."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc

from fastcni._system cimport encoded, refuse

# -- programs that end with us ------------------------------------------------------------------------------------
#
# posix_spawn(3) cannot set a signal for the parent's death (prctl(2), PR_SET_PDEATHSIG), so this code uses vfork(2) and
# execve(2). Until execve(2), the child uses this process's memory, and the kernel suspends the parent thread.

cdef extern from *:
    """
    #include <errno.h>
    #include <signal.h>
    #include <sys/prctl.h>
    #include <sys/wait.h>
    #include <unistd.h>

    /* Return the pid of the program, which leads a new process group, or minus an errno. */
    static __attribute__((noinline)) int spawn_program(const char *path, char *const argv[], char *const env[],
                                                       const int streams[3])
    {
        sigset_t all, before, none;
        struct sigaction action;
        volatile int failed = 0;            /* written by the child */
        const pid_t us = getpid();
        sigfillset(&all);
        sigemptyset(&none);
        pthread_sigmask(SIG_BLOCK, &all, &before);      /* no signal handler of this process runs in the child */
        pid_t child = vfork();
        if (child == 0) {
            for (int number = 1; number < _NSIG; number++) {
                if (sigaction(number, NULL, &action))
                    continue;
                /* Python ignores SIGPIPE and SIGXFSZ, and an ignored signal stays ignored across exec. */
                if (action.sa_handler != SIG_IGN || number == SIGPIPE || number == SIGXFSZ) {
                    action.sa_handler = SIG_DFL;
                    action.sa_flags = 0;
                    sigaction(number, &action, NULL);
                }
            }
            setpgid(0, 0);
            for (int stream = 0; stream < 3; stream++)
                if (dup2(streams[stream], stream) < 0)
                    failed = errno;
            if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != us)
                failed = errno ? errno : ESRCH;         /* the parent died before the prctl() */
            sigprocmask(SIG_SETMASK, &none, NULL);      /* a server has blocked the signals that end it */
            if (!failed) {
                execve(path, argv, env);
                failed = errno;
            }
            _exit(127);
        }
        if (child < 0)
            failed = errno;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (child > 0 && failed)
            while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
                ;
        return failed ? -failed : child;
    }
    """
    int spawn_program(const char* path, char** argv, char** env, const int* streams) nogil


def spawn(str path not None, argv, env, list pids not None, int stdin, int stdout, int stderr):
    """Start a program in its own process group, with three open files as its standard streams. Append its pid to
    `pids`.

    A signal may arrive during the start, and its handler may then raise before the caller has stored a returned pid.
    `pids` already has the pid at that time. The kernel kills the program when the calling thread ends. argv: texts.
    env: {name: text}. The descriptors of the files must be above 2. Raises OSError, and ValueError for a NUL or an
    invalid variable name.
    """
    cdef bytes name = encoded(path)
    cdef list arguments = [encoded(text) for text in argv]
    cdef list variables = []
    for key, value in env.items():
        if not key or "=" in key:
            raise ValueError("illegal environment variable name")
        variables.append(encoded(f"{key}={value}"))
    cdef char** pointers = <char**>malloc((len(arguments) + len(variables) + 2) * sizeof(char*))
    if pointers == NULL:
        raise MemoryError
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t second = len(arguments) + 1
    for text in (*arguments, None, *variables, None):
        pointers[at] = NULL if text is None else PyBytes_AS_STRING(<bytes>text)
        at += 1
    cdef int[3] streams
    streams[0], streams[1], streams[2] = stdin, stdout, stderr
    cdef const char* program = PyBytes_AS_STRING(name)
    cdef int pid
    with nogil:
        pid = spawn_program(program, pointers, pointers + second, streams)
    free(pointers)
    if pid < 0:
        refuse(-pid, path)
    pids.append(pid)


# -- processes that may end later than this one -------------------------------------------------------------------
#
# Such a process makes one system call that takes long. It shares this process's memory, even after this process has
# ended, so the kernel copies no memory. It has its own stack, and copies of this process's descriptors. It shares
# thread-local storage, so it must not call libc functions that set errno. All signals are blocked, so no handler runs.

cdef extern from *:
    """
    #include <sched.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include "launcher/system_call.h"

    struct job { int close, fd; long size; char data[]; };      /* size 0: read from fd, otherwise write data to fd */
    enum { JOB_STACK = 1 << 16 };

    static int work(void *of)
    {
        struct job *it = of;

        for (int stream = 0; stream < 3; stream++)
            system_call(SYS_close, stream, 0, 0, 0);
        if (it->close >= 0)
            system_call(SYS_close, it->close, 0, 0, 0);
        system_call(it->size ? SYS_write : SYS_read, it->fd, (long)it->data, it->size ? it->size : 1, 0);
        return 0;                       /* clone(3) ends the process by a system call */
    }

    /* Start the job's process. Return its pid, or minus an errno. Nothing frees the memory: this process ends soon. */
    static int start_job(int close, int fd, const char *data, long size)
    {
        sigset_t all, before;
        char *memory = mmap(NULL, JOB_STACK + sizeof(struct job) + size + 1, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
        struct job *it = (struct job *)(memory + JOB_STACK);
        int child;

        if (memory == MAP_FAILED)
            return -errno;
        it->close = close;
        it->fd = fd;
        it->size = size;
        memcpy(it->data, data, size);
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        child = clone(work, memory + JOB_STACK, CLONE_VM | SIGCHLD, it);
        child = child < 0 ? -errno : child;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return child;
    }
    """
    int start_job(int close, int fd, const char* data, long size)


cdef int started(int child) except -1:
    """Return `child` if it is a pid. Raise the OSError if `child` is minus an errno."""
    if child < 0:
        refuse(-child, None)
    return child


def send_apart(int fd, bytes data not None):
    """Start a process that writes `data` to `fd` and then ends. Return its pid. `data` is not empty. Raises OSError."""
    return started(start_job(-1, fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)))


def hold_files(int here, int there):
    """Start a process that holds this process's descriptors, except the standard streams. The new process ends when
    the pipe (here, there) has no other writer. Return its pid. Raises OSError."""
    return started(start_job(there, here, b"", 0))
