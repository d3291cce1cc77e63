"""What iptables (over nf_tables) and firewalld have of pods in one namespace, as far as it shows that somebody has
taken it: the jumps from iptables' own chains, and from CNI-FORWARD, to chains of pods, CNI-*.

A DEL takes a pod's jump and the chain that it led to. Where the jump went alone, or the table with it, or a jump that
all pods share, it was somebody else.
"""

from fastcni._netlink import attributes
from fastcni.kernel import nft, wire
from fastcni.kit.call import names
from fastcni.server.log import few

TABLES = {(family, table) for family in (nft.NFPROTO_IPV4, nft.NFPROTO_IPV6) for table in ("nat", "filter")}
# CNI-FORWARD has the jump to CNI-ADMIN beside the rules of pods: a flush of the chain takes all of them.
CHAINS = ("PREROUTING", "OUTPUT", "POSTROUTING", "FORWARD", "CNI-FORWARD")
CHAIN_NAMES = {chain.encode() + b"\0" for chain in CHAINS}
PREFIX, DIGITS = "CNI-", frozenset("0123456789abcdef")         # CNI-e8f6f419596f7f47b3468487
FIREWALLD = "firewalld"         # a table's name, in whatever family


class IptablesWatch:
    """rules: {(family, table): {handle: (chain, target)}}. lost, since settle(): the same, as sets of (chain, target),
    and `others`, what else has gone, in words."""

    def __init__(self):
        self.rules = {where: {} for where in TABLES}
        self.lost, self.others = {where: set() for where in TABLES}, set()
        self.taken, self.cut, self.tables = set(), set(), set()         # by this transaction
        self.by = ""                    # the program that took something last

    def hear(self, kind, where, fields, payload):
        """A message about a table that is not our own."""
        if where[1] == FIREWALLD:
            if kind == nft.NFT_MSG_NEWTABLE:        # a start or a reload: what was told it at run time is forgotten
                self.suspect("what firewalld knew", FIREWALLD)
        elif where not in TABLES:
            return
        elif kind == nft.NFT_MSG_DELTABLE:
            self.tables.add(where)
            self.taken |= {(where, *jump) for jump in self.rules[where].values()}
            self.rules[where].clear()
        elif kind == nft.NFT_MSG_DELCHAIN:
            self.cut.add((where, nft.as_text(fields[nft.NFTA_CHAIN_NAME])))
        elif kind in (nft.NFT_MSG_NEWRULE, nft.NFT_MSG_DELRULE) and fields.get(nft.NFTA_RULE_CHAIN) in CHAIN_NAMES:
            handle, *jump = nft.read_jump(payload)
            if kind == nft.NFT_MSG_NEWRULE:
                if jump[1].startswith(PREFIX):
                    self.rules[where][handle] = tuple(jump)
            elif jump := self.rules[where].pop(handle, None):
                self.taken.add((where, *jump))

    def suspect(self, what, by):
        self.others.add(what)
        self.by = by

    def transaction_ends(self, by=""):
        for where, chain, target in self.taken:
            if where in self.tables or (where, target) not in self.cut or not is_of_a_pod(target):
                self.lost[where].add((chain, target))
                self.by = by
        for of_this_one in (self.taken, self.cut, self.tables):
            of_this_one.clear()

    def look(self, sock):
        """See what is there: at the start, and where notifications were dropped. A pod's own jump may have gone with
        a DEL. Raises NetlinkError."""
        for where in TABLES:
            self.taken |= {(where, *jump) for jump in self.rules[where].values() if not is_of_a_pod(jump[1])}
            self.rules[where] = {}
            family, table = where
            for chain in CHAINS:
                # Where there is no such table, there are none.
                for _, payload in wire.dump(sock, nft.NFT_MSG_GETRULE, nft.nfgenmsg(family),
                                            f"list rules of {table} {chain}", nft.rules_of(table, chain)):
                    self.hear(nft.NFT_MSG_NEWRULE, where, attributes(payload, 4), payload)
        self.transaction_ends()

    @property
    def suspicious(self):
        return self.others or any(self.lost.values())

    @property
    def certain(self):
        """Somebody else it was: no DEL, by whatever implementation, takes a jump that all pods share."""
        return self.others or any(not is_of_a_pod(target) for jumps in self.lost.values() for _, target in jumps)

    def settle(self):
        """What is still missing by now, in words, "" where nothing is; it is forgotten."""
        words = sorted(self.others)
        self.others.clear()
        for (family, table), jumps in self.lost.items():
            back = set(self.rules[family, table].values())
            words += [f"{'ip' if family == nft.NFPROTO_IPV4 else 'ip6'} {table} {chain} to {target}"
                      for chain, target in sorted(jumps - back)]
            jumps.clear()
        return few(words)


def is_of_a_pod(chain):
    return len(chain) == names.CHAIN_MAX and DIGITS.issuperset(chain.removeprefix(PREFIX))
