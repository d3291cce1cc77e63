/* netavark's plugin protocol: `fastcni setup NETNS` and others. fastcni/spec/netavark.py describes it.
 *
 * No CNI plugin has arguments, so the first one decides. The arguments become CNI variables; the rest of the launcher,
 * the server and Python handle a request for the plugin "netavark". Variables of CNI that podman's caller has are left
 * out. An error document has another form, see document.h.
 */

static const char *const commands_of_netavark[] = {
    "setup", "CNI_COMMAND=ADD", "teardown", "CNI_COMMAND=DEL", "create", "CNI_COMMAND=CREATE", "info", "CNI_COMMAND=VERSION", 0,
};

/* Return the environment of the request as CNI's; 0: the arguments are none of netavark's. There is one argument or
 * more. `environment` follows the arguments and their 0 on the stack, so there is room for two variables before it. */
static char **environment_of_netavark(char **arguments, char **environment)
{
    static char netns[4096 + 16];
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
