"""Run the IPAM delegate of a plugin, and measure the delegate's time."""

from __future__ import annotations

from time import perf_counter_ns

from fastcni.kernel.waiting import IPAM, here
from fastcni.kit.call import delegate
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from fastcni.kit.call.delegate import Step
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.spec.config import Section

    T = TypeVar("T")

DHCP = "dhcp"                   # the delegate that sends packets over the pod's link


def read_type(conf: Section) -> str:
    """Return the name of the configuration's IPAM plugin, or "". Raises CniError 7 if the named plugin is no IPAM
    plugin. DEL gets "" instead of this error, because an ADD with this name has failed."""
    kind = named_type(conf)
    return kind if delegate.gives_addresses(kind) else conf.bad("ipam.type", f'"{kind}" is not an IPAM plugin', "")


def named_type(conf: Section) -> str:
    return conf.strict.section("ipam").text("type")


def add(req: Request, undo: Undo) -> dict[str, Any]:
    """Run the delegate's ADD and return its result in the 1.1.0 shape. The rollback runs the delegate's DEL, even if
    the delegate's ADD failed."""
    return _timed(req, delegate.add, undo)


def add_addresses(req: Request, undo: Undo, interface: int) -> dict[str, Any]:
    """Run the delegate's ADD, and set `interface`, an index of the result's interfaces, in each address. Raises
    CniError 999 if the delegate gives no address."""
    result = add(req, undo)
    if not result.get("ips"):
        raise CniError(errors.INTERNAL, "IPAM plugin returned missing IP config")
    for ip in result["ips"]:
        ip["interface"] = interface
    return result


def prepare_delete(req: Request) -> list[Step]:
    """Return the steps that run the delegate's DEL, [(function, argument, ...)]; [] if ADD ran no delegate. A DEL that
    needs the pod's link runs immediately, and the steps are [].

    Call prepare_delete() before the first deletion. If the delegate is not found, or does not know where its records
    are, prepare_delete() raises CniError, so that the DEL fails and the pod stays unchanged.
    """
    kind = req.conf.once(named_type)
    if not delegate.gives_addresses(kind):
        return []
    if kind == DHCP:
        _timed(req, delegate.run, "DEL")
        return []
    return [(_clocked, *step) for step in _timed(req, delegate.prepare, "DEL")]


def needs_link(req: Request) -> bool:
    """Return whether the delegate sends packets over the pod's link. If so, the link must exist before the delegate's
    ADD and until the end of its DEL."""
    return req.conf.once(named_type) == DHCP


def steps(function: Callable[[Request], None], req: Request, layer3: bool) -> list[Step]:
    """Return a list for undo.every() with one step, function(req), which calls IPAM. Return [] if `layer3` is
    False, because the configuration names no IPAM plugin."""
    return [(function, req)] if layer3 else []


def check(req: Request) -> None:
    _timed(req, delegate.run, "CHECK")


def gc(req: Request) -> None:
    if delegate.gives_addresses(req.conf.once(named_type)):
        _timed(req, delegate.run, "GC")


def status(req: Request) -> None:
    _timed(req, delegate.status)


def _timed(req: Request, function: Callable[..., T], *args: Any) -> T:
    return _clocked(function, req.delegate(req.conf.once(named_type)), *args)


def _clocked(function: Callable[..., T], *args: Any) -> T:
    started = perf_counter_ns()
    try:
        return function(*args)
    finally:
        here.request.spent(IPAM, started)
