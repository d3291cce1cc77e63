"""Follow a packet through the chains of a table that nft_read.py has read, as the kernel's nf_tables does.

    walk(table, "ingress", Packet(meta={...}, headers={...}, ct={...})).code == NF_DROP

If the packet reaches an expression that this module does not know, walk() raises Unknown instead of guessing. Source:
net/netfilter/nf_tables_core.c and nft_*.c.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from typing import TYPE_CHECKING

from fastcni.agent.policy.in_kernel.nft_read import NFT_SET_ELEM_CATCHALL, Verdict, read_data
from fastcni.kernel import nft, nft_rules
from fastcni.kernel.nft_elements import NFT_SET_ELEM_INTERVAL_END, NFT_SET_INTERVAL, padded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fastcni.agent.policy.in_kernel.nft_read import Rule, Set, Table

    Fields = dict[int, bytes]

COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)    # index: NFT_CMP_*
NFT_CONTINUE = 0xFFFFFFFF
KNOWN = (nft.NF_ACCEPT, nft.NF_DROP, nft.NFT_JUMP, nft.NFT_GOTO, nft.NFT_RETURN, NFT_CONTINUE)
SOURCES = {field[:2] for field in (nft_rules.IP_SADDR, nft_rules.IP6_SADDR)}
HARMLESS = ("log", "limit", "quota", "connlimit", "last")      # expressions that give no verdict
REGISTER_BYTES = 64


class Unknown(Exception):
    """A rule uses an expression, field or verdict that this module does not know. The error's text names this part."""


class Packet:
    """The fields of a packet that rules can read. A field without an entry is unknown.

    meta: {NFT_META_*: bytes}. headers: {NFT_PAYLOAD_*: the packet's bytes from this header to the end}. ct: {NFT_CT_*:
    bytes}.
    """

    __slots__ = ("ct", "headers", "meta")

    def __init__(self, meta: Mapping[int, bytes], headers: Mapping[int, bytes], ct: Mapping[int, bytes]) -> None:
        self.meta, self.headers, self.ct = meta, headers, ct


class Outcome:
    """The result of walk(). code: NF_ACCEPT or NF_DROP. chain, comment: the chain and comment of the rule that decided.
    If the base chain's policy decided, the chain and comment of the last rule that set a mark and returned; if no rule
    did so, the base chain and "". missed: [(map, key)] of the maps that had no element for the packet."""

    __slots__ = ("chain", "code", "comment", "missed")

    def __init__(self, code: int, chain: str, comment: str, missed: list[tuple[str, bytes]]) -> None:
        self.code, self.chain, self.comment, self.missed = code, chain, comment, missed


def walk(table: Table, base: str, packet: Packet) -> Outcome:
    """Return the Outcome of the base chain `base` for a packet. Raises Unknown."""
    walker = _Walker(table, packet)
    walker.allowed = base, ""
    decided = walker.run(base)
    return Outcome(*(decided or (table.chains[base].policy, *walker.allowed)), walker.missed)


def refuses(table: Table, base: str, packet: Packet) -> tuple[bool, str, int] | None:
    """Return (certain, chain, handle) of the rule by which the base chain `base` drops a packet; None if no rule does.

    The walk skips a rule that compares an unknown field of the packet. If a skipped rule may accept the packet,
    `certain` is False for a later rule that drops the packet. If no other rule drops the packet, but a skipped rule
    drops packets and also compares their source, the result is the skipped rule, with `certain` False.
    """
    walker = _Cautious(table, packet)
    decided = walker.run(base)
    if decided and decided[0] == nft.NF_DROP:
        return not walker.unsure, decided[1], walker.last
    return walker.possibly[0] if walker.possibly else None


class _Walker:
    def __init__(self, table: Table, packet: Packet) -> None:
        self.table, self.steps = table, STEPS
        self.packet = Packet(packet.meta, packet.headers, packet.ct)    # a copy, because rules set the packet's mark
        self.registers = bytearray(REGISTER_BYTES)
        self.verdict: Verdict | None = None
        self.missed: list[tuple[str, bytes]] = []
        self.allowed = "", ""                   # (chain, comment) of the last rule that set a mark and returned

    def run(self, name: str) -> tuple[int, str, str] | None:
        """Return (code, chain, comment) of the rule that decides; None if the packet gets to the end of the chain."""
        for rule in self.table.chains[name].rules:
            verdict = self.verdict_of(rule)
            if verdict is None or verdict.code == NFT_CONTINUE:
                continue
            if verdict.code in (nft.NF_ACCEPT, nft.NF_DROP):
                return verdict.code, name, rule.comment
            if verdict.code == nft.NFT_RETURN:
                if any(each == "meta" and 3 in fields for each, fields in rule.expressions):
                    self.allowed = name, rule.comment
                return None
            if verdict.code not in (nft.NFT_JUMP, nft.NFT_GOTO):
                raise Unknown(f"verdict {verdict.code} of a rule in chain {name}")
            decided = self.run(verdict.chain)
            if decided or verdict.code == nft.NFT_GOTO:
                return decided
        return None

    def verdict_of(self, rule: Rule) -> Verdict | None:
        """Return the rule's verdict; None if the rule does not match or has no verdict."""
        self.verdict = None
        for name, fields in rule.expressions:
            step = self.steps.get(name)
            if step is None:
                raise Unknown(f"expression {name}")
            if not step(self, fields):
                return None
            if self.verdict:
                return self.verdict
        return None

    def load(self, register: int, size: int) -> bytes:
        at = place(register)
        return bytes(self.registers[at:at + size])

    def store(self, register: int, value: bytes) -> None:
        at = place(register)
        self.registers[at:at + padded(len(value))] = value.ljust(padded(len(value)), b"\0")

    def store_data(self, register: int, value: bytes | Verdict) -> None:
        if isinstance(value, Verdict):
            self.verdict = value
        else:
            self.store(register, value)


class _Cautious(_Walker):
    """A walk that skips rules with unknown parts, for refuses(). unsure: whether a skipped rule may accept the packet.
    last: the handle of the last rule with a verdict. possibly: results of refuses() for skipped rules."""

    def __init__(self, table: Table, packet: Packet) -> None:
        super().__init__(table, packet)
        self.unsure, self.last, self.steps = False, 0, {**STEPS, "reject": _reject, "log": _counter}
        self.possibly: list[tuple[bool, str, int]] = []

    def run(self, name: str) -> tuple[int, str, str] | None:
        self.chain, before = name, getattr(self, "chain", name)
        try:
            return super().run(name)
        finally:
            self.chain = before

    def verdict_of(self, rule: Rule) -> Verdict | None:
        try:
            verdict = super().verdict_of(rule)
            if verdict and verdict.code not in KNOWN:
                raise Unknown(f"verdict {verdict.code}")
        except Unknown:
            verdict = None
            if not may_drop(rule):
                self.unsure |= decides(rule)
            elif asks_for_source(rule):
                self.possibly.append((False, self.chain, rule.handle))
        if verdict:
            self.last = rule.handle
        return verdict


def may_drop(rule: Rule) -> bool:
    """Return whether the rule's only verdict is to drop or reject."""
    return any(name == "reject" or (name == "immediate" and isinstance(data := read_data(fields[2]), Verdict)
                                    and data.code == nft.NF_DROP) for name, fields in rule.expressions)


def decides(rule: Rule) -> bool:
    """Return whether the rule may have a verdict, or may lead to another chain."""
    return any((name not in STEPS and name not in HARMLESS) or (name == "lookup" and 3 in fields)
               or (name == "immediate" and number(fields, 1) == nft_rules.NFT_REG_VERDICT)
               for name, fields in rule.expressions)


def asks_for_source(rule: Rule) -> bool:
    """Return whether the rule compares the input link (iifname) or the source address of the packet."""
    return any((name == "meta" and number(fields, 2) == nft_rules.NFT_META_IIFNAME) or (name == "payload" and (
        number(fields, 2), number(fields, 3)) in SOURCES) for name, fields in rule.expressions)


def place(register: int) -> int:
    """Return the byte offset of a register: NFT_REG_1 to NFT_REG_4, or NFT_REG32_00 to NFT_REG32_15. Raises Unknown."""
    if nft_rules.NFT_REG32_00 <= register < nft_rules.NFT_REG32_00 + REGISTER_BYTES // 4:
        return (register - nft_rules.NFT_REG32_00) * 4
    if not 1 <= register <= 4:
        raise Unknown(f"register {register}")
    return (register - 1) * 16


def number(fields: Fields, kind: int, missing: int = 0) -> int:
    """Return the attribute `kind`, a 32-bit number; `missing` if the attribute does not exist."""
    return int.from_bytes(fields[kind], "big") if kind in fields else missing


# One function for each expression returns whether the packet matches. Attribute numbers: kernel/nft_rules.py ----------

def _meta(walker: _Walker, fields: Fields) -> bool:
    key = number(fields, 2)
    if key == nft_rules.NFT_META_MARK and 3 in fields:          # 3: the register with the new mark
        walker.packet.meta = {**walker.packet.meta, key: walker.load(number(fields, 3), 4)}
        return True
    if 1 not in fields or key not in walker.packet.meta:        # 1: the destination register; without it, `meta` writes
        raise Unknown(f"meta key {key}")
    walker.store(number(fields, 1), walker.packet.meta[key])
    return True


def _ct(walker: _Walker, fields: Fields) -> bool:
    key = number(fields, 2)
    if 1 not in fields or 3 in fields or key not in walker.packet.ct:       # 3: NFTA_CT_DIRECTION
        raise Unknown(f"ct key {key}")
    walker.store(number(fields, 1), walker.packet.ct[key])
    return True


def _payload(walker: _Walker, fields: Fields) -> bool:
    base, at, size = number(fields, 2), number(fields, 3), number(fields, 4)
    if 1 not in fields or base not in walker.packet.headers:
        raise Unknown(f"payload of header {base}")
    value = walker.packet.headers[base][at:at + size]
    if len(value) < size:
        return False
    walker.store(number(fields, 1), value)
    return True


def _cmp(walker: _Walker, fields: Fields) -> bool:
    value, compare = read_data(fields[3]), number(fields, 2)
    if isinstance(value, Verdict) or compare >= len(COMPARISONS):
        raise Unknown(f"comparison {compare}")
    return bool(COMPARISONS[compare](walker.load(number(fields, 1), len(value)), value))


def _range(walker: _Walker, fields: Fields) -> bool:
    first, last, inverted = read_data(fields[3]), read_data(fields[4]), number(fields, 2)
    if isinstance(first, Verdict) or isinstance(last, Verdict):
        raise Unknown("range of verdicts")
    return (first <= walker.load(number(fields, 1), len(first)) <= last) != bool(inverted)


def _bitwise(walker: _Walker, fields: Fields) -> bool:
    if number(fields, 6):               # NFTA_BITWISE_OP: 0 is mask and xor
        raise Unknown("bitwise shift")
    size, bits, xor = number(fields, 3), read_data(fields[4]), read_data(fields[5])
    if isinstance(bits, Verdict) or isinstance(xor, Verdict):
        raise Unknown("bitwise of verdicts")
    value = walker.load(number(fields, 1), size)
    walker.store(number(fields, 2),
                 bytes(one & mask ^ other for one, mask, other in zip(value, bits, xor, strict=True)))
    return True


def _lookup(walker: _Walker, fields: Fields) -> bool:
    name = nft.as_text(fields[1])
    found = walker.table.sets.get(name)
    if found is None:
        raise Unknown(f"set {name}")
    key = walker.load(number(fields, 2), found.key_bytes)
    there, value = look_up(found, key)
    if 3 in fields:                     # a map
        if not there:
            walker.missed.append((name, key))
        elif value is None:
            raise Unknown(f"map {name} without values")
        else:
            walker.store_data(number(fields, 3), value)
        return there
    return there != bool(number(fields, 5) & nft_rules.NFT_LOOKUP_F_INV)


def look_up(nft_set: Set, key: bytes) -> tuple[bool, bytes | Verdict | None]:
    """Return (whether the set has an element for the key, the element's value in a map). Raises Unknown."""
    if any(element.flags & NFT_SET_ELEM_CATCHALL for element in nft_set.elements.values()):
        raise Unknown("catch-all element")
    element = nft_set.elements.get(key)
    if nft_set.flags & NFT_SET_INTERVAL:
        if nft_set.fields:
            element = next((each for first, each in nft_set.elements.items()
                            if in_fields(nft_set.fields, first, key, each.end)),
                           None)
        else:
            at = bisect_right(nft_set.starts, key)
            element = nft_set.elements[nft_set.starts[at - 1]] if at else None
        if element and element.flags & NFT_SET_ELEM_INTERVAL_END:
            element = None
    if element is None:
        return False, None
    if unknown := [name for name in element.expressions if name != "counter"]:
        raise Unknown(f"element with {', '.join(unknown)}")
    return True, element.value


def in_fields(fields: list[int], first: bytes, key: bytes, last: bytes | None) -> bool:
    """Return whether each part of `key`, a concatenation, is between the same parts of `first` and `last`. fields: the
    sizes of the parts, bytes."""
    at = 0
    for size in fields:
        part = slice(at, at + size)
        if not first[part] <= key[part] <= (first if last is None else last)[part]:
            return False
        at += padded(size)
    return True


def _immediate(walker: _Walker, fields: Fields) -> bool:
    walker.store_data(number(fields, 1), read_data(fields[2]))
    return True


def _dynset(walker: _Walker, fields: Fields) -> bool:
    """Match: adding or updating an element has no effect on this packet, unless the element has an expression, such as
    a limit."""
    if fields.keys() & {7, 10}:         # NFTA_DYNSET_EXPR, NFTA_DYNSET_EXPRESSIONS
        raise Unknown("dynset with an expression")
    return True


def _reject(walker: _Walker, fields: Fields) -> bool:
    walker.verdict = Verdict(nft.NF_DROP)
    return True


def _counter(walker: _Walker, fields: Fields) -> bool:
    return True


STEPS: Mapping[str, Callable[[_Walker, Fields], bool]] = {
    "meta": _meta, "ct": _ct, "payload": _payload, "cmp": _cmp, "range": _range, "bitwise": _bitwise,
    "lookup": _lookup, "immediate": _immediate, "dynset": _dynset, "counter": _counter}
