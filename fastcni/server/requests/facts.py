"""Cache kernel state of a caller's namespace until the kernel notifies a change, without any time limit.

The kernel queues a notification in the same step as a change. Before the server uses cached state, it reads the queued
notifications. A BPF filter in the kernel drops the notifications about links without cached state.

The server reads no notifications about the veth pairs that ADDs made. Instead, a DEL checks whether its pair still
exists (WarmMode.take_pair).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from fastcni._netlink import attributes
from fastcni._system import has_input
from fastcni.kernel import filters, nft, nft_rules, rtnl, uapi, wire
from fastcni.kit.call.mode import Pair
from fastcni.server.bounded import forget_oldest

ROUTE_GROUPS = (uapi.RTNLGRP_LINK, uapi.RTNLGRP_IPV4_IFADDR, uapi.RTNLGRP_IPV6_IFADDR, uapi.RTNLGRP_IPV4_NETCONF,
                uapi.RTNLGRP_IPV6_NETCONF)
NETCONF = (uapi.RTM_NEWNETCONF, uapi.RTM_DELNETCONF)
MAX_PAIRS = 10_000              # limit of stored veth pairs: the DEL of a forgotten pair asks the kernel
ELEMENTS = (nft.NFT_MSG_NEWSETELEM, nft.NFT_MSG_DELSETELEM, nft.NFT_MSG_NEWGEN)    # no cached state depends on them

RULES = (nft.NFT_MSG_NEWRULE, nft.NFT_MSG_DELRULE)
CHAIN_NAMES = {nft.NFT_MSG_NEWCHAIN: nft.NFTA_CHAIN_NAME, nft.NFT_MSG_DELCHAIN: nft.NFTA_CHAIN_NAME,
               **dict.fromkeys(RULES, nft_rules.NFTA_RULE_CHAIN)}       # {message: attribute with the chain's name}
EVERY_TABLE = ""                # stands for the names of all tables
BY_CHAIN = ("chain", "rules", "complete")       # kinds of cached state whose keys name each chain that they depend on

Key = tuple[Any, ...]           # see Mode.recall()


class Facts:
    """The cache of one namespace, for any number of threads. Create the object in a thread that is in the namespace.
    The constructor raises OSError."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.facts: dict[Key, Any] = {}
        self.pairs: dict[Any, Pair] = {}        # veth pairs that ADDs made, the oldest first
        self.received = 0               # number of notifications; if it changes during ask(), the result is not cached
        self.watched: set[int] = set()          # indexes of links with cached state
        self.forgotten: tuple[str, int, str, bool] | None = None        # the last change, if nothing was cached since
        self.route = wire.open_socket(groups=ROUTE_GROUPS)
        self.route_fd = self.route.fileno()
        self.nftables: wire.Socket | None = None        # opened when state of a table is first cached
        filters.attach(self.route, filters.links(()))

    def close(self) -> None:
        for sock in filter(None, (self.route, self.nftables)):
            sock.close()

    def keep_pair(self, key: Any, pair: Pair) -> None:
        """Keep a pair until take_pair(). Beyond MAX_PAIRS the oldest pairs are forgotten."""
        self.pairs.pop(key, None)
        self.pairs[key] = pair
        forget_oldest(self.pairs, MAX_PAIRS, MAX_PAIRS // 8)

    def take_pair(self, key: Any) -> Pair | None:
        return self.pairs.pop(key, None)

    def recall(self, key: Key, ask: Callable[[], Any]) -> Any:
        """Return the cached result of ask(). Call ask() again only after the kernel has notified a change that may
        change the result. See Mode.recall()."""
        with self.lock:
            if key[0] == "nftables" or has_input(self.route_fd):     # seldom: the filter passes few notifications
                self._catch_up(key)
            if key in self.facts:
                return self.facts[key]
            received = self.received
        fact = ask()
        if fact is None:
            return None                 # the kernel sends no notifications about a missing link
        index = link_of(key, fact)
        if index is not None and self._watch(index):
            # The link may have changed before the filter passed its notifications: ask again
            return self.recall(key, ask)
        with self.lock:
            self._catch_up(key)
            if self.received == received:
                self.facts[key] = fact
        return fact

    def _watch(self, index: int) -> bool:
        """Let the filter pass notifications about a link. Return False if the filter already passed them."""
        with self.lock:
            if index in self.watched:
                return False
            # Too many links were added and deleted: reset the filter, and ask again about the links that stay
            if len(self.watched) >= filters.MAX_LINKS:
                self._lost()
                self.watched.clear()
            self.watched.add(index)
            filters.attach(self.route, filters.links(self.watched))
            return True

    def _catch_up(self, key: Key) -> None:
        """Read the queued notifications about the kind of state that `key` names."""
        if key[0] != "nftables":
            wire.drain(self.route, self._receive_route, self._lost)
            return
        if not self.nftables:
            self.nftables = wire.open_socket(uapi.NETLINK_NETFILTER, groups=(uapi.NFNLGRP_NFTABLES,))
        self.forgotten = None
        wire.drain(self.nftables, self._receive_nftables, self._lost)

    def _lost(self) -> None:
        """Clear the cache: the kernel has dropped notifications, which may have concerned any state."""
        self.received += 1
        self.facts.clear()

    def _receive_route(self, kind: int, payload: bytes) -> None:
        if kind in NETCONF:
            self._forget(lambda key, _: key[0] == "sysctl")
        elif kind in (uapi.RTM_NEWADDR, uapi.RTM_DELADDR):
            index = rtnl.read_index(payload)
            self._forget(lambda key, _: key[:2] == ("addresses", index))
        elif rtnl.is_of_link(payload):
            self._receive_link(kind, payload)

    def _receive_link(self, kind: int, payload: bytes) -> None:
        """Update the cached state of a link from its notification. Forget the state if the link was deleted or
        renamed."""
        link = rtnl.read_link(payload)
        if kind == uapi.RTM_NEWLINK:
            key = "link", link.name
            if key in self.facts and self.facts[key].index == link.index:
                self.received += 1
                self.facts[key] = link
                return
        self._forget(lambda key, fact: link_of(key, fact) == link.index)

    def _receive_nftables(self, kind: int, payload: bytes) -> None:
        if kind in ELEMENTS:
            return
        fields = attributes(payload, 4)
        table, family = nft.as_text(fields.get(nft.NFTA_TABLE_NAME, b"")), nft.read_family(payload)
        chain = nft.as_text(fields.get(CHAIN_NAMES.get(kind, -1), b""))
        change = table, family, chain, kind in RULES
        if change == self.forgotten:    # the next rule of a chain whose state is forgotten already
            self.received += 1
            return
        self._forget(lambda key, _: key[0] == "nftables" and depends(key, *change))
        self.forgotten = change

    def _forget(self, about: Callable[[Key, Any], bool]) -> None:
        self.received += 1
        for key in [key for key, fact in self.facts.items() if about(key, fact)]:
            del self.facts[key]


def depends(key: Key, table: str, family: int, chain: str, rules: bool) -> bool:
    """Return whether cached state of nftables depends on a table, on a chain of the table, or on rules of that chain.

    Programs like kube-proxy change their own chains all the time, so state of other chains stays cached.
    """
    if key[1] == EVERY_TABLE:
        return not rules
    if key[1] != table or key[2] not in (nft.NFPROTO_UNSPEC, family):
        return False
    if not chain:
        return True
    if len(key) == 3:                   # the cached state is whether the table exists
        return False
    return key[3] not in BY_CHAIN or chain in key[4:]


def link_of(key: Key, fact: Any) -> int | None:
    """Return the index of the link that cached state belongs to, None for other kinds of state."""
    if key[0] == "link":
        index: int = fact.index
        return index
    return key[1] if isinstance(key[1], int) else None
