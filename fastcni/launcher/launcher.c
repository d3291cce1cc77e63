/* The native half of an installed plugin file: it hands the request to whoever answers it.
 *
 * Every file in the CNI bin dir is this program with a zip of Python code behind it. The doors are tried in
 * order. Today there is one, the one-shot door: become `python -I -S -B -X utf8 -c BOOTSTRAP NAME FD`, where NAME
 * is the plugin's name and FD is this very file, open, so that replacing it under our feet changes nothing.
 * If no door opens, one CNI error document goes to stdout and the exit status is 1.
 *
 * Freestanding: no libc, no allocation; raw system calls and one buffer. Arguments, streams,
 * signals and environment pass through untouched. See elf(5), getauxval(3), CNI spec "Error".
 */

#define O_RDONLY 0
#define O_RDWR 2
#define O_CLOEXEC 02000000
#define AT_FDCWD (-100)
#define AT_EXECFN 31

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


/* ---- the two machines ---- */

#if defined(__x86_64__)
enum { SYS_write = 1, SYS_close = 3, SYS_execve = 59, SYS_exit_group = 231, SYS_openat = 257 };

__asm__(".globl _start\n_start:\n"
        "    xor %ebp, %ebp\n"
        "    mov %rsp, %rdi\n"
        "    and $-16, %rsp\n"
        "    call begin\n");

static long system_call(long number, long a, long b, long c, long d)
{
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

#elif defined(__aarch64__)
enum { SYS_openat = 56, SYS_close = 57, SYS_write = 64, SYS_exit_group = 94, SYS_execve = 221 };

__asm__(".globl _start\n_start:\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x0, sp\n"
        "    bl begin\n");

static long system_call(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}

#else
#error "fastcni's launcher knows x86_64 and aarch64: a new machine is a _start, a system_call and five numbers"
#endif


/* ---- text ---- */

static char page[4096];                 /* the answer: at most 1024 bytes of path, escaped, and a few lines */
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

static const char *words_for(long error)
{
    switch (error) {
    case 1:  return "Operation not permitted";
    case 2:  return "No such file or directory";
    case 7:  return "Argument list too long";
    case 8:  return "Exec format error";
    case 12: return "Cannot allocate memory";
    case 13: return "Permission denied";
    case 20: return "Not a directory";
    case 24: return "Too many open files";
    case 26: return "Text file busy";
    case 40: return "Too many levels of symbolic links";
    default: return "the kernel refused";
    }
}

static const char *basename_of(const char *path)
{
    const char *name = path;

    for (; *path; path++)
        if (*path == '/' && path[1])
            name = path + 1;
    return name;
}


/* ---- the way out ---- */

__attribute__((noreturn))
static void leave(int status)
{
    for (;;)
        system_call(SYS_exit_group, status, 0, 0, 0);
}

/* One error document, code 999 (internal), then the end. `tried` is words, `what` is a path from outside. */
__attribute__((noreturn))
static void fail(const char *tried, const char *what, long error)
{
    unsigned long done = 0;
    long written;

    put("{\n    \"code\": 999,\n    \"msg\": \"");
    put(tried);
    put_quoted(what);
    put(": ");
    put(words_for(error));
    put(" (errno ");
    put_number(error);
    put(")\",\n    \"details\": \"this file was installed for Python ");
    put_quoted((const char *)config.version);
    put("; run `fastcni install --bin-dir DIR` again, with the Python that is to run it\"\n}");

    while (done < filled && (written = system_call(SYS_write, 1, (long)page + done, filled - done, 0)) > 0)
        done += written;
    leave(1);
}


/* ---- the doors ---- */

/* This file, open, above the standard streams: a caller may have closed those, and nothing of ours may land there. */
static long open_self(const char *path)
{
    long fd, spare;

    do
        spare = system_call(SYS_openat, AT_FDCWD, (long)"/dev/null", O_RDWR, 0);
    while (spare >= 0 && spare < 3);
    fd = system_call(SYS_openat, AT_FDCWD, (long)"/proc/self/exe", O_RDONLY, 0);
    if (fd < 0)                         /* no /proc, or a file we may run but not read: say so below */
        fd = system_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY, 0);
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
        fail("open ", path, -fd);
    put_number(fd);                     /* the page is free until there is something to answer */

    const char *arguments[] = {
        interpreter,                    /* the whole path: Python finds its library from it */
        "-ISB", "-X", "utf8", "-c", (const char *)config.bootstrap, name, page, 0,
    };
    error = system_call(SYS_execve, (long)interpreter, (long)arguments, (long)environment, 0);
    filled = 0;
    fail("start the Python interpreter ", interpreter, -error);
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

    /* the warm door, a server's socket, belongs here: it answers and leaves, or comes back if nobody listens */
    one_shot(path, basename_of(path), environment);
}
