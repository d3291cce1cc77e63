"""Serve one CNI request: call the plugin and return the answer. handle() is the only caller of plugins, in every mode.

handle() works in the same order as the plugin skeleton of the reference library, and uses no process globals: no
stdout, argv, environment or signals. handle() differs from the reference in two ways. It returns a result only when all
steps have succeeded, so that stdout never has two documents. It compares CNI_NETNS with the caller's own namespace
before the plugin changes anything.
"""

from __future__ import annotations

import posix
from errno import EACCES, EIO, ENOMEM, EPERM, ESTALE

from fastcni import plugins
from fastcni._abandoned import Abandoned
from fastcni.kernel import netns
from fastcni.kernel.waiting import Crowded
from fastcni.kernel.wire import NetlinkError
from fastcni.kit.call.request import Reply, Request, read_request
from fastcni.kit.call.undo import Undo
from fastcni.spec import config, errors, json, version
from fastcni.spec import result as results
from fastcni.spec.errors import CniError, NestedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from fastcni.kit.call.mode import Mode

NEEDS = {                       # {command: required variables (spec section 2)}, in the reference's order
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"),
    "GC": ("CNI_PATH",),
    "STATUS": ("CNI_PATH",),
    "VERSION": (),
}
VALID = {"CNI_CONTAINERID": config.check_container_id, "CNI_IFNAME": config.check_ifname}
# Errnos with which the loading of an extension module may fail
UNREADABLE = (EIO, ESTALE, EACCES, EPERM, *errors.EXHAUSTED)
# Exceptions that are no error of the plugin: the thread cannot leave the pod's namespace, another process handles the
# request, or the request has ended.
NOT_ERRORS = (netns.Lost, Crowded, Abandoned)
# A key that fastcni's runtime sets: GC then works in every CNI version, and prints the released objects
REPORT = "fastcni/report"
UPDATE = "UPDATE"               # the command of the Request that update() makes
FUNCTIONS = {"DEL": "delete", "CHECK": "check", "GC": "gc", "STATUS": "status"}     # functions without a result
SINCE = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}


def needs_stdin(env: Mapping[str, str]) -> bool:
    """Return whether this request has a configuration on stdin. The stdin of VERSION may be a terminal, and must not be
    read."""
    return env.get("CNI_COMMAND", "") not in ("", "VERSION")


def handle(plugin: str, env: Mapping[str, str], stdin: bytes, mode: Mode) -> Reply:
    """Serve one request for the plugin type `plugin`. Raises only the exceptions in NOT_ERRORS.

    env: the caller's complete environment. stdin: the bytes of stdin. The calling thread is in the caller's network
    namespace.
    """
    warnings: list[str] = []
    try:
        stdout, status = _serve(plugin, env, stdin, mode, warnings), 0
    except NOT_ERRORS:
        raise
    except BaseException as e:          # for example SystemExit of a plugin of another distribution
        stdout, status = error_document(_as_cni_error(e, plugin)), 1
    return reply(status, stdout, warnings)


def restore(plugin: str, env: Mapping[str, str], stdin: bytes, mode: Mode) -> list[str]:
    """Restore the rules and elements of an attachment in the host's firewall, and change nothing else. The CNI spec has
    no such command.

    env, stdin: the same as for CHECK: stdin has the attachment's result as prevResult. The configuration may have any
    version. restore() does nothing if the plugin has no function restore(). Returns warnings; raises CniError.
    """
    warnings: list[str] = []
    try:
        module = load(plugin)
        check_variables(env, "CHECK")
        req = read_request(plugin, "RESTORE", env, stdin, mode)
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


def update(plugin: str, env: Mapping[str, str], stdin: bytes, mode: Mode) -> Reply:
    """Change an existing attachment so that it agrees with its changed configuration. The CNI spec has no such command.

    env: the same as for CHECK. stdin has the pod's annotations. Only the plugin multus has a function update(). Raises
    only the exceptions in NOT_ERRORS.
    """
    warnings: list[str] = []
    try:
        check_variables(env, "CHECK")
        req = read_request(plugin, UPDATE, env, stdin, mode)
        req.warnings = warnings
        try:
            module = load(plugin)
            module.update(req, module.read(req))
        finally:
            req.close()
    except NOT_ERRORS:
        raise
    except BaseException as e:
        return reply(1, error_document(_as_cni_error(e, plugin)), warnings)
    return reply(0, b"", warnings)


def load(plugin: str) -> ModuleType:
    """Return the module of a plugin type. Raises CniError 7."""
    if plugin not in plugins.TABLE and plugin not in plugins.OTHER:
        raise CniError(errors.INVALID_CONFIG, f'unknown plugin type "{plugin}"',
                       f"fastcni has {', '.join(sorted(plugins.TABLE))}")
    return plugins.load(plugin)


def reply(status: int, stdout: bytes, warnings: Sequence[str]) -> Reply:
    if not warnings:
        return Reply(status, stdout)
    return Reply(status, stdout, "".join(f"{line}\n" for line in warnings).encode("utf-8", "replace"))


def error_document(e: CniError) -> bytes:
    """Encode a CniError for stdout: JSON indented by four spaces, with code, msg and details. The details contain the
    errors of the rollback."""
    document = e.as_document()
    notes = getattr(e, "__notes__", ())
    if notes:
        document["details"] = "; ".join([*filter(None, [document.get("details")]), *notes])
    if e.failed_at is not None:
        document[errors.FAILED_AT] = e.failed_at
    return json.write(document, indent=4)


def _as_cni_error(e: BaseException, plugin: str) -> CniError:
    """Convert any exception to a CniError, usually with code 999. The code is 11 if the process has run out of
    descriptors or memory."""
    if isinstance(e, CniError):
        return _of_exhaustion(e, e.msg) if is_exhaustion(e.__cause__ or e.__context__) else e
    if isinstance(e, NestedError):
        return _of_nested(e)
    code, details = errors.INTERNAL, ""
    if number := errno_of_import(e):
        code, details = errors.of_errno(number), "a part of fastcni or of Python could not be loaded"
    elif not isinstance(e, OSError):
        owner = "fastcni" if plugin in plugins.BUILT_IN or plugin in plugins.OTHER else f'the plugin "{plugin}"'
        details = f"{type(e).__name__}: this is a fault of {owner}"
    text = str(e) or type(e).__name__
    if isinstance(e, OSError) and e.strerror and not isinstance(e, NetlinkError):
        text = f"{f'{e.filename}: ' if e.filename else ''}{e.strerror} (errno {e.errno})"
    wrapped = _of_exhaustion(e, text) if is_exhaustion(e) else CniError(code, text, details)
    for note in getattr(e, "__notes__", ()):
        wrapped.add_note(note)
    return wrapped


def is_exhaustion(e: BaseException | None) -> bool:
    return isinstance(e, MemoryError) or (isinstance(e, OSError) and e.errno in errors.EXHAUSTED)


def _of_exhaustion(e: BaseException, text: str) -> CniError:
    found = CniError(errors.TRY_AGAIN_LATER, text, "are too many files open (ulimit -n), or is memory short?")
    for note in getattr(e, "__notes__", ()) if isinstance(e, CniError) else ():
        found.add_note(note)
    return found


def _of_nested(e: NestedError) -> CniError:
    """Convert the error of a plugin in a chain. The plugin's notes come first, then the notes of the chain's
    rollback."""
    inner = _as_cni_error(e.__cause__ or e, e.kind)
    found = CniError(inner.code, e.prefix + inner.msg, inner.details)
    for note in [*getattr(inner, "__notes__", ()), *getattr(e, "__notes__", ())]:
        found.add_note(note)
    if e.bare:
        found.failed_at = e.index
    return found


def errno_of_import(e: BaseException) -> int:
    """Return the errno with which loading an extension module failed, 0 for other exceptions.

    The dynamic linker gives the error only as text: "/usr/lib/.../_socket.so: cannot open shared object file: Too many
    open files". If mmap(2) fails, the text has no error."""
    text = str(e) if isinstance(e, ImportError) else ""
    if text.endswith("failed to map segment from shared object"):
        return ENOMEM
    return next((number for number in UNREADABLE if text.endswith(posix.strerror(number))), 0)


def _serve(plugin: str, env: Mapping[str, str], stdin: bytes, mode: Mode, warnings: list[str]) -> bytes:
    """Run the request, and return the bytes for stdout."""
    module = load(plugin)
    supported = getattr(module, "VERSIONS", version.ALL)
    command = env.get("CNI_COMMAND", "")
    if not command:
        warnings += about(plugin, supported)
        return b""
    check_variables(env, command)
    if command == "VERSION":
        return version.version_reply(supported)
    req = read_request(plugin, command, env, stdin, mode)
    req.warnings = warnings
    try:
        if command not in NEEDS:
            raise CniError(errors.INVALID_ENVIRONMENT, f"unknown CNI_COMMAND: {command}")
        check_version(req, supported)
        if command in ("ADD", "DEL"):
            check_other_netns(req)
        return _run(module, req)
    finally:
        req.close()


def about(plugin: str, supported: Sequence[str]) -> tuple[str, str]:
    """Return two lines of text for a user who starts a plugin without CNI_COMMAND, which is no error."""
    from fastcni import __version__

    return (f"CNI {plugin} plugin fastcni {__version__}", f"CNI protocol versions supported: {', '.join(supported)}")


def check_variables(env: Mapping[str, str], command: str) -> None:
    """Raise CniError 3 or 4 for invalid variables, then CniError 4 for missing variables."""
    needed = NEEDS.get(command, ())
    for name, check in VALID.items():
        if name in needed and (value := env.get(name)):
            check(value)
    if not all(map(env.get, needed)):
        missing = ",".join([name for name in needed if not env.get(name)])
        raise CniError(errors.INVALID_ENVIRONMENT, f"required env variables [{missing}] missing")


def check_version(req: Request, supported: Sequence[str]) -> None:
    """Raise CniError 1 if the command does not exist in the configuration's version, or if the plugin does not support
    the version."""
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


def reports(req: Request) -> bool:
    """Return whether this is a GC of fastcni's own runtime. That runtime passes the valid attachments to fastcni's
    plugins in versions below 1.1.0, too."""
    return req.command == "GC" and req.conf.flag(REPORT)


def check_other_netns(req: Request) -> None:
    """Raise CniError 8 if CNI_NETNS is the caller's own namespace, because the plugin would change the host."""
    override = req.env.get("CNI_NETNS_OVERRIDE")
    if override and (override == "1" or override.lower() == "true"):
        return
    try:
        same = req.mode.is_home(req.open_netns())
    except CniError:
        # the path is missing or no namespace; plugins that need the namespace report this error
        return
    if same:
        raise CniError(errors.INVALID_NETNS, "plugin's netns and netns from CNI_NETNS should not be the same")


def _run(module: ModuleType, req: Request) -> bytes:
    command = req.command
    if command == "GC":
        if not req.conf.has(config.VALID_ATTACHMENTS):
            req.warn(f'GC of network "{req.name}": no "{config.VALID_ATTACHMENTS}", nothing is released')
            return b""
        if not reports(req):            # fastcni's runtime has already added multus' pods to the valid attachments
            from fastcni.kit.networks.other_caches import with_pods_of_multus

            req = with_pods_of_multus(req)
    if command == "DEL":
        req.mode.announce_delete(req)
    conf = module.read(req)
    if command == "ADD":
        with Undo() as undo:
            result = module.add(req, conf, undo)
            stdout = req.mode.encode(results.to_version({"cniVersion": version.CURRENT, **result}, req.version))
            req.leave_mount()
            req.mode.deliver(reply(0, stdout, req.warnings))
            return stdout
    function = getattr(module, FUNCTIONS[command], None)
    if function:                    # gc() and status() are optional
        function(req, conf)
    return json.write({"released": req.released}) if reports(req) else b""
