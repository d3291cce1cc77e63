/* Text, streams and the error document of the launcher, without libc and allocation: one static page has the
 * document. */

enum { O_RDONLY = 0, O_RDWR = 2, O_NONBLOCK = 04000, O_CLOEXEC = 02000000, AT_FDCWD = -100, AT_EXECFN = 31 };
enum { ENOENT = 2, EAGAIN = 11, ENOMEM = 12, EISDIR = 21, EINVAL = 22, ENFILE = 23, EMFILE = 24, ECONNRESET = 104, ENOBUFS = 105, ECONNREFUSED = 111 };
enum { POLLIN = 1, POLLOUT = 4 };
enum { FOR_EVER = 0 };                  /* in place of a number of milliseconds */
enum { FIELD = 1024 };                  /* the most bytes of a path in an error's text */
enum { IO_FAILURE = 5, TRY_AGAIN_LATER = 11, INTERNAL = 999 };          /* CNI error codes */


/* ---- text ---- */

BUFFER static char page[8192];          /* an error document: at most 3.5 * 1024 bytes of paths, escaped, and a few lines */
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

static void put_quoted(const char *text, long limit)    /* `limit` bytes at most, for a JSON string; UTF-8 stays */
{
    char one[2] = { 0, 0 };

    for (; *text && limit > 0; text++, limit--) {
        one[0] = *text;
        if (*text == '"' || *text == '\\')
            put("\\");
        put((unsigned char)*text < ' ' ? "?" : one);
    }
}

static const char *const errno_texts[] = {      /* the texts of strerror(3) for likely errors */
    [1] = "Operation not permitted", [2] = "No such file or directory", [7] = "Argument list too long",
    [8] = "Exec format error", [12] = "Cannot allocate memory", [13] = "Permission denied", [20] = "Not a directory",
    [21] = "Is a directory", [23] = "Too many open files in system", [24] = "Too many open files", [26] = "Text file busy",
    [27] = "File too large", [28] = "No space left on device",
    [40] = "Too many levels of symbolic links",
};

static const char *after(const char *text, const char *prefix)     /* the text after the prefix, or 0 */
{
    while (*prefix)
        if (*text++ != *prefix++)
            return 0;
    return text;
}

static const char *next_of(const char *text)    /* the next text in a list */
{
    while (*text++)
        ;
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


/* ---- streams, errors and the exit ---- */

static long open_file(const char *path, long flags)
{
    return system_call(SYS_openat, AT_FDCWD, (long)path, flags, 0);
}

static int wait_for(long fd, short events, unsigned milliseconds)      /* 0: timed out */
{
    struct { int fd; short events, happened; } waiting = { fd, events, 0 };
    struct { long seconds, nanoseconds; } left = { milliseconds / 1000, milliseconds % 1000 * 1000000L };

    /* The kernel updates `left` with the remaining time, so that an interrupted call can be repeated. */
    return system_call(SYS_ppoll, (long)&waiting, 1, milliseconds == FOR_EVER ? 0 : (long)&left, 0) != 0;
}

static long write_all(long fd, const char *data, unsigned long size)    /* 0, or -errno */
{
    long written;

    while (size) {
        written = system_call(SYS_write, fd, (long)data, size, 0);
        if (written == -EAGAIN)         /* another program made this stream non-blocking */
            wait_for(fd, POLLOUT, FOR_EVER);
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


/* ---- the error document ---- */

static int for_netavark;                /* whether the document is {"error": "..."}, see netavark.h */

static int is_exhaustion(long error)   /* later the request may succeed; spec/errors.py has this list, too */
{
    return error == ENOMEM || error == ENFILE || error == EMFILE;
}

/* Begin the document. `what` is untrusted text. error: an errno, or 0. The caller adds the details by put(). */
static void begin_error(int code, const char *tried, const char *what, long error)
{
    filled = 0;
    if (is_exhaustion(error))
        code = TRY_AGAIN_LATER;
    if (for_netavark)
        put("{\"error\": \"");
    else {
        put("{\n    \"code\": ");
        put_number(code);
        put(",\n    \"msg\": \"");
    }
    put(tried);
    put_quoted(what, FIELD);
    if (error) {
        put(": ");
        put(error < (long)(sizeof errno_texts / sizeof *errno_texts) && errno_texts[error] ? errno_texts[error]
                                                                                           : "the kernel refused");
        put(" (errno ");
        put_number(error);
        put(")");
    }
    put(for_netavark ? "; " : "\",\n    \"details\": \"");
}

__attribute__((noreturn))
static void end_error(void)             /* print the document and exit */
{
    put(for_netavark ? "\"}" : "\"\n}");
    write_all(1, page, filled);
    leave(1);
}

__attribute__((noreturn))
static void fail(int code, const char *tried, const char *what, long error, const char *details)
{
    begin_error(code, tried, what, error);
    put(is_exhaustion(error) ? "are too many files open (ulimit -n), or is memory short?" : details);
    end_error();
}
