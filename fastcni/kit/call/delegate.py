"""Another plugin in the place of a request's own (spec section 4): ours by a function call, anybody else's by the rules
of the Go library.

A delegate found in CNI_PATH that is one of fastcni's own launchers runs the same code as this process, so it is
called here, without starting it. What is not found there is an error either way.

Everything here is given the delegate's own request, as Request.delegate() makes it.
"""

from fastcni.kernel import waiting
from fastcni.kit.call import invoke
from fastcni.spec import errors, version
from fastcni.spec import result as results
from fastcni.spec.errors import CniError


def add(req, undo):
    """Run the delegate's ADD; its result in the 1.1.0 shape. Its DEL is the way back, also of an ADD that failed."""
    plugin, path = _find(req)
    if plugin:
        return plugin.add(req, plugin.read(req), undo)
    waiting.admit(waiting.PROGRAM)
    undo(run, req, "DEL")
    out = _execute(req, path, "ADD")
    return results.check_set(results.to_version(invoke.read_add_output(out, req.version), "1.1.0"))


def run(req, command):
    """Run the delegate's DEL, CHECK, GC or STATUS."""
    for function, *args in prepare(req, command):
        function(*args)


def prepare(req, command):
    """The step of run(), [(function, argument, ...)]: the delegate is found, and what it needs is read. Raises
    CniError."""
    plugin, path = _find(req)
    if not plugin:
        return [(_execute_other, req, path, command)]
    req.command = command
    function = getattr(plugin, {"DEL": "delete"}.get(command, command.lower()), None)
    return [(function, req, plugin.read(req))] if function else []      # gc and status are optional


def _execute_other(req, path, command):
    if command == "GC" and not version.at_least(req.version, "1.1.0"):      # see handle.REPORT
        req.warn(f'{req.plugin} ({path}) is not asked for GC: cniVersion "{req.version}" has none')
        return
    waiting.admit(waiting.PROGRAM)
    _execute(req, path, command)


def status(req):
    """STATUS of the delegate. Raises CniError 50 if it is missing. A delegate that does not know the command is no
    failure: its state is unknown."""
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


def restore(req):
    """What a delegate of ours has in the host's firewall is put back; others have no such command."""
    from fastcni import plugins  # as in _find()

    plugin = plugins.load(req.plugin) if req.plugin in plugins.BUILT_IN else None
    if hasattr(plugin, "restore"):
        plugin.restore(req, plugin.read(req))


def gives_addresses(kind):
    """Can a plugin of that name be an IPAM plugin?"""
    from fastcni import plugins  # as in _find()

    return plugins.gives_addresses(kind)


def _find(req):
    """(plugin module, "") for one of ours, (None, path) for another. Raises CniError where there is none."""
    from fastcni import plugins  # the marked exception: the kit asks the table of plugins

    if req.in_process and req.plugin in plugins.TABLE:
        return plugins.load(req.plugin), ""
    path = invoke.find(req.plugin, req.path.split(":") if req.path else [])
    if req.plugin in plugins.TABLE and invoke.is_own(path):
        return plugins.load(req.plugin), ""
    return None, path


def _execute(req, path, command):
    seconds = waiting.limit(waiting.DELEGATE_TIMEOUT_S)
    try:
        out, err = invoke.execute(path, invoke.child_env(req.env, command), req.stdin, seconds)
    except invoke.Late:
        raise CniError(errors.TRY_AGAIN_LATER, f"{path} did not answer {command} within {seconds:g} s, and was killed",
                       f"it is not a plugin of fastcni; what does it wait for? `{req.plugin}` is its type in the "
                       "configuration") from None
    if err:
        req.warn(err.decode("utf-8", "replace").rstrip("\n"))
    return out
