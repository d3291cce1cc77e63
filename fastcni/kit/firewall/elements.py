"""nftables elements that carry the mark of their attachment: what a pod has in the host's firewall.

A pod adds and deletes elements, the rules stay. An element is (set or map, key, value): what a map has for the key,
bytes, or as text the chain that it goes to; None for a set.
"""

from errno import EBUSY, EEXIST, ENOENT

from fastcni._netlink import Batch, BatchFull
from fastcni.kernel import nft, wire
from fastcni.kit import names

TRIES = 5                       # while others come and go with the same keys
AT_ONCE = 64                    # elements asked for in one send: the answers have to find room on the socket


class Store:
    """The sets of one table, and the `chains` with the rules that look into them: {chain: how many rules it has, and
    jumps to it}. `set_up(batch, items)` adds whatever the items need, fit to be run over what is there."""

    __slots__ = ("family", "table", "sets", "chains", "set_up")

    def __init__(self, family, table, sets, chains, set_up):
        self.family, self.table, self.sets, self.chains, self.set_up = family, table, sets, chains, set_up

    def add(self, req, items, taken=None):
        """Add elements with the request's mark. Only when the kernel misses something is the table set up.
        Says whether the chains had their rules.

        Those that are there already are taken over: left from a pod whose DEL never came, and what they name is ours
        now, the kernel or IPAM gave it to us. Where that is not so, `taken([(set, key, comment)])` raises.
        """
        sock = req.host.firewall
        whole = self.whole(req)
        if not whole:
            wire.exchange(sock, nft.stop(self.set_up(nft.start(Batch()), items)))
        refused = self._try(sock, req, items)
        if refused and refused[0].errno == ENOENT:
            wire.exchange(sock, nft.stop(self.set_up(nft.start(Batch()), items)))
            refused = self._try(sock, req, items)
        for _ in range(TRIES):
            if not refused or refused[0].errno != EEXIST:
                break
            present = self.present(req, items)
            if taken:
                taken(present)
            self._delete(sock, [(name, key) for name, key, _ in present])
            refused = self._try(sock, req, items)
        if refused:
            raise refused[0]
        return whole

    def whole(self, req):
        """The chains have their rules: `nft flush table` takes these and leaves chains and sets, and nothing else would
        be missed."""
        sock = req.host.firewall
        return all(req.host.recall(("nftables", self.table, self.family, chain),
                                   lambda: self._has_rules(sock, chain, rules))     # noqa: B023 - asked here and now
                   for chain, rules in self.chains.items())

    def _has_rules(self, sock, chain, rules):
        replies, refused = wire.attempt(sock, nft.get_chain(Batch(), self.family, self.table, chain,
                                                            f"look up nftables chain {self.table} {chain}"))
        if refused and refused[0].errno != ENOENT:
            raise refused[0]
        return not refused and nft.read_chain(replies[0][1])[2] >= rules

    def _try(self, sock, req, items):
        """The refusals of adding the items: in one transaction, or, where a Batch has no room for it, in halves."""
        mark, batch = names.mark(req), nft.start(Batch())
        try:
            for name, some in by_set(items).items():
                nft.add_elements(batch, self.family, self.table, name, some, mark)
            nft.stop(batch)
        except BatchFull:
            half = len(items) // 2
            return self._try(sock, req, items[:half]) or self._try(sock, req, items[half:])
        return wire.attempt(sock, batch)[1]

    def missing(self, req, items):
        """Those of the items that are not there with the request's mark."""
        mark = names.hashes(req.name, req.container_id, req.ifname)
        there = {(name, key) for name, key, comment in self.present(req, items) if comment.startswith(mark)}
        return [item for item in items if item[:2] not in there]

    def delete(self, req, known, number=None):
        """Delete the elements with the request's mark: the `known` items, or, where not all of these are there, or not
        the `number` that there has to be, those found by looking through the sets. Gone is fine."""
        mark = names.hashes(req.name, req.container_id, req.ifname)
        sock = req.host.firewall
        ours = [(name, key) for name, key, comment in self.present(req, known) if comment.startswith(mark)]
        if not ours or len(ours) < (len(known) if number is None else number):
            ours = [(name, key) for name, key, comment in self._all(sock) if comment.startswith(mark)]
        self._delete(sock, ours)

    def gc(self, req):
        """Delete the elements of the request's network whose attachment is no longer valid."""
        lost, sock = no_longer_valid(req), req.host.firewall
        self._delete(sock, [(name, key) for name, key, comment in self._all(sock) if lost(comment)])

    def present(self, req, items):
        """[(set, key, comment)] of those of the items that are there."""
        found = []
        for at in range(0, len(items), AT_ONCE):
            batch = Batch()
            for name, key, _ in items[at:at + AT_ONCE]:
                nft.get_element(batch, self.family, self.table, name, key)
            replies, refused = wire.attempt(req.host.firewall, batch)
            for e in refused:
                if e.errno != ENOENT:
                    raise e
            found += [(nft.set_of_elements(payload), *element) for _, payload in replies
                      for element in nft.read_elements(payload)]
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
        """All in one transaction, or else in halves: one that is gone already must not keep the others."""
        if not found:
            return
        batch = nft.start(Batch())
        try:
            for name, some in by_set(found).items():
                nft.del_elements(batch, self.family, self.table, name, [key for key, *_ in some])
            nft.stop(batch)
            refused = wire.attempt(sock, batch)[1]
        except BatchFull:
            refused = [None]
        if refused and len(found) > 1:
            half = len(found) // 2
            self._delete(sock, found[:half])
            self._delete(sock, found[half:])
        elif refused and refused[0].errno != ENOENT:
            raise refused[0]


def by_set(items):
    """{set: [the rest of its items]}"""
    found = {}
    for name, *rest in items:
        found.setdefault(name, []).append(rest)
    return found


def no_longer_valid(req):
    """For GC: a function that says whether a mark is of the request's network, and of no valid attachment."""
    network = names.network_mark(req.name) + "-"
    valid = {names.hashes(req.name, *attachment) for attachment in req.valid_attachments}
    return lambda mark: mark.startswith(network) and mark.split(",")[0] not in valid


def chains_of(sock, family, table, prefix):
    """[(name, references)] of the chains of a table whose name begins so."""
    found = [nft.read_chain(payload) for _, payload in
             wire.dump(sock, nft.NFT_MSG_GETCHAIN, nft.nfgenmsg(family), "list nftables chains")]
    return [(chain, references) for where, chain, references in found if where == table and chain.startswith(prefix)]


def has_table(host, family, table):
    """Is there a table of that name?"""
    def ask():
        _, refused = wire.attempt(host.firewall, nft.get_table(Batch(), family, table))
        if refused and refused[0].errno != ENOENT:
            raise refused[0]
        return not refused

    return host.recall(("nftables", table, family), ask)


def refill(sock, family, table, prefix, fill):
    """After a flush, perhaps: fill(batch, chain) gives each of them its rules. Elements still go there."""
    for chain, _ in chains_of(sock, family, table, prefix):
        wire.exchange(sock, nft.stop(fill(nft.start(Batch()), chain)))


def delete_unused_chains(sock, family, table, prefix, rules):
    """For GC: delete those of them that no element goes to: nothing but their own `rules` refers to them."""
    for chain, references in chains_of(sock, family, table, prefix):
        if references <= rules:
            batch = nft.flush_chain(nft.start(Batch()), family, table, chain)
            nft.del_chain(batch, family, table, chain)
            _, refused = wire.attempt(sock, nft.stop(batch))
            if refused and refused[0].errno != EBUSY:       # EBUSY: a pod came in between
                raise refused[0]


def delete_rules(host, family, table, chain, ours, then=None):
    """Delete the rules of a chain whose comment ours(comment) is true of: what the reference plugins add for a pod.

    `then(batch)` adds what has to go with them, in the same transaction. Nothing there is fine.
    """
    sock, batch, found = host.firewall, nft.start(Batch()), False
    rules = host.recall(("nftables", table, family, chain), lambda: wire.dump(
        sock, nft.NFT_MSG_GETRULE, nft.nfgenmsg(family), f"list rules of {table} {chain}", nft.rules_of(table, chain)))
    for _, payload in rules:
        handle, comment = nft.read_rule(payload)
        if ours(comment):
            nft.del_rule(batch, family, table, chain, handle)
            found = True
    if found:
        if then:
            then(batch)
        wire.exchange(sock, nft.stop(batch))
