/* The launcher: the ELF program at the beginning of a plugin file. It passes the request to the server or to Python.
 *
 * Every file in the CNI bin dir is this program followed by a zip of Python code. The launcher tries two modes in
 * order:
 *
 *     warm      if a server listens, send the request to the server and print the server's answer
 *     one-shot  answer VERSION. For other commands execute `python -I -S -B -X utf8 -c BOOTSTRAP NAME FD`. NAME is the
 *               plugin's name. FD is a descriptor of this file, so that an installation that replaces the file changes
 *               nothing for this process. If that Python no longer exists, try the other Pythons in the file's list.
 *               BOOTSTRAP checks that the Python has the same version and build
 *
 * A request that finds no server may start a server, see autostart.h. If a server with --metrics has run, the
 * launcher counts requests that run one-shot, see one_shot_count.h. If both modes fail, the launcher prints one CNI
 * error document to stdout and exits with status 1.
 *
 * `dhcp daemon ...` is no request: Python runs the daemon, and gets its arguments after FD. `setup NETNS`, `teardown
 * NETNS` and similar commands are requests of podman, see netavark.h.
 *
 * The launcher has no libc and allocates no memory: it uses raw system calls and static buffers. Python gets the
 * arguments, streams, signals and environment unchanged. If the launcher has read stdin for a server, Python gets
 * stdin as a memory file. See elf(5), getauxval(3), unix(7), cmsg(3), CNI spec "Error".
 */

#include "machines.h"
#include "document.h"

/* pack.py writes this struct into the plugin file. pack.py has the same layout, and finds the struct by its magic. */
struct config {
    char magic[16];
    char interpreters[1024];            /* a list: paths in the order of the attempts, each with a NUL; then a NUL */
    char version[32];                   /* "3.11", for an error's text */
    char bootstrap[1008];
    char server[1024];                  /* a list: the command line that starts a server; empty: start no server */
    char libraries[504];                /* a list of the paths of the interpreter's shared objects */
    struct {
        unsigned long size, modified_ns, digest;        /* size 0: the list has no python_core.elf */
        struct { unsigned at, bytes; } parts[5];
    } core;                             /* the first program of the list; launcher/core.py explains it */
    unsigned unread, unanswered, unanswered_quick, unused;      /* milliseconds; kit/call/deadlines.py explains them */
    char versions[1024];                /* lists: an answer to VERSION, then its plugins; an empty list is the end */
};
_Static_assert(sizeof(struct config) == 4712, "pack.py writes 4712 bytes");

/* weak, because the compiler must not use the values that are here now. Read-only, so that no page is copied for it. */
__attribute__((section(".rodata.config"), used, weak, aligned(16)))
const struct config config = { .magic = "fastcni-config\n" };

/* An ELF note, elf(5), by which kit/call/search.py recognises a launcher of fastcni without running it. */
__attribute__((section(".note.fastcni"), used, aligned(4)))
static const struct { unsigned name_size, size, type; char name[8]; } note = { 8, 0, 1, "fastcni" };


/* ---- warm mode; fastcni/server/requests/protocol.py is the server's part and describes the messages ---- */

enum { MAGIC = 0x696e6366 /* "fcni" */, PROTOCOL = 2, DECLINED = 2 };
enum { HEAD_BYTES = 16, BODY_BYTES = 128 << 10 };           /* fits the usual send buffer, net.core.wmem_default */
enum { RLIMIT_FSIZE = 1, RLIMIT_NOFILE = 7 };
enum { MIN_STDIN_BYTES = 4 << 10, MAX_STDIN_BYTES = 32 << 20 };         /* the least in the body; the most in all */
enum { MSG_CTRUNC = 8, MSG_TRUNC = 0x20, MSG_DONTWAIT = 0x40, MSG_NOSIGNAL = 0x4000, MSG_CMSG_CLOEXEC = 0x40000000 };

/* Two buffers, because Python must get the stdin in the request even after an invalid reply. */
BUFFER static struct { unsigned magic, version, descriptors, environment; char body[BODY_BYTES]; } request;
BUFFER static struct { unsigned magic, version, status, stderr; char body[BODY_BYTES]; } reply;

static struct rights { unsigned long size; int level, type, fd, unused; }  /* cmsg(3): SOL_SOCKET, SCM_RIGHTS */
    sent = { .size = 16, .level = 1, .type = 1 }, received;
static struct piece { void *data; unsigned long size; } asked = { &request, 0 }, answered = { &reply, sizeof reply };
static struct { void *name; unsigned long name_size; struct piece *pieces; unsigned long count;     /* recvmsg(2) */
                struct rights *rights; unsigned long rights_size, flags; }
    sending = { .pieces = &asked, .count = 1, .rights = &sent },
    receiving = { .pieces = &answered, .count = 1, .rights = &received, .rights_size = 16 + sizeof(int) };

static int have_stdin;                  /* whether stdin was read to its end */
static long memory;                     /* a memory file with stdin that does not fit in the request; 0: no file */
static unsigned long moved, here;       /* bytes of stdin in the memory file; bytes of stdin in the request */

/* Connect to the server's socket. Return a descriptor or -errno; -ENOENT, -ECONNREFUSED: no server listens. */
static long connect_to(const char *path)
{
    static struct { short family; char path[108]; } address = { .family = 1 };      /* AF_UNIX */
    long server, at, error = -EINVAL;

    for (at = 0; (address.path[at] = path[at]); at++)
        if (at == sizeof address.path - 1)
            return error;
    /* Non-blocking, so that connect() fails with EAGAIN if too many requests wait for the server. If the caller has
     * closed a standard stream, the socket gets the stream's number; then Python handles the request. */
    server = system_call(SYS_socket, address.family, 5 /* SOCK_SEQPACKET */ | O_CLOEXEC | O_NONBLOCK, 0, 0);
    if (server > 2 && !(error = system_call(SYS_connect, server, (long)&address, sizeof address, 0)))
        return server;
    system_call(SYS_close, server, 0, 0, 0);
    return error;
}

#include "autostart.h"
#include "one_shot_count.h"
#include "programs.h"
#include "netavark.h"

static int add_environment(const char *text, char **environment)    /* text: the plugin's name. 0: no space */
{
    char *to = request.body, *end = request.body + BODY_BYTES - MIN_STDIN_BYTES;

    do {
        do
            if (to == end)
                return 0;
        while ((*to++ = *text++));
        do
            text = *environment++;
        while (text && !after(text, "CNI_") && !after(text, "TRACEPARENT=") && !after(text, "TRACESTATE=")
               && !after(text, "BAGGAGE="));
    } while (text);
    request.environment = to - request.body;
    return 1;
}

static struct { unsigned long soft, hard; } file_size;      /* struct rlimit64 */

/* Remove the limit of a file's size, which also applies to memory files. Only root may raise the hard limit. */
static void lift_limit(void)
{
    static const unsigned long none[] = { -1UL, -1UL };
    static const long ignored[4] = { 1 };       /* struct sigaction: SIG_IGN, as Python has it */
    unsigned long hard[2];

    system_call(SYS_rt_sigaction, 25 /* SIGXFSZ */, (long)ignored, 0, 8);
    if (system_call(SYS_prlimit64, 0, RLIMIT_FSIZE, (long)none, (long)&file_size)) {
        system_call(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, (long)&file_size);
        hard[0] = hard[1] = file_size.hard;
        system_call(SYS_prlimit64, 0, RLIMIT_FSIZE, (long)hard, 0);
    }
}

static void move_to_memory(void)        /* move stdin from the request to the memory file */
{
    long error;

    if (!memory)
        lift_limit();
    if (!memory)                        /* MFD_CLOEXEC | MFD_NOEXEC_SEAL: sysctl vm.memfd_noexec may ask for the seal */
        memory = system_call(SYS_memfd_create, (long)"stdin", 1 | 8, 0, 0);
    if (memory == -EINVAL)              /* Linux before 6.3 has no MFD_NOEXEC_SEAL */
        memory = system_call(SYS_memfd_create, (long)"stdin", 1, 0, 0);
    error = memory < 0 ? memory : write_all(memory, request.body + request.environment, here);
    if (error)                          /* stdin cannot be read again */
        fail(IO_FAILURE, "keep stdin in a memory file", "", -error, "does a limit of the caller forbid it (ulimit -f)?");
    moved += here, here = 0;
}

static int read_stdin(void)             /* 0: stdin cannot be read, and Python reports the error */
{
    char *start = request.body + request.environment;
    unsigned long size = BODY_BYTES - request.environment;
    long got = 1;

    while (got && moved <= MAX_STDIN_BYTES) {
        got = system_call(SYS_read, 0, (long)(start + here), size - here, 0);
        if (got == -EAGAIN)
            wait_for(0, POLLIN, FOR_EVER);
        else if (got < 0)
            return 0;
        else if ((here += got) == size || (memory && !got))
            move_to_memory();
    }
    return have_stdin = 1;
}

static void restore_stdin(void)         /* make what was read the stdin of Python; 0 is open, so `memory` is not 0 */
{
    if (!have_stdin)
        return;
    move_to_memory();
    system_call(SYS_prlimit64, 0, RLIMIT_FSIZE, (long)&file_size, 0);
    system_call(SYS_lseek, memory, 0, 0 /* SEEK_SET */, 0);
    system_call(SYS_dup3, memory, 0, 0, 0);
}

static void print(long size)            /* print the reply and exit; return if the reply is incomplete */
{
    static const long ignored[4] = { 1 };       /* struct sigaction: SIG_IGN */
    int in_memory = received.size != 0;
    long at = 0, error = 0, first;

    if (reply.status > 1 || receiving.flags & (MSG_TRUNC | MSG_CTRUNC) || (in_memory ? size : reply.stderr > size))
        return;
    if (reply.stderr)                   /* a closed stderr must not prevent the answer on stdout */
        system_call(SYS_rt_sigaction, 13 /* SIGPIPE */, (long)ignored, 0, 8);
    do {                                /* reply.body has the bytes from `at` on: first stderr's, then stdout's */
        if (in_memory && (size = system_call(SYS_pread64, received.fd, (long)reply.body, BODY_BYTES, at)) <= 0)
            break;
        first = reply.stderr > at ? reply.stderr - at : 0;
        if (first > size)
            first = size;
        write_all(2, reply.body, first);
        error = write_all(1, reply.body + first, size - first);
        at += size;
    } while (in_memory && !error);
    leave(error || size < 0 ? 1 : reply.status);
}

/* Return whether the server has not read the request yet; 0 also if the kernel does not know. */
static int is_unread(long server)
{
    int bytes = 0;

    system_call(SYS_ioctl, server, 0x5411 /* SIOCOUTQ: bytes that the peer has not read, unix(7) */, (long)&bytes, 0);
    return bytes > 0;
}

enum { LATE = -EAGAIN, UNTOUCHED = -4096 /* no errno */ };

/* Receive the answer within `milliseconds`. Return its size, LATE or -errno. If the kernel lacks memory, try for a
 * second: the ADD has succeeded. A receive timeout costs less than ppoll(2) before recvmsg(2). But if the launcher was
 * stopped and continues, recvmsg(2) fails with EINTR, and would begin with the full time again. ppoll(2) continues with
 * the time that is left, so the launcher waits twice as long at most. */
static long receive(long server, unsigned milliseconds)
{
    const struct { long s, us; } limit = { milliseconds / 1000, milliseconds % 1000 * 1000L };      /* struct timeval */
    long size, tries = 100, flags = MSG_CMSG_CLOEXEC;

    system_call_of_5(SYS_setsockopt, server, 1 /* SOL_SOCKET */, 20 /* SO_RCVTIMEO */, (long)&limit, sizeof limit);
    do {
        size = system_call_once(SYS_recvmsg, server, (long)&receiving, flags, 0, 0);
        if (size == -EINTR) {
            wait_for(server, POLLIN, milliseconds);
            flags |= MSG_DONTWAIT;
        }
    } while (size == -EINTR || ((size == -ENOMEM || size == -ENOBUFS) && --tries && !wait_for(-1, 0, 10)));
    return size;
}

/* Receive the answer. Return its size, -errno, LATE or UNTOUCHED. A server reads requests immediately and queues them
 * itself. So a server that reads nothing for config.unread ms is stopped or hangs. No request takes a server longer than
 * `limit` ms. */
static long receive_or_give_up(long server, unsigned limit)
{
    static const int blocking = 0;
    long size;

    system_call(SYS_ioctl, server, 0x5421 /* FIONBIO */, (long)&blocking, 0);
    size = receive(server, config.unread);
    if (size != LATE)
        return size;
    if (!is_unread(server))
        return receive(server, limit - config.unread);
    /* Shut the connection down, then check again. If the request is still unread, the server sees the shutdown when it
     * reads the request, and does not begin the request. */
    system_call(SYS_shutdown, server, 2 /* SHUT_RDWR */, 0, 0);
    return is_unread(server) ? UNTOUCHED : LATE;
}

/* Ask the server at `path`, print its answer and exit. If the server has done nothing, or if the request can be
 * repeated, return the reason for one_shot_count.h; 0: the request does not count. */
static char warm(const char *name, const char *path, char **environment)
{
    const char *command = value_of("CNI_COMMAND=", environment, ""), *netns = value_of("CNI_NETNS=", environment, "");
    long server, size, fd;

    if (!*command || !*path || *value_of("FASTCNI_WIRE=", environment, ""))    /* only Python obeys FASTCNI_WIRE */
        return 0;
    server = connect_to(path);          /* first, so that without a server only this call takes time */
    if ((server == -ENOENT || server == -ECONNREFUSED) && path == usual_path && !is(command, "VERSION"))
        autostart();
    if (server < 0)
        return server == -ENOENT || server == -ECONNREFUSED ? NO_SERVER : server == -EAGAIN ? BUSY : OTHER;
    if (!add_environment(name, environment))
        return TOO_LONG;
    fd = *netns ? open_file(netns, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : 0;      /* the server reports an error */
    if (is_exhaustion(-fd))             /* to a server in a container, the pod would not exist: a DEL would succeed */
        return OTHER;
    if (!is(command, "VERSION") && !read_stdin())       /* for VERSION, stdin may be a terminal: do not read it */
        return OTHER;
    if (memory)                         /* too long for a message, and for the server's time and memory */
        return TOO_LONG;

    if (fd > 0) {
        request.descriptors = 1;
        sent.fd = fd;
        sending.rights_size = sent.size += sizeof(int);
    }
    request.magic = MAGIC, request.version = PROTOCOL;
    asked.size = HEAD_BYTES + request.environment + here;
    if (system_call(SYS_sendmsg, server, (long)&sending, MSG_NOSIGNAL, 0) < 0)
        return OTHER;
    size = receive_or_give_up(server, is(command, "VERSION") || is(command, "STATUS") ? config.unanswered_quick
                                                                                      : config.unanswered);
    if (size == UNTOUCHED)
        return UNREAD;
    if (size == -ECONNRESET)            /* the server has not read the request: unix_release_sock() in af_unix.c */
        return NOT_SERVED;
    if (size > 0 && (size < HEAD_BYTES || reply.magic != MAGIC || reply.version != PROTOCOL
                     || reply.status == DECLINED))
        return NOT_SERVED;              /* the server has another version and has not begun the request */
    if (size > 0)
        print(size - HEAD_BYTES);
    /* The server has read the request and not answered. Repeat all commands but ADD. Repeat also a lost setup of
     * podman, because a setup first runs DEL for an earlier setup; but not a late setup, which may still be running. */
    if (is(command, "ADD") && (size == LATE || !for_netavark))
        fail(TRY_AGAIN_LATER, "the fastcni server ",
             size == LATE ? "has not answered this ADD in time" : "was lost while it worked on this ADD", 0,
             "the runtime's DEL removes the rest of this ADD; the log of `fastcni serve` may have the reason");
    return LOST;
}


/* ---- one-shot mode ---- */

/* Answer VERSION without Python and exit. If the plugin is not in the list, return: Python reports the reason. */
static void answer_version(const char *name)
{
    const char *list = config.versions, *plugin;

    for (; *list; list = next_of(plugin))
        for (plugin = next_of(list); *plugin; plugin = next_of(plugin))
            if (is(name, plugin))
                leave(write_all(1, list, next_of(list) - 1 - list) ? 1 : 0);
}

/* Open this file. The descriptor is above 2 even if the caller has closed standard streams. */
static long open_self(const char *path)
{
    long fd, spare;

    do
        spare = open_file("/dev/null", O_RDONLY);       /* read-only, so that writing an answer fails */
    while (spare >= 0 && spare < 3);
    fd = open_file("/proc/self/exe", O_RDONLY);
    if (fd < 0)                         /* no /proc, or the file may be executed but not read */
        fd = open_file(path, O_RDONLY);
    if (spare >= 3)
        system_call(SYS_close, spare, 0, 0, 0);
    return fd;
}

/* Report that no program of the list runs. error: the errno of the interpreter's start, 0: `--version` fails. missing:
 * the path of a missing shared object of the interpreter, "": none is missing. path: the path of this file. */
__attribute__((noreturn))
static void no_interpreter(const char *path, long error, const char *missing)
{
    const char *next = config.interpreters, *name = basename_of(path), *separator = ", also tried as ";
    const char *const interpreter = config.core.size ? next_of(next) : next;

    begin_error(INTERNAL, "start the Python interpreter ", interpreter, error);
    if (*missing) {
        put("the library ");
        put_quoted(missing, FIELD);
        put(" does not exist; ");
    } else if (!error)
        put("`--version` fails; ");
    put("this file needs Python ");
    put_quoted(config.version, FIELD);
    for (; *next; next = next_of(next))
        if (next != interpreter) {
            put(separator);
            put_quoted(next, FIELD);
            separator = ", ";
        }
    put("; install that Python again, or install fastcni for another one and run `fastcni install --bin-dir ");
    if (name == path)
        put("DIR");                     /* a path without a directory */
    else
        put_quoted(path, name - path - (name > path + 1));
    put("`");
    end_error();
}

enum { FIXED_ARGUMENTS = 8, MAX_ARGUMENTS_OF_DAEMON = 32, FILES_OF_PYTHON = 5 };

/* Report exhausted descriptors, because Python's dynamic linker would end the process without an error document. */
static void check_descriptors(const char *path, long used)
{
    static unsigned long limit[2];      /* struct rlimit64 */

    if (!system_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)limit) && limit[0] < (unsigned long)used + FILES_OF_PYTHON)
        fail(TRY_AGAIN_LATER, "start Python for ", path, EMFILE, "");
}

__attribute__((noreturn))
static void one_shot(const char *path, const char *name, char **more, char **environment)
{
    const char *interpreter = config.interpreters, *const missing = missing_library();
    int may_be_core = config.core.size != 0, changed = *missing != 0;
    long fd = open_self(path), error = -1, result, count;

    if (fd < 0)
        fail(INTERNAL, "open ", path, -fd, "run `fastcni install` again, for the directory of this file");
    check_descriptors(path, fd);
    put_number(fd);                     /* until an error, `page` is unused */

    const char *const fixed[FIXED_ARGUMENTS] = {
        0, "-ISB", "-X", "utf8", "-c", config.bootstrap, name, page,
    };
    static const char *arguments[FIXED_ARGUMENTS + MAX_ARGUMENTS_OF_DAEMON + 1];     /* static: there is no memset() */
    for (count = 0; count < FIXED_ARGUMENTS; count++)
        arguments[count] = fixed[count];
    while (*more && count < FIXED_ARGUMENTS + MAX_ARGUMENTS_OF_DAEMON)
        arguments[count++] = *more++;
    for (; *interpreter; interpreter = next_of(interpreter), may_be_core = 0) {
        if (may_be_core && !is_installed_core(interpreter)) {
            changed = 1;
            continue;
        }
        arguments[0] = interpreter;     /* the full path, by which Python finds its library */
        result = changed ? starts(interpreter, environment) : 0;
        if (!result)
            result = system_call(SYS_execve, (long)interpreter, (long)arguments, (long)environment, 0);
        if (error < 0 && !may_be_core)
            error = result > 0 ? 0 : -result;
    }
    no_interpreter(path, error, missing);
}

/* The kernel's first stack: argc, argv..., 0, envp..., 0, (type, value)..., see getauxval(3). */
__attribute__((used, noreturn))
void begin(long *stack)
{
    char **arguments = (char **)(stack + 1), **environment = arguments + *stack + 1, **end = environment, **of_netavark;
    const char *path = *stack > 0 ? arguments[0] : "", *name, *path_of_server;
    long *auxiliary;
    char why;

    while (*end)
        end++;
    for (auxiliary = (long *)(end + 1); !*path && auxiliary[0]; auxiliary += 2)
        if (auxiliary[0] == AT_EXECFN)
            path = (const char *)auxiliary[1];

    name = basename_of(path);
    if (*stack > 1 && is(name, "dhcp") && is(arguments[1], "daemon"))
        one_shot(path, name, arguments + 1, environment);
    if (*stack > 1 && (of_netavark = environment_of_netavark(arguments, environment)))
        name = "netavark", environment = of_netavark;
    path_of_server = value_of("FASTCNI_SOCKET=", environment, usual_path);
    if ((why = warm(name, path_of_server, environment)))
        count_one_shot(path_of_server, why);
    restore_stdin();
    if (system_call(SYS_read, 0, (long)page, 0, 0) == -EISDIR)      /* Python would end without an error document */
        fail(IO_FAILURE, "error reading from stdin", "", EISDIR, "stdin has to be the network configuration");
    if (is(value_of("CNI_COMMAND=", environment, ""), "VERSION"))
        answer_version(name);

    one_shot(path, name, end, environment);
}
