/* Start a server if a request finds no server: `fastcni install --autostart`.
 *
 * Only a request of root in the node's own namespaces starts a server, and only at the usual socket. The request
 * itself runs one-shot. The file ATTEMPT has the time of the last attempt. A request decides under the lock of this
 * file, so of many requests at the same time only one starts a server. A server that listens empties the file. If a
 * server fails to start, the next attempt is a minute later. fastcni/server/detached.py does the rest of the start.
 * See flock(2), namespaces(7), daemon(7).
 */

#define DIRECTORY "/run/fastcni"
#define SERVER DIRECTORY "/fastcni.sock"
#define ATTEMPT DIRECTORY "/autostart"
#define LOG DIRECTORY "/server.log"       /* what Python prints if it cannot start the server, see --log-to */
enum { O_WRONLY = 1, O_CREAT = 0100, O_TRUNC = 01000, O_APPEND = 02000 };
#if defined(__aarch64__)
enum { O_NOFOLLOW = 0100000 };
#else
enum { O_NOFOLLOW = 0400000 };
#endif
enum { NEXT_ATTEMPT_S = 60, MAX_ARGUMENTS = 16, CLOCK_BOOTTIME = 7, SIGCHLD = 17, LOCK_EX = 2, LOCK_NB = 4 };

static const char usual_path[] = SERVER;

static int same_link(const char *one, const char *other)       /* 0 also without /proc or permission */
{
    static char targets[2][64];
    long size = system_call(SYS_readlinkat, AT_FDCWD, (long)one, (long)targets[0], sizeof targets[0] - 1);
    long other_size = system_call(SYS_readlinkat, AT_FDCWD, (long)other, (long)targets[1], sizeof targets[1] - 1);

    if (size <= 0 || size != other_size)
        return 0;
    targets[0][size] = targets[1][size] = 0;
    return is(targets[0], targets[1]);
}

/* Return whether this process has the namespaces of the node's first process. In the namespaces of a container or of a
 * rootless runtime, a server would end with these namespaces, or could not serve the node. */
static int in_the_nodes_namespaces(void)
{
    return same_link("/proc/self/ns/user", "/proc/1/ns/user") && same_link("/proc/self/ns/mnt", "/proc/1/ns/mnt")
        && same_link("/proc/self/ns/pid", "/proc/1/ns/pid") && same_link("/proc/self/ns/net", "/proc/1/ns/net");
}

/* Record an attempt, if the last attempt is long ago. Return a descriptor that has the lock; negative: no attempt
 * now. */
static long begin_attempt(void)
{
    long file = system_call(SYS_openat, AT_FDCWD, (long)ATTEMPT, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct { long seconds, nanoseconds; } now;
    long last = 0;

    if (file < 0) {
        system_call(SYS_mkdirat, AT_FDCWD, (long)DIRECTORY, 0700, 0);
        file = system_call(SYS_openat, AT_FDCWD, (long)ATTEMPT, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    }
    if (file <= 2 || system_call(SYS_flock, file, LOCK_EX | LOCK_NB, 0, 0)) {      /* 2: the caller closed a stream */
        system_call(SYS_close, file, 0, 0, 0);
        return -1;
    }
    system_call(SYS_clock_gettime, CLOCK_BOOTTIME, (long)&now, 0, 0);
    system_call(SYS_pread64, file, (long)&last, sizeof last, 0);
    if ((last && last <= now.seconds && now.seconds - last < NEXT_ATTEMPT_S) || !in_the_nodes_namespaces()
        || system_call(SYS_pwrite64, file, (long)&now.seconds, sizeof last, 0) != sizeof last) {
        system_call(SYS_close, file, 0, 0, 0);
        return -1;
    }
    return file;
}

/* In the child: become the server, without the request's streams, descriptors, variables and session. */
__attribute__((noreturn))
static void become_server(long attempt)
{
    static const char *arguments[MAX_ARGUMENTS], *const environment[] = {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 0 };
    const char *next = config.server;
    long null, log, fd;
    int i;

    if (connect_to(SERVER) >= 0) {      /* a server has started since this request found none */
        system_call(SYS_ftruncate, attempt, 0, 0, 0);
        leave(0);
    }
    for (i = 0; *next && i < MAX_ARGUMENTS - 1; next = next_of(next))
        arguments[i++] = next;
    system_call(SYS_setsid, 0, 0, 0, 0);
    null = open_file("/dev/null", O_RDWR);
    log = system_call(SYS_openat, AT_FDCWD, (long)LOG, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW, 0600);
    system_call(SYS_dup3, null, 0, 0, 0);
    system_call(SYS_dup3, null, 1, 0, 0);
    system_call(SYS_dup3, log < 0 ? null : log, 2, 0, 0);
    if (system_call(SYS_close_range, 3, ~0U, 0, 0))         /* Linux before 5.9 */
        for (fd = 3; fd < 4096; fd++)
            system_call(SYS_close, fd, 0, 0, 0);
    system_call(SYS_execve, (long)arguments[0], (long)arguments, (long)environment, 0);
    put("cannot execute ");
    put(arguments[0]);
    put("\n");
    write_all(2, page, filled);
    leave(1);
}

/* Start a server, if the installation has a command line for this. The request forks a small process at most once. */
static void autostart(void)
{
    long attempt;

    if (!config.server[0] || system_call(SYS_geteuid, 0, 0, 0, 0) || (attempt = begin_attempt()) < 0)
        return;
    /* The child has no parent-death signal and none of the request's streams, so no runtime waits for the child. */
    if (system_call(SYS_clone, SIGCHLD, 0, 0, 0) == 0)
        become_server(attempt);
    system_call(SYS_close, attempt, 0, 0, 0);
}
