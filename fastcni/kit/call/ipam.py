"""The IPAM delegate of a plugin, and the time that it takes."""

from time import perf_counter

from fastcni.kit.call import delegate
from fastcni.spec import errors
from fastcni.spec.errors import CniError


def read_type(conf):
    """The IPAM plugin that the configuration names, "" where it names none. Raises CniError 7; for DEL, what cannot be
    an IPAM plugin counts as none, because ADD refuses it."""
    kind = named_type(conf)
    return kind if delegate.gives_addresses(kind) else conf.bad("ipam.type", f'"{kind}" is not an IPAM plugin', "")


def named_type(conf):
    return conf.strict.section("ipam").text("type")


def add(req, undo):
    """Run the delegate's ADD; its result in the 1.1.0 shape. Its DEL is the way back, also of an ADD that failed."""
    return _timed(req, delegate.add, undo)


def add_addresses(req, undo, interface):
    """As add(); there has to be an address, and each is of entry `interface` of the result's interfaces."""
    result = add(req, undo)
    if not result.get("ips"):
        raise CniError(errors.INTERNAL, "IPAM plugin returned missing IP config")
    for ip in result["ips"]:
        ip["interface"] = interface
    return result


def prepare_delete(req):
    """[(function, argument, ...)]: the step that runs the delegate's DEL, none where ADD ran no delegate.

    To be called before anything is deleted: where the delegate is not found, or does not know where its records are,
    the DEL fails with the pod as it was. Raises CniError.
    """
    if not delegate.gives_addresses(req.conf.once(named_type)):
        return []
    return [(_clocked, req, *step) for step in _timed(req, delegate.prepare, "DEL")]


def check(req):
    _timed(req, delegate.run, "CHECK")


def gc(req):
    if delegate.gives_addresses(req.conf.once(named_type)):
        _timed(req, delegate.run, "GC")


def status(req):
    _timed(req, delegate.status)


def _timed(req, function, *args):
    return _clocked(req, function, req.delegate(req.conf.once(named_type)), *args)


def _clocked(req, function, *args):
    started = perf_counter()
    try:
        return function(*args)
    finally:
        req.host.in_ipam += perf_counter() - started
