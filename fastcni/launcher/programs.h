/* Find the program of the list that can be started. execve() also succeeds with a damaged program; a signal then ends
 * the request without an answer.
 *
 * The launcher starts python_core.elf if it is the file of the installation: with the same size, modification time, and
 * digest of the parts that are used before main(). launcher/core.py says why, and computes the same digest. The inode
 * number is not compared, because a copy of the file is as good. The comparison takes 0.04 ms. After main() has begun,
 * python_core.elf handles the signals of a damaged program itself.
 *
 * If python_core.elf or a shared object has changed, the launcher first runs a program with --version, which runs its
 * dynamic linker. So the launcher can report a missing shared object or a damaged interpreter by an error document. See
 * clone(2), wait(2), ld.so(8).
 */

enum { CHUNK_BYTES = 16 << 10, WAIT_ALL_CHILDREN = 0x40000000 /* __WALL */, F_OK = 0, X_OK = 1 };

/* Return whether the file at `path` is the python_core.elf of the installation. */
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

/* Return the path of a shared object of the interpreter that no longer exists, or "". A file that this user may not see
 * counts as existing. */
static const char *missing_library(void)
{
    const char *path = config.libraries;

    while (*path && system_call(SYS_faccessat, AT_FDCWD, (long)path, F_OK, 0) != -ENOENT)
        path = next_of(path);
    return path;
}

/* Run `PROGRAM --version`. Return 0 if the program succeeds, 1 if it fails, -errno if it does not exist. The child
 * sends no signal when it ends, so the launcher can wait for the child even if the caller ignores SIGCHLD. */
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
