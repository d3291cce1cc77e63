"""One CNI request in, one answer out: the only caller of plugins, behind every door.

It follows the order of work of the reference's plugin skeleton. It touches no process globals: no stdout, argv,
environment or signals. Two things are done better than there. A result is kept until everything has succeeded, so
that stdout never carries two documents; and CNI_NETNS is compared with our own namespace before anything is changed.
"""

import posix
from errno import EACCES, EIO, ENOMEM, EPERM, ESTALE

from fastcni import plugins
from fastcni._abandoned import Abandoned
from fastcni._system import close_file
from fastcni.kernel import netns
from fastcni.kernel.waiting import Crowded
from fastcni.kernel.wire import NetlinkError
from fastcni.kit.call.request import Request
from fastcni.kit.call.undo import Undo
from fastcni.spec import config, errors, json, version
from fastcni.spec import result as results
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

MAX_STDIN = 32 << 20            # bytes; a GC that names 200,000 valid attachments fits
MAX_VALUES = 1 << 20            # and so do its values: objects and lists take 60 bytes of memory or more for two here

NEEDS = {                       # command -> variables that have to be there (spec section 2), in the reference's order
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"),
    "GC": ("CNI_PATH",),
    "STATUS": ("CNI_PATH",),
    "VERSION": (),
}
VALID = {"CNI_CONTAINERID": config.check_container_id, "CNI_IFNAME": config.check_ifname}
UNREADABLE = (EIO, ESTALE, EACCES, EPERM, *errors.EXHAUSTED)     # why the kernel lets nobody load a module
# What a request raises that is no error of its plugin: the thread is lost, the request goes elsewhere, or is over.
NOT_ERRORS = (netns.Lost, Crowded, Abandoned)
ATTACHMENTS = "cni.dev/valid-attachments"      # without it nobody says who may stay (spec section 2, GC)
REPORT = "fastcni/report"       # fastcni's runtime sets it: GC works in every version and prints what was released
SINCE = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}


class Reply:
    """What the door prints: the exit status, the bytes for stdout, the bytes for stderr."""

    __slots__ = ("status", "stdout", "stderr")

    def __init__(self, status, stdout=b"", stderr=b""):
        self.status, self.stdout, self.stderr = status, stdout, stderr


def needs_stdin(env):
    """Does this request have a configuration on stdin? VERSION's may be a terminal, and must not be read."""
    return env.get("CNI_COMMAND", "") not in ("", "VERSION")


def handle(plugin, env, stdin, fds=None, *, host=None, defer=None, deliver=None, in_process=False, decode=None):
    """Serve one request for the plugin type `plugin`; raises nothing but NOT_ERRORS.

    `env` is the caller's whole environment, `stdin` its bytes, `fds` descriptors that the door has open already
    ({"netns": fd}, closed here). `host` is a kit.host.Host that the door keeps, for the namespace that this thread is
    in. `defer(fn, *args)` runs what the answer need not wait for, by default in a thread. `deliver(reply)` brings the
    result of an ADD to its caller, or raises an OSError: an ADD that nobody hears of is taken back.
    `in_process`: there are no launchers in CNI_PATH, fastcni's own delegates are called all the same. `decode(stdin)`
    does what read_conf() does, for a door that has seen most before.
    """
    warnings, fds = [], {} if fds is None else fds
    try:
        stdout = _serve(plugin, env, stdin, warnings, deliver,
                        {"fds": fds, "host": host, "defer": defer, "in_process": in_process}, decode)
        status = 0
    except NOT_ERRORS:
        raise
    except BaseException as e:          # a plugin of another distribution may raise SystemExit, for instance
        stdout, status = error_document(_as_cni_error(e, plugin)), 1
    finally:
        while fds:              # a request closes its own; this one may not have come so far
            close_file(fds.popitem()[1])
    return reply(status, stdout, warnings)


def restore(plugin, env, stdin, *, host=None):
    """Put back what an attachment has in the host's firewall, and touch nothing else; no command of the CNI spec.

    `env` and `stdin` are those of CHECK: stdin has the attachment's result as prevResult. Any configuration version
    does. A plugin that has nothing there has nothing to do. Returns lines for people; raises CniError.
    """
    warnings = []
    try:
        module = load(plugin)
        check_variables(env, "CHECK")
        req = read_request(plugin, "RESTORE", env, stdin, {"host": host})
        req.warnings = warnings
        try:
            check_version(req, getattr(module, "VERSIONS", version.ALL))
            if hasattr(module, "restore"):
                module.restore(req, module.read(req))
        finally:
            req.close()
    except Exception as e:
        raise _as_cni_error(e, plugin) from e
    return warnings


def load(plugin):
    """The module of a plugin type. Raises CniError 7."""
    if plugin not in plugins.TABLE:
        raise CniError(errors.INVALID_CONFIG, f'unknown plugin type "{plugin}"',
                       f"fastcni has {', '.join(sorted(plugins.TABLE))}")
    return plugins.load(plugin)


def reply(status, stdout, warnings):
    return Reply(status, stdout, "".join(f"{line}\n" for line in warnings).encode("utf-8", "replace"))


def error_document(e):
    """A CniError as the bytes for stdout: four spaces, code, msg, details; what failed on the way back is details."""
    document = e.as_document()
    notes = getattr(e, "__notes__", ())
    if notes:
        document["details"] = "; ".join([*filter(None, [document.get("details")]), *notes])
    return json.write(document, indent=4)


def _as_cni_error(e, plugin):
    """Any other exception as code 999; the kernel knows best how to word its own."""
    if isinstance(e, CniError):
        return e
    code, details = errors.INTERNAL, ""
    if number := errno_of_import(e):
        code, details = errors.of_errno(number), "a part of fastcni or of Python could not be loaded"
    elif isinstance(e, NetlinkError) and e.kernel_text:
        details = f"the kernel says: {e.kernel_text}"
    elif not isinstance(e, OSError):
        owner = "fastcni" if plugin in plugins.BUILT_IN else f'the plugin "{plugin}"'
        details = f"{type(e).__name__}: this is a fault of {owner}"
    words = str(e) or type(e).__name__
    if isinstance(e, OSError) and e.strerror and not isinstance(e, NetlinkError):
        words = f"{f'{e.filename}: ' if e.filename else ''}{e.strerror} (errno {e.errno})"
    wrapped = CniError(code, words, details)
    for note in getattr(e, "__notes__", ()):
        wrapped.add_note(note)
    return wrapped


def errno_of_import(e):
    """The errno for which the kernel lets a compiled module not be loaded, 0 for other exceptions. The dynamic linker
    gives it only as text: "/usr/lib/.../_socket.so: cannot open shared object file: Too many open files". Where mmap(2)
    fails it has none."""
    text = str(e) if isinstance(e, ImportError) else ""
    if text.endswith("failed to map segment from shared object"):
        return ENOMEM
    return next((number for number in UNREADABLE if text.endswith(posix.strerror(number))), 0)


def _serve(plugin, env, stdin, warnings, deliver, door, decode):
    module = load(plugin)
    supported = getattr(module, "VERSIONS", version.ALL)
    command = env.get("CNI_COMMAND", "")
    if not command:
        warnings += about(plugin, supported)
        return b""
    check_variables(env, command)
    if command == "VERSION":
        return version.version_reply(supported)
    req = read_request(plugin, command, env, stdin, door, decode)
    req.warnings = warnings
    try:
        if command not in NEEDS:
            raise CniError(errors.INVALID_ENVIRONMENT, f"unknown CNI_COMMAND: {command}")
        check_version(req, supported)
        if command in ("ADD", "DEL"):
            check_other_netns(req)
        return _run(module, req, deliver)
    finally:
        req.close()


def about(plugin, supported):
    """For people who start a plugin by hand; no command is no error."""
    from fastcni import __version__

    return (f"CNI {plugin} plugin fastcni {__version__}", f"CNI protocol versions supported: {', '.join(supported)}")


def check_variables(env, command):
    """Required variables are there and well-formed. A bad one is reported before those that are missing."""
    missing = []
    for name in NEEDS.get(command, ()):
        value = env.get(name)
        if not value:
            missing.append(name)
        elif name in VALID:
            VALID[name](value)
    if missing:
        raise CniError(errors.INVALID_ENVIRONMENT, f"required env variables [{','.join(missing)}] missing")


def read_request(plugin, command, env, stdin, door, decode=None):
    """stdin and variables as a Request. Raises CniError 6 and 7 for a configuration without a usable name."""
    conf = (decode or read_conf)(stdin)
    name, spoken = conf.once(read_name_and_version)
    pod = {} if command in ("GC", "STATUS") else env            # these are about no pod, whatever is in the environment
    return Request(plugin=plugin, command=command, container_id=pod.get("CNI_CONTAINERID", ""),
                   netns=pod.get("CNI_NETNS", ""), ifname=pod.get("CNI_IFNAME", ""), args=pod.get("CNI_ARGS", ""),
                   path=env.get("CNI_PATH", ""), env=env, conf=conf, stdin=stdin, name=name, version=spoken, **door)


def read_name_and_version(conf):
    return conf.text("name"), conf.text("cniVersion") or version.ALL[0]


def read_conf(stdin):
    """stdin as a Section that has a usable name and a version in text. Raises CniError 6 and 7."""
    return check_conf(Section(decode_conf(stdin)))


def decode_conf(stdin):
    """stdin as a dict. Raises CniError 6."""
    if len(stdin) > MAX_STDIN:
        raise CniError(errors.DECODING_FAILURE, f"error unmarshall network config: more than {MAX_STDIN} bytes")
    if stdin.count(b",") + stdin.count(b"[") + stdin.count(b"{") > MAX_VALUES:      # those in strings count, too
        raise CniError(errors.DECODING_FAILURE, f"error unmarshall network config: more than {MAX_VALUES} values")
    try:
        document = json.read(stdin)
    except json.JsonError as e:
        raise CniError(errors.DECODING_FAILURE, f"error unmarshall network config: {e}") from None
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise CniError(errors.DECODING_FAILURE, "error unmarshall network config: the configuration is not an object")
    return document


def check_conf(conf):
    """A configuration's Section, itself. Raises CniError 6 and 7."""
    try:
        name, _ = conf.text("name"), conf.text("cniVersion")
    except CniError as e:
        raise CniError(errors.DECODING_FAILURE, f"error unmarshall network config: {e.msg}", e.details) from None
    if not name:
        raise CniError(errors.INVALID_CONFIG, "missing network name")
    config.check_network_name(name)
    return conf


def check_version(req, supported):
    """The command exists in the configuration's version, and the plugin speaks that version (code 1)."""
    since = SINCE.get(req.command)
    if since and not reports(req):
        try:
            allowed = version.at_least(req.version, since)
            spoken = any(version.at_least(item, req.version) for item in supported)
        except ValueError as e:
            raise CniError(errors.DECODING_FAILURE, str(e)) from None
        if not allowed:
            raise CniError(errors.INCOMPATIBLE_VERSION, f"config version does not allow {req.command}")
        if not spoken:
            raise CniError(errors.INCOMPATIBLE_VERSION, f"plugin version does not allow {req.command}")
    version.check_supported(req.version, supported)


def reports(req):
    """Is this a GC of fastcni's own runtime? It tells its own plugins what is valid, also below 1.1.0."""
    return req.command == "GC" and req.conf.flag(REPORT)


def check_other_netns(req):
    """CNI_NETNS is not our own namespace: what a plugin did there it would do to the host."""
    override = req.env.get("CNI_NETNS_OVERRIDE", "")
    if override == "1" or override.lower() == "true":
        return
    try:
        same = netns.is_own(req.open_netns(), req.host.home)
    except CniError:
        return                          # not there, or no namespace: the plugin says so if it matters to it
    if same:
        raise CniError(errors.INVALID_NETNS, "plugin's netns and netns from CNI_NETNS should not be the same")


def _run(module, req, deliver):
    if req.command == "GC" and not req.conf.has(ATTACHMENTS):
        req.warn(f'GC of network "{req.name}": no "{ATTACHMENTS}", nothing is released')
        return b""
    if req.command == "DEL" and req.own_host:
        req.host.deleting = req.name, req.container_id, req.ifname
    conf = module.read(req)
    if req.command == "ADD":
        with Undo() as undo:
            result = module.add(req, conf, undo)
            stdout = results.encode(results.to_version({"cniVersion": version.CURRENT, **result}, req.version))
            if deliver:
                req.leave_mount()
                deliver(reply(0, stdout, req.warnings))
            return stdout
    function = getattr(module, {"DEL": "delete"}.get(req.command, req.command.lower()), None)
    if function:                    # gc and status are optional
        function(req, conf)
    return json.write({"released": req.released}) if reports(req) else b""
