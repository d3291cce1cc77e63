/* Convert requests of netavark's plugin protocol, such as `fastcni setup NETNS`, to CNI; see fastcni/spec/netavark.py.
 *
 * CNI plugins get no arguments, so the first argument shows the protocol. The arguments become CNI variables, and the
 * rest of the launcher, the server and Python handle a request for the plugin "netavark". CNI variables in podman's own
 * environment are removed. The error document of this protocol has another form, see document.h.
 */

static const char *const commands_of_netavark[] = {
    "setup", "CNI_COMMAND=ADD", "teardown", "CNI_COMMAND=DEL", "create", "CNI_COMMAND=CREATE", "info", "CNI_COMMAND=VERSION", 0,
};

/* Return the environment of the CNI request; 0: the arguments are not netavark's. The caller has checked that there is
 * an argument. On the stack, `environment` follows the arguments and their 0, so two variables fit before it. */
static char **environment_of_netavark(char **arguments, char **environment)
{
    BUFFER static char netns[4096 + 16];
    const char *const *command = commands_of_netavark, *path = arguments[2] ? arguments[2] : "", *name = "CNI_NETNS=";
    char **from = environment, **to = environment, *end = netns;

    while (*command && !is(arguments[1], *command))
        command += 2;
    if (!*command)
        return 0;
    for_netavark = 1;
    for (; *from; from++)
        if (!after(*from, "CNI_"))
            *to++ = *from;
    *to = 0;
    while (*name)
        *end++ = *name++;
    while (*path && end < netns + sizeof netns - 1)
        *end++ = *path++;
    if (*path)
        fail(IO_FAILURE, "the path of the network namespace is too long: ", arguments[2], 0, "");
    environment[-1] = netns;
    environment[-2] = (char *)command[1];
    return environment - 2;
}
