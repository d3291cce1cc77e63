"""The rules of iptables in the chain CNI-FORWARD of table filter, read without a program where possible.

iptables over nf_tables shows its rules over netlink, and the kernel announces each change of them. For the legacy
iptables iptables-save is run; its output is valid as long as the kernel gives the same figures of the table
(kernel/xtables.py).
"""

from __future__ import annotations

from fastcni.kernel import ipset, nft, nft_rules, xtables
from fastcni.kit.firewall import iptables, rulesets
from fastcni.kit.firewall.table import SUFFIXES
from fastcni.spec import address as addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from fastcni.kit.call.request import Request

TABLE, FORWARD = "filter", "CNI-FORWARD"
FAMILIES = {4: nft.NFPROTO_IPV4, 16: nft.NFPROTO_IPV6}          # by length of an address
TO, FROM = 0, ipset.IPSET_DIM_ONE_SRC                           # flags of an ipset match: its direction


def set_of(length: int) -> str:
    """Return the name of the ipset that has the pods of this family."""
    return "fastcni-forward" + SUFFIXES[length]


def rules(packed: bytes) -> tuple[str, str]:
    """Return the rules of an address, as iptables-save prints them."""
    text = addresses.cidr_text(packed, 8 * len(packed))
    return pair(f"-d {text}", f"-s {text}")


def set_rules(length: int) -> tuple[str, str]:
    """Return the rules of all addresses in the ipset."""
    return pair(*(f"-m set --match-set {set_of(length)} {way}" for way in ("dst", "src")))


def pair(to_pods: str, from_pods: str) -> tuple[str, str]:
    return (f"-A {FORWARD} {to_pods} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            f"-A {FORWARD} {from_pods} -j ACCEPT")


def leads(lines: Iterable[str], chain: str, target: str) -> bool:
    return any(line.startswith(f"-A {chain} ") and iptables.target(line) == target for line in lines)


def jumps(admin_chain: str) -> tuple[tuple[str, str, str], ...]:
    """Return (chain, text in its comment, target) of each jump that all pods share."""
    return (FORWARD, "admin overrides", admin_chain), ("FORWARD", "rules", FORWARD)


class Lines:
    """The chain as iptables-save prints it."""

    __slots__ = ("lines",)

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def leads(self, chain: str, target: str) -> bool:
        return leads(self.lines, chain, target)

    def looks_into_set(self, length: int) -> bool:
        return all(rule in self.lines for rule in set_rules(length))

    def may_have_rules_of(self, packed: bytes) -> bool:
        return any(rule in self.lines for rule in rules(packed))


class Rules:
    """The chain as the kernel sends it: payloads of NFT_MSG_NEWRULE."""

    __slots__ = ("family", "req")

    def __init__(self, req: Request, family: int) -> None:
        self.req, self.family = req, family

    def of(self, chain: str) -> list[bytes]:
        """Return the rules of a chain; none without such a table."""
        return self.req.mode.recall(("nftables", TABLE, self.family, chain, "rules"), lambda: rulesets.rules_of(
            self.req.mode.firewall, self.family, TABLE, chain))

    def leads(self, chain: str, target: str) -> bool:
        return any(nft_rules.leads_to(payload, target) for payload in self.of(chain))

    def looks_into_set(self, length: int) -> bool:
        # The rule has the set's number, not its name. A set that a rule uses cannot be renamed, so the set is
        # fastcni's.
        return {ipset.read_match_flags(nft_rules.read_match(payload, "set")) for payload in self.of(FORWARD)
                } >= {TO, FROM}

    def may_have_rules_of(self, packed: bytes) -> bool:
        return any(nft_rules.mentions(payload, packed) for payload in self.of(FORWARD))


def look(req: Request, length: int) -> Lines | Rules:
    """Read the chain of a family. Raises CniError, NetlinkError."""
    if not iptables.legacy(req, TABLE, length):
        return Rules(req, FAMILIES[length])
    # Both kinds of iptables may have such a table, and only the program knows which of them it changes.
    known: dict[str, Any] = req.mode.recall(("nftables", TABLE, FAMILIES[length], FORWARD, "lines"), dict)
    figures = xtables.get_info(length, TABLE)
    if known.get("figures") != figures:
        lines = iptables.read_if_there(req, iptables.PROGRAMS[length], TABLE)
        known.update(figures=figures, lines=Lines(lines))
    return known["lines"]


def ready(req: Request, length: int, admin_chain: str) -> bool:
    """Return whether forwarded packets pass the administrator's chain, and then the rules that use the ipset."""
    def ask() -> bool | None:
        found = look(req, length)
        return (found.looks_into_set(length)
                and all(found.leads(chain, target) for chain, _, target in jumps(admin_chain))) or None

    if iptables.legacy(req, TABLE, length):
        return bool(ask())
    return bool(req.mode.recall(("nftables", TABLE, FAMILIES[length], FORWARD, "ready", admin_chain), ask))
