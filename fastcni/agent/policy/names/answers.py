"""Addresses in DNS answers. dnspython reads the messages; only the forwarder's process imports this module."""

from __future__ import annotations

from typing import NamedTuple

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype

from fastcni.spec import address

MAX_ADDRESSES = 100             # how many addresses of an answer are used, from the first on
TYPES = (dns.rdatatype.A, dns.rdatatype.AAAA)
UNREADABLE = (dns.exception.DNSException, ValueError, IndexError, AttributeError, RecursionError)


class Question(NamedTuple):
    """name: in lower case, without the last dot. kind: A or AAAA."""

    name: str
    kind: int


def read_question(query: bytes) -> Question | None:
    """The question of a query for addresses; None of any other message."""
    try:
        message = dns.message.from_wire(query, question_only=True)
    except UNREADABLE:
        return None
    return None if message.flags & dns.flags.QR else question_of(message)


def question_of(message: dns.message.Message) -> Question | None:
    if message.opcode() != dns.opcode.QUERY or len(message.question) != 1:
        return None
    asked = message.question[0]
    if asked.rdclass != dns.rdataclass.IN or asked.rdtype not in TYPES:
        return None
    name = asked.name.to_text(omit_final_dot=True).lower()
    return None if "\\" in name else Question(name, int(asked.rdtype))         # a dot within a label, for instance


def read_addresses(question: Question, answer: bytes) -> dict[bytes, int]:
    """{packed address: TTL in seconds} that an answer gives to a question, along its chain of CNAMEs.

    Records of other names, of other sections and in answers to other questions give nothing, and neither do addresses
    that no name of a remote host has: loopback, link-local, multicast.
    """
    try:
        message = dns.message.from_wire(answer, ignore_trailing=True)
        if (not isinstance(message, dns.message.QueryMessage) or not message.flags & dns.flags.QR
                or message.rcode() != dns.rcode.NOERROR or question_of(message) != question):
            return {}
        chain = message.resolve_chaining()
        if chain.answer is None:
            return {}
        packed = [address.read_ip(record.address) for record in chain.answer]
    except UNREADABLE:
        return {}
    length = 4 if question.kind == dns.rdatatype.A else 16
    return dict.fromkeys([each for each in packed[:MAX_ADDRESSES] if len(each) == length and is_of_a_host(each)],
                         chain.minimum_ttl)


def is_of_a_host(packed: bytes) -> bool:
    """Whether an address may be one of a remote host."""
    if len(packed) == 4:
        return packed[0] not in (0, 127) and packed[0] < 224 and packed[:2] != b"\xa9\xfe"
    return packed[0] != 0xFF and not packed.startswith(bytes(10)) and not (
        packed[0] == 0xFE and packed[1] & 0xC0 == 0x80)
