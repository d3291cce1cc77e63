"""The IPAM delegate of a plugin, and the time that it takes."""

from time import perf_counter

from fastcni.kit import delegate
from fastcni.spec import errors
from fastcni.spec.errors import CniError


def read_type(conf):
    """The IPAM plugin that the configuration names, "" where it names none."""
    return conf.section("ipam").text("type")


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


def delete(req):
    _timed(req, delegate.run, "DEL")


def check(req):
    _timed(req, delegate.run, "CHECK")


def gc(req):
    _timed(req, delegate.run, "GC")


def status(req):
    _timed(req, delegate.run, "STATUS")


def _timed(req, function, *args):
    started = perf_counter()
    try:
        return function(req.delegate(req.conf.once(read_type)), *args)
    finally:
        req.host.in_ipam += perf_counter() - started
