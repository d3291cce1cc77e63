"""Read the addresses in DNS answers, by dnspython. Only the forwarder's process imports this module."""

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

MAX_ADDRESSES = 100             # addresses that are read from one answer; further addresses are ignored
TYPES = (dns.rdatatype.A, dns.rdatatype.AAAA)
UNREADABLE = (dns.exception.DNSException, ValueError, IndexError, AttributeError, RecursionError)


class Question(NamedTuple):
    """The question of a DNS query. name: in lower case, without the last dot. kind: the number of type A or AAAA."""

    name: str
    kind: int


def read_question(query: bytes) -> Question | None:
    """Return the question of a query for addresses; None for any other message."""
    try:
        message = dns.message.from_wire(query, question_only=True)
    except UNREADABLE:
        return None
    return None if message.flags & dns.flags.QR else question_of(message)


def question_of(message: dns.message.Message) -> Question | None:
    """Return the question of a query or answer; None: the message does not ask for the addresses of one name."""
    if message.opcode() != dns.opcode.QUERY or len(message.question) != 1:
        return None
    asked = message.question[0]
    if asked.rdclass != dns.rdataclass.IN or asked.rdtype not in TYPES:
        return None
    name = asked.name.to_text(omit_final_dot=True).lower()
    return None if "\\" in name else Question(name, int(asked.rdtype))   # a backslash escapes a dot in a label


def read_addresses(question: Question, answer: bytes) -> dict[bytes, int]:
    """Return the addresses that an answer gives to a question, along its chain of CNAMEs: {packed address: TTL in
    seconds}.

    The function ignores records of other names and other sections, and answers to other questions. It also ignores
    loopback, link-local and multicast addresses, because no remote host has such an address.
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
    """Return whether a remote host may have the address: it is not loopback, link-local, multicast or unspecified."""
    if len(packed) == 4:
        return packed[0] not in (0, 127) and packed[0] < 224 and packed[:2] != b"\xa9\xfe"
    return packed[0] != 0xFF and not packed.startswith(bytes(10)) and not (
        packed[0] == 0xFE and packed[1] & 0xC0 == 0x80)
