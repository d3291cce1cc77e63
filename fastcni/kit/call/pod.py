"""Open route sockets in the namespaces of a request's host and pod, and run code in the pod's namespace."""

from __future__ import annotations

from fastcni.kernel import netns, wire
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.request import Request


class Pod:
    """The two route sockets of one request. A socket always stays in the namespace in which it was opened.

    host      the socket in the caller's namespace
    inside    the socket in the pod's namespace; the request closes the socket
    netns_fd  a descriptor of the pod's namespace; Request.leave_mount() may replace the descriptor
    home      a descriptor of the caller's namespace; None: the thread's own namespace

    Raises CniError 8 if CNI_NETNS is not a network namespace.
    """

    __slots__ = ("host", "inside", "req", "home")

    def __init__(self, req: Request) -> None:
        self.req, self.home = req, req.mode.home
        self.host: Socket = req.mode.route
        try:
            with self.enter():
                self.inside: Socket = wire.open_socket()
            req.opened.append(self.inside)
        except netns.NotNamespace:
            raise CniError(errors.INVALID_NETNS, f'failed to open netns "{req.netns}": a namespace of another kind, '
                           "not a network namespace") from None

    @property
    def netns_fd(self) -> int:
        return self.req.open_netns()

    def enter(self) -> netns.inside:
        """Run the body of `with pod.enter():` in the pod's namespace."""
        return netns.inside(self.req.open_netns(), self.home)


class PodLink:
    """The pod's veth pair during ADD or CHECK.

    host, inside  the ends of the pair
    result        ADD: the result so far; CHECK: prevResult
    ips           ADD: the addresses of `result`, [(packed, prefix length)]
    """

    __slots__ = ("pod", "host", "inside", "result", "ips")

    host: Link
    inside: Link
    result: dict[str, Any]
    ips: list[tuple[bytes, int]]

    def __init__(self, pod: Pod) -> None:
        self.pod = pod


def interface(link: Link, sandbox: str = "") -> dict[str, str]:
    """Return a link as an entry of a result's interfaces."""
    entry = {"name": link.name, "mac": link.mac}
    if sandbox:
        entry["sandbox"] = sandbox
    return entry
