"""Read complete nftables tables from the kernel as data: chains, rules and the elements of sets.

    tables = read_tables(sock, lambda family, name: name.startswith("fastcni-policy"))
    tables[0].chains["ingress"].rules[0].comment

nft_walk.py follows a packet through these tables. Source: include/uapi/linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

from errno import EBUSY, ENOENT
from typing import TYPE_CHECKING

from fastcni._netlink import attribute_list, attributes
from fastcni.kernel import nft, nft_elements, nft_rules, wire
from fastcni.kernel.deletions import generation

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.kernel.wire import Socket

    Expression = tuple[str, dict[int, bytes]]   # (name, attributes in NFTA_EXPR_DATA)

NFTA_SET_ELEM_EXPR, NFTA_SET_ELEM_EXPRESSIONS = 7, 11
NFT_SET_ELEM_CATCHALL = 0x2
TRIES = 20                      # attempts to read the tables while other programs change them


class Verdict:
    """A verdict of a rule or element. code: NF_DROP, NF_ACCEPT, NFT_JUMP, ... chain: the target of a jump or goto."""

    __slots__ = ("chain", "code")

    def __init__(self, code: int, chain: str = "") -> None:
        self.code, self.chain = code, chain


class Rule:
    """A rule of a chain. expressions: [(name, attributes)]. handle: the rule's number, which `nft -a` prints."""

    __slots__ = ("comment", "expressions", "handle")

    def __init__(self, expressions: list[Expression], comment: str, handle: int = 0) -> None:
        self.expressions, self.comment, self.handle = expressions, comment, handle


class Chain:
    """A chain and its rules. hook: the hook number of a base chain; None for a chain without a hook. policy: NF_ACCEPT
    or NF_DROP."""

    __slots__ = ("hook", "policy", "rules")

    def __init__(self, hook: int | None, policy: int) -> None:
        self.hook, self.policy = hook, policy
        self.rules: list[Rule] = []


class Element:
    """An element of a set or map. value: the value in a map; None in a set. end: the last key of a range; None without
    a range. flags: NFT_SET_ELEM_INTERVAL_END, ... expressions: the names of expressions in the element, such as
    "limit"."""

    __slots__ = ("end", "expressions", "flags", "value")

    def __init__(self, fields: dict[int, bytes]) -> None:
        self.value = read_data(fields[nft_elements.NFTA_SET_ELEM_DATA]) if (
            nft_elements.NFTA_SET_ELEM_DATA in fields) else None
        self.end = attributes(fields[nft_elements.NFTA_SET_ELEM_KEY_END]).get(nft.NFTA_DATA_VALUE) if (
            nft_elements.NFTA_SET_ELEM_KEY_END in fields) else None
        self.flags = int.from_bytes(fields.get(nft_elements.NFTA_SET_ELEM_FLAGS, b""), "big")
        lists = [each for _, each in attribute_list(fields.get(NFTA_SET_ELEM_EXPRESSIONS, b""))]
        if NFTA_SET_ELEM_EXPR in fields:
            lists.append(fields[NFTA_SET_ELEM_EXPR])
        self.expressions = [nft.as_text(attributes(each).get(nft_rules.NFTA_EXPR_NAME, b"")) for each in lists]


class Set:
    """A set or map. flags: NFT_SET_INTERVAL, ... key_bytes: the length of its keys. fields: the sizes in bytes of a
    key's parts, if the keys are concatenations with ranges."""

    __slots__ = ("elements", "fields", "flags", "key_bytes", "starts")

    def __init__(self, flags: int, key_bytes: int, fields: list[int]) -> None:
        self.flags, self.key_bytes, self.fields = flags, key_bytes, fields
        self.elements: dict[bytes, Element] = {}
        self.starts: list[bytes] = []           # sorted keys of a set with intervals


class Table:
    """A table with its chains and sets, by name. family: NFPROTO_*."""

    __slots__ = ("chains", "family", "name", "sets")

    def __init__(self, family: int, name: str) -> None:
        self.family, self.name = family, name
        self.chains: dict[str, Chain] = {}
        self.sets: dict[str, Set] = {}

    def __str__(self) -> str:
        return f"{nft.FAMILIES.get(self.family, self.family)} {self.name}"

    def without_rules(self, chain: str) -> Table:
        """Return a copy of this table in which `chain` has no rules."""
        it = Table(self.family, self.name)
        it.chains, it.sets = {**self.chains, chain: Chain(None, nft.NF_ACCEPT)}, self.sets
        return it


def read_tables(sock: Socket, wanted: Callable[[int, str], bool]) -> list[Table]:
    """Read the tables for which wanted(family, name) is true. The result is the state at one moment.

    Raises NetlinkError; errno is EBUSY if other programs changed nftables during each of TRIES attempts.
    """
    for _ in range(TRIES):
        before = generation(sock)
        try:
            found = [_read_table(sock, *key) for _, payload in
                     wire.dump(sock, nft.NFT_MSG_GETTABLE, nft.nfgenmsg(0), "list nftables tables")
                     if wanted(*(key := nft.read_table_name(payload)))]
        except wire.NetlinkError as e:
            if e.errno != ENOENT:       # a table or set was deleted between two dumps
                raise
            continue
        if generation(sock) == before:
            return found
    raise wire.NetlinkError(EBUSY, "read nftables: other programs change the ruleset all the time")


def _read_table(sock: Socket, family: int, name: str) -> Table:
    it, header = Table(family, name), nft.nfgenmsg(family)
    for _, payload in wire.dump(sock, nft.NFT_MSG_GETCHAIN, header, "list nftables chains"):
        if nft.read_chain(payload)[0] == name:
            it.chains[nft.read_chain(payload)[1]] = _read_chain(payload)
    for _, payload in wire.dump(sock, nft.NFT_MSG_GETRULE, header, f"list the rules of nftables table {name}",
                                nft_rules.rules_of(name)):
        fields = attributes(payload, 4)
        it.chains[nft.as_text(fields[nft_rules.NFTA_RULE_CHAIN])].rules.append(_read_rule(fields))
    for _, payload in wire.dump(sock, nft.NFT_MSG_GETSET, header, f"list the sets of nftables table {name}",
                                lambda batch: batch.text(nft_elements.NFTA_SET_TABLE, name)):
        fields = attributes(payload, 4)
        set_name = nft.as_text(fields[nft_elements.NFTA_SET_NAME])
        it.sets[set_name] = _read_set(sock, header, name, set_name, fields)
    return it


def _read_chain(payload: bytes) -> Chain:
    fields = attributes(payload, 4)
    hook = attributes(fields.get(nft.NFTA_CHAIN_HOOK, b""))
    if nft.NFTA_HOOK_HOOKNUM not in hook:
        return Chain(None, nft.NF_ACCEPT)
    return Chain(int.from_bytes(hook[nft.NFTA_HOOK_HOOKNUM], "big"),
                 int.from_bytes(fields.get(nft.NFTA_CHAIN_POLICY, b"\1"), "big"))


def _read_rule(fields: dict[int, bytes]) -> Rule:
    expressions = [(nft.as_text(each.get(nft_rules.NFTA_EXPR_NAME, b"")),
                    attributes(each.get(nft_rules.NFTA_EXPR_DATA, b"")))
                   for _, data in attribute_list(fields.get(nft_rules.NFTA_RULE_EXPRESSIONS, b""))
                   for each in (attributes(data),)]
    return Rule(expressions, nft.read_comment(fields.get(nft_rules.NFTA_RULE_USERDATA, b"")),
                int.from_bytes(fields[nft_rules.NFTA_RULE_HANDLE], "big"))


def _read_set(sock: Socket, header: bytes, table: str, name: str, fields: dict[int, bytes]) -> Set:
    description = attributes(fields.get(nft_elements.NFTA_SET_DESC, b""))
    flags, key_bytes = (int.from_bytes(fields.get(kind, b""), "big")
                        for kind in (nft_elements.NFTA_SET_FLAGS, nft_elements.NFTA_SET_KEY_LEN))
    it = Set(flags, key_bytes,
             [int.from_bytes(attributes(part)[nft_elements.NFTA_SET_FIELD_LEN], "big")
              for _, part in attribute_list(description.get(nft_elements.NFTA_SET_DESC_CONCAT, b""))])
    for _, payload in wire.dump(sock, nft.NFT_MSG_GETSETELEM, header, f"list nftables set {table} {name}",
                                nft_elements.elements_of(table, name)):
        for _, raw in attribute_list(attributes(payload, 4).get(nft_elements.NFTA_SET_ELEM_LIST_ELEMENTS, b"")):
            fields = attributes(raw)
            key = attributes(fields.get(nft_elements.NFTA_SET_ELEM_KEY, b"")).get(nft.NFTA_DATA_VALUE, b"")
            element = Element(fields)
            if key not in it.elements or not element.flags & nft_elements.NFT_SET_ELEM_INTERVAL_END:
                it.elements[key] = element      # one range may begin where another ends
    if it.flags & nft_elements.NFT_SET_INTERVAL:
        it.starts = sorted(it.elements)
    return it


def read_data(data: bytes) -> bytes | Verdict:
    """Return the content of nested attributes: the bytes of NFTA_DATA_VALUE, or a Verdict for NFTA_DATA_VERDICT."""
    fields = attributes(data)
    if nft.NFTA_DATA_VERDICT not in fields:
        return fields.get(nft.NFTA_DATA_VALUE, b"")
    verdict = attributes(fields[nft.NFTA_DATA_VERDICT])
    return Verdict(int.from_bytes(verdict.get(nft.NFTA_VERDICT_CODE, b""), "big"),
                   nft.as_text(verdict.get(nft.NFTA_VERDICT_CHAIN, b"")))
