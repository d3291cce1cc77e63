"""What is in our own nftables tables of one namespace, as the kernel announces it: what to put back after a flush.

Elements that come and go one by one are followed, whoever sends them. A set that is deleted with elements in it, and a
chain that lost rules and got none, are somebody else's doing: we delete no set and leave no chain bare.
"""

from threading import Lock
from time import monotonic

from fastcni._netlink import Batch
from fastcni.kernel import deletions, nft, wire
from fastcni.kit.firewall import backends
from fastcni.kit.firewall.elements import mark_of
from fastcni.server.log import few

OWN_NAME = "fastcni-restore"    # the kernel has 15 characters for it
WHOLE_TABLE = "table"
LEAVING = 2.0                   # seconds after a DEL's begin in which a flush before it may still be unheard of
LOOKS = 4


class TableMirror:
    """there, lost: {(family, table): {set: {key: element}}}, elements as nft.told_elements() has them.

    `leaving` are the marks of attachments that a DEL is about, of this server or one-shot: {mark: (generation of
    nftables at its begin, monotonic seconds)}, under `lock`. All else belongs to one thread. Threads that restore have
    OWN_NAME: what they add for a mark that is leaving is deleted again.
    """

    def __init__(self):
        self.stores = {}                # {(family, table): [Store]}
        for store in backends.stores():
            self.stores.setdefault((store.family, store.table), []).append(store)
        self.sets = {(*where, name) for where, stores in self.stores.items() for store in stores for name in store.sets}
        self.there, self.lost = ({where: {} for where in self.stores} for _ in range(2))
        self.built = set()              # (family, table, chain) that have been there
        self.bare = {where: set() for where in self.stores}      # chains that a rule was taken from, and none added
        self.gone = {where: set() for where in self.stores}      # tables, sets and chains, for the log
        self.suspects = set()           # where it may be that something is to be put back
        self.unsure = set()            # where the kernel is to be asked whether the rules are there
        self.taken, self.by = 0, ""     # how much of that others have taken so far; the program that did so last
        self.leaving, self.lock = {}, Lock()
        self.replaying = False          # a replay runs: what is leaving is kept in mind until its end
        self.fresh = []                 # what this transaction has added: (where, set, {key: element})
        self.ours = []                  # the same, of transactions by OWN_NAME since delete_returned()
        self.amid = False               # a transaction has been told in part: the rest is on its way

    # What the kernel tells ----------------------------------------------------------------------

    def hear(self, kind, where, fields, payload):
        """A message about the table `where`, one of `stores`."""
        if react := self.REACTIONS.get(kind):
            self.amid = True
            react(self, where, fields, payload)

    def _came(self, where, fields, payload):
        name = nft.as_text(fields[nft.NFTA_SET_ELEM_LIST_SET])
        if (*where, name) not in self.sets:
            return
        told = nft.told_elements(payload)
        self.there[where].setdefault(name, {}).update(told)
        self.fresh.append((where, name, told))

    def _went(self, where, fields, payload):
        there = self.there[where].get(nft.as_text(fields[nft.NFTA_SET_ELEM_LIST_SET]), {})
        for key in nft.told_elements(payload):
            there.pop(key, None)

    def _set_deleted(self, where, fields, _):
        self._lose(where, nft.as_text(fields[nft.NFTA_SET_NAME]))

    def _lose(self, where, name):
        if elements := self.there[where].pop(name, None):
            self.lost[where].setdefault(name, {}).update(elements)
            self._suspect(where, f"set {name}")

    def _table_deleted(self, where, _, __):
        for name in [*self.there[where]]:
            self._lose(where, name)
        self._suspect(where, WHOLE_TABLE)

    def _chain_made(self, where, fields, _):
        self.built.add((*where, nft.as_text(fields[nft.NFTA_CHAIN_NAME])))

    def _chain_deleted(self, where, fields, _):
        name = nft.as_text(fields[nft.NFTA_CHAIN_NAME])
        self.bare[where].discard(name)
        if any(name in store.chains for store in self.stores[where]):
            self._suspect(where, f"chain {name}")

    def _rule_added(self, where, fields, _):
        self.bare[where].discard(nft.as_text(fields[nft.NFTA_RULE_CHAIN]))

    def _rule_deleted(self, where, fields, _):
        name = nft.as_text(fields[nft.NFTA_RULE_CHAIN])
        if not any(store.chains.get(name) == 0 for store in self.stores[where]):        # that is an administrator's
            self.bare[where].add(name)
            self.suspects.add(where)

    REACTIONS = {nft.NFT_MSG_NEWSETELEM: _came, nft.NFT_MSG_DELSETELEM: _went, nft.NFT_MSG_DELSET: _set_deleted,
                 nft.NFT_MSG_DELTABLE: _table_deleted, nft.NFT_MSG_NEWCHAIN: _chain_made,
                 nft.NFT_MSG_DELCHAIN: _chain_deleted, nft.NFT_MSG_NEWRULE: _rule_added,
                 nft.NFT_MSG_DELRULE: _rule_deleted}

    def _suspect(self, where, what):
        self.suspects.add(where)
        self.gone[where].add(what)

    def transaction_ends(self, generation, by):
        self.amid = False
        if by == OWN_NAME:
            self.ours += self.fresh
        elif self.leaving:
            self._added_again({mark_of(element) for _, _, told in self.fresh for element in told.values()}, generation)
        self.fresh = []
        taken = sum(len(each) for of in (self.gone, self.bare) for each in of.values())
        if taken > self.taken:
            self.by = by
        self.taken = taken

    def _added_again(self, marks, generation):
        """An ADD after their DEL: what was lost before is not theirs any more."""
        for mark in marks:
            since, _ = self.leaving.get(mark, (generation, 0))
            if since < generation:
                with self.lock:
                    self.leaving.pop(mark, None)
                self._forget_lost(mark)

    def _forget_lost(self, mark):
        for sets in self.lost.values():
            for name, elements in sets.items():
                sets[name] = {key: element for key, element in elements.items() if mark_of(element) != mark}

    def look(self, sock):
        """See what is there: at the start, and where notifications were dropped. Raises NetlinkError, EINTR: again."""
        self.amid = False               # its end may have been dropped
        for where, stores in self.stores.items():
            for store in stores:
                for name in store.sets:
                    self._look_at(sock, where, store, name)
                self.built.update((*where, chain) for chain in store.chains if has_chain(sock, *where, chain))
            self.suspects.add(where)
            self.unsure.add(where)

    def _look_at(self, sock, where, store, name):
        told = store.told(sock, name)
        if told is None:
            self._lose(where, name)
            return
        there = self.there[where][name] = {}
        for payload in told:
            there.update(nft.told_elements(payload))

    # What is to be done about it ------------------------------------------------------------------

    def put_back(self, sock, where):
        """Put back what is missing in one table, if anything is: (what, how many elements), or None. Raises
        NetlinkError; then it is still to be done. What a DEL leaves is not put back, see delete_returned()."""
        stores = [store for store in self.stores[where] if self._used(store)]
        lost = {name: {key: element for key, element in some.items() if key not in self.there[where].get(name, ())}
                for name, some in self.lost[where].items()}
        if where in self.unsure:
            self.gone[where] |= {f"rules of {chain}" for store in stores if not stands(store, sock)
                                 for chain in store.chains}
        if not self.gone[where] and not self.bare[where] and not any(lost.values()):
            self._settle(where)
            return None
        back = 0
        for store in stores:
            there, gone = ({name: of[name] for name in store.sets if name in of} for of in (self.there[where], lost))
            back += store.put_back(sock, there, gone, self.leaving)
        what = self._words(where)
        self._settle(where)
        return what, back

    def delete_returned(self, sock):
        """Delete what threads of OWN_NAME have added for attachments that are leaving: their DEL may have looked
        before. Raises NetlinkError."""
        added, self.ours = self.ours, []
        with self.lock:
            leaving = {*self.leaving} if added else set()
        for where, name, told in added:
            keys = [key for key, element in told.items()
                    if mark_of(element) in leaving and key in self.there[where].get(name, ())]
            if keys:
                store = next(store for store in self.stores[where] if name in store.sets)
                store.remove_from(sock, [(name, key) for key in keys])

    def _used(self, store):
        """It has been set up."""
        where = store.family, store.table
        return any((*where, chain) in self.built for chain in store.chains) or any(
            of[where].get(name) for of in (self.there, self.lost) for name in store.sets)

    def _settle(self, where):
        for kept in (self.lost[where], self.bare[where], self.gone[where]):
            kept.clear()
        self.suspects.discard(where)
        self.unsure.discard(where)

    def _words(self, where):
        gone = self.gone[where]
        return WHOLE_TABLE if WHOLE_TABLE in gone else few(sorted(gone | {f"rules of {it}" for it in self.bare[where]}))

    def heed(self, sock, mark):
        """A DEL of the attachment begins; in any thread. Raises NetlinkError."""
        self.note_deletion(mark, deletions.generation(sock))

    def note_deletion(self, mark, generation):
        """A DEL has begun at that generation; in any thread."""
        now = monotonic()
        with self.lock:
            self.leaving.pop(mark, None)            # it goes to the end: the oldest are in front
            self.leaving[mark] = generation, now
            while not (self.suspects or self.replaying) and (
                    now - self.leaving[oldest := next(iter(self.leaving))][1] > LEAVING):
                del self.leaving[oldest]


def stands(store, sock):
    """The chains have their rules. The kernel shows how many there are before the transaction is through that writes
    them anew: an empty one waits for it."""
    for _ in range(LOOKS):
        if store.stands(sock):
            return True
        wire.attempt(sock, nft.stop(nft.start(Batch())))
    return False


def has_chain(sock, family, table, chain):
    return wire.look_up(sock, nft.get_chain(Batch(), family, table, chain,
                                            f"look up chain {table} {chain}")) is not None
