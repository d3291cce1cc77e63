"""The IPAM delegate of a plugin: ours by a function call, anybody else's by the rules of the Go library.

A delegate found in CNI_PATH that is one of fastcni's own launchers runs the same code as this process, so it is
called here, without starting it. What is not found there is an error either way.
"""

from time import perf_counter

from fastcni.kit import invoke
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError


def wanted(req):
    """The configuration names an IPAM plugin."""
    return bool(req.conf.section("ipam").text("type"))


def add(req, undo):
    """Run the delegate's ADD; its result in the 1.1.0 shape. Its DEL is the way back, also of an ADD that failed."""
    started = perf_counter()
    try:
        plugin, path = _find(req)
        if plugin:
            sub = req.delegate(req.conf.section("ipam").text("type"))
            return plugin.add(sub, plugin.read(sub), undo)
        undo(delete, req)
        out = _execute(req, path, "ADD")
        return results.to_version(invoke.read_add_output(out, req.version), "1.1.0")
    finally:
        req.host.in_ipam += perf_counter() - started


def add_addresses(req, undo, interface):
    """As add(); there has to be an address, and each is of entry `interface` of the result's interfaces."""
    result = add(req, undo)
    if not result.get("ips"):
        raise CniError(errors.INTERNAL, "IPAM plugin returned missing IP config")
    for ip in result["ips"]:
        ip["interface"] = interface
    return result


def delete(req):
    _forward(req, "DEL", "delete")


def check(req):
    _forward(req, "CHECK", "check")


def gc(req):
    _forward(req, "GC", "gc")


def status(req):
    _forward(req, "STATUS", "status")


def _forward(req, command, function):
    started = perf_counter()
    try:
        plugin, path = _find(req)
        if not plugin:
            _execute(req, path, command)
            return
        sub = req.delegate(req.conf.section("ipam").text("type"))
        sub.command = command
        run = getattr(plugin, function, None)
        if run:                         # gc and status are optional
            run(sub, plugin.read(sub))
    finally:
        req.host.in_ipam += perf_counter() - started


def _find(req):
    """(plugin module, "") for one of ours, (None, path) for another. Raises CniError where there is none."""
    from fastcni import plugins  # the marked exception: the kit asks the table of plugins

    kind = req.conf.section("ipam").text("type")
    if req.in_process and kind in plugins.TABLE:
        return plugins.load(kind), ""
    path = invoke.find(kind, req.path.split(":") if req.path else [])
    if kind in plugins.TABLE and invoke.is_ours(path):
        return plugins.load(kind), ""
    return None, path


def _execute(req, path, command):
    out, err = invoke.execute(path, invoke.child_env(req.env, command), req.stdin)
    if err:
        req.warn(err.decode("utf-8", "replace").rstrip("\n"))
    return out
