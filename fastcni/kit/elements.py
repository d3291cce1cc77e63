"""nftables elements that carry the mark of their attachment: what a pod has in the host's firewall.

A pod adds and deletes elements, the rules stay. An element is (set or map, key, chain): the chain that a map's key
goes to, None for a set.
"""

from errno import EEXIST, ENOENT

from fastcni._netlink import Batch
from fastcni.kernel import nft, wire
from fastcni.kit import names


class Store:
    """The sets of one table, and the base chain with the `rules` (their number) that look into them.
    `set_up(batch, items)` adds whatever the items need, fit to be run over what is there."""

    __slots__ = ("family", "table", "sets", "chain", "rules", "set_up")

    def __init__(self, family, table, sets, chain, rules, set_up):
        self.family, self.table, self.sets = family, table, sets
        self.chain, self.rules, self.set_up = chain, rules, set_up

    def add(self, req, items):
        """Add elements with the request's mark. Only when the kernel misses something is the table set up.
        Says whether the base chain had its rules."""
        sock = req.host.firewall
        whole = req.host.recall(("nftables", self.table, self.family, self.chain), lambda: self._has_rules(sock))
        if not whole:
            wire.exchange(sock, nft.stop(self.set_up(nft.start(Batch()), items)))
        refused = self._try(sock, req, items)
        if refused and refused[0].errno == ENOENT:
            wire.exchange(sock, nft.stop(self.set_up(nft.start(Batch()), items)))
            refused = self._try(sock, req, items)
        if refused and refused[0].errno == EEXIST:
            # Left from a pod whose DEL never came. What it names is ours now: the kernel or IPAM gave it to us.
            self._delete(sock, [(name, key) for name, key, _ in self._present(sock, items)])
            refused = self._try(sock, req, items)
        if refused:
            raise refused[0]
        return whole

    def _has_rules(self, sock):
        """`nft flush table` takes the rules and leaves chains and sets: nothing else would be missed."""
        replies, refused = wire.attempt(sock, nft.get_chain(Batch(), self.family, self.table, self.chain,
                                                            f"look up nftables chain {self.table} {self.chain}"))
        if refused and refused[0].errno != ENOENT:
            raise refused[0]
        return not refused and nft.read_chain(replies[0][1])[2] >= self.rules

    def _try(self, sock, req, items):
        mark = names.mark(req)
        batch = nft.start(Batch())
        for name, key, chain in items:
            nft.add_element(batch, self.family, self.table, name, key, mark, chain)
        return wire.attempt(sock, nft.stop(batch))[1]

    def delete(self, req, known):
        """Delete the elements with the request's mark: those among the `known` items, or, where none of these is
        there, found by looking through the sets. Gone is fine."""
        mark = names.hashes(req.name, req.container_id, req.ifname)
        sock = req.host.firewall
        ours = [(name, key) for name, key, comment in self._present(sock, known) if comment.startswith(mark)]
        ours = ours or [(name, key) for name, key, comment in self._all(sock) if comment.startswith(mark)]
        self._delete(sock, ours)

    def gc(self, req):
        """Delete the elements of the request's network whose attachment is no longer valid."""
        network = names.network_mark(req.name) + "-"
        valid = {names.hashes(req.name, *attachment) for attachment in req.valid_attachments}
        sock = req.host.firewall
        self._delete(sock, [(name, key) for name, key, comment in self._all(sock)
                            if comment.startswith(network) and comment.split(",")[0] not in valid])

    def _present(self, sock, items):
        """[(set, key, comment)] of those of the items that are there."""
        found = []
        for name, key, _ in items:
            replies, refused = wire.attempt(sock, nft.get_element(Batch(), self.family, self.table, name, key))
            if refused and refused[0].errno != ENOENT:
                raise refused[0]
            found += [(name, *element) for _, payload in replies for element in nft.read_elements(payload)]
        return found

    def _all(self, sock):
        """[(set, key, comment)] of every set."""
        found = []
        for name in self.sets:
            try:
                replies = wire.dump(sock, nft.NFT_MSG_GETSETELEM, nft.nfgenmsg(self.family),
                                    f"list {self.table} {name}", nft.elements_of(self.table, name))
            except wire.NetlinkError as e:
                if e.errno != ENOENT:
                    raise
                continue                # no pod ever needed it in this namespace
            found += [(name, *element) for _, payload in replies for element in nft.read_elements(payload)]
        return found

    def _delete(self, sock, found):
        for name, key in found:         # a transaction each: one that is gone already must not keep the others
            batch = nft.del_element(nft.start(Batch()), self.family, self.table, name, key)
            _, refused = wire.attempt(sock, nft.stop(batch))
            if refused and refused[0].errno != ENOENT:
                raise refused[0]


def delete_marked_rules(host, family, table, chain, mark, then=None):
    """Delete the rules of a chain whose comment begins with `mark`: what the reference plugins add for a pod.

    `then(batch)` adds what has to go with them, in the same transaction. Nothing there is fine.
    """
    sock, batch, found = host.firewall, nft.start(Batch()), False
    rules = host.recall(("nftables", table, family, chain), lambda: wire.dump(
        sock, nft.NFT_MSG_GETRULE, nft.nfgenmsg(family), f"list rules of {table} {chain}", nft.rules_of(table, chain)))
    for _, payload in rules:
        handle, comment = nft.read_rule(payload)
        if comment.startswith(mark):
            nft.del_rule(batch, family, table, chain, handle)
            found = True
    if found:
        if then:
            then(batch)
        wire.exchange(sock, nft.stop(batch))
