"""Detect that a program has flushed pods' rules in iptables-nft or firewalld, in one namespace.

The watch observes the jumps from iptables' own chains, and from CNI-FORWARD, to chains of pods, CNI-*. A DEL deletes a
pod's jump together with the jump's target chain. So if a pod's jump is deleted without its chain, or a complete table,
or a jump that all pods share, another program has deleted it.

If the chain FORWARD appears in table filter, iptables begins to filter pods' forwarded packets. Pods that were added
earlier have no rule in this chain that accepts their packets.
"""

from __future__ import annotations

from fastcni._netlink import Batch, attributes
from fastcni.daemon.log import few
from fastcni.kernel import nft, nft_rules, wire
from fastcni.kit.call import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni.kernel.wire import Socket

    Where = tuple[int, str]

LEGACY = "legacy "
# Keys: the nftables family for iptables-nft, the length of addresses for iptables-legacy
FAMILY_NAMES = {nft.NFPROTO_IPV4: "ip", nft.NFPROTO_IPV6: "ip6", 4: f"{LEGACY}ip", 16: f"{LEGACY}ip6"}
TABLES = {(family, table) for family in (nft.NFPROTO_IPV4, nft.NFPROTO_IPV6) for table in ("nat", "filter")}
# CNI-FORWARD has the jump to CNI-ADMIN and the rules of pods: a flush of the chain deletes all of them.
CHAINS = ("PREROUTING", "OUTPUT", "POSTROUTING", "FORWARD", "CNI-FORWARD")
CHAIN_NAMES = {chain.encode() + b"\0" for chain in CHAINS}
PREFIX, DIGITS = "CNI-", frozenset("0123456789abcdef")         # as in CNI-e8f6f419596f7f47b3468487
FIREWALLD = "firewalld"         # the name of firewalld's table, in any family
FIREWALLD_SOURCES = "runtime configuration of firewalld"
ZONES = "FORWARD_ZONES"         # the chain of a firewalld that uses iptables; it has a rule for each source of a zone
FILTER, FORWARD = "filter", "FORWARD"


class IptablesWatch:
    """The watched jumps and chains of one namespace.

    jumps: {(family, table): {handle: (chain, target)}}; for iptables-legacy, `family` is the length of an address in
    bytes, and `handle` is the jump itself. lost: the jumps deleted since take_missing(), as sets of (chain, target).
    others: names of other objects deleted since take_missing(). by: the program that last deleted or added a watched
    object.

    filtering: the names of the chains FORWARD that exist. began: the names of the chains FORWARD that have appeared
    since take_began(), except in the first reading. read_before: whether the first reading is over.
    """

    def __init__(self) -> None:
        self.filtering: set[str] = set()
        self.began: set[str] = set()
        self.read_before = False
        self.jumps: dict[Where, dict[Any, tuple[str, str]]] = {where: {} for where in TABLES}
        self.lost: dict[Where, set[tuple[str, str]]] = {where: set() for where in TABLES}
        self.others: set[str] = set()
        self.by = ""
        # Objects deleted by the transaction whose notifications are being read
        self.deleted_jumps: set[tuple[Where, str, str]] = set()
        self.deleted_chains: set[tuple[Where, str]] = set()
        self.deleted_tables: set[Where] = set()

    def receive(self, kind: int, where: Where, fields: dict[int, bytes], payload: bytes) -> None:
        """Handle a message about a table of another program."""
        if where[1] == FIREWALLD:
            if kind == nft.NFT_MSG_NEWTABLE:        # firewalld starts or reloads, and forgets its runtime configuration
                self.suspect(FIREWALLD_SOURCES, FIREWALLD)
        elif where not in TABLES:
            return
        elif kind == nft.NFT_MSG_NEWCHAIN:
            name = nft.as_text(fields[nft.NFTA_CHAIN_NAME])
            if where[1] == FILTER and name == FORWARD:
                self.begin_to_filter(chain_name(where, FORWARD))
            elif where[1] == FILTER and name == ZONES:          # a firewalld that uses iptables starts or reloads
                self.suspect(FIREWALLD_SOURCES, FIREWALLD)
        elif kind == nft.NFT_MSG_DELTABLE:
            self.stop_to_filter(chain_name(where, FORWARD))
            self.deleted_tables.add(where)
            self.deleted_jumps |= {(where, *jump) for jump in self.jumps[where].values()}
            self.jumps[where].clear()
        elif kind == nft.NFT_MSG_DELCHAIN:
            name = nft.as_text(fields[nft.NFTA_CHAIN_NAME])
            self.stop_to_filter(chain_name(where, name))
            self.deleted_chains.add((where, name))
        elif (kind in (nft.NFT_MSG_NEWRULE, nft.NFT_MSG_DELRULE)
              and fields.get(nft_rules.NFTA_RULE_CHAIN) in CHAIN_NAMES):
            handle, chain, target = nft_rules.read_jump(payload)
            if kind == nft.NFT_MSG_NEWRULE:
                if target.startswith(PREFIX):
                    self.jumps[where][handle] = chain, target
            elif jump := self.jumps[where].pop(handle, None):
                self.deleted_jumps.add((where, *jump))

    def suspect(self, what: str, by: str) -> None:
        """Record that an object was deleted, and the program that deleted it, for the log."""
        self.others.add(what)
        self.by = by

    def replace(self, where: Where, jumps: set[tuple[str, str]], exists: Callable[[str], bool], deletions: int) -> None:
        """Record all jumps of a legacy table. exists(chain): whether the table has a chain. deletions: the number of
        DELs that have begun since the last poll or shortly before.

        If a flush also deletes all chains between two polls, the poll sees the same as after DELs of all pods. The
        cause was a flush if no jump is left and the number of deleted jumps exceeds `deletions`.
        """
        before = {*self.jumps.get(where, {}).values()}
        gone = before - jumps
        self.jumps[where] = {jump: jump for jump in jumps}
        flushed = gone == before and len({target for _, target in gone}) > deletions
        lost = {jump for jump in gone if flushed or exists(jump[1]) or not is_of_one_pod(jump[1])}
        if lost:
            self.lose(where, lost)

    def lose(self, where: Where, jumps: set[tuple[str, str]]) -> None:
        """Record jumps that a legacy table has lost."""
        self.lost.setdefault(where, set()).update(jumps)
        self.by = ""                    # the kernel does not report the program

    def begin_to_filter(self, chain: str, *, new: bool = True) -> None:
        """Record that a chain FORWARD exists. new: whether the chain is new."""
        if new and chain not in self.filtering:
            self.began.add(chain)
            self.by = ""                # the end of the transaction reports the program
        self.filtering.add(chain)

    def stop_to_filter(self, chain: str) -> None:
        """Record that a chain no longer exists."""
        self.filtering.discard(chain)
        self.began.discard(chain)

    def end_transaction(self, by: str = "") -> None:
        """Handle the end of a transaction of the program `by`."""
        if self.began and not self.by:
            self.by = by
        for where, chain, target in self.deleted_jumps:
            if (where in self.deleted_tables or (where, target) not in self.deleted_chains
                    or not is_of_one_pod(target)):
                self.lost[where].add((chain, target))
                self.by = by
        for deleted in (self.deleted_jumps, self.deleted_chains, self.deleted_tables):
            deleted.clear()

    def read(self, sock: Socket) -> None:
        """Read the tables from the kernel, at the start and after the kernel has dropped notifications. Raises
        NetlinkError.

        If a pod's own jump is missing in this reading, that is no sign of a flush: a DEL may have deleted the jump.
        """
        for where in TABLES:
            self.deleted_jumps |= {(where, *jump) for jump in self.jumps[where].values() if not is_of_one_pod(jump[1])}
            self.jumps[where] = {}
            family, table = where
            for chain in CHAINS:
                # The kernel lists no rules for a table that does not exist.
                for _, payload in wire.dump(sock, nft.NFT_MSG_GETRULE, nft.nfgenmsg(family),
                                            f"list rules of {table} {chain}", nft_rules.rules_of(table, chain)):
                    self.receive(nft.NFT_MSG_NEWRULE, where, attributes(payload, 4), payload)
        self.end_transaction()
        self._read_filtering(sock)

    def _read_filtering(self, sock: Socket) -> None:
        found = {chain_name((family, table), FORWARD) for family, table in TABLES if table == FILTER
                 and wire.look_up(sock, nft.get_chain(Batch(), family, table, FORWARD, "look up chain FORWARD"))}
        for chain in found:
            self.begin_to_filter(chain, new=self.read_before)
        self.filtering -= {chain for chain in self.filtering - found if not chain.startswith(LEGACY)}
        self.read_before = True

    @property
    def suspicious(self) -> bool:
        """Return whether an object was deleted, or a chain has begun to filter."""
        return bool(self.others or self.began) or any(self.lost.values())

    @property
    def certain(self) -> bool:
        """Return whether the change is certainly another program's, for example because a jump that all pods share was
        deleted: no DEL of fastcni or of the reference plugins deletes such a jump."""
        return bool(self.others or self.began) or any(not is_of_one_pod(target) for jumps in self.lost.values()
                                        for _, target in jumps)

    def take_began(self) -> str:
        """Return the chains that have begun to filter, as text for the log, and forget them."""
        began, self.began = few(sorted(self.began)), set()
        return began

    def take_missing(self) -> str:
        """Return the objects that are still missing, as text for the log, and forget them; "" if all are present
        again."""
        missing = sorted(self.others)
        self.others.clear()
        for (family, table), jumps in self.lost.items():
            present = set(self.jumps[family, table].values())
            missing += [f"{chain_name((family, table), chain)} to {target}"
                        for chain, target in sorted(jumps - present)]
            jumps.clear()
        return few(missing)


def chain_name(where: Where, chain: str) -> str:
    """Return the name of a chain, as in "ip filter FORWARD"."""
    family, table = where
    return f"{FAMILY_NAMES[family]} {table} {chain}"


def is_of_one_pod(chain: str) -> bool:
    """Return whether this is the name of one pod's chain. The names of chains that all pods share consist of words."""
    return len(chain) == names.MAX_CHAIN_LENGTH and DIGITS.issuperset(chain.removeprefix(PREFIX))
