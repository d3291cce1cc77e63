"""The link that a pod's link is made on: `master` of macvlan, ipvlan and vlan."""

from errno import EBUSY

from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.links import find
from fastcni.spec import errors
from fastcni.spec.errors import CniError

# Why the kernel makes no macvlan or ipvlan on a link: {errno: words}
WHY = {EBUSY: "a link has either macvlans or ipvlans on it, or is a port of a bridge or a bond: never two of these"}


class Master:
    """The keys `master` ("": the link of the default route) and `linkInContainer` (it is the pod's, not the host's)."""

    __slots__ = ("name", "in_container")

    def __init__(self, keys):
        self.name, self.in_container = keys.text("master"), keys.flag("linkInContainer")

    def sock(self, pod):
        """The route socket of its side."""
        return pod.inside if self.in_container else pod.host

    def find(self, req, pod):
        """Its Link. Raises CniError 7 where there is none."""
        if not self.name:
            return default_link(self.sock(pod))
        link = find.link(pod.inside, self.name) if self.in_container else find.host_link(req.host, self.name)
        if link is None:
            raise missing(f'failed to lookup master "{self.name}": Link not found')
        return link

    def status(self, req):
        """STATUS: the named master exists; a master in the pod is not known before ADD. Raises CniError 50.

        A default route comes and goes, and the pods on its link stay connected: a missing one is a warning.
        """
        if self.in_container:
            return
        if self.name and not find.host_link(req.host, self.name):
            raise CniError(errors.PLUGIN_NOT_AVAILABLE, f'master "{self.name}" is not there: Link not found')
        if not self.name:
            try:
                default_link(req.host.route)
            except CniError as e:
                req.warn(str(e))


def missing(text):
    return CniError(errors.INVALID_CONFIG, text)


def default_link(sock):
    """The Link of the first default route in the main table, IPv4 before IPv6. Raises CniError 7."""
    for family in (uapi.AF_INET, uapi.AF_INET6):
        for kind, payload in wire.dump(sock, uapi.RTM_GETROUTE, rtnl.rtmsg(family, table=uapi.RT_TABLE_MAIN),
                                       "list default routes"):
            route = rtnl.read_route(payload) if kind == uapi.RTM_NEWROUTE else None
            if (route and not route.prefix and route.kind == uapi.RTN_UNICAST and route.table == uapi.RT_TABLE_MAIN
                    and route.index):
                return find.link(sock, index=route.index)
    raise missing("no default route interface found")


def check_mtu(mtu, master):
    """Raises CniError 7 for an MTU that the master's frames have no room for."""
    if not 0 <= mtu <= master.mtu:
        raise CniError(errors.INVALID_CONFIG, f"invalid MTU {mtu}, must be [0, master MTU({master.mtu})]")
