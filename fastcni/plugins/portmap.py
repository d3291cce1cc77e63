"""portmap: maps ports of the host to ports of the pod, as the capability portMappings requests."""

from __future__ import annotations

from fastcni.kit.call import chained
from fastcni.kit.firewall.portmap import keys as portmap
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.firewall.portmap.keys import Conf

CAPABILITIES = ("portMappings",)


def read(req: Request) -> Conf:
    if req.command in ("DEL", "GC"):
        return portmap.read_leniently(req)
    try:
        return portmap.read(req)
    except CniError as e:
        prefix = "failed to parse config: " if req.command == "ADD" else ""
        raise CniError(e.code, prefix + e.msg, e.details) from None


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    result = conf.previous or chained.previous(req)
    if conf.maps_ports:
        portmap.add(req, conf, undo)
        if conf.needs_localnet:
            portmap.allow_localhost(req, conf)
    return result


def restore(req: Request, conf: Conf) -> None:
    if conf.maps_ports:
        portmap.restore(req, conf)


delete = portmap.delete


def check(req: Request, conf: Conf) -> None:
    from fastcni.kit.links import checks  # needed only by CHECK

    if conf.previous is None:
        chained.previous(req, "Required prevResult missing")
    if conf.maps_ports and (missing := portmap.missing(req, conf)):
        raise checks.wrong(missing, "was the firewall flushed?")


def gc(req: Request, conf: Conf) -> None:
    portmap.gc(req)


def status(req: Request, conf: Conf) -> None:
    """Check that the configured backend (iptables or nftables) works. An error is only a warning, because pods without
    port mappings need no backend."""
    try:
        portmap.status(req, conf)
    except CniError as e:
        req.warn(f"portmap: {e}")
