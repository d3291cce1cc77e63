"""The pod's side of a request: its network namespace, and its links as entries of a result."""

from fastcni.kernel import netns, wire
from fastcni.spec import errors
from fastcni.spec.errors import CniError


class Pod:
    """Two route sockets of one request, each bound for life to its namespace, and the way in for sysctls.
    The one inside is closed with the request."""

    __slots__ = ("host", "inside", "netns_fd", "home")

    def __init__(self, req):
        self.netns_fd, self.home = req.open_netns(), req.host.home
        self.host = req.host.route
        try:
            with self.enter():
                self.inside = wire.open_socket()
            req.opened.append(self.inside)
        except netns.NotNamespace:
            raise CniError(errors.INVALID_NETNS, f'failed to open netns "{req.netns}": a namespace of another kind, '
                           "not a network namespace") from None

    def enter(self):
        """`with pod.enter():` runs its body in the pod's namespace."""
        return netns.inside(self.netns_fd, self.home)


def interface(link, sandbox=""):
    """A link as an entry of a result's interfaces."""
    entry = {"name": link.name, "mac": link.mac}
    if sandbox:
        entry["sandbox"] = sandbox
    return entry
