"""Read the rules of iptables in the chain CNI-FORWARD of table filter from the kernel, without a program.

The kernel has two kinds of iptables. For iptables-nft, the kernel lists rules over netlink and notifies each change.
For iptables-legacy, the kernel only returns complete tables (kernel/xtables.py); a server caches a table until the
kernel reports another size or number of entries. If tables of both kinds exist, a packet has to pass both tables.
"""

from __future__ import annotations

from fastcni.kernel import ipset, nft, nft_rules, xtables
from fastcni.kit.firewall import iptables, rulesets
from fastcni.kit.firewall.table import SUFFIXES
from fastcni.spec import address as addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.kit.call.request import Request

TABLE, FORWARD = "filter", "CNI-FORWARD"
FAMILIES = {4: nft.NFPROTO_IPV4, 16: nft.NFPROTO_IPV6}          # keys: address length in bytes
TO, FROM = 0, ipset.IPSET_DIM_ONE_SRC                           # flags of an ipset match: destination or source address


def set_of(length: int) -> str:
    """Return the name of the ipset of pods' addresses, by the length of an address."""
    return "fastcni-forward" + SUFFIXES[length]


def rules(packed: bytes) -> tuple[str, str]:
    """Return the rules that accept an address's traffic, as iptables-save prints them."""
    text = addresses.cidr_text(packed, 8 * len(packed))
    return pair(f"-d {text}", f"-s {text}")


def set_rules(length: int) -> tuple[str, str]:
    """Return the two rules that accept the traffic of all addresses in the ipset."""
    return pair(*(f"-m set --match-set {set_of(length)} {way}" for way in ("dst", "src")))


def pair(to_pods: str, from_pods: str) -> tuple[str, str]:
    return (f"-A {FORWARD} {to_pods} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            f"-A {FORWARD} {from_pods} -j ACCEPT")


def leads(lines: Iterable[str], chain: str, target: str) -> bool:
    return any(line.startswith(f"-A {chain} ") and iptables.target(line) == target for line in lines)


def jumps(admin_chain: str) -> tuple[tuple[str, str, str], ...]:
    """Return (chain, text in its comment, target) of each jump that all pods share."""
    return (FORWARD, "admin overrides", admin_chain), ("FORWARD", "rules", FORWARD)


class Rules:
    """The chains of iptables-nft. Rules are payloads of NFT_MSG_NEWRULE."""

    __slots__ = ("req", "length")
    KIND = "nft"

    def __init__(self, req: Request, length: int) -> None:
        self.req, self.length = req, length

    @property
    def program(self) -> str:
        """Return the name of the program that changes these chains, or ""."""
        return iptables.program_of_kind(self.req, self.length, self.KIND)

    def of(self, chain: str) -> list[bytes]:
        """Return the rules of a chain; [] if the table does not exist."""
        family = FAMILIES[self.length]
        return self.req.mode.recall(("nftables", TABLE, family, "rules", chain), lambda: rulesets.rules_of(
            self.req.mode.firewall, family, TABLE, chain))

    def leads(self, chain: str, target: str) -> bool:
        return any(nft_rules.leads_to(payload, target) for payload in self.of(chain))

    def looks_into_set(self) -> bool:
        # A rule in the kernel has the number of a set, not its name. The rules in CNI-FORWARD that match a set are
        # fastcni's, and no program can rename a set that a rule uses: so the number is that of fastcni's set.
        return {ipset.read_match_flags(nft_rules.read_match(payload, "set")) for payload in self.of(FORWARD)
                } >= {TO, FROM}

    def may_have_rules_of(self, packed: bytes) -> bool:
        return any(nft_rules.mentions(payload, packed) for payload in self.of(FORWARD))

    def ready(self, admin_chain: str) -> bool:
        """Return whether the chains are complete: forwarded packets pass the administrator's chain, and then the rules
        that use the ipset."""
        key = "nftables", TABLE, FAMILIES[self.length], "rules", "FORWARD", FORWARD, admin_chain
        return bool(self.req.mode.recall(key, lambda: self._ready(admin_chain) or None))

    def _ready(self, admin_chain: str) -> bool:
        return self.looks_into_set() and all(self.leads(chain, target) for chain, _, target in jumps(admin_chain))


class LegacyRules(Rules):
    """The chains of iptables-legacy."""

    __slots__ = ("table",)
    KIND = "legacy"

    def __init__(self, req: Request, length: int, table: xtables.Table) -> None:
        super().__init__(req, length)
        self.table = table

    def leads(self, chain: str, target: str) -> bool:
        return self.table.leads(chain, target)

    def looks_into_set(self) -> bool:
        return {ipset.read_match_flags(info) for rule in self.table.rules(FORWARD)
                for info in self.table.matches(rule, "set")} >= {TO, FROM}

    def may_have_rules_of(self, packed: bytes) -> bool:
        return any(self.table.mentions(rule, packed) for rule in self.table.rules(FORWARD))

    def ready(self, admin_chain: str) -> bool:
        return self._ready(admin_chain)


def look(req: Request, length: int, *, shared: bool = True, recent: bool = False) -> list[Rules]:
    """Return the Rules of a family, one for each kind of iptables that filters, and at least one. Raises NetlinkError,
    OSError.

    shared, recent: see iptables.read_legacy(). `recent` has no effect on a node whose pods have rules of their own.
    """
    found: list[Rules] = []
    if iptables.has_nft_chain(req, FAMILIES[length], TABLE, "FORWARD"):
        found.append(Rules(req, length))
    if table := iptables.read_legacy(req, length, TABLE, shared=shared, recent=recent):
        legacy = LegacyRules(req, length, table)
        if recent and not legacy.looks_into_set():
            return look(req, length, shared=shared)
        found.append(legacy)
    if len(found) > 1:                  # ignore a kind of iptables if the node has no program for it
        found = [each for each in found if each.program]
    return found or [Rules(req, length)]
