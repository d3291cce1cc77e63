"""Run delegates (spec section 4): call fastcni's own plugins as functions, and execute other plugins by the rules of
the Go library.

If CNI_PATH has fastcni's launcher for the delegate, this process calls the plugin's code, and does not execute the
launcher. A delegate without a file in CNI_PATH is an error, even if the delegate is a plugin of fastcni.

In this module `req` is the delegate's request, as Request.delegate() returns it.
"""

from __future__ import annotations

from fastcni import plugins  # no other module of the kit imports from a higher layer
from fastcni.kernel import waiting
from fastcni.kit.call import search
from fastcni.spec import errors, version
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

    Step = tuple[Any, ...]      # (function, argument, ...)


def add(req: Request, undo: Undo) -> dict[str, Any]:
    """Run the delegate's ADD and return its result in the 1.1.0 shape. The rollback runs the delegate's DEL, even if
    the delegate's ADD failed."""
    plugin, path = _find(req)
    if plugin:
        return plugin.add(req, plugin.read(req), undo)
    from fastcni.kit.call import invoke

    waiting.admit(waiting.PROGRAM)
    undo(run, req, "DEL")
    out = _execute(req, path, "ADD")
    return results.check_set(results.to_version(invoke.read_add_output(out, req.version), "1.1.0"))


def run(req: Request, command: str) -> None:
    """Run the delegate's DEL, CHECK, GC or STATUS."""
    for function, *args in prepare(req, command):
        function(*args)


def prepare(req: Request, command: str) -> list[Step]:
    """Find the delegate, read its configuration, and return the steps [(function, argument, ...)] that run `command`.
    Raises CniError."""
    plugin, path = _find(req)
    if not plugin:
        return [(_execute_other, req, path, command)]
    req.command = command
    function = getattr(plugin, {"DEL": "delete"}.get(command, command.lower()), None)
    return [(function, req, plugin.read(req))] if function else []      # a plugin need not have gc() and status()


def _execute_other(req: Request, path: str, command: str) -> None:
    # The spec has GC since 1.1.0. fastcni's own runtime also runs GC with older versions, see REPORT in handle.py.
    if command == "GC" and not version.at_least(req.version, "1.1.0"):
        req.warn(f'{req.plugin} ({path}) is not asked for GC: cniVersion "{req.version}" has none')
        return
    waiting.admit(waiting.PROGRAM)
    _execute(req, path, command)


def status(req: Request) -> None:
    """Run the delegate's STATUS. Raises CniError 50 if the delegate is missing. If the delegate does not support
    STATUS, only warn."""
    try:
        _find(req)
    except CniError as e:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, e.msg, e.details) from None
    try:
        run(req, "STATUS")
    except CniError as e:
        if e.code not in (errors.INCOMPATIBLE_VERSION, errors.INVALID_ENVIRONMENT):
            raise
        req.warn(f"{req.plugin} does not answer STATUS: {e}")


def restore(req: Request) -> None:
    """Restore the delegate's firewall state on the host, if the delegate is a plugin of fastcni. Other plugins have no
    command that restores state."""
    plugin = plugins.load(req.plugin) if req.plugin in plugins.BUILT_IN else None
    if plugin and hasattr(plugin, "restore"):
        plugin.restore(req, plugin.read(req))


def check_version(spoken: str, kind: str) -> None:
    """Raise CniError 1 if `kind` is a plugin of fastcni that does not support the spec version `spoken`. Other plugins
    check the version themselves."""
    if kind in plugins.TABLE:
        version.check_supported(spoken, getattr(plugins.load(kind), "VERSIONS", version.ALL))


def gives_addresses(kind: str) -> bool:
    """Return whether a plugin named `kind` can be an IPAM plugin."""
    return plugins.gives_addresses(kind)


def _find(req: Request) -> tuple[ModuleType | None, str]:
    """Return (plugin module, "") for a plugin of fastcni, (None, path) for another plugin. Raises CniError if the
    plugin is not found."""
    own = req.plugin in plugins.TABLE
    if own and (req.found_own or req.prefers_own):
        return plugins.load(req.plugin), ""
    path = req.mode.find_plugin(req.plugin, req.path.split(":") if req.path else [], own)
    if own and (not path or search.is_own(path)):
        return plugins.load(req.plugin), ""
    return None, path


def _execute(req: Request, path: str, command: str) -> bytes:
    from fastcni.kit.call import invoke

    seconds = waiting.limit(waiting.DELEGATE_TIMEOUT_S)
    try:
        out, err = invoke.execute(path, invoke.child_env(req.env, command), req.stdin, seconds)
    except invoke.Late:
        raise CniError(errors.TRY_AGAIN_LATER, f"{path} did not answer {command} within {seconds:g} s, and was killed",
                       f"the configuration names this plugin by the type `{req.plugin}`; the plugin is not fastcni's, "
                       "what does it wait for?") from None
    if err:
        req.warn(err.decode("utf-8", "replace").rstrip("\n"))
    return out
