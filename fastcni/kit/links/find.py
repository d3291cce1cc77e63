"""Links and their addresses as the kernel lists them. Nothing here changes any."""

from errno import ENODEV

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.spec import errors
from fastcni.spec.errors import CniError


def link(sock, name=None, *, index=0):
    """The Link called `name`, or the one with that index; None if there is none, or no link can have that name."""
    if name and ("\0" in name or len(name.encode("utf-8", "replace")) >= uapi.ALTIFNAMSIZ):
        return None
    try:
        return rtnl.first_link(wire.exchange(sock, rtnl.get_link(Batch(), name=name, index=index)))
    except wire.NetlinkError as e:
        if e.errno != ENODEV:
            raise
        return None


def new_link(sock, name):
    """The Link that was just made. Raises CniError 11 if another program has deleted it."""
    found = link(sock, name)
    if found is None:
        raise CniError(errors.TRY_AGAIN_LATER, f'link "{name}" has vanished', "does another program delete links?")
    return found


def pod_link(pod, name, words):
    """The Link of that name in the pod. Raises CniError with `words` where there is none."""
    found = link(pod.inside, name)
    if found is None:
        raise CniError(errors.INTERNAL, words)
    return found


def host_link(host, name):
    """The Link called `name` on the caller's side, as it is known there; None if there is none."""
    return host.recall(("link", name), lambda: link(host.route, name))


def addresses(sock, index, families=(uapi.AF_INET, uapi.AF_INET6)):
    """The Addresses of a link, global and link-local alike, as the kernel lists them."""
    found = []
    for family in families:
        for kind, payload in wire.dump(sock, uapi.RTM_GETADDR, rtnl.ifaddrmsg(family, 0, index),
                                       f"list addresses of link {index}"):
            if kind == uapi.RTM_NEWADDR:
                item = rtnl.read_address(payload)
                if item.index == index:         # kernels without strict checking list every link's
                    found.append(item)
    return found


def port_count(sock, bridge):
    """The number of links on the bridge."""
    found = wire.dump(sock, uapi.RTM_GETLINK, rtnl.ifinfomsg(), "list bridge ports",
                      lambda batch: batch.u32(uapi.IFLA_MASTER, bridge.index))
    return sum(rtnl.read_link(payload).master == bridge.index for _, payload in found)
