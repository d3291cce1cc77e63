"""Encode and read messages about nftables rules, and the expressions of rules.

    nft_rules.add_rule(b, NFPROTO_INET, "fastcni", "chain", *nft_rules.daddr_in(b"\\x7f\\0\\0\\0", 8), nft_rules.drop())

An expression is (name, function that writes its NFTA_EXPR_DATA). Names and layouts:
include/uapi/linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

from fastcni._netlink import attribute_list, attributes
from fastcni.kernel import nft
from fastcni.kernel.uapi import NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, RTN_LOCAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni._netlink import Batch

    Expression = tuple[str, Callable[[Batch], Batch]]
    Field = tuple[int, int, int]

NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_HANDLE, NFTA_RULE_EXPRESSIONS, NFTA_RULE_USERDATA = 1, 2, 3, 4, 7
NFTA_EXPR_NAME, NFTA_EXPR_DATA, NFTA_IMMEDIATE_DATA = 1, 2, 2
NFTA_MATCH_NAME, NFTA_MATCH_INFO = 1, 3         # linux/netfilter/nf_tables_compat.h

NFT_REG_VERDICT, NFT_REG_1, NFT_REG_2 = 0, 1, 2
NFT_REG32_00 = 8                # the first of sixteen registers of 4 bytes, which overlap NFT_REG_1 to NFT_REG_4
NFT_META_PROTOCOL, NFT_META_IIF, NFT_META_OIF, NFT_META_IIFNAME, NFT_META_OIFNAME = 1, 4, 5, 6, 7
NFT_META_MARK, NFT_META_NFTRACE, NFT_META_NFPROTO, NFT_META_L4PROTO = 3, 12, 15, 16
NFT_META_PKTTYPE, NFT_META_IIFKIND = 19, 26
NFT_PAYLOAD_LL_HEADER, NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER = 0, 1, 2
NFT_LOOKUP_F_INV = 1
NFT_CMP_EQ, NFT_CMP_NEQ = 0, 1
NFT_CT_STATE, NFT_CT_STATUS, NFT_CT_MARK = 0, 2, 3
NFT_CT_SRC_IPS = {4: 19, 16: 21}        # NFT_CT_SRC_IP, _IP6, by length
IP_CT_DIR_ORIGINAL, IP_CT_DIR_REPLY = 0, 1
NF_CT_STATE_ESTABLISHED, NF_CT_STATE_RELATED = 1 << 1, 1 << 2      # linux/netfilter/nf_conntrack_common.h
NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_SADDR, NFTA_FIB_F_DADDR = 3, 1 << 0, 1 << 1
NFT_DYNSET_OP_UPDATE, NFT_NAT_DNAT = 1, 1
NF_NAT_RANGE_PROTO_RANDOM_FULLY = 1 << 4      # linux/netfilter/nf_nat.h
IPPROTO_ICMPV6 = 58
ICMPV6_MGM_QUERY, ICMPV6_MGM_REPORT, ICMPV6_MGM_REDUCTION, ICMPV6_MLD2_REPORT = 130, 131, 132, 143  # linux/icmpv6.h
NDISC_ROUTER_SOLICITATION, NDISC_ROUTER_ADVERTISEMENT, NDISC_NEIGHBOUR_SOLICITATION = 133, 134, 135      # net/ndisc.h
NDISC_NEIGHBOUR_ADVERTISEMENT, NDISC_REDIRECT = 136, 137

# Fields of a packet, with nft's names: (header, offset, size in bytes).
ETHER_DADDR, ETHER_SADDR = (NFT_PAYLOAD_LL_HEADER, 0, 6), (NFT_PAYLOAD_LL_HEADER, 6, 6)
ETHER_SADDR_AND_TYPE, ETHER_TYPE = (NFT_PAYLOAD_LL_HEADER, 6, 8), (NFT_PAYLOAD_LL_HEADER, 12, 2)
IP_SADDR, IP_DADDR = (NFT_PAYLOAD_NETWORK_HEADER, 12, 4), (NFT_PAYLOAD_NETWORK_HEADER, 16, 4)
IP6_SADDR, IP6_DADDR = (NFT_PAYLOAD_NETWORK_HEADER, 8, 16), (NFT_PAYLOAD_NETWORK_HEADER, 24, 16)
IP6_LENGTH_AND_NEXT, IP6_HOP_LIMIT = (NFT_PAYLOAD_NETWORK_HEADER, 4, 3), (NFT_PAYLOAD_NETWORK_HEADER, 7, 1)
ARP_SADDR_ETHER, ARP_SADDR_IP = (NFT_PAYLOAD_NETWORK_HEADER, 8, 6), (NFT_PAYLOAD_NETWORK_HEADER, 14, 4)
TH_SPORT, TH_DPORT = (NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2), (NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)
TCP_FLAGS = NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1
ICMPV6_TYPE, ND_TARGET = (NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1), (NFT_PAYLOAD_TRANSPORT_HEADER, 8, 16)

NFPROTOS = {4: nft.NFPROTO_IPV4, 16: nft.NFPROTO_IPV6}         # by length of an address
SADDRS, DADDRS = {4: IP_SADDR, 16: IP6_SADDR}, {4: IP_DADDR, 16: IP6_DADDR}


# Messages -----------------------------------------------------------------------------------------

def add_rule(batch: Batch, family: int, table: str, chain: str, *expressions: Expression, comment: str = "",
             first: bool = False) -> Batch:
    """Add a rule at the end of a chain, or with `first` at the beginning."""
    batch.begin(nft.NFT_MSG_NEWRULE, NLM_F_ACK | NLM_F_CREATE | (0 if first else NLM_F_APPEND), nft.nfgenmsg(family),
                f"add nftables rule to {table} {chain}")
    batch.text(NFTA_RULE_TABLE, table).text(NFTA_RULE_CHAIN, chain).nest(NFTA_RULE_EXPRESSIONS)
    for name, write in expressions:
        batch.nest(nft.NFTA_LIST_ELEM).text(NFTA_EXPR_NAME, name).nest(NFTA_EXPR_DATA)
        write(batch)
        batch.end().end()
    batch.end()
    return batch.raw(NFTA_RULE_USERDATA, nft.comment_data(comment)) if comment else batch


def flush_chain(batch: Batch, family: int, table: str, chain: str) -> Batch:
    """Delete every rule of a chain."""
    batch.begin(nft.NFT_MSG_DELRULE, NLM_F_ACK, nft.nfgenmsg(family), f"flush nftables chain {table} {chain}")
    return batch.text(NFTA_RULE_TABLE, table).text(NFTA_RULE_CHAIN, chain)


def del_rule(batch: Batch, family: int, table: str, chain: str, handle: int) -> Batch:
    """Delete one rule."""
    flush_chain(batch, family, table, chain)
    return batch.be64(NFTA_RULE_HANDLE, handle)


def rules_of(table: str, chain: str = "") -> Callable[[Batch], Batch]:
    """Return the argument `fill` with which wire.dump() lists the rules of a chain, or of all chains of a table."""
    def fill(batch: Batch) -> Batch:
        batch.text(NFTA_RULE_TABLE, table)
        return batch.text(NFTA_RULE_CHAIN, chain) if chain else batch

    return fill


def read_rule(payload: bytes) -> tuple[int, str]:
    """Read an NFT_MSG_NEWRULE payload: (handle, comment). Raises ValueError for a truncated message."""
    found = attributes(payload, 4)
    if NFTA_RULE_HANDLE not in found:
        raise ValueError("nftables rule without a handle")
    return int.from_bytes(found[NFTA_RULE_HANDLE], "big"), nft.read_comment(found.get(NFTA_RULE_USERDATA, b""))


def read_content(payload: bytes) -> tuple[str, bytes]:
    """Read an NFT_MSG_NEWRULE payload: (the rule's chain, its expressions as the kernel encodes them)."""
    found = attributes(payload, 4)
    return nft.as_text(found.get(NFTA_RULE_CHAIN, b"")), found.get(NFTA_RULE_EXPRESSIONS, b"")


def read_jump(payload: bytes) -> tuple[bytes, str, str]:
    """Read an NFT_MSG_NEWRULE or NFT_MSG_DELRULE payload: (handle, the rule's chain, the chain that the rule jumps to
    or "")."""
    found = attributes(payload, 4)
    verdicts = [fields.get(NFTA_IMMEDIATE_DATA, b"") for fields in _expressions(payload, b"immediate\0")]
    target = nft.chain_of_verdict(verdicts[-1]) if verdicts else ""
    return found.get(NFTA_RULE_HANDLE, b""), nft.as_text(found.get(NFTA_RULE_CHAIN, b"")), target


def refuses(payload: bytes) -> bool:
    """Return whether a rule (an NFT_MSG_NEWRULE payload) drops or rejects packets, by nft or by iptables' REJECT."""
    return b"reject\0" in payload or b"REJECT\0" in payload or any(
        nft.is_drop(fields.get(NFTA_IMMEDIATE_DATA, b"")) for fields in _expressions(payload, b"immediate\0"))


# The following functions first search a rule for bytes, which is fast, and decode only the few rules that have them.

def leads_to(payload: bytes, chain: str) -> bool:
    """Return whether a rule (an NFT_MSG_NEWRULE payload) jumps to the chain."""
    return chain.encode() + b"\0" in payload and read_jump(payload)[2] == chain


def mentions(payload: bytes, packed: bytes) -> bool:
    """Return whether a rule contains the bytes `packed`, and thus may compare with that address."""
    return packed in payload


def read_match(payload: bytes, name: str) -> bytes:
    """Return the data of an iptables match in a rule, in the layout of that match; b"" if the rule has no such
    match."""
    wanted = name.encode() + b"\0"
    if wanted not in payload:
        return b""
    return next((fields.get(NFTA_MATCH_INFO, b"") for fields in _expressions(payload, b"match\0")
                 if fields.get(NFTA_MATCH_NAME) == wanted), b"")


def _expressions(payload: bytes, name: bytes) -> list[dict[int, bytes]]:
    """Return the attributes of each expression with that name in a message about a rule."""
    each = [attributes(it) for _, it in attribute_list(attributes(payload, 4).get(NFTA_RULE_EXPRESSIONS, b""))]
    return [attributes(it.get(NFTA_EXPR_DATA, b"")) for it in each if it.get(NFTA_EXPR_NAME) == name]


# Expressions, each with its attribute numbers in the order of nf_tables.h -------------------------

def meta(key: int, register: int = NFT_REG_1) -> Expression:
    """Load a property of the packet, NFT_META_*, into a register. NFTA_META_DREG 1, NFTA_META_KEY 2"""
    return "meta", lambda b: b.be32(1, register).be32(2, key)


def compare(value: bytes, op: int = NFT_CMP_EQ) -> Expression:
    """Continue if register 1 compares with `value` as `op` (NFT_CMP_*) says. NFTA_CMP_SREG 1, _OP 2, _DATA 3"""
    return "cmp", lambda b: b.be32(1, NFT_REG_1).be32(2, op).nest(3).raw(nft.NFTA_DATA_VALUE, value).end()


def payload(field: Field, register: int = NFT_REG_1) -> Expression:
    """Load a field of the packet into a register. NFTA_PAYLOAD_DREG 1, _BASE 2, _OFFSET 3, _LEN 4"""
    base, offset, size = field
    return "payload", lambda b: b.be32(1, register).be32(2, base).be32(3, offset).be32(4, size)


def set_payload(field: Field) -> Expression:
    """Write register 1 into a field that no checksum covers. NFTA_PAYLOAD_SREG 5, _BASE 2, _OFFSET 3, _LEN 4"""
    base, offset, size = field
    return "payload", lambda b: b.be32(5, NFT_REG_1).be32(2, base).be32(3, offset).be32(4, size)


def mask(bits: bytes) -> Expression:
    """Set register 1 to register 1 AND `bits`. NFTA_BITWISE_SREG 1, _DREG 2, _LEN 3, _MASK 4, _XOR 5"""
    return "bitwise", lambda b: (b.be32(1, NFT_REG_1).be32(2, NFT_REG_1).be32(3, len(bits))
                                 .nest(4).raw(nft.NFTA_DATA_VALUE, bits).end()
                                 .nest(5).raw(nft.NFTA_DATA_VALUE, bytes(len(bits))).end())


def between(first: bytes, last: bytes) -> Expression:
    """Continue if register 1 is in a range. NFTA_RANGE_SREG 1, _OP 2 (NFT_RANGE_EQ 0), _FROM_DATA 3, _TO_DATA 4"""
    return "range", lambda b: (b.be32(1, NFT_REG_1).be32(2, 0).nest(3).raw(nft.NFTA_DATA_VALUE, first).end()
                               .nest(4).raw(nft.NFTA_DATA_VALUE, last).end())


def verdict_of(map_name: str, set_id: int) -> Expression:
    """Do the verdict that a verdict map has for register 1. NFTA_LOOKUP_SET 1, _SREG 2, _DREG 3, _SET_ID 4"""
    return "lookup", lambda b: b.text(1, map_name).be32(2, NFT_REG_1).be32(3, NFT_REG_VERDICT).be32(4, set_id)


def in_set(set_name: str, set_id: int, inverted: bool = False) -> Expression:
    """Continue if register 1 is in a set; with `inverted`, if it is not. NFTA_LOOKUP_SET 1, _SREG 2, _SET_ID 4, _FLAGS
    5"""
    return "lookup", lambda b: (b.text(1, set_name).be32(2, NFT_REG_1).be32(4, set_id)
                                .be32(5, NFT_LOOKUP_F_INV if inverted else 0))


def update(set_name: str, set_id: int) -> Expression:
    """Add register 1 to a set with a timeout. If the set has that element, restart the element's timeout.

    NFTA_DYNSET_SET_NAME 1, _SET_ID 2, _OP 3 (NFT_DYNSET_OP_UPDATE 1), _SREG_KEY 4
    """
    return "dynset", lambda b: b.text(1, set_name).be32(2, set_id).be32(3, 1).be32(4, NFT_REG_1)


def value_of(map_name: str, set_id: int) -> Expression:
    """Load the value that a map has for register 1 into register 1 and the following registers."""
    return "lookup", lambda b: b.text(1, map_name).be32(2, NFT_REG_1).be32(3, NFT_REG_1).be32(4, set_id)


def verdict(code: int, chain: str | None = None) -> Expression:
    """Return the expression that ends with the verdict `code`. chain: the target of a jump or goto; None for
    other verdicts.
    NFTA_IMMEDIATE_DREG 1, _DATA 2"""
    def write(b: Batch) -> Batch:
        b.be32(1, NFT_REG_VERDICT).nest(2).nest(nft.NFTA_DATA_VERDICT).be32(nft.NFTA_VERDICT_CODE, code)
        return (b.text(nft.NFTA_VERDICT_CHAIN, chain) if chain else b).end().end()
    return "immediate", write


def accept() -> Expression:
    return verdict(nft.NF_ACCEPT)


def drop() -> Expression:
    return verdict(nft.NF_DROP)


def leave() -> Expression:
    """Do `return`: continue in the calling chain."""
    return verdict(nft.NFT_RETURN)


def jump(chain: str) -> Expression:
    return verdict(nft.NFT_JUMP, chain)


def go_to(chain: str) -> Expression:
    """Do `goto <chain>`."""
    return verdict(nft.NFT_GOTO, chain)


def ct(key: int) -> Expression:
    """Load conntrack's property NFT_CT_* of the packet's connection into register 1. NFTA_CT_DREG 1, _KEY 2"""
    return "ct", lambda b: b.be32(1, NFT_REG_1).be32(2, key)


def ct_saddr(length: int, direction: int, register: int) -> Expression:
    """Load `ct original ip saddr` into a register; with IP_CT_DIR_REPLY `ct reply ip saddr`. Length 16: `ip6`.
    NFTA_CT_DREG 1, _KEY 2, _DIRECTION 3"""
    return "ct", lambda b: b.be32(1, register).be32(2, NFT_CT_SRC_IPS[length]).u8(3, direction)


def update_limit(set_name: str, set_id: int, rate: int, burst: int) -> Expression:
    """update @<set_name> { <register 1> limit rate <rate>/second burst <burst> packets }: continue within the limit.

    NFTA_DYNSET_SET_NAME 1, _SET_ID 2, _OP 3, _SREG_KEY 4, _EXPR 7; NFTA_LIMIT_RATE 1, _UNIT 2, _BURST 3
    """
    def write(b: Batch) -> Batch:
        b.text(1, set_name).be32(2, set_id).be32(3, NFT_DYNSET_OP_UPDATE).be32(4, NFT_REG_1)
        b.nest(7).text(NFTA_EXPR_NAME, "limit").nest(NFTA_EXPR_DATA)
        return b.be64(1, rate).be64(2, 1).be32(3, burst).end().end()
    return "dynset", write


def limit(rate: int, burst: int) -> Expression:
    """Match `limit rate <rate>/second burst <burst> packets`. NFTA_LIMIT_RATE 1, _UNIT 2 (seconds), _BURST 3"""
    return "limit", lambda b: b.be64(1, rate).be64(2, 1).be32(3, burst)


def set_nftrace(on: bool) -> tuple[Expression, ...]:
    """Do `meta nftrace set 1`, or `0` if not `on`. NFTA_IMMEDIATE_DREG 1, _DATA 2; NFTA_META_KEY 2, _SREG 3"""
    return (("immediate", lambda b: b.be32(1, NFT_REG_1).nest(2).raw(nft.NFTA_DATA_VALUE, b"%c" % on).end()),
            ("meta", lambda b: b.be32(2, NFT_META_NFTRACE).be32(3, NFT_REG_1)))


def fib_type(flags: int) -> Expression:
    """Load the type of route (RTN_*) of an address, which `flags` selects, into register 1. NFTA_FIB_DREG 1, _RESULT 2,
    _FLAGS 3"""
    return "fib", lambda b: b.be32(1, NFT_REG_1).be32(2, NFT_FIB_RESULT_ADDRTYPE).be32(3, flags)


def dnat(length: int) -> Expression:
    """Translate the destination to the address in register 1, of `length` bytes, and the port in the next 4-byte
    register.

    NFTA_NAT_TYPE 1, _FAMILY 2, _REG_ADDR_MIN 3, _ADDR_MAX 4, _PROTO_MIN 5, _PROTO_MAX 6
    """
    port = NFT_REG32_00 + length // 4
    return "nat", lambda b: (b.be32(1, NFT_NAT_DNAT).be32(2, NFPROTOS[length]).be32(3, NFT_REG_1).be32(4, NFT_REG_1)
                             .be32(5, port).be32(6, port))


def redirect(register: int = NFT_REG_1) -> Expression:
    """Translate the destination to this node and the port in a register. NFTA_REDIR_REG_PROTO_MIN 1, _MAX 2"""
    return "redir", lambda b: b.be32(1, register).be32(2, register)


def masquerade(flags: int = 0) -> Expression:
    """Masquerade the connection. flags: NF_NAT_RANGE_*. NFTA_MASQ_FLAGS 1"""
    return "masq", lambda b: b.be32(1, flags) if flags else b


def dup_to_iif() -> tuple[Expression, ...]:
    """Send a copy of the packet over the link that has received it: `dup to iif`. NFTA_DUP_SREG_DEV 2"""
    return meta(NFT_META_IIF), ("dup", lambda b: b.be32(2, NFT_REG_1))


# Conditions of several expressions, each with the text that nft prints for it --------------------

def saddr(length: int) -> tuple[Expression, ...]:
    """Load `ip saddr` (ip6 for length 16) into register 1. For packets of another family the rule ends."""
    return _of_family(length, SADDRS[length])


def daddr(length: int) -> tuple[Expression, ...]:
    """Load `ip daddr` (ip6 for length 16) into register 1. For packets of another family the rule ends."""
    return _of_family(length, DADDRS[length])


def saddr_in(network: bytes, prefix: int, *, inverted: bool = False) -> tuple[Expression, ...]:
    """Match `ip saddr <network>/<prefix>`; with `inverted`, `ip saddr != <network>/<prefix>`."""
    return *saddr(len(network)), *_within(network, prefix, inverted)


def daddr_in(network: bytes, prefix: int, *, inverted: bool = False) -> tuple[Expression, ...]:
    """Match `ip daddr <network>/<prefix>`; with `inverted`, `ip daddr != <network>/<prefix>`."""
    return *daddr(len(network)), *_within(network, prefix, inverted)


def _of_family(length: int, field: Field) -> tuple[Expression, ...]:
    return meta(NFT_META_NFPROTO), compare(bytes((NFPROTOS[length],))), payload(field)


def _within(network: bytes, prefix: int, inverted: bool) -> tuple[Expression, ...]:
    length = len(network)
    bits = ((1 << prefix) - 1 << 8 * length - prefix).to_bytes(length, "big")
    return *([mask(bits)] if prefix < 8 * length else []), compare(network, NFT_CMP_NEQ if inverted else NFT_CMP_EQ)


def protocol_and_port(behind: int = 0) -> tuple[Expression, ...]:
    """Load `meta l4proto . th dport` into the registers after the first `behind` bytes of a key."""
    word = NFT_REG32_00 + behind // 4
    return meta(NFT_META_L4PROTO, word), payload(TH_DPORT, word + 1)


def iifname_and(field: Field) -> tuple[Expression, ...]:
    """Load `iifname . <field>` into registers 1 and 2."""
    return meta(NFT_META_IIFNAME), payload(field, NFT_REG_2)


def oifname_and(field: Field) -> tuple[Expression, ...]:
    """Load `oifname . <field>` into registers 1 and 2."""
    return meta(NFT_META_OIFNAME), payload(field, NFT_REG_2)


def iifname_and_oifname() -> tuple[Expression, ...]:
    """Load `iifname . oifname` into registers 1 and 2."""
    return meta(NFT_META_IIFNAME), meta(NFT_META_OIFNAME, NFT_REG_2)


def iif_is_not(ifindex: int) -> tuple[Expression, ...]:
    """Match `iif != <ifindex>`."""
    return meta(NFT_META_IIF), compare(ifindex.to_bytes(4, nft.ORDER), NFT_CMP_NEQ)


def ether_type(number: int, op: int = NFT_CMP_EQ) -> tuple[Expression, ...]:
    """Match `meta protocol <number>`, in a frame with a VLAN tag the ethertype after the tag. op: NFT_CMP_*."""
    return meta(NFT_META_PROTOCOL), compare(number.to_bytes(2, "big"), op)


def icmpv6_type(number: int) -> tuple[Expression, ...]:
    """Match `icmpv6 type <number>`. An earlier expression must select IPv6."""
    return (meta(NFT_META_L4PROTO), compare(bytes((IPPROTO_ICMPV6,))), payload(ICMPV6_TYPE), compare(bytes((number,))))


def to_local_address() -> tuple[Expression, ...]:
    """Match `fib daddr type local`."""
    return fib_type(NFTA_FIB_F_DADDR), compare(RTN_LOCAL.to_bytes(4, nft.ORDER))


def from_local_address() -> tuple[Expression, ...]:
    """Match `fib saddr type local`."""
    return fib_type(NFTA_FIB_F_SADDR), compare(RTN_LOCAL.to_bytes(4, nft.ORDER))


def any_ct_mark(bits: int) -> tuple[Expression, ...]:
    """Match `ct mark and <bits> != 0`."""
    return ct(NFT_CT_MARK), *_any_bit(bits)


def any_mark(bits: int) -> tuple[Expression, ...]:
    """Match `meta mark and <bits> != 0`."""
    return meta(NFT_META_MARK), *_any_bit(bits)


def destination_translated() -> tuple[Expression, ...]:
    """Match `ct status dnat`."""
    return ct(NFT_CT_STATUS), *_any_bit(nft.IPS_DST_NAT)


def established() -> tuple[Expression, ...]:
    """Match `ct state established`."""
    return ct(NFT_CT_STATE), *_any_bit(NF_CT_STATE_ESTABLISHED)


def related() -> tuple[Expression, ...]:
    """Match `ct state related`."""
    return ct(NFT_CT_STATE), *_any_bit(NF_CT_STATE_RELATED)


def established_or_related() -> tuple[Expression, ...]:
    """Match `ct state established,related`."""
    return ct(NFT_CT_STATE), *_any_bit(NF_CT_STATE_ESTABLISHED | NF_CT_STATE_RELATED)


def destination_not_translated() -> tuple[Expression, ...]:
    """Match `ct status & dnat == 0`."""
    return ct(NFT_CT_STATUS), mask(nft.IPS_DST_NAT.to_bytes(4, nft.ORDER)), compare(bytes(4))


def _any_bit(bits: int) -> tuple[Expression, ...]:
    return mask(bits.to_bytes(4, nft.ORDER)), compare(bytes(4), NFT_CMP_NEQ)
