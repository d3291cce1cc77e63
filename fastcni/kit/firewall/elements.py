"""nftables elements that carry the mark of their attachment: what a pod has in the host's firewall.

A pod adds and deletes elements, the rules stay. An element is (set or map, key, value): what a map has for the key,
bytes, or as text the chain that it goes to; None for a set.
"""

from errno import EBUSY, EEXIST, ENOENT

from fastcni._netlink import Batch, BatchFull
from fastcni.kernel import nft, wire
from fastcni.kit.call import names
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TRIES = 5                       # while others come and go with the same keys
AT_ONCE = 64                    # elements asked for in one send: the answers have to find room on the socket


class Store:
    """The sets of one table, and the `chains` with the rules that look into them: {chain: how many rules it has, and
    jumps to it}. Chains that elements lead to have names that begin with `leads_to`.

    `set_up(batch, items)` adds whatever the items need, fit to be run over what is there.
    """

    __slots__ = ("family", "table", "sets", "chains", "set_up", "leads_to")

    def __init__(self, family, table, sets, chains, set_up, leads_to=""):
        self.family, self.table, self.sets, self.chains, self.set_up = family, table, sets, chains, set_up
        self.leads_to = leads_to

    def add(self, req, items, taken=None, mark=None):
        """Add elements with the request's mark, or with `mark`. Set the table up only if the kernel lacks something.

        Those that are there already are taken over: left from a pod whose DEL never came, and what they name is ours
        now, the kernel or IPAM gave it to us. Where that is not so, `taken([(set, key, comment)])` raises.
        """
        sock, mark = req.mode.firewall, mark or names.mark(req)
        refused = self._where_set_up(req, items, lambda: self._try(sock, mark, items))
        for _ in range(TRIES):
            if not refused or refused[0].errno != EEXIST:
                break
            present = self.present(req, items)
            if taken:
                taken(present)
            self.remove_from(sock, [(name, key) for name, key, _ in present])
            refused = self._try(sock, mark, items)
        if refused:
            raise refused[0]

    def keep(self, req, items):
        """Have elements that belong to nobody and stay: they have no mark, and may be there already."""
        def fill(batch, items):
            for name, some in by_set(items).items():
                nft.add_elements(batch, self.family, self.table, name, some, exclusive=False)

        refused = self._where_set_up(req, items, lambda: in_one(req.mode.firewall, items, fill))
        if refused:
            raise refused[0]

    def ensure(self, req, items=()):
        """Have the chains with their rules; after a flush, perhaps, when elements still lead to bare chains."""
        if not self.whole(req):
            sock = req.mode.firewall
            self._set_up(sock, [*items, *(chain_item(chain) for chain, _ in self.chains_led_to(sock))])

    def _where_set_up(self, req, items, attempt):
        """What attempt() is refused, the table being set up if the kernel misses something."""
        self.ensure(req, items)
        refused = attempt()
        for _ in range(TRIES):              # and again, meanwhile
            if not refused or refused[0].errno != ENOENT:
                break
            self._set_up(req.mode.firewall, items)
            refused = attempt()
        return refused

    def _set_up(self, sock, items):
        if refused := in_one(sock, items, self.set_up):
            raise refused[0]

    def refusal(self, req, items=()):
        """What the kernel would say against setting it up, None where nothing: a transaction that is never closed is
        only tried."""
        _, refused = wire.attempt(req.mode.firewall, self.set_up(nft.start(Batch()), items))
        return refused[0] if refused else None

    def chains_led_to(self, sock):
        """[(name, references)] of the chains that elements lead to, and of those that they did once."""
        return chains_of(sock, self.family, self.table, self.leads_to) if self.leads_to else []

    def restore(self, req, items):
        """Add what is missing, of the items and of the chains' rules. CniError 11 where another attachment has one of
        them by now. Those that another thread restores meanwhile are the attachment's own."""
        own = names.hashes(req.name, req.container_id, req.ifname)

        def taken(present):
            for name, comment in [(name, comment) for name, _, comment in present if not comment.startswith(own)]:
                raise CniError(errors.TRY_AGAIN_LATER, f"{self.table} {name} has an element of another attachment",
                               f"it is of {comment}")

        self.add(req, self.missing(req, items), taken)

    def put_back(self, sock, there, lost, left):
        """After a flush: the chains get their rules, those too that elements go to, and the sets what they have `lost`;
        returns how many elements. `there` and `lost` are {set: {key: element}}, as nft.told_elements() has these.

        Nothing is restored for the marks in `left`: their DEL found nothing to delete.
        """
        chains = nft.told_chains([element for found in (there, lost) for some in found.values()
                                  for element in some.values()])
        self._set_up(sock, [*map(chain_item, chains)])
        items = [(name, key, element) for name, some in lost.items() for key, element in some.items()
                 if not (left and mark_of(element) in left)]
        return in_halves(sock, items, self._put, EEXIST, EBUSY)

    def _put(self, batch, items):
        for name, some in by_set(items).items():
            nft.put_elements(batch, self.family, self.table, name, [element for _, element in some])

    def stands(self, sock):
        """whole(), without a request."""
        return all(self._has_rules(sock, chain, rules) for chain, rules in self.chains.items())

    def whole(self, req):
        """The chains have their rules: `nft flush table` takes these and leaves chains and sets, and nothing else would
        be missed."""
        sock = req.mode.firewall
        return all(req.mode.recall(("nftables", self.table, self.family, chain),
                                   lambda: self._has_rules(sock, chain, rules))     # noqa: B023 - asked here and now
                   for chain, rules in self.chains.items())

    def used(self, req):
        """Has any pod ever needed the first of the sets in this namespace?"""
        return has(req.mode, ("nftables", self.table, self.family, "set", self.sets[0]),
                   lambda batch: nft.get_set(batch, self.family, self.table, self.sets[0]))

    def _has_rules(self, sock, chain, rules):
        found = wire.look_up(sock, nft.get_chain(Batch(), self.family, self.table, chain,
                                                 f"look up nftables chain {self.table} {chain}"))
        return bool(found) and nft.read_chain(found[0][1])[2] >= rules

    def _try(self, sock, mark, items):
        """The refusals of adding the items."""
        def fill(batch, items):
            for name, some in by_set(items).items():
                nft.add_elements(batch, self.family, self.table, name, some, mark)

        return in_one(sock, items, fill)

    def missing(self, req, items):
        """Those of the items that are not there with the request's mark."""
        mark = names.hashes(req.name, req.container_id, req.ifname)
        there = {(name, key) for name, key, comment in self.present(req, items) if comment.startswith(mark)}
        return [item for item in items if item[:2] not in there]

    def delete(self, req, known, number=None):
        """Delete the elements with the request's mark: the `known` items, or, where not all of these are there, or not
        the `number` that there has to be, those found by looking through the sets. Gone is fine."""
        self.remove(req, self.ours(req, known, self.present(req, known), number))

    def ours(self, req, known, present, number=None):
        """[(set, key)] of what delete() deletes; `present` are those of the known items that are there."""
        mark = names.hashes(req.name, req.container_id, req.ifname)
        sock = req.mode.firewall
        ours = [(name, key) for name, key, comment in present if comment.startswith(mark)]
        if not ours or len(ours) < (len(known) if number is None else number):
            ours = [(name, key) for name, key, comment in self.every(sock) if comment.startswith(mark)]
        return ours

    def gc(self, req):
        """Delete the elements of the request's network whose attachment is no longer valid."""
        found = self.lost(req)
        self.remove(req, found)
        for name, _, comment in found:
            req.release(f"element of nftables {self.table} {name}", comment.partition(", ")[2])

    def lost(self, req):
        """[(set, key, comment)] of what gc() deletes."""
        lost = no_longer_valid(req)
        return [element for element in self.every(req.mode.firewall) if lost(element[2])]

    def delete_unused_chains(self, req, rules):
        """For GC: delete the chains that no element leads to: nothing but their own `rules` refers to them."""
        sock = req.mode.firewall
        for chain, references in self.chains_led_to(sock):
            if references <= rules:
                batch = nft.flush_chain(nft.start(Batch()), self.family, self.table, chain)
                nft.del_chain(batch, self.family, self.table, chain)
                _, refused = wire.attempt(sock, nft.stop(batch))
                if refused and refused[0].errno not in (EBUSY, ENOENT):     # a pod came, or a flush
                    raise refused[0]

    def remove_all_of(self, req, hashes):
        """Delete the elements of an attachment, whose names.hashes() are given."""
        self.remove(req, [(name, key) for name, key, comment in self.every(req.mode.firewall)
                          if comment.startswith(hashes)])

    def remove(self, req, found):
        """Delete elements, [(set, key)], whosever they are. Gone is fine."""
        self.remove_from(req.mode.firewall, found)

    def present(self, req, items):
        """[(set, key, comment)] of those of the items that are there."""
        found = []
        for at in range(0, len(items), AT_ONCE):
            batch = Batch()
            for name, key, _ in items[at:at + AT_ONCE]:
                nft.get_element(batch, self.family, self.table, name, key)
            replies, refused = wire.attempt(req.mode.firewall, batch)
            for e in refused:
                if e.errno != ENOENT:
                    raise e
            found += [(nft.set_of_elements(payload), *element) for _, payload in replies
                      for element in nft.read_elements(payload)]
        return found

    def every(self, sock):
        """[(set, key, comment)] of every set."""
        return [(name, *element) for name in self.sets for payload in self.told(sock, name) or ()
                for element in nft.read_elements(payload)]

    def told(self, sock, name):
        """What the kernel tells of a set, payloads; None where no pod ever needed it in this namespace."""
        try:
            replies = wire.dump(sock, nft.NFT_MSG_GETSETELEM, nft.nfgenmsg(self.family), f"list {self.table} {name}",
                                nft.elements_of(self.table, name))
        except wire.NetlinkError as e:
            if e.errno != ENOENT:
                raise
            return None
        return [payload for _, payload in replies]

    def remove_from(self, sock, found):
        """remove(), without a request."""
        if found:
            in_halves(sock, found, self._del, ENOENT)

    def _del(self, batch, found):
        for name, some in by_set(found).items():
            nft.del_elements(batch, self.family, self.table, name, [key for key, *_ in some])


def in_one(sock, items, fill):
    """The refusals of a transaction of fill(batch, items); of some, one after another, where a Batch has no room."""
    batch = nft.start(Batch())
    try:
        fill(batch, items)
        nft.stop(batch)
    except BatchFull:
        if len(items) < 2:
            raise
        half = len(items) // 2
        return in_one(sock, items[:half], fill) or in_one(sock, items[half:], fill)
    return wire.attempt(sock, batch)[1]


def in_halves(sock, items, fill, *fine):
    """in_one(), and what is refused again in halves: one that is refused must not keep the others. Returns how many
    went in. Raises NetlinkError where one alone is refused, but not for the errnos in `fine`."""
    refused = in_one(sock, items, fill)
    if refused and len(items) > 1:
        half = len(items) // 2
        return in_halves(sock, items[:half], fill, *fine) + in_halves(sock, items[half:], fill, *fine)
    if refused and refused[0].errno not in fine:
        raise refused[0]
    return 0 if refused else len(items)


def chain_item(chain):
    """An item for set_up() alone: a chain that elements lead to."""
    return None, None, chain


def mark_of(element):
    """The part of an element's mark that is compared."""
    return mark_of_comment(nft.told_comment(element))


def mark_of_comment(comment):
    return comment.partition(",")[0]


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


def has_table(mode, family, table):
    """Is there a table of that name?"""
    return has(mode, ("nftables", table, family), lambda batch: nft.get_table(batch, family, table))


def has(mode, key, look_up):
    """Is there what look_up(batch) asks for? `key` is that of mode.recall()."""
    return mode.recall(key, lambda: wire.look_up(mode.firewall, look_up(Batch())) is not None)


def delete_rules(mode, family, table, chain, ours, then=None):
    """Delete the rules of a chain whose comment ours(comment) is true of: what the reference plugins add for a pod.
    Returns their comments.

    `then(batch)` adds what has to go with them, in the same transaction. Nothing there is fine.
    """
    sock, batch, found = mode.firewall, nft.start(Batch()), []
    rules = mode.recall(("nftables", table, family, chain), lambda: wire.dump(
        sock, nft.NFT_MSG_GETRULE, nft.nfgenmsg(family), f"list rules of {table} {chain}", nft.rules_of(table, chain)))
    for _, payload in rules:
        handle, comment = nft.read_rule(payload)
        if ours(comment):
            nft.del_rule(batch, family, table, chain, handle)
            found.append(comment)
    if found:
        if then:
            then(batch)
        wire.exchange(sock, nft.stop(batch))
    return found
