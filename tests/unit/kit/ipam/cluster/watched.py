"""A local store that counts its calls, may be unavailable, and may lose answers. Also helpers of the tests."""

from unit.kit.ipam.cluster.node import NET

from fastcni.clients.errors import Away
from fastcni.kit.call.mode import Mode
from fastcni.kit.ipam.cluster.contract import NODE_TTL_S
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.spec.errors import CniError

CALLS = ("grid", "join", "join_space", "keep_alive", "nodes", "blocks", "claim", "adopt", "share", "give_back",
         "claim_address", "change_ip_claim", "release_ip_claim", "ip_claim", "ip_claims", "uses", "history")


class Watched:
    """A store that counts its calls. away: whether it is unavailable. lost: names of calls that the store makes without
    an answer."""

    def __init__(self, store):
        self.store, self.calls, self.away, self.lost = store, [], False, ()

    def __getattr__(self, name):
        if name not in CALLS:
            return getattr(self.store, name)

        def call(*args, **more):
            if name != "history":
                self.calls.append(name)
            if self.away:
                raise Away("no route to host")
            answer = getattr(self.store, name)(*args, **more)
            if name in self.lost:
                raise Away("the connection was closed")
            return answer
        return call


class WatchedMode(Mode):
    __slots__ = ("watched",)

    def __init__(self, settings):
        super().__init__()
        self.watched = Watched(open_store(settings))

    def cluster_store(self, key, open_store):
        return self.watched


def store_of(node):
    return node.mode.watched.store


def calls(node):
    """Return the names of the calls since the last call of this function."""
    found, node.mode.watched.calls = node.mode.watched.calls, []
    return found


def lose(node, name):
    """Set a node's last heartbeat back, so that the node is LOST."""
    store = store_of(node)
    with store.open() as doc:
        me = doc.get("nodes", name)
        me.seen -= 10 * NODE_TTL_S
        doc.put("nodes", name, me)


def add_until_refused(node, ipam=NET):
    for i in range(300):
        try:
            node.add(ipam, f"until{i}")
        except CniError as e:
            return e
    raise AssertionError("never refused")


def a_block(node):
    """Return the number of addresses that the node's only block has for pods."""
    (block,) = store_of(node).blocks()
    return 16 - (block.cidr.partition("/")[0] in ("10.0.0.0", "10.0.0.240"))


def declare_dead(node, name):
    lose(node, name)
    return store_of(node).declare_dead(next(one for one in store_of(node).nodes() if one.name == name))
