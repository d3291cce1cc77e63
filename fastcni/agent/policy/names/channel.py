"""Encode and decode the messages between the agent and the forwarder's process, on a SOCK_SEQPACKET socket.

    agent to forwarder      BEAT; the numbers of answers whose addresses are in the kernel
    forwarder to agent      BEAT in answer to each BEAT; DNS answers: number, pod, name, addresses
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from fastcni.spec import address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BEAT = b"[]"
MAX_BYTES = 1 << 16             # the maximum size of a message, without its last answer


class Answer(NamedTuple):
    """A DNS answer that waits until the agent has written its addresses. number: identifies the answer. pod: the pod's
    packed address. name: the queried name in lower case, without the last dot. addresses: {packed address: TTL in
    seconds}."""

    number: int
    pod: bytes
    name: str
    addresses: dict[bytes, int]


def write_answers(answers: Iterable[tuple[int, str, str, dict[bytes, int]]]) -> Iterator[tuple[list[int], bytes]]:
    """Yield (numbers of the answers in the message, message). answers: the fields of Answer, with the pod's address as
    text."""
    numbers, texts, size = list[int](), list[str](), 0
    for number, pod, name, addresses in answers:
        texts.append(json.dumps((number, pod, name, {each.hex(): ttl for each, ttl in addresses.items()})))
        numbers.append(number)
        size += len(texts[-1])
        if size > MAX_BYTES:
            yield numbers, f"[{','.join(texts)}]".encode()
            numbers, texts, size = [], [], 0
    if numbers:
        yield numbers, f"[{','.join(texts)}]".encode()


def read_answers(data: bytes) -> list[Answer]:
    """Read the DNS answers in a message of the forwarder."""
    return [Answer(number, address.read_ip(pod.partition("%")[0]), name,
                   {bytes.fromhex(each): ttl for each, ttl in addresses.items()})
            for number, pod, name, addresses in json.loads(data)]


def write_numbers(numbers: Iterable[int]) -> bytes:
    return json.dumps(list(numbers)).encode()


def read_numbers(data: bytes) -> list[int]:
    """Read the numbers of answers in a message of the agent."""
    found: list[int] = json.loads(data)
    return found
