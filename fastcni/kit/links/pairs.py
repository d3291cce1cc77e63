"""The veth pairs that ADDs made, as far as they are known: a DEL then need not look for its own."""

from fastcni.kernel import netns, uapi, wire
from fastcni.kit.links import find
from fastcni.spec import result as results
from fastcni.spec.errors import CniError


class Pair:
    """A veth pair that an ADD made: index and name of its host end, and the packed addresses that the pod was given."""

    __slots__ = ("index", "name", "ips")

    def __init__(self, index, name, ips):
        self.index, self.name, self.ips = index, name, ips


def remember(req, host, result):
    """A server keeps in mind the pair that an ADD made: its DEL need not look for it, and wait for RTNL twice."""
    if req.host.memory:
        ips = [packed for packed, _ in results.ips_of(result)]
        req.host.memory.keep_pair(key(req), Pair(host.index, host.name, ips))


def key(req):
    return netns.identity(req.open_netns()), req.ifname


def recall(req):
    """The Pair that ADD made, None where it is not known, or is no more. Its name is random: who has that, and the
    index, is no other."""
    pair = req.host.memory.take_pair(key(req)) if req.host.memory else None
    return pair if pair and wire.index_of(pair.name) == pair.index else None


def host_end(req, named):
    """The index of the host's end of the pod's veth pair, which has one of these names. 0 if none or several of them
    are an end of a pair."""
    if req.host.memory:
        try:
            pair = req.host.memory.pairs.get(key(req))
        except CniError:                # the pod's namespace cannot be opened, which is not needed for this
            pair = None
        if pair and pair.name in named:
            return pair.index
    found = [find.link(req.host.route, name) for name in named if len(name.encode()) < uapi.IFNAMSIZ]
    veths = [link.index for link in found if link and link.kind == "veth"]
    return veths[0] if len(veths) == 1 else 0
