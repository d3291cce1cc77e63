"""Read prevResult, the result of the previous plugins of a chain. A chained plugin returns prevResult from ADD."""

from __future__ import annotations

from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request


def previous(req: Request, message: str = "must be called as chained plugin",
             code: int = errors.INVALID_CONFIG) -> dict[str, Any]:
    """Return prevResult in the 1.1.0 shape. Raises CniError `code` with `message` if the configuration has no
    prevResult."""
    found = results.read_prev_result(req.conf, req.version)
    if found is None:
        raise CniError(code, message)
    return found


def in_pod(result: dict[str, Any], ip: dict[str, Any], ifname: str) -> bool:
    """Return whether `ip`, an entry of the result's ips, is an address of the pod.

    True if the entry names no interface, names an interface that the result lacks, or names `ifname` with a sandbox.
    """
    interfaces, index = result.get("interfaces", ()), ip.get("interface")
    if index is None or not 0 <= index < len(interfaces):
        return True
    return interfaces[index]["name"] == ifname and bool(interfaces[index].get("sandbox"))
