"""The signs that a program has flushed what pods have in iptables (over nf_tables) or firewalld, in one namespace.

The signs are the jumps from iptables' own chains, and from CNI-FORWARD, to chains of pods, CNI-*. A DEL deletes a pod's
jump and the chain of that jump. If the jump alone is gone, or the table with it, or a jump that all pods share, another
program did it.
"""

from __future__ import annotations

from fastcni._netlink import attributes
from fastcni.kernel import nft, nft_rules, wire
from fastcni.kit.call import names
from fastcni.server.log import few

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.wire import Socket

    Where = tuple[int, str]

TABLES = {(family, table) for family in (nft.NFPROTO_IPV4, nft.NFPROTO_IPV6) for table in ("nat", "filter")}
# CNI-FORWARD has the jump to CNI-ADMIN beside the rules of pods: a flush of the chain takes all of them.
CHAINS = ("PREROUTING", "OUTPUT", "POSTROUTING", "FORWARD", "CNI-FORWARD")
CHAIN_NAMES = {chain.encode() + b"\0" for chain in CHAINS}
PREFIX, DIGITS = "CNI-", frozenset("0123456789abcdef")         # CNI-e8f6f419596f7f47b3468487
FIREWALLD = "firewalld"         # the name of firewalld's table, in any family


class IptablesWatch:
    """jumps: {(family, table): {handle: (chain, target)}}. lost: the same as sets of (chain, target), and `others`, the
    names of what else is gone; both since take_missing(). by: the program that last took something."""

    def __init__(self) -> None:
        self.jumps: dict[Where, dict[bytes, tuple[str, str]]] = {where: {} for where in TABLES}
        self.lost: dict[Where, set[tuple[str, str]]] = {where: set() for where in TABLES}
        self.others: set[str] = set()
        self.by = ""
        # Deleted by the transaction that is announced now.
        self.deleted_jumps: set[tuple[Where, str, str]] = set()
        self.deleted_chains: set[tuple[Where, str]] = set()
        self.deleted_tables: set[Where] = set()

    def receive(self, kind: int, where: Where, fields: dict[int, bytes], payload: bytes) -> None:
        """Note a message about a table that is not our own."""
        if where[1] == FIREWALLD:
            if kind == nft.NFT_MSG_NEWTABLE:        # firewalld starts or reloads, and forgets its runtime configuration
                self.suspect("runtime configuration of firewalld", FIREWALLD)
        elif where not in TABLES:
            return
        elif kind == nft.NFT_MSG_DELTABLE:
            self.deleted_tables.add(where)
            self.deleted_jumps |= {(where, *jump) for jump in self.jumps[where].values()}
            self.jumps[where].clear()
        elif kind == nft.NFT_MSG_DELCHAIN:
            self.deleted_chains.add((where, nft.as_text(fields[nft.NFTA_CHAIN_NAME])))
        elif (kind in (nft.NFT_MSG_NEWRULE, nft.NFT_MSG_DELRULE)
              and fields.get(nft_rules.NFTA_RULE_CHAIN) in CHAIN_NAMES):
            handle, chain, target = nft_rules.read_jump(payload)
            if kind == nft.NFT_MSG_NEWRULE:
                if target.startswith(PREFIX):
                    self.jumps[where][handle] = chain, target
            elif jump := self.jumps[where].pop(handle, None):
                self.deleted_jumps.add((where, *jump))

    def suspect(self, what: str, by: str) -> None:
        """Note that something is gone, for the log, and the program that did it."""
        self.others.add(what)
        self.by = by

    def end_transaction(self, by: str = "") -> None:
        """Note the end of a transaction of the program `by`."""
        for where, chain, target in self.deleted_jumps:
            if (where in self.deleted_tables or (where, target) not in self.deleted_chains
                    or not is_of_one_pod(target)):
                self.lost[where].add((chain, target))
                self.by = by
        for deleted in (self.deleted_jumps, self.deleted_chains, self.deleted_tables):
            deleted.clear()

    def read(self, sock: Socket) -> None:
        """Read what the kernel has: at the start, and after it dropped announcements. Raises NetlinkError.

        A pod's own jump that is gone then is no sign: it may have been a DEL.
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

    @property
    def suspicious(self) -> bool:
        """Return whether anything is gone."""
        return bool(self.others) or any(self.lost.values())

    @property
    def certain(self) -> bool:
        """Return whether another program did it for certain. A jump that all pods share is gone then: neither a DEL of
        fastcni nor one of the Go plugins deletes such a jump."""
        return bool(self.others) or any(not is_of_one_pod(target) for jumps in self.lost.values()
                                        for _, target in jumps)

    def take_missing(self) -> str:
        """Return what is still missing, as text for the log, and forget it; "" if everything is present again."""
        missing = sorted(self.others)
        self.others.clear()
        for (family, table), jumps in self.lost.items():
            present = set(self.jumps[family, table].values())
            missing += [f"{'ip' if family == nft.NFPROTO_IPV4 else 'ip6'} {table} {chain} to {target}"
                        for chain, target in sorted(jumps - present)]
            jumps.clear()
        return few(missing)


def is_of_one_pod(chain: str) -> bool:
    """Return whether this is the name of one pod's chain. The names of chains that all pods share consist of words."""
    return len(chain) == names.MAX_CHAIN_LENGTH and DIGITS.issuperset(chain.removeprefix(PREFIX))
