/* The native half of an installed plugin file: it hands the request to whoever answers it.
 *
 * Every file in the CNI bin dir is this program with a zip of Python code behind it. The doors are tried in order:
 *
 *     warm      where a server listens, send it the request and print its answer
 *     one-shot  become `python -I -S -B -X utf8 -c BOOTSTRAP NAME FD`, where NAME is the plugin's name and FD is
 *               this very file, open, so that replacing it under our feet changes nothing
 *
 * If no door opens, one CNI error document goes to stdout and the exit status is 1.
 *
 * Freestanding: no libc, no allocation; raw system calls and static buffers. Arguments, streams, signals and
 * environment reach Python untouched; stdin, where a server has not taken it, in a memory file. See elf(5),
 * getauxval(3), unix(7), cmsg(3), CNI spec "Error".
 */

enum { O_RDONLY = 0, O_RDWR = 2, O_NONBLOCK = 04000, O_CLOEXEC = 02000000, AT_FDCWD = -100, AT_EXECFN = 31 };
enum { EINTR = 4, EAGAIN = 11, EINVAL = 22, ECONNRESET = 104, POLLIN = 1, POLLOUT = 4 };
enum { IO_FAILURE = 5, TRY_AGAIN_LATER = 11, INTERNAL = 999 };          /* CNI error codes */

/* What the installer writes into the finished file; pack.py has the same layout and finds it by the magic. */
struct config {
    char magic[16];
    char interpreter[1024];
    char version[32];                   /* "3.11", for the words of an error */
    char bootstrap[1008];
};
_Static_assert(sizeof(struct config) == 2080, "pack.py writes 2080 bytes");

__attribute__((section(".data"), used, aligned(16)))
volatile struct config config = { .magic = "fastcni-config\n" };


/* ---- the two machines; EINTR: nothing is caught, but SIGSTOP and SIGCONT can end a call so, see signal(7) ---- */

#if defined(__x86_64__)
enum { SYS_read = 0, SYS_write = 1, SYS_close = 3, SYS_lseek = 8, SYS_rt_sigaction = 13, SYS_pread64 = 17,
       SYS_socket = 41, SYS_connect = 42, SYS_sendmsg = 46, SYS_recvmsg = 47, SYS_execve = 59, SYS_fcntl = 72,
       SYS_exit_group = 231, SYS_openat = 257, SYS_ppoll = 271, SYS_dup3 = 292, SYS_memfd_create = 319 };

__asm__(".globl _start\n_start:\n"
        "    xor %ebp, %ebp\n"
        "    mov %rsp, %rdi\n"
        "    and $-16, %rsp\n"
        "    call begin\n");

static long system_call(long number, long a, long b, long c, long d)
{
    long result;
    register long r10 __asm__("r10") = d;
    do
        __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                         : "rcx", "r11", "memory");
    while (result == -EINTR);
    return result;
}

#elif defined(__aarch64__)
enum { SYS_dup3 = 24, SYS_fcntl = 25, SYS_openat = 56, SYS_close = 57, SYS_lseek = 62, SYS_read = 63, SYS_write = 64,
       SYS_pread64 = 67, SYS_ppoll = 73, SYS_exit_group = 94, SYS_rt_sigaction = 134, SYS_socket = 198,
       SYS_connect = 203, SYS_sendmsg = 211, SYS_recvmsg = 212, SYS_execve = 221, SYS_memfd_create = 279 };

__asm__(".globl _start\n_start:\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x0, sp\n"
        "    bl begin\n");

static long system_call(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0");
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    do {
        x0 = a;
        __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    } while (x0 == -EINTR);
    return x0;
}

#else
#error "fastcni's launcher knows x86_64 and aarch64: a new machine is a _start, a system_call and its numbers"
#endif


/* ---- text ---- */

static char page[4096];                 /* an error: at most 1024 bytes of path, escaped, and a few lines */
static unsigned long filled;

static void put(const char *text)
{
    while (*text && filled < sizeof page)
        page[filled++] = *text++;
}

static void put_number(long value)
{
    char digits[24];
    int at = sizeof digits - 1;

    digits[at] = 0;
    do
        digits[--at] = '0' + value % 10;
    while (value /= 10);
    put(digits + at);
}

static void put_quoted(const char *text)    /* inside a JSON string; UTF-8 passes */
{
    char one[2] = { 0, 0 };
    int room;

    for (room = 1024; *text && room; text++, room--) {
        one[0] = *text;
        if (*text == '"' || *text == '\\')
            put("\\");
        put((unsigned char)*text < ' ' ? "?" : one);
    }
}

static const char *const words[] = {    /* for some errno */
    [1] = "Operation not permitted", [2] = "No such file or directory", [7] = "Argument list too long",
    [8] = "Exec format error", [12] = "Cannot allocate memory", [13] = "Permission denied", [20] = "Not a directory",
    [24] = "Too many open files", [26] = "Text file busy", [28] = "No space left on device",
    [40] = "Too many levels of symbolic links",
};

static const char *after(const char *text, const char *prefix)     /* the rest of text, or 0 */
{
    while (*prefix)
        if (*text++ != *prefix++)
            return 0;
    return text;
}

static int is(const char *text, const char *word)
{
    return after(text, word) && after(word, text);
}

static const char *value_of(const char *name, char **environment, const char *unset)       /* name: "NAME=" */
{
    for (; *environment; environment++)
        if (after(*environment, name))
            return after(*environment, name);
    return unset;
}

static const char *basename_of(const char *path)
{
    const char *name = path;

    for (; *path; path++)
        if (*path == '/' && path[1])
            name = path + 1;
    return name;
}


/* ---- streams, and the way out ---- */

static long open_file(const char *path, long flags)
{
    return system_call(SYS_openat, AT_FDCWD, (long)path, flags, 0);
}

static void wait_for(long fd, short events)     /* somebody has made this stream non-blocking */
{
    struct { int fd; short events, happened; } waiting = { fd, events, 0 };

    system_call(SYS_ppoll, (long)&waiting, 1, 0, 0);
}

static long write_all(long fd, const char *data, unsigned long size)    /* 0, or -errno */
{
    long written;

    while (size) {
        written = system_call(SYS_write, fd, (long)data, size, 0);
        if (written == -EAGAIN)
            wait_for(fd, POLLOUT);
        else if (written < 0)
            return written;
        else
            data += written, size -= written;
    }
    return 0;
}

__attribute__((noreturn))
static void leave(int status)
{
    for (;;)
        system_call(SYS_exit_group, status, 0, 0, 0);
}

/* One error document, then the end. `what` comes from outside; error 0 is none; details 0: Python is the trouble. */
__attribute__((noreturn))
static void fail(int code, const char *tried, const char *what, long error, const char *details)
{
    filled = 0;
    put("{\n    \"code\": ");
    put_number(code);
    put(",\n    \"msg\": \"");
    put(tried);
    put_quoted(what);
    if (error) {
        put(": ");
        put(error < (long)(sizeof words / sizeof *words) && words[error] ? words[error] : "the kernel refused");
        put(" (errno ");
        put_number(error);
        put(")");
    }
    put("\",\n    \"details\": \"");
    if (details) {
        put(details);
    } else {
        put("this file was installed for Python ");
        put_quoted((const char *)config.version);
        put("; run `fastcni install --bin-dir DIR` again, with the Python that is to run it");
    }
    put("\"\n}");
    write_all(1, page, filled);
    leave(1);
}


/* ---- the warm door: fastcni/server/protocol.py is the other end, and has the messages in words ---- */

#define SERVER "/run/fastcni/fastcni.sock"
enum { MAGIC = 0x696e6366 /* "fcni" */, PROTOCOL = 2, DECLINED = 2 };
enum { HEAD = 16, ROOM = 128 << 10 };                       /* fits the usual send buffer, net.core.wmem_default */
enum { LEAST_FOR_STDIN = 4 << 10, MOST_STDIN = 32 << 20 };  /* what it is read by; what is longer gets refused */
enum { MSG_CTRUNC = 8, MSG_TRUNC = 0x20, MSG_NOSIGNAL = 0x4000, MSG_CMSG_CLOEXEC = 0x40000000 };

/* Two buffers: a reply that is none must not have cost us the stdin that Python is then to read. */
static struct { unsigned magic, version, descriptors, environment; char body[ROOM]; } request;
static struct { unsigned magic, version, status, stderr; char body[ROOM]; } reply;

static struct rights { unsigned long size; int level, type, fds[2]; }      /* cmsg(3): SOL_SOCKET, SCM_RIGHTS */
    sent = { .size = 16, .level = 1, .type = 1 }, received;
static struct piece { void *data; unsigned long size; } asked = { &request, 0 }, answered = { &reply, sizeof reply };
static struct { void *name; unsigned long name_size; struct piece *pieces; unsigned long count;     /* recvmsg(2) */
                struct rights *rights; unsigned long rights_size, flags; }
    sending = { .pieces = &asked, .count = 1, .rights = &sent },
    receiving = { .pieces = &answered, .count = 1, .rights = &received, .rights_size = 16 + sizeof(int) };

static int have_stdin;                  /* it was read to its end, so that nobody else can */
static long memory;                     /* a memory file with what did not fit the request; 0: none yet */
static unsigned long moved, here;       /* bytes of stdin in there; bytes of it behind the environment */

static long connect_to(const char *path)        /* the server's socket; negative: nobody is there for us */
{
    static struct { short family; char path[108]; } address = { .family = 1 };      /* AF_UNIX */
    long server, at;

    for (at = 0; (address.path[at] = path[at]); at++)
        if (at == sizeof address.path - 1)
            return -1;
    /* Non-blocking for connect() alone: a server with too many waiting is EAGAIN, not one more who waits. After it
     * we do wait, and one fcntl() is cheaper than a ppoll() before recvmsg(). Where the caller has closed a stream
     * the socket lands there: nothing of ours may, and Python knows what to do. */
    server = system_call(SYS_socket, address.family, 5 /* SOCK_SEQPACKET */ | O_CLOEXEC | O_NONBLOCK, 0, 0);
    if (server > 2 && system_call(SYS_connect, server, (long)&address, sizeof address, 0) == 0
            && system_call(SYS_fcntl, server, 4 /* F_SETFL */, 0, 0) == 0)
        return server;
    system_call(SYS_close, server, 0, 0, 0);
    return -1;
}

static int add_environment(const char *text, char **environment)    /* text: the plugin's name; 0: it does not fit */
{
    char *to = request.body, *end = request.body + ROOM - LEAST_FOR_STDIN;

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

static void move_to_memory(void)        /* what the request has of stdin */
{
    long error;

    if (!memory)                        /* MFD_CLOEXEC | MFD_NOEXEC_SEAL: sysctl vm.memfd_noexec may ask for the seal */
        memory = system_call(SYS_memfd_create, (long)"stdin", 1 | 8, 0, 0);
    if (memory == -EINVAL)              /* Linux before 6.3 does not know it */
        memory = system_call(SYS_memfd_create, (long)"stdin", 1, 0, 0);
    error = memory < 0 ? memory : write_all(memory, request.body + request.environment, here);
    if (error)                          /* what was read cannot be put back */
        fail(IO_FAILURE, "keep stdin in a memory file", "", -error, "is memory short, or are too many files open?");
    moved += here, here = 0;
}

static int read_stdin(void)             /* 0: it cannot be read, and Python words that */
{
    char *start = request.body + request.environment;
    unsigned long room = ROOM - request.environment;
    long got = 1;

    while (got && moved <= MOST_STDIN) {
        got = system_call(SYS_read, 0, (long)(start + here), room - here, 0);
        if (got == -EAGAIN)
            wait_for(0, POLLIN);
        else if (got < 0)
            return 0;
        else if ((here += got) == room || (memory && !got))
            move_to_memory();
    }
    return have_stdin = 1;
}

static void hand_stdin_on(void)         /* what was read becomes stdin again; that is open, so `memory` is not 0 */
{
    if (!have_stdin)
        return;
    move_to_memory();
    system_call(SYS_lseek, memory, 0, 0 /* SEEK_SET */, 0);
    system_call(SYS_dup3, memory, 0, 0, 0);
}

static void print(long size)            /* the reply, then leave; comes back if it is not whole */
{
    static const long ignored[4] = { 1 };       /* struct sigaction: SIG_IGN */
    int in_memory = received.size != 0;
    long at = 0, error = 0, first;

    if (reply.status > 1 || receiving.flags & (MSG_TRUNC | MSG_CTRUNC) || (in_memory ? size : reply.stderr > size))
        return;
    if (reply.stderr)                   /* a stderr that nobody reads must not cost the answer on stdout */
        system_call(SYS_rt_sigaction, 13 /* SIGPIPE */, (long)ignored, 0, 8);
    do {                                /* reply.body has what comes after the first `at` bytes of both */
        if (in_memory && (size = system_call(SYS_pread64, received.fds[0], (long)reply.body, ROOM, at)) <= 0)
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

/* Ask the server. Leaves with its answer; comes back if nothing was done, or if it can be done again. */
static void warm(const char *name, char **environment)
{
    const char *command = value_of("CNI_COMMAND=", environment, ""), *netns = value_of("CNI_NETNS=", environment, "");
    const char *path = value_of("FASTCNI_SOCKET=", environment, SERVER);
    long server, size, fds[2], i, n = 0;

    if (!*command || !*path || *value_of("FASTCNI_WIRE=", environment, ""))    /* the wire shows on our own stderr */
        return;
    server = connect_to(path);          /* first: without a server this is all that we cost */
    if (server < 0 || !add_environment(name, environment))
        return;
    fds[0] = *netns ? open_file(netns, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : 0;      /* the server says what is wrong */
    if (!is(command, "VERSION") && !read_stdin())       /* VERSION's may be a terminal */
        return;
    fds[1] = memory;

    for (i = 0; i < 2; i++)
        if (fds[i] > 0) {
            request.descriptors |= 1 << i;
            sent.fds[n++] = fds[i];
        }
    sending.rights_size = sent.size += n * sizeof(int);
    request.magic = MAGIC, request.version = PROTOCOL;
    asked.size = HEAD + request.environment + here;
    if (system_call(SYS_sendmsg, server, (long)&sending, MSG_NOSIGNAL, 0) < 0)
        return;
    size = system_call(SYS_recvmsg, server, (long)&receiving, MSG_CMSG_CLOEXEC, 0);
    if (size == -ECONNRESET)            /* closed with our request unread: unix_release_sock() in net/unix/af_unix.c */
        return;
    if (size > 0 && (size < HEAD || reply.magic != MAGIC || reply.version != PROTOCOL || reply.status == DECLINED))
        return;                         /* who does not speak our version has not worked on what we said in it */
    if (size > 0)
        print(size - HEAD);
    if (is(command, "ADD"))             /* read, and then lost; all the others can be repeated */
        fail(TRY_AGAIN_LATER, "the fastcni server was lost while it worked on this ADD", "", 0,
             "the runtime's DEL takes back what was done; the log of `fastcni serve` may say why it went");
}


/* ---- the one-shot door ---- */

/* This file, open, above the standard streams: a caller may have closed those, and nothing of ours may land there. */
static long open_self(const char *path)
{
    long fd, spare;

    do
        spare = open_file("/dev/null", O_RDWR);
    while (spare >= 0 && spare < 3);
    fd = open_file("/proc/self/exe", O_RDONLY);
    if (fd < 0)                         /* no /proc, or a file we may run but not read: say so below */
        fd = open_file(path, O_RDONLY);
    if (spare >= 3)
        system_call(SYS_close, spare, 0, 0, 0);
    return fd;
}

__attribute__((noreturn))
static void one_shot(const char *path, const char *name, char **environment)
{
    const char *interpreter = (const char *)config.interpreter;
    long fd = open_self(path), error;

    if (fd < 0)
        fail(INTERNAL, "open ", path, -fd, 0);
    put_number(fd);                     /* the page is free until there is something to answer */

    const char *arguments[] = {
        interpreter,                    /* the whole path: Python finds its library from it */
        "-ISB", "-X", "utf8", "-c", (const char *)config.bootstrap, name, page, 0,
    };
    error = system_call(SYS_execve, (long)interpreter, (long)arguments, (long)environment, 0);
    fail(INTERNAL, "start the Python interpreter ", interpreter, -error, 0);
}

/* The kernel's first stack: argc, argv..., 0, envp..., 0, (type, value)..., see getauxval(3). */
__attribute__((used, noreturn))
void begin(long *stack)
{
    char **arguments = (char **)(stack + 1), **environment = arguments + *stack + 1, **end = environment;
    const char *path = *stack > 0 ? arguments[0] : "";
    long *auxiliary;

    while (*end)
        end++;
    for (auxiliary = (long *)(end + 1); !*path && auxiliary[0]; auxiliary += 2)
        if (auxiliary[0] == AT_EXECFN)
            path = (const char *)auxiliary[1];

    warm(basename_of(path), environment);
    hand_stdin_on();
    one_shot(path, basename_of(path), environment);
}
