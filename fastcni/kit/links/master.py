"""Read the keys `master` and `linkInContainer` of macvlan, ipvlan and vlan, and find the master: the parent of a pod's
link."""

from __future__ import annotations

from errno import EBUSY

from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.links import find
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.request import Request
    from fastcni.spec.config import Section

# {errno: why the kernel makes no macvlan or ipvlan on a link}
WHY = {EBUSY: "a link can have macvlans, have ipvlans, or be a port of a bridge or bond: only one of the three"}


class Master:
    """The keys that name the parent link.

    name          the key `master`; "" stands for the link of the default route
    in_container  linkInContainer: the master is a link of the pod, not of the host
    """

    __slots__ = ("name", "in_container")

    def __init__(self, keys: Section) -> None:
        self.name, self.in_container = keys.text("master"), keys.flag("linkInContainer")

    def sock(self, pod: Pod) -> Socket:
        """Return the route socket of the master's namespace."""
        return pod.inside if self.in_container else pod.host

    def find(self, req: Request, pod: Pod) -> Link:
        """Return the master. Raises CniError 7 if the master does not exist."""
        if not self.name:
            return default_link(self.sock(pod))
        link = find.link(pod.inside, self.name) if self.in_container else find.host_link(req.mode, self.name)
        if link is None:
            raise errors.bad_config(f'failed to lookup master "{self.name}": Link not found')
        return link

    def status(self, req: Request) -> None:
        """For STATUS: raise CniError 50 if the named master is missing. A master in the pod cannot be checked before
        ADD.

        Without a default route, only warn: another program may add the route before the next ADD, and running pods do
        not need the route.
        """
        if self.in_container:
            return
        if self.name and not find.host_link(req.mode, self.name):
            raise CniError(errors.PLUGIN_NOT_AVAILABLE, f'master "{self.name}" does not exist: Link not found')
        if not self.name:
            try:
                default_link(req.mode.route)
            except CniError as e:
                req.warn(str(e))


def default_link(sock: Socket) -> Link:
    """Return the link of the first default route in the main table, IPv4 before IPv6. Raises CniError 7."""
    for family in find.FAMILIES:
        for kind, payload in wire.dump(sock, uapi.RTM_GETROUTE, rtnl.rtmsg(family, table=uapi.RT_TABLE_MAIN),
                                       "list default routes"):
            route = rtnl.read_route(payload) if kind == uapi.RTM_NEWROUTE else None
            if (route and not route.prefix and route.kind == uapi.RTN_UNICAST and route.table == uapi.RT_TABLE_MAIN
                    and route.index):
                link = find.link(sock, index=route.index)
                if link:
                    return link
    raise errors.bad_config("no default route interface found")


def check_mtu(mtu: int, master: Link) -> None:
    """Raise CniError 7 for an MTU that is larger than the master's."""
    if not 0 <= mtu <= master.mtu:
        raise errors.bad_config(f"invalid MTU {mtu}, must be [0, master MTU({master.mtu})]")
