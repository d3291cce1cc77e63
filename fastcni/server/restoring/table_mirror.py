"""Keep a copy of fastcni's own nftables tables of one namespace up to date by notifications, and restore the tables
after a flush.

The copy follows elements that any program adds or deletes one by one. If a set with elements is deleted, or a chain
loses all its rules, another program has made this change: fastcni deletes no set, and leaves no chain without rules.
"""

from __future__ import annotations

from threading import Lock
from time import monotonic

from fastcni._netlink import Batch
from fastcni.daemon.log import few
from fastcni.kernel import nft, nft_elements, nft_rules, wire
from fastcni.kit.firewall import backends
from fastcni.kit.firewall.elements import mark_of
from fastcni.kit.firewall.forward import iptables as forward_iptables
from fastcni.server.restoring.restore_states import (
    COMPLETE,
    CURRENT,
    DELAYED,
    MESSAGE,
    PARTIAL,
    READING,
    REFUSED,
    RESTORED,
    SUSPECT,
    SUSPICIOUS,
    TOO_SOON,
    Machine,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.kernel.wire import Socket
    from fastcni.kit.firewall.elements import Store

    Where = tuple[int, str]
    Fields = dict[int, bytes]
    Elements = dict[str, dict[bytes, bytes]]

OWN_NAME = "fastcni-restore"    # the name of threads that restore; the kernel allows 15 characters
WHOLE_TABLE = "table"
DORMANT = "all rules, by the table's flag dormant"
KEEP_DELETIONS_S = 2.0          # longest time from the begin of a DEL to the notification of a flush before it
RULE_CHECKS = 4                 # number of checks whether a chain has its rules: a transaction may be replacing them


class TableMirror:
    """The copy of fastcni's tables in one namespace. `where` is a table's (family, name). `state` is a state of
    restore_states.py.

    present, lost: {where: {set: {key: element}}}, elements as nft_elements.read_raw_elements() returns them.
    deletions: {mark: (generation of nftables, monotonic seconds)}, both from the moment when the attachment's last DEL
    began, in this server or one-shot; under `lock`, oldest first. If a thread named OWN_NAME adds an element with such
    a mark, the mirror deletes the element again. Any thread may call note_deletion(); one thread calls the other
    methods.
    """

    def __init__(self) -> None:
        self.machine = Machine(CURRENT)
        self.stores: dict[Where, list[Store]] = {}
        for store in backends.stores():
            self.stores.setdefault((store.family, store.table), []).append(store)
        self.sets = {(*where, name) for where, stores in self.stores.items() for store in stores for name in store.sets}
        self.present: dict[Where, Elements] = {where: {} for where in self.stores}
        self.lost: dict[Where, Elements] = {where: {} for where in self.stores}
        self.chains: set[tuple[int, str, str]] = set()  # (family, table, chain) of chains that have existed
        # Chains that lost a rule and got no new rule; for the log, the deleted tables, sets and chains
        self.emptied: dict[Where, set[str]] = {where: set() for where in self.stores}
        self.missing: dict[Where, set[str]] = {where: set() for where in self.stores}
        self.suspects: set[Where] = set()       # tables from which an element or rule may be missing
        self.losses, self.by = 0, ""    # the size of `missing` and `emptied`; the program that last added to them
        self.deletions: dict[str, tuple[int, float]] = {}
        self.lock = Lock()
        self.keep_deletions = False     # a replay runs: keep `deletions` until its end
        # Elements that this transaction added, and elements that transactions of OWN_NAME added since
        # delete_returned(): (where, set, {key: element})
        self.added: list[tuple[Where, str, dict[bytes, bytes]]] = []
        self.added_by_us: list[tuple[Where, str, dict[bytes, bytes]]] = []

    # Notifications of the kernel ------------------------------------------------------------------

    def receive(self, kind: int, where: Where, fields: Fields, payload: bytes) -> None:
        """Handle a message about one of fastcni's tables."""
        if react := self.REACTIONS.get(kind):
            self.machine.on(MESSAGE)
            react(self, where, fields, payload)

    def _elements_added(self, where: Where, fields: Fields, payload: bytes) -> None:
        name = nft.as_text(fields[nft_elements.NFTA_SET_ELEM_LIST_SET])
        if (*where, name) not in self.sets:
            return
        elements = nft_elements.read_raw_elements(payload)
        self.present[where].setdefault(name, {}).update(elements)
        self.added.append((where, name, elements))

    def _elements_deleted(self, where: Where, fields: Fields, payload: bytes) -> None:
        present = self.present[where].get(nft.as_text(fields[nft_elements.NFTA_SET_ELEM_LIST_SET]), {})
        for key in nft_elements.read_raw_elements(payload):
            present.pop(key, None)

    def _set_deleted(self, where: Where, fields: Fields, _: bytes) -> None:
        self._lose(where, nft.as_text(fields[nft_elements.NFTA_SET_NAME]))

    def _lose(self, where: Where, name: str) -> None:
        if elements := self.present[where].pop(name, None):
            self.lost[where].setdefault(name, {}).update(elements)
            self._suspect(where, f"set {name}")

    def _table_changed(self, where: Where, _: Fields, payload: bytes) -> None:
        if nft.is_dormant(payload):
            self._suspect(where, DORMANT)

    def _table_deleted(self, where: Where, _: Fields, __: bytes) -> None:
        for name in [*self.present[where]]:
            self._lose(where, name)
        self._suspect(where, WHOLE_TABLE)

    def _chain_added(self, where: Where, fields: Fields, _: bytes) -> None:
        self.chains.add((*where, nft.as_text(fields[nft.NFTA_CHAIN_NAME])))

    def _chain_deleted(self, where: Where, fields: Fields, _: bytes) -> None:
        name = nft.as_text(fields[nft.NFTA_CHAIN_NAME])
        self.emptied[where].discard(name)
        if any(store.keeps(name) for store in self.stores[where]):
            self._suspect(where, f"chain {name}")

    def _rule_added(self, where: Where, fields: Fields, _: bytes) -> None:
        self.emptied[where].discard(nft.as_text(fields[nft_rules.NFTA_RULE_CHAIN]))

    def _rule_deleted(self, where: Where, fields: Fields, _: bytes) -> None:
        name = nft.as_text(fields[nft_rules.NFTA_RULE_CHAIN])
        if not any(store.chains.get(name) == 0 for store in self.stores[where]):        # an administrator's table
            self.emptied[where].add(name)
            self.suspects.add(where)

    REACTIONS = {nft.NFT_MSG_NEWSETELEM: _elements_added, nft.NFT_MSG_DELSETELEM: _elements_deleted,
                 nft.NFT_MSG_DELSET: _set_deleted,
                 nft.NFT_MSG_NEWTABLE: _table_changed, nft.NFT_MSG_DELTABLE: _table_deleted,
                 nft.NFT_MSG_NEWCHAIN: _chain_added, nft.NFT_MSG_DELCHAIN: _chain_deleted,
                 nft.NFT_MSG_NEWRULE: _rule_added, nft.NFT_MSG_DELRULE: _rule_deleted}

    def _suspect(self, where: Where, what: str) -> None:
        self.suspects.add(where)
        self.missing[where].add(what)

    def end_transaction(self, generation: int, by: str) -> None:
        """Handle the end of a transaction of the program `by`, which may have changed only other tables."""
        if self.machine.state == PARTIAL:
            self.machine.on(SUSPICIOUS if self.suspects else COMPLETE)
        if by == OWN_NAME:
            self.added_by_us += self.added
        elif self.deletions:
            self._note_additions({mark_of(it) for _, _, some in self.added for it in some.values()}, generation)
        self.added = []
        losses = sum(map(len, self.missing.values())) + sum(map(len, self.emptied.values()))
        if losses > self.losses:
            self.by = by
        self.losses = losses

    def _note_additions(self, marks: Iterable[str], generation: int) -> None:
        """Handle the elements that an ADD adds after a DEL of the same attachment: do not restore elements that the
        attachment lost before."""
        for mark in marks:
            since, _ = self.deletions.get(mark, (generation, 0))
            if since < generation:
                with self.lock:
                    self.deletions.pop(mark, None)
                self._forget_lost(mark)

    def _forget_lost(self, mark: str) -> None:
        for sets in self.lost.values():
            for name, elements in sets.items():
                sets[name] = {key: element for key, element in elements.items() if mark_of(element) != mark}

    def read(self, sock: Socket) -> None:
        """Read the tables from the kernel, at the start and after the kernel has dropped notifications.

        Before restore(), call receive() with the notifications of changes during the reading. Otherwise the server
        would restore the tables twice after a flush during the reading: now, and after the flush's notification. Raises
        NetlinkError, with EINTR if nftables changed during the reading. The caller may restore the tables that this
        method had read before the error.
        """
        self.machine.on(READING)
        for where, stores in self.stores.items():
            for store in stores:
                for name in store.sets:
                    self._read_set(sock, where, store, name)
                self.chains.update((*where, chain) for chain in store.chains if has_chain(sock, *where, chain))
                if self._used(store) and not has_rules(store, sock):
                    self.missing[where] |= {f"rules of {chain}" for chain in store.chains}
            self.suspects.add(where)

    def _read_set(self, sock: Socket, where: Where, store: Store, name: str) -> None:
        payloads = store.dump(sock, name)
        if payloads is None:
            self._lose(where, name)
            return
        present = self.present[where][name] = {}
        for payload in payloads:
            present.update(nft_elements.read_raw_elements(payload))

    # Restoring ------------------------------------------------------------------------------------

    @property
    def has_elements(self) -> bool:
        """Return whether any pod has elements in the tables."""
        return any(elements for sets in self.present.values() for elements in sets.values())

    def marks(self) -> bytes:
        """Return text with the mark of each attachment that has elements in the tables, or had elements until a
        loss."""
        return b"\n".join(element for tables in (self.present, self.lost) for sets in tables.values()
                          for elements in sets.values() for element in elements.values())

    def recorded(self) -> dict[int, int]:
        """Return how many addresses of pods iptables accepts, {length of an address in bytes: number}."""
        store = forward_iptables.records()
        present = self.present[store.family, store.table]
        return {length: len(present.get(name, ())) for length, name in store.of_length.items()}

    @property
    def may_miss_something(self) -> bool:
        return self.machine.state in (SUSPECT, DELAYED)

    def delay(self) -> None:
        """Delay this restore, because the last restore was too recent."""
        self.machine.on(TOO_SOON)

    def restore(self, sock: Socket) -> list[tuple[Where, str, int]]:
        """Restore missing elements and rules. Return [(where, a text that names the missing objects, number of
        elements)] of the restored tables.

        Raises NetlinkError if the kernel returns an error; the restore is then still due.
        """
        restored = []
        try:
            for where in sorted(self.suspects):
                if done := self.restore_table(sock, where):
                    restored.append((where, *done))
        except OSError:
            self.machine.on(REFUSED)
            raise
        self.machine.on(RESTORED)
        return restored

    def restore_table(self, sock: Socket, where: Where) -> tuple[str, int] | None:
        """Restore one table. Return (a text that names the missing objects, number of elements), None if no object was
        missing. Raises NetlinkError.

        Elements of attachments in `deletions` are not restored, see also delete_returned().
        """
        stores = [store for store in self.stores[where] if self._used(store)]
        lost = {name: {key: element for key, element in some.items() if key not in self.present[where].get(name, ())}
                for name, some in self.lost[where].items()}
        if not self.missing[where] and not self.emptied[where] and not any(lost.values()):
            self._clear(where)
            return None
        count = 0
        for store in stores:
            present, gone = ({name: of[name] for name in store.sets if name in of}
                             for of in (self.present[where], lost))
            count += store.restore_lost(sock, present, gone, self.deletions)
        text = self._missing_text(where)
        self._clear(where)
        return text, count

    def delete_returned(self, sock: Socket) -> None:
        """Delete the elements that threads named OWN_NAME have added for attachments whose DEL has begun: the DEL may
        have read nftables before the element was added. Raises NetlinkError."""
        added, self.added_by_us = self.added_by_us, []
        with self.lock:
            deleted = {*self.deletions} if added else set()
        for where, name, elements in added:
            keys = [key for key, element in elements.items()
                    if mark_of(element) in deleted and key in self.present[where].get(name, ())]
            if keys:
                store = next(store for store in self.stores[where] if name in store.sets)
                store.remove_from(sock, [(name, key) for key in keys])

    def _used(self, store: Store) -> bool:
        """Return whether any pod has ever used the table."""
        where = store.family, store.table
        return any((*where, chain) in self.chains for chain in store.chains) or any(
            of[where].get(name) for of in (self.present, self.lost) for name in store.sets)

    def _clear(self, where: Where) -> None:
        for kept in (self.lost[where], self.emptied[where], self.missing[where]):
            kept.clear()
        self.suspects.discard(where)

    def _missing_text(self, where: Where) -> str:
        missing = self.missing[where] | {f"rules of {chain}" for chain in self.emptied[where]}
        return WHOLE_TABLE if WHOLE_TABLE in missing else few(sorted(missing))

    def note_deletion(self, mark: str, generation: int) -> None:
        """Record that a DEL has begun at `generation` of nftables. Any thread may call this method."""
        now, deletions = monotonic(), self.deletions
        with self.lock:
            deletions.pop(mark, None)               # first remove the mark, so that it moves to the end
            deletions[mark] = generation, now
            while not (self.suspects or self.keep_deletions) and (
                    now - deletions[oldest := next(iter(deletions))][1] > KEEP_DELETIONS_S):
                del deletions[oldest]

    def deleted_since(self, moment: float) -> int:
        """Return how many attachments have a DEL that began since `moment`, in monotonic seconds."""
        with self.lock:
            return sum(begun >= moment for _, begun in self.deletions.values())


def has_rules(store: Store, sock: Socket) -> bool:
    """Return whether the chains of a Store have their rules.

    While a transaction replaces the rules, the kernel already returns the number of the new rules.
    """
    for _ in range(RULE_CHECKS):
        if store.complete_on(sock):
            return True
        wait_for_transactions(sock)
    return False


def wait_for_transactions(sock: Socket) -> None:
    """Wait until all transactions that have begun are committed and notified. Raises NetlinkError.

    Sends an empty transaction, which the kernel begins after all earlier transactions: nf_tables_commit() holds its
    mutex until it has sent the notifications.
    """
    wire.attempt(sock, nft.stop(nft.start(Batch())))


def has_chain(sock: Socket, family: int, table: str, chain: str) -> bool:
    return wire.look_up(sock, nft.get_chain(Batch(), family, table, chain,
                                            f"look up chain {table} {chain}")) is not None
