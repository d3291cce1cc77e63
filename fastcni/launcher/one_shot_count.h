/* Count the requests that run one-shot although a server should answer them.
 *
 * The file SOCKET.one-shot has one byte for each of these requests: the reason. Only a server with --metrics makes the
 * file, and fastcni/server/metrics/one_shot.py reads it. Without the file, counting is a single open() that fails. An
 * append needs no lock. The launcher does not change a file that is long or may be another user's, for instance a hard
 * link in a directory where all users can write. See fstat(2). The reasons, with their names in the metric:
 *
 *     NO_SERVER   no_server  no socket, or no process listens at the socket
 *     BUSY        busy       the socket's queue of connections is full
 *     UNREAD      unread     the server has not read the request in time
 *     NOT_SERVED  declined   the server declined the request, or has another version; the server's log says why
 *     TOO_LONG    too_long   the variables or the stdin do not fit a message
 *     LOST        lost       the server has read the request, and died or did not answer in time
 *     OTHER       other      another system call failed
 */

enum { NO_SERVER = 'n', BUSY = 'b', UNREAD = 'u', NOT_SERVED = 'd', TOO_LONG = 't', LOST = 'l', OTHER = 'o' };
enum { MAX_COUNT_BYTES = 1 << 20, S_IFMT = 0170000, S_IFREG = 0100000 };

static void count_one_shot(const char *socket, char reason)
{
    static const char suffix[] = ".one-shot";
    static char path[108 + sizeof suffix];      /* the path of a socket has at most 108 bytes with its NUL */
    static struct status found;
    const char *from = socket;
    char *to = path;
    long file;

    while (*from && to < path + 108)
        *to++ = *from++;
    if (*from)
        return;
    for (from = suffix; *from; )
        *to++ = *from++;
    *to = 0;
    file = open_file(path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return;
    if (!system_call(SYS_fstat, file, (long)&found, 0, 0) && (found.mode & S_IFMT) == S_IFREG && found.links == 1
        && (!found.user || found.user == system_call(SYS_geteuid, 0, 0, 0, 0)) && found.size < MAX_COUNT_BYTES)
        system_call(SYS_write, file, (long)&reason, 1, 0);
    system_call(SYS_close, file, 0, 0, 0);
}
