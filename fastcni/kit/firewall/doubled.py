"""Find and replace rules that fastcni's tables have twice.

`nft list ruleset > FILE` saves a ruleset, and `nft -f FILE` adds each rule to its chain again, also if the chain has
the rule. After that, each packet passes both rules, and GC mistakes an unused chain for a used chain.
"""

from __future__ import annotations

from fastcni.kernel import nft_rules
from fastcni.kit.firewall import backends, rulesets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.wire import Socket

    Chain = tuple[int, str, str]            # family, table, name


def chains(sock: Socket) -> set[Chain]:
    """Return the chains of fastcni's tables that have a rule twice. Raises NetlinkError."""
    seen: set[tuple[Chain, bytes]] = set()
    found: set[Chain] = set()
    for family, table in dict.fromkeys((store.family, store.table) for store in backends.stores()):
        for payload in rulesets.rules_of(sock, family, table):
            name, content = nft_rules.read_content(payload)
            rule = (family, table, name), content
            if rule in seen:
                found.add(rule[0])
            seen.add(rule)
    return found


def replace(sock: Socket) -> None:
    """Replace the rules of the chains that have a rule twice, for each table in one transaction. Raises NetlinkError.
    """
    found = chains(sock)
    for store in backends.stores() if found else ():
        if any((store.family, store.table) == chain[:2] and store.has(chain[2]) for chain in found):
            store.write_rules(sock)
