# Part of _netlink.pyx: the start of a program that does not outlive us.
#
# posix_spawn(3) cannot ask for a signal at the parent's death (prctl(2), PR_SET_PDEATHSIG), so this is vfork(2) and
# execve(2). Until the exec the child has our memory, and its parent thread stands still.

cdef extern from *:
    """
    #include <errno.h>
    #include <signal.h>
    #include <sys/prctl.h>
    #include <sys/wait.h>
    #include <unistd.h>

    /* The pid of the program, in a process group of its own, or minus an errno. */
    static __attribute__((noinline)) int spawn_program(const char *path, char *const argv[], char *const env[],
                                                       const int streams[3])
    {
        sigset_t all, before, none;
        struct sigaction action;
        volatile int failed = 0;            /* written by the child */
        const pid_t us = getpid();
        sigfillset(&all);
        sigemptyset(&none);
        pthread_sigmask(SIG_BLOCK, &all, &before);      /* no handler of ours runs in the child */
        pid_t child = vfork();
        if (child == 0) {
            for (int number = 1; number < _NSIG; number++) {
                if (sigaction(number, NULL, &action))
                    continue;
                /* Python ignores these two, and an ignored signal stays ignored across exec. */
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
                failed = errno ? errno : ESRCH;         /* we were dead before the kernel knew what we want */
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


def spawn(str path not None, argv, env, int stdin, int stdout, int stderr):
    """Start a program, in its own process group, with three open files as its standard streams; its pid.

    The kernel kills it when the calling thread ends. argv: texts. env: {name: text}. The files are above 2. Raises
    OSError, and ValueError for a NUL or an unusable variable name.
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
    return pid
