"""dhcp: addresses from the DHCP server of the pod's network; a daemon leases and renews them.

The daemon is `dhcp daemon`, or `fastcni serve --dhcp`; docs/dhcp.md describes it. The keys below `ipam` are the
reference plugin's: daemonSocketPath, provide, request, priority.

Differences from the reference:
- the result has the DNS servers, DNS domains and MTU that the DHCP server sends;
- DEL succeeds with a warning if no daemon runs or the daemon ends before it answers: the daemon keeps leases in files,
  and when it starts it releases the leases of pods that no longer exist;
- CHECK compares the address of the lease with prevResult, if there is a prevResult. As in the reference, CHECK acquires
  a lease again if the daemon has lost it;
- GC releases leases that are not in cni.dev/valid-attachments. STATUS fails with code 50 if no daemon answers;
- a configuration without `ipam` is an error.
"""

from __future__ import annotations

from fastcni.kit.call.conf import ENDINGS, keys_of
from fastcni.kit.dhcp import client, dhcp_conf, rpc
from fastcni.spec import errors
from fastcni.spec.errors import CniError
from fastcni.spec.result import read_prev_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo


FAMILIES = (4,)


def read(req: Request) -> str:
    """Return the path of the daemon's socket. The daemon gets the configuration, too, and reads the other keys
    itself."""
    if req.command in ENDINGS:
        return dhcp_conf.read_socket_path(keys_of(req))
    keys = req.conf.once(dhcp_conf.read_keys)
    dhcp_conf.provided(keys, req.args)
    return keys.socket_path


def add(req: Request, path: str, undo: Undo) -> dict[str, Any]:
    """Acquire a lease from the daemon, or return the lease that this attachment already has."""
    req.open_netns()                # check the namespace first: a missing namespace is code 8, no error of the daemon
    client.admit()
    undo(delete, req, path)
    return allocate(req, path)


def delete(req: Request, path: str) -> None:
    """Release the lease of the attachment; a missing lease is no error."""
    try:
        release(req, path)
    except client.Unreachable as e:
        req.warn(f"{unreachable(path, e)}. When fastcni's daemon starts, it releases the lease of this pod")


def check(req: Request, path: str) -> None:
    """Check that the daemon has or acquires a lease for this attachment, and that prevResult has the lease's
    address."""
    previous = read_prev_result(req.conf, req.version)
    client.admit()
    leased = [ip["address"] for ip in allocate(req, path)["ips"]]
    given = [ip["address"] for ip in (previous or {}).get("ips", ())]
    if given and not set(leased) <= set(given):
        raise CniError(errors.INTERNAL, f"dhcp: the lease of {req.ifname} has the address {', '.join(leased)}, "
                       f"prevResult {', '.join(given)}", "the server gave another address after a lease had expired; "
                       "the log of the dhcp daemon says when")


def gc(req: Request, path: str) -> None:
    """Release the network's leases that belong to no valid attachment. If no daemon answers, do nothing."""
    try:
        found = client.call(path, rpc.COLLECT, arguments(req), client.RELEASE_TIMEOUT_S)
    except client.Unreachable as e:
        req.warn(f"{unreachable(path, e)}. When the daemon starts, it releases the leases of pods that no longer exist")
        return
    except (client.Refused, client.Late) as e:
        if str(e).startswith(rpc.NO_METHOD):
            req.warn(f"the dhcp daemon at {path} is not fastcni's, and has no GC: {e}")
            return
        raise failed(rpc.COLLECT, path, e) from None
    for lease in found.get("Released", ()):
        req.release(lease.get("What", ""), lease.get("Of", ""))


def status(req: Request, path: str) -> None:
    """Ask the daemon for its status. Raises CniError 50 if no daemon answers."""
    try:
        client.call(path, rpc.STATUS, arguments(req), client.STATUS_TIMEOUT_S)
    except (client.Unreachable, client.Refused, client.Late) as e:
        if str(e).startswith(rpc.NO_METHOD):        # the reference's daemon has no such method, but it runs
            return
        text = unreachable(path, e) if isinstance(e, client.Unreachable) else f"dhcp daemon at {path}: {e}"
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, text,
                       "start it: `dhcp daemon`, or `fastcni serve --dhcp`") from None


def allocate(req: Request, path: str) -> dict[str, Any]:
    """Ask the daemon for a lease, and return the lease as a CNI result. Raises CniError 11 if no daemon or no DHCP
    server answers."""
    try:
        found = rpc.from_result(client.call(path, rpc.ALLOCATE, arguments(req), client.ALLOCATE_TIMEOUT_S))
    except client.Unreachable as e:
        raise CniError(errors.TRY_AGAIN_LATER, unreachable(path, e),
                       "is the dhcp daemon running? `dhcp daemon`, or `fastcni serve --dhcp`") from None
    except (client.Refused, client.Late) as e:
        raise failed(rpc.ALLOCATE, path, e) from None
    except ValueError as e:
        raise CniError(errors.INTERNAL, f"error calling DHCP.Allocate: the daemon's answer: {e}") from None
    return found


def release(req: Request, path: str) -> None:
    """Ask the daemon to release the attachment's lease. Raises Unreachable if no daemon answers, CniError if the daemon
    answers with an error."""
    try:
        client.call(path, rpc.RELEASE, arguments(req), client.RELEASE_TIMEOUT_S)
    except (client.Refused, client.Late) as e:
        raise failed(rpc.RELEASE, path, e) from None


def arguments(req: Request) -> dict[str, Any]:
    return {"ContainerID": req.container_id, "Netns": req.netns, "IfName": req.ifname, "Args": req.args,
            "Path": req.path, "StdinData": req.stdin}


def unreachable(path: str, e: Exception) -> str:
    """Return the error for a daemon that does not answer, with the reference plugin's text."""
    return f"error dialing DHCP daemon: dial unix {path}: connect: {e}"


def failed(method: str, path: str, e: Exception) -> CniError:
    """Return the CniError for a failed call of the daemon, with the reference plugin's text. The code is 11 if the DHCP
    server or the daemon did not answer.

    An error that the daemon returned gets no details: Go's library would append the details to the text, and the
    reference plugins' tests compare the text.
    """
    late = isinstance(e, client.Late)
    again = late or rpc.NO_MORE_TRIES in str(e)
    return CniError(errors.TRY_AGAIN_LATER if again else errors.INTERNAL, f"error calling {method}: {e}",
                    f"the dhcp daemon at {path} logs why" if late else "")
