"""Another plugin in the place of a request's own (spec section 4): ours by a function call, anybody else's by the rules
of the Go library.

A delegate found in CNI_PATH that is one of fastcni's own launchers runs the same code as this process, so it is
called here, without starting it. What is not found there is an error either way.

Everything here is given the delegate's own request, as Request.delegate() makes it.
"""

from fastcni.kit import invoke
from fastcni.spec import result as results


def add(req, undo):
    """Run the delegate's ADD; its result in the 1.1.0 shape. Its DEL is the way back, also of an ADD that failed."""
    plugin, path = _find(req)
    if plugin:
        return plugin.add(req, plugin.read(req), undo)
    undo(run, req, "DEL")
    out = _execute(req, path, "ADD")
    return results.to_version(invoke.read_add_output(out, req.version), "1.1.0")


def run(req, command):
    """Run the delegate's DEL, CHECK, GC or STATUS."""
    plugin, path = _find(req)
    if not plugin:
        _execute(req, path, command)
        return
    req.command = command
    function = getattr(plugin, {"DEL": "delete"}.get(command, command.lower()), None)
    if function:                        # gc and status are optional
        function(req, plugin.read(req))


def restore(req):
    """What a delegate of ours has in the host's firewall is put back; others have no such command."""
    from fastcni import plugins  # as in _find()

    plugin = plugins.load(req.plugin) if req.plugin in plugins.TABLE else None
    if hasattr(plugin, "restore"):
        plugin.restore(req, plugin.read(req))


def _find(req):
    """(plugin module, "") for one of ours, (None, path) for another. Raises CniError where there is none."""
    from fastcni import plugins  # the marked exception: the kit asks the table of plugins

    if req.in_process and req.plugin in plugins.TABLE:
        return plugins.load(req.plugin), ""
    path = invoke.find(req.plugin, req.path.split(":") if req.path else [])
    if req.plugin in plugins.TABLE and invoke.is_ours(path):
        return plugins.load(req.plugin), ""
    return None, path


def _execute(req, path, command):
    out, err = invoke.execute(path, invoke.child_env(req.env, command), req.stdin)
    if err:
        req.warn(err.decode("utf-8", "replace").rstrip("\n"))
    return out
