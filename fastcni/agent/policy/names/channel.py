"""Messages between the agent and the forwarder's process, by a socket of SOCK_SEQPACKET.

    agent to forwarder      BEAT; the numbers of answers whose addresses are in the kernel
    forwarder to agent      BEAT, for each BEAT that came; answers: number, pod, name, addresses
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from fastcni.spec import address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BEAT = b"[]"
MAX_BYTES = 1 << 16             # of a message, but for its last answer


class Told(NamedTuple):
    """An answer that waits for the agent. pod: its packed address. name: in lower case, without the last dot.
    addresses: {packed
    address: TTL in seconds}."""

    number: int
    pod: bytes
    name: str
    addresses: dict[bytes, int]


def write_answers(answers: Iterable[tuple[int, str, str, dict[bytes, int]]]) -> Iterator[tuple[list[int], bytes]]:
    """Yield (numbers of answers, message). answers: as Told, with the pod's address as text."""
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


def read_answers(data: bytes) -> list[Told]:
    """Read a message of the forwarder."""
    return [Told(number, address.read_ip(pod.partition("%")[0]), name,
                 {bytes.fromhex(each): ttl for each, ttl in addresses.items()})
            for number, pod, name, addresses in json.loads(data)]


def write_numbers(numbers: Iterable[int]) -> bytes:
    return json.dumps(list(numbers)).encode()


def read_numbers(data: bytes) -> list[int]:
    """Read a message of the agent."""
    found: list[int] = json.loads(data)
    return found
