/* The launcher: the native part of an installed plugin file. It passes the request to the server or to Python.
 *
 * Every file in the CNI bin dir is this program with a zip of Python code behind it. It tries two modes in order:
 *
 *     warm      if a server listens, send the request to it and print its answer
 *     one-shot  answer VERSION. Else execute `python -I -S -B -X utf8 -c BOOTSTRAP NAME FD`. NAME is the plugin's name. FD is this file,
 *               open, so that an installation that replaces the file changes nothing for this process. If that Python
 *               is gone, the file names others of the same version. BOOTSTRAP checks that it is the same build
 *
 * A request that finds no server may start one, see autostart.h. A request that goes one-shot is counted if a server has
 * asked for it, see one_shot_count.h. If both modes fail, it prints one CNI error document to stdout and exits with
 * status 1.
 *
 * `dhcp daemon ...` is no request: it goes to Python, with its arguments behind FD. `setup NETNS`, `teardown NETNS` and
 * others are requests of podman, see netavark.h.
 *
 * Freestanding: no libc, no allocation, only raw system calls and static buffers. Python gets the arguments, streams,
 * signals and environment unchanged. If stdin was read for a server, Python gets it as a memory file. See elf(5),
 * getauxval(3), unix(7), cmsg(3), CNI spec "Error".
 */

#include "machines.h"
#include "document.h"

/* The installer writes this into the finished file. pack.py has the same layout, and finds it by the magic. */
struct config {
    char magic[16];
    char interpreters[1024];            /* paths, in the order to try them; each ends with a NUL, the list with another */
    char version[32];                   /* "3.11", for an error's text */
    char bootstrap[1008];
    char server[1024];                  /* the command line to start a server with, as a list; empty: start none */
    char libraries[504];                /* paths of the shared objects that the interpreter needs; a list */
    struct {
        unsigned long size, modified_ns, digest;        /* size 0: the list has no python_core.elf */
        struct { unsigned at, bytes; } parts[4];
    } core;                             /* the first program of the list; launcher/core.py explains it */
    unsigned unread, unanswered, unanswered_quick, unused;      /* milliseconds; kit/call/deadlines.py explains them */
    char versions[1024];                /* lists: an answer to VERSION, then the plugins that give it; an empty list ends */
};
_Static_assert(sizeof(struct config) == 4704, "pack.py writes 4704 bytes");

__attribute__((section(".data"), used, aligned(16)))
volatile struct config config = { .magic = "fastcni-config\n" };

/* An ELF note, elf(5), by which a launcher of fastcni is recognised without being run: kit/call/search.py reads it. */
__attribute__((section(".note.fastcni"), used, aligned(4)))
static const struct { unsigned name_size, size, type; char name[8]; } note = { 8, 0, 1, "fastcni" };


/* ---- warm mode; fastcni/server/requests/protocol.py is the other end and describes the messages ---- */

enum { MAGIC = 0x696e6366 /* "fcni" */, PROTOCOL = 2, DECLINED = 2 };
enum { HEAD_BYTES = 16, BODY_BYTES = 128 << 10 };           /* fits the usual send buffer, net.core.wmem_default */
enum { RLIMIT_FSIZE = 1, RLIMIT_NOFILE = 7 };
enum { MIN_STDIN_BYTES = 4 << 10, MAX_STDIN_BYTES = 32 << 20 };         /* of the body; in all: Python refuses more */
enum { MSG_CTRUNC = 8, MSG_TRUNC = 0x20, MSG_NOSIGNAL = 0x4000, MSG_CMSG_CLOEXEC = 0x40000000 };

/* Two buffers: after an invalid reply, Python must still get the stdin in the request. */
static struct { unsigned magic, version, descriptors, environment; char body[BODY_BYTES]; } request;
static struct { unsigned magic, version, status, stderr; char body[BODY_BYTES]; } reply;

static struct rights { unsigned long size; int level, type, fd, unused; }  /* cmsg(3): SOL_SOCKET, SCM_RIGHTS */
    sent = { .size = 16, .level = 1, .type = 1 }, received;
static struct piece { void *data; unsigned long size; } asked = { &request, 0 }, answered = { &reply, sizeof reply };
static struct { void *name; unsigned long name_size; struct piece *pieces; unsigned long count;     /* recvmsg(2) */
                struct rights *rights; unsigned long rights_size, flags; }
    sending = { .pieces = &asked, .count = 1, .rights = &sent },
    receiving = { .pieces = &answered, .count = 1, .rights = &received, .rights_size = 16 + sizeof(int) };

static int have_stdin;                  /* stdin was read to its end */
static long memory;                     /* a memory file with stdin that does not fit the request; 0: none yet */
static unsigned long moved, here;       /* bytes of stdin in the memory file; bytes of it in the request */

/* Connect to the server's socket: a descriptor, or negative. -ENOENT, -ECONNREFUSED: no server listens there. */
static long connect_to(const char *path)
{
    static struct { short family; char path[108]; } address = { .family = 1 };      /* AF_UNIX */
    long server, at, error = -EINVAL;

    for (at = 0; (address.path[at] = path[at]); at++)
        if (at == sizeof address.path - 1)
            return error;
    /* Non-blocking, also for connect(): if too many wait for the server, connect() fails with EAGAIN.
     * If the caller closed a standard stream, the socket would take its number. Then Python handles the request. */
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

static int add_environment(const char *text, char **environment)    /* text: the plugin's name; 0: it does not fit */
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

/* Let a memory file have any size. The limit is for files on a disk. Only root may raise the hard limit. */
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
    if (memory == -EINVAL)              /* Linux before 6.3 does not know the seal */
        memory = system_call(SYS_memfd_create, (long)"stdin", 1, 0, 0);
    error = memory < 0 ? memory : write_all(memory, request.body + request.environment, here);
    if (error)                          /* stdin cannot be read again */
        fail(IO_FAILURE, "keep stdin in a memory file", "", -error, "does a limit of the caller forbid it (ulimit -f)?");
    moved += here, here = 0;
}

static int read_stdin(void)             /* 0: it cannot be read, and Python reports the error */
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

static void restore_stdin(void)         /* give Python what was read as its stdin; 0 is open, so `memory` is not 0 */
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

/* Is the request still unread by the server? If the kernel cannot tell, it counts as read. */
static int is_unread(long server)
{
    int bytes = 0;

    system_call(SYS_ioctl, server, 0x5411 /* SIOCOUTQ: bytes that the peer has not read, unix(7) */, (long)&bytes, 0);
    return bytes > 0;
}

/* Wait for the answer. A server reads requests at once and queues them itself. So a server that reads nothing for
 * config.unread is stopped or hangs. `limit` is longer than a server works on any request. */
static enum { ANSWERED, UNTOUCHED, LATE } await_answer(long server, unsigned limit)
{
    if (wait_for(server, POLLIN, config.unread))
        return ANSWERED;
    if (!is_unread(server))
        return wait_for(server, POLLIN, limit - config.unread) ? ANSWERED : LATE;
    /* Shut the connection down first, and check again then. If the request is still unread, the server sees the
     * shutdown when it reads the request, and does not begin it. */
    system_call(SYS_shutdown, server, 2 /* SHUT_RDWR */, 0, 0);
    return is_unread(server) ? UNTOUCHED : LATE;
}

/* Receive the answer: its size, or -errno. If the kernel lacks memory, try again for a second: the ADD has succeeded. */
static long receive(long server)
{
    long size, tries = 100;

    do
        size = system_call(SYS_recvmsg, server, (long)&receiving, MSG_CMSG_CLOEXEC, 0);
    while ((size == -ENOMEM || size == -ENOBUFS) && --tries && !wait_for(-1, 0, 10));
    return size;
}

/* Ask the server at `path`, print its answer and exit. Return if nothing was done, or if the request can be repeated: the
 * reason for one_shot_count.h; 0: it is to run one-shot. */
static char warm(const char *name, const char *path, char **environment)
{
    const char *command = value_of("CNI_COMMAND=", environment, ""), *netns = value_of("CNI_NETNS=", environment, "");
    const char *what = "was lost while it worked on this ADD";
    long server, size, fd;
    int late = 0;

    if (!*command || !*path || *value_of("FASTCNI_WIRE=", environment, ""))    /* FASTCNI_WIRE prints one-shot only */
        return 0;
    server = connect_to(path);          /* first: without a server this is the only cost */
    if ((server == -ENOENT || server == -ECONNREFUSED) && path == usual_path && !is(command, "VERSION"))
        autostart();
    if (server < 0)
        return server == -ENOENT || server == -ECONNREFUSED ? NO_SERVER : server == -EAGAIN ? BUSY : OTHER;
    if (!add_environment(name, environment))
        return TOO_LONG;
    fd = *netns ? open_file(netns, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : 0;      /* the server reports an error */
    if (!is(command, "VERSION") && !read_stdin())       /* VERSION reads no stdin: that may be a terminal */
        return OTHER;
    if (memory)                         /* too long for a message: it must not take the server's time and memory */
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
    switch (await_answer(server, is(command, "VERSION") || is(command, "STATUS") ? config.unanswered_quick
                                                                                 : config.unanswered)) {
    case UNTOUCHED:
        return UNREAD;
    case LATE:
        what = "has not answered this ADD in time", late = 1;
        break;
    case ANSWERED:
        size = receive(server);
        if (size == -ECONNRESET)        /* closed with the request unread: unix_release_sock() in net/unix/af_unix.c */
            return NOT_SERVED;
        if (size > 0 && (size < HEAD_BYTES || reply.magic != MAGIC || reply.version != PROTOCOL
                         || reply.status == DECLINED))
            return NOT_SERVED;          /* a server of another version has not worked on the request */
        if (size > 0)
            print(size - HEAD_BYTES);
    }
    /* Read and not answered. The other commands can be repeated, and a lost setup of podman, which first deletes what
     * an earlier one has left. A late one may still be running. */
    if (is(command, "ADD") && (late || !for_netavark))
        fail(TRY_AGAIN_LATER, "the fastcni server ", what, 0,
             "the runtime's DEL removes the rest of this ADD; the log of `fastcni serve` may have the reason");
    return LOST;
}


/* ---- one-shot mode ---- */

/* Answer VERSION without Python and exit. Return for a plugin that is not in the list: Python knows why. */
static void answer_version(const char *name)
{
    const char *list = (const char *)config.versions, *plugin;

    for (; *list; list = next_of(plugin))
        for (plugin = next_of(list); *plugin; plugin = next_of(plugin))
            if (is(name, plugin))
                leave(write_all(1, list, next_of(list) - 1 - list) ? 1 : 0);
}

/* Open this file, with a number above the standard streams, even if the caller has closed some of these. */
static long open_self(const char *path)
{
    long fd, spare;

    do
        spare = open_file("/dev/null", O_RDONLY);       /* read-only: an answer written to it fails, as to no stream */
    while (spare >= 0 && spare < 3);
    fd = open_file("/proc/self/exe", O_RDONLY);
    if (fd < 0)                         /* no /proc, or the file may be executed but not read */
        fd = open_file(path, O_RDONLY);
    if (spare >= 3)
        system_call(SYS_close, spare, 0, 0, 0);
    return fd;
}

/* Report that no program of the list runs. error: the errno of the interpreter, 0: `--version` fails. missing: a shared
 * object that the interpreter needs, "": all are there. path: of this file. */
__attribute__((noreturn))
static void no_interpreter(const char *path, long error, const char *missing)
{
    const char *next = (const char *)config.interpreters, *name = basename_of(path), *separator = ", also tried as ";
    const char *const interpreter = config.core.size ? next_of(next) : next;

    begin_error(INTERNAL, "start the Python interpreter ", interpreter, error);
    if (*missing) {
        put("the library ");
        put_quoted(missing, FIELD);
        put(" does not exist; ");
    } else if (!error)
        put("`--version` fails; ");
    put("this file needs Python ");
    put_quoted((const char *)config.version, FIELD);
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

/* Without descriptors Python's dynamic linker would end the process, and print no document. */
static void check_descriptors(const char *path, long used)
{
    static unsigned long limit[2];      /* struct rlimit64 */

    if (!system_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)limit) && limit[0] < (unsigned long)used + FILES_OF_PYTHON)
        fail(TRY_AGAIN_LATER, "start Python for ", path, EMFILE, "");
}

__attribute__((noreturn))
static void one_shot(const char *path, const char *name, char **more, char **environment)
{
    const char *interpreter = (const char *)config.interpreters, *const missing = missing_library();
    int may_be_core = config.core.size != 0, changed = *missing != 0;
    long fd = open_self(path), error = -1, result, count;

    if (fd < 0)
        fail(INTERNAL, "open ", path, -fd, "run `fastcni install` again, for the directory of this file");
    check_descriptors(path, fd);
    put_number(fd);                     /* the page is free until an error */

    const char *const fixed[FIXED_ARGUMENTS] = {
        0, "-ISB", "-X", "utf8", "-c", (const char *)config.bootstrap, name, page,
    };
    static const char *arguments[FIXED_ARGUMENTS + MAX_ARGUMENTS_OF_DAEMON + 1];     /* zero: there is no memset() */
    for (count = 0; count < FIXED_ARGUMENTS; count++)
        arguments[count] = fixed[count];
    while (*more && count < FIXED_ARGUMENTS + MAX_ARGUMENTS_OF_DAEMON)
        arguments[count++] = *more++;
    for (; *interpreter; interpreter = next_of(interpreter), may_be_core = 0) {
        if (may_be_core && !is_installed_core(interpreter)) {
            changed = 1;
            continue;
        }
        arguments[0] = interpreter;     /* the full path: Python finds its library by it */
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
    if (system_call(SYS_read, 0, (long)page, 0, 0) == -EISDIR)      /* Python would end without a document */
        fail(IO_FAILURE, "error reading from stdin", "", EISDIR, "stdin has to be the network configuration");
    if (is(value_of("CNI_COMMAND=", environment, ""), "VERSION"))
        answer_version(name);

    one_shot(path, name, end, environment);
}
