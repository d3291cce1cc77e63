/* Which program of the list can be started. execve() succeeds with a damaged program, too: then the request ends with a
 * signal and without an answer.
 *
 * python_core.elf is started while it is the file of the installation: its size, its modification time, and a digest of
 * what is used before its main(). launcher/core.py says why, and makes the same digest. It has no inode number: a copy of
 * the file is as good. This takes 0.04 ms. python_core.elf handles signals that come later.
 *
 * Only if something has changed, a program is started twice: first with --version, which runs its dynamic linker. So a
 * shared object that is missing, or an interpreter that is damaged as well, ends in an error document. See clone(2),
 * wait(2), ld.so(8).
 */

enum { CHUNK_BYTES = 16 << 10, WAIT_ALL_CHILDREN = 0x40000000 /* __WALL */, F_OK = 0, X_OK = 1 };

/* Is the file at `path` the python_core.elf of the installation? */
static int is_installed_core(const char *path)
{
    static struct status found;
    const unsigned long *words = (const unsigned long *)reply.body;
    unsigned long digest = 0, at, left, size, i;
    long file = open_file(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    unsigned part;
    int same = file >= 0 && !system_call(SYS_fstat, file, (long)&found, 0, 0) && found.size == config.core.size
        && (!config.core.modified_ns || found.modified.s * 1000000000UL + found.modified.ns == config.core.modified_ns);

    for (part = 0; same && part < sizeof config.core.parts / sizeof *config.core.parts; part++)
        for (at = config.core.parts[part].at, left = config.core.parts[part].bytes; same && left; at += size, left -= size) {
            size = left < CHUNK_BYTES ? left : CHUNK_BYTES;
            same = system_call(SYS_pread64, file, (long)reply.body, size, at) == (long)size;
            for (i = 0; i < size / sizeof *words; i++)
                digest = (digest << 5 | digest >> 59) + words[i];
        }
    system_call(SYS_close, file, 0, 0, 0);
    return same && digest == config.core.digest;
}

/* Return a shared object of the interpreter that does not exist any more, or "". Another user may not see all of them. */
static const char *missing_library(void)
{
    const char *path = (const char *)config.libraries;

    while (*path && system_call(SYS_faccessat, AT_FDCWD, (long)path, F_OK, 0) != -ENOENT)
        path = next_of(path);
    return path;
}

/* Run `PROGRAM --version`. Return 0 if it succeeds, 1 if it fails, -errno if there is no such program. The child sends no
 * signal when it ends, so it can be waited for even if the caller ignores SIGCHLD. */
static long starts(const char *program, char **environment)
{
    const char *const arguments[] = { program, "--version", 0 };
    long error = system_call(SYS_faccessat, AT_FDCWD, (long)program, X_OK, 0), child, null;
    int status = 1;

    if (error)
        return error;
    child = system_call(SYS_clone, 0, 0, 0, 0);
    if (!child) {
        null = open_file("/dev/null", O_RDWR);
        system_call(SYS_dup3, null, 0, 0, 0);
        system_call(SYS_dup3, null, 1, 0, 0);
        system_call(SYS_dup3, null, 2, 0, 0);
        system_call(SYS_execve, (long)program, (long)arguments, (long)environment, 0);
        leave(1);
    }
    if (child < 0)
        return child;
    system_call(SYS_wait4, child, (long)&status, WAIT_ALL_CHILDREN, 0);
    return status != 0;
}
