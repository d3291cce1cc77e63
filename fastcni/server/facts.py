"""What is known of a caller's namespace, until the kernel says that it has changed; never for a time.

Before a fact is used, the notifications that wait are read, and they wait from the moment of the change. A filter in
the kernel (BPF) lets only those pass that are about links which a fact is about.

Of pairs that ADDs made the kernel is not heard: their DELs look whether they are still there (WarmMode.take_pair).
"""

from threading import Lock

from fastcni._netlink import attributes
from fastcni.kernel import filters, nft, rtnl, uapi, wire

ROUTE_GROUPS = (uapi.RTNLGRP_LINK, uapi.RTNLGRP_IPV4_IFADDR, uapi.RTNLGRP_IPV6_IFADDR, uapi.RTNLGRP_IPV4_NETCONF,
                uapi.RTNLGRP_IPV6_NETCONF)
NETCONF = (uapi.RTM_NEWNETCONF, uapi.RTM_DELNETCONF)
MOST_PAIRS = 10_000             # a DEL that finds none looks for itself
ELEMENTS = (nft.NFT_MSG_NEWSETELEM, nft.NFT_MSG_DELSETELEM, nft.NFT_MSG_NEWGEN)    # they change no table


class Facts:
    """recall() for one namespace and any number of threads; made in a thread that is in it. Raises OSError."""

    def __init__(self):
        self.lock = Lock()
        self.facts = {}
        self.pairs = {}                 # what ADDs made: {key: value}, the oldest first
        self.heard = 0                  # notifications so far: none may come between a question and its answer
        self.watched = set()            # indexes of links that facts are about
        self.route = wire.open_socket(groups=ROUTE_GROUPS)
        self.nftables = None            # opened by the first who asks about a table
        filters.attach(self.route, filters.links(()))

    def close(self):
        for sock in filter(None, (self.route, self.nftables)):
            sock.close()

    def keep_pair(self, key, pair):
        """Keep what an ADD made until take_pair() in its DEL; of very many the oldest are forgotten."""
        self.pairs.pop(key, None)
        self.pairs[key] = pair
        if len(self.pairs) > MOST_PAIRS:
            self.pairs.pop(next(iter(self.pairs)), None)

    def take_pair(self, key):
        return self.pairs.pop(key, None)

    def recall(self, key, ask):
        """What ask() says; asked once, and again after it may have changed. See Mode.recall()."""
        with self.lock:
            self._catch_up(key)
            if key in self.facts:
                return self.facts[key]
            heard = self.heard
        fact = ask()
        if fact is None:
            return None                 # nothing is announced of a link that is not there
        index = link_of(key, fact)
        if index is not None and self._watch(index):
            return self.recall(key, ask)    # it may have changed before the filter let that pass: ask once more
        with self.lock:
            self._catch_up(key)
            if self.heard == heard:
                self.facts[key] = fact
        return fact

    def _watch(self, index):
        """Let notifications about a link pass. False where they did already."""
        with self.lock:
            if index in self.watched:
                return False
            if len(self.watched) >= filters.MOST_LINKS:     # links come and go; those that stay are asked for again
                self._forget_all()
            self.watched.add(index)
            filters.attach(self.route, filters.links(self.watched))
            return True

    def _forget_all(self):
        self._lost()
        self.watched.clear()

    def _catch_up(self, key):
        """Read what waits where facts like this are announced."""
        if key[0] != "nftables":
            wire.drain(self.route, self._hear_route, self._lost)
            return
        if not self.nftables:
            self.nftables = wire.open_socket(uapi.NETLINK_NETFILTER, groups=(uapi.NFNLGRP_NFTABLES,))
        wire.drain(self.nftables, self._hear_nftables, self._lost)

    def _lost(self):
        """What the kernel had to drop may have been anything."""
        self.heard += 1
        self.facts.clear()

    def _hear_route(self, kind, payload):
        if kind in NETCONF:
            self._forget(lambda key, _: key[0] == "sysctl")
        elif kind in (uapi.RTM_NEWADDR, uapi.RTM_DELADDR):
            index = rtnl.read_index(payload)
            self._forget(lambda key, _: key[:2] == ("addresses", index))
        elif rtnl.is_of_link(payload):
            self._hear_link(kind, payload)

    def _hear_link(self, kind, payload):
        """A link has changed, and what it has become is told; or it is gone."""
        link = rtnl.read_link(payload)
        if kind == uapi.RTM_NEWLINK:
            key = "link", link.name
            if key in self.facts and self.facts[key].index == link.index:
                self.heard += 1
                self.facts[key] = link
                return
        self._forget(lambda key, fact: link_of(key, fact) == link.index)

    def _hear_nftables(self, kind, payload):
        if kind not in ELEMENTS:
            name = attributes(payload, 4).get(nft.NFTA_TABLE_NAME, b"").rstrip(b"\0").decode("utf-8", "replace")
            self._forget(lambda key, _: key[0] == "nftables" and key[1] in (name, ""))

    def _forget(self, about):
        self.heard += 1
        for key in [key for key, fact in self.facts.items() if about(key, fact)]:
            del self.facts[key]


def link_of(key, fact):
    """The index of the link that a fact is about, None for another kind of fact."""
    if key[0] == "link":
        return fact.index
    return key[1] if isinstance(key[1], int) else None
