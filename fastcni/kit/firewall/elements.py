"""Add, find, restore and delete nftables elements. An element's comment is the mark of the attachment that owns it.

ADD and DEL change only elements; the rules stay. An Item is (set or map, key, value). The value is bytes, a chain's
name, or None in a set. A chain's name stands for the verdict "goto CHAIN": the element leads to this chain.
"""

from __future__ import annotations

from errno import EBUSY, EEXIST, ENOENT, EOPNOTSUPP

from fastcni._netlink import Batch
from fastcni.kernel import nft, nft_elements, nft_rules, wire
from fastcni.kit.call import names
from fastcni.kit.firewall import rulesets
from fastcni.kit.firewall.table import TABLE
from fastcni.kit.firewall.transactions import by_set, in_halves, in_one
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence
    from typing import Any

    from fastcni.kernel.wire import NetlinkError, Socket
    from fastcni.kit.call.request import Request

    Item = tuple[Any, Any, bytes | str | None]          # (set, key, value); see chain_item()
    Found = tuple[str, bytes, str]                      # (set, key, comment)

MAX_TRIES = 5                   # attempts, while other programs add and delete elements with the same keys


class Store:
    """The sets of one table, and the chains whose rules use these sets.

    chains: {chain: number of its rules and of the jumps to the chain}. leads_to: the prefix of the names of the chains
    to which elements lead. set_up(batch, items): add the sets, chains and rules that the items need, if they are
    missing.
    """

    __slots__ = ("family", "table", "sets", "chains", "set_up", "leads_to")

    def __init__(self, family: int, table: str, sets: Sequence[str], chains: dict[str, int],
                 set_up: Callable[[Batch, Sequence[Item]], Batch], leads_to: str = "") -> None:
        self.family, self.table, self.sets, self.chains, self.set_up = family, table, sets, chains, set_up
        self.leads_to = leads_to

    # Adding ---------------------------------------------------------------------------------------

    def add(self, req: Request, items: Sequence[Item], taken: Callable[[list[Found]], object] | None = None,
            mark: str | None = None) -> None:
        """Add elements with the request's mark, or with `mark`. Set up the table only if a set or chain is missing.

        Replace existing elements with the same key: they belong to an earlier pod without DEL, whose link name or
        address the new pod now has. Before that, call taken(found) with these elements; taken() raises if their
        attachment may still exist. Raises NetlinkError.
        """
        sock, mark = req.mode.firewall, mark or names.mark(req)
        refused = self._where_set_up(req, items, lambda: self._add(sock, mark, items))
        for _ in range(MAX_TRIES):
            if not refused or refused[0].errno != EEXIST:
                break
            present = self.present(req, items)
            if taken:
                taken(present)
            self.remove_from(sock, [(name, key) for name, key, _ in present])
            refused = self._add(sock, mark, items)
        if refused:
            wire.raise_first(refused)

    def add_shared(self, req: Request, items: Sequence[Item]) -> None:
        """Add elements without a mark, which no attachment owns and no DEL removes. An existing element is no error."""
        def fill(batch: Batch, items: Sequence[Item]) -> None:
            for name, some in by_set(items).items():
                nft_elements.add_elements(batch, self.family, self.table, name, some, exclusive=False)

        wire.raise_first(self._where_set_up(req, items, lambda: in_one(req.mode.firewall, items, fill)))

    def ensure(self, req: Request, items: Sequence[Item] = ()) -> None:
        """Add the missing chains and rules, including the chains to which `items` lead."""
        if not self.complete(req):
            self.write_rules(req.mode.firewall, items)

    def write_rules(self, sock: Socket, items: Sequence[Item] = ()) -> None:
        """Replace the rules of the chains, including the chains to which elements lead. Add the sets and chains
        that `items` need."""
        self._set_up(sock, [*items, *(chain_item(chain) for chain, _ in self._chains_led_to(sock))])

    def _where_set_up(self, req: Request, items: Sequence[Item],
                      attempt: Callable[[], list[NetlinkError]]) -> list[NetlinkError]:
        """Return the errors of attempt(). If a set or chain is missing, set up the table and call attempt() again."""
        self.ensure(req, items)
        refused = attempt()
        for _ in range(MAX_TRIES):          # another program may flush the table between two attempts
            if not refused or refused[0].errno != ENOENT:
                break
            self._set_up(req.mode.firewall, items)
            refused = attempt()
        return refused

    def _set_up(self, sock: Socket, items: Sequence[Item]) -> None:
        refused = in_one(sock, items, self.set_up)
        if refused and self.dormant(sock):      # waking the table and adding a chain with a hook need two transactions
            wire.exchange(sock, nft.stop(nft.add_table(nft.start(Batch()), self.family, self.table, "")))
            refused = in_one(sock, items, self.set_up)
        if refused and refused[0].errno in (EEXIST, EOPNOTSUPP) and self.table == TABLE and wire.look_up(
                sock, nft.get_table(Batch(), self.family, TABLE)):
            refused[0].kernel_text = f"{refused[0].strerror}: another program has changed the table. {self.remedy}"
        wire.raise_first(refused)

    @property
    def remedy(self) -> str:
        """Return the commands that replace the table, in which another program has made a chain or set of another kind
        with a name of fastcni."""
        return f"`nft delete table {nft.FAMILIES[self.family]} {self.table}`, then `fastcni restore`"

    def _add(self, sock: Socket, mark: str, items: Sequence[Item]) -> list[NetlinkError]:
        def fill(batch: Batch, items: Sequence[Item]) -> None:
            for name, some in by_set(items).items():
                nft_elements.add_elements(batch, self.family, self.table, name, some, mark)

        return in_one(sock, items, fill)

    def refusal(self, sock: Socket, items: Sequence[Item] = ()) -> NetlinkError | None:
        """Return the error by which the kernel would reject the setup of the table, or None.

        The function sends the setup without the end message (NFNL_MSG_BATCH_END), so the kernel checks the transaction
        but does not commit it.
        """
        _, refused = wire.attempt(sock, self.set_up(nft.start(Batch()), items))
        return refused[0] if refused else None

    # Restoring ------------------------------------------------------------------------------------

    def restore(self, req: Request, items: Sequence[Item]) -> None:
        """Add the missing items and the missing rules of the chains.

        If another thread restores the same element at the same time, that is no error. Raises CniError 11 if another
        attachment now has one of the elements.
        """
        own = req.hashes

        def taken(present: list[Found]) -> None:
            for name, comment in [(name, comment) for name, _, comment in present if not comment.startswith(own)]:
                raise CniError(errors.TRY_AGAIN_LATER, f"{self.table} {name} has an element of another attachment",
                               f"the element's owner is {comment}")

        self.add(req, self.missing(req, items), taken)

    def restore_lost(self, sock: Socket, present: dict[str, dict[bytes, bytes]], lost: dict[str, dict[bytes, bytes]],
                     leaving: Container[str]) -> int:
        """Add the rules and the `lost` elements after a flush. Return the number of elements added.

        present, lost: {set: {key: raw element}}, see nft_elements.read_raw_elements(). leaving: marks of attachments
        whose DEL found no element during the flush; do not restore their elements.
        """
        known = [(name, key, element) for found in (present, lost) for name, some in found.items()
                 for key, element in some.items()]
        chains = nft_elements.raw_chains([element for _, _, element in known])
        self._set_up(sock, [*map(chain_item, chains), *known])
        items = [(name, key, element) for name, some in lost.items() for key, element in some.items()
                 if not (leaving and mark_of(element) in leaving)]
        return in_halves(sock, items, self._add_raw, EEXIST, EBUSY)

    def _add_raw(self, batch: Batch, items: Sequence[Item]) -> None:
        for name, some in by_set(items).items():
            nft_elements.add_raw_elements(batch, self.family, self.table, name, [element for _, element in some])

    # Reading --------------------------------------------------------------------------------------

    def complete(self, req: Request) -> bool:
        """Return whether the chains have their rules, and the table is not dormant.

        `nft flush table` removes the rules and keeps chains and sets, so only the number of rules shows a flush.
        """
        return req.mode.recall(("nftables", self.table, self.family, "complete", *self.chains),
                               lambda: self.complete_on(req.mode.firewall))

    def keeps(self, chain: str) -> bool:
        """Return whether the chain is one that fastcni never deletes."""
        return chain in self.chains

    def has(self, chain: str) -> bool:
        """Return whether fastcni writes the rules of the chain with this name."""
        return chain in self.chains or (bool(self.leads_to) and chain.startswith(self.leads_to))

    def complete_on(self, sock: Socket) -> bool:
        """Do complete() with a socket instead of a request."""
        if not self.chains:
            return True
        batch = nft.get_table(Batch(), self.family, self.table)
        for chain in self.chains:
            nft.get_chain(batch, self.family, self.table, chain, f"look up nftables chain {self.table} {chain}")
        found = wire.look_up(sock, batch)
        if not found:
            return False
        (_, table), *chains = found
        return not nft.is_dormant(table) and all(
            nft.read_chain(payload)[2] >= rules
            for (_, payload), rules in zip(chains, self.chains.values(), strict=True))

    def dormant(self, sock: Socket) -> bool:
        """Return whether the table is dormant: the kernel calls none of its chains."""
        found = wire.look_up(sock, nft.get_table(Batch(), self.family, self.table))
        return bool(found and nft.is_dormant(found[0][1]))

    def used(self, req: Request) -> bool:
        """Return whether the first of the sets exists, that is, whether a pod of this network namespace has used the
        store."""
        return rulesets.has(req.mode, ("nftables", self.table, self.family, "set", self.sets[0]),
                            lambda batch: nft_elements.get_set(batch, self.family, self.table, self.sets[0]))

    def missing(self, req: Request, items: Sequence[Item]) -> list[Item]:
        """Return the items that the kernel does not have with the request's mark."""
        mark = req.hashes
        there = {(name, key) for name, key, comment in self.present(req, items) if comment.startswith(mark)}
        return [item for item in items if item[:2] not in there]

    def present(self, req: Request, items: Sequence[Item]) -> list[Found]:
        """Return (set, key, comment) of each item that exists, with any mark."""
        found: list[Found] = []
        for at in range(0, len(items), wire.MAX_ASKED):
            batch = Batch()
            for name, key, _ in items[at:at + wire.MAX_ASKED]:
                nft_elements.get_element(batch, self.family, self.table, name, key)
            replies, refused = wire.attempt(req.mode.firewall, batch)
            if refused:
                wire.raise_first(refused, (ENOENT,))
            found += [(nft_elements.read_set_name(payload), *element) for _, payload in replies
                      for element in nft_elements.read_elements(payload)]
        return found

    def read_all(self, sock: Socket) -> list[Found]:
        """Return (set, key, comment) of every element of every set."""
        return [(name, *element) for name in self.sets for payload in self.dump(sock, name) or ()
                for element in nft_elements.read_elements(payload)]

    def dump(self, sock: Socket, name: str) -> list[bytes] | None:
        """Return the kernel's messages about the elements of a set; None if the set does not exist."""
        replies = wire.dump_existing(sock, nft.NFT_MSG_GETSETELEM, nft.nfgenmsg(self.family),
                                     f"list {self.table} {name}", nft_elements.elements_of(self.table, name))
        return None if replies is None else [payload for _, payload in replies]

    # Deleting -------------------------------------------------------------------------------------

    def delete(self, req: Request, known: Sequence[Item], number: int | None = None) -> bool:
        """Delete the elements with the request's mark, see owned(). Return whether any existed."""
        owned = self.owned(req, known, self.present(req, known), number)
        self.remove(req, owned)
        return bool(owned)

    def owned(self, req: Request, known: Sequence[Item], present: list[Found],
              number: int | None = None) -> list[tuple[str, bytes]]:
        """Return [(set, key)] of the elements with the request's mark.

        known: the items of the configuration. present: the items of `known` that exist. If `present` is shorter
        than `known`, or than `number`, this function reads all sets.
        """
        mark = req.hashes
        owned = [(name, key) for name, key, comment in present if comment.startswith(mark)]
        if not owned or len(owned) < (len(known) if number is None else number):
            owned = self._marked(req, mark)
        return owned

    def delete_attachment(self, req: Request, hashes: str) -> None:
        """Delete the elements of the attachment whose names.hashes() are `hashes`, for instance of an earlier pod."""
        self.remove(req, self._marked(req, hashes))

    def _marked(self, req: Request, hashes: str) -> list[tuple[str, bytes]]:
        return [(name, key) for name, key, comment in self.read_all(req.mode.firewall) if comment.startswith(hashes)]

    def gc(self, req: Request) -> None:
        """Delete and report the elements of the request's network whose attachment is no longer valid."""
        found = self.stale(req)
        self.remove(req, found)
        for name, _, comment in found:
            req.release(f"element of nftables {self.table} {name}", comment.partition(", ")[2])

    def stale(self, req: Request) -> list[Found]:
        """Return the elements that gc() deletes."""
        is_stale = stale_marks(req)
        return [element for element in self.read_all(req.mode.firewall) if is_stale(element[2])]

    def delete_unused_chains(self, req: Request, rules: int) -> None:
        """For GC: delete the chains to which no element leads any more. rules: the number of references to such a
        chain."""
        sock = req.mode.firewall
        for chain, references in self._chains_led_to(sock):
            if references <= rules:
                batch = nft_rules.flush_chain(nft.start(Batch()), self.family, self.table, chain)
                nft.del_chain(batch, self.family, self.table, chain)
                # another program may have added a pod or flushed the table since the dump
                wire.exchange(sock, nft.stop(batch), (EBUSY, ENOENT))

    def _chains_led_to(self, sock: Socket) -> list[tuple[str, int]]:
        """Return [(name, references)] of the chains to which elements lead or have led."""
        return rulesets.chains_of(sock, self.family, self.table, self.leads_to) if self.leads_to else []

    def remove(self, req: Request, found: Sequence[tuple[Any, ...]]) -> None:
        """Delete elements, [(set, key, ...)], whatever their marks. A missing element is no error."""
        self.remove_from(req.mode.firewall, found)

    def remove_from(self, sock: Socket, found: Sequence[tuple[Any, ...]]) -> None:
        """Do remove() with a socket instead of a request."""
        if found:
            in_halves(sock, found, self._del, ENOENT)

    def _del(self, batch: Batch, found: Sequence[tuple[Any, ...]]) -> None:
        for name, some in by_set(found).items():
            nft_elements.del_elements(batch, self.family, self.table, name, [key for key, *_ in some])


def chain_item(chain: str) -> Item:
    """Return an item that makes set_up() add a chain to which elements lead. The item is no element."""
    return None, None, chain


def mark_of(element: bytes) -> str:
    """Return the hashes of a raw element's mark, see names.hashes()."""
    return mark_of_comment(nft_elements.raw_comment(element))


def mark_of_comment(comment: str) -> str:
    return comment.partition(",")[0]


def stale_marks(req: Request) -> Callable[[str], bool]:
    """For GC: return a predicate, is_stale(mark). A stale mark belongs to the request's network, but to no valid
    attachment."""
    network = names.network_mark(req.name) + "-"
    valid = {names.hashes(req.name, *attachment) for attachment in req.valid_attachments}
    return lambda mark: mark.startswith(network) and mark_of_comment(mark) not in valid
