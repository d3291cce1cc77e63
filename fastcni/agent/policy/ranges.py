"""Merge addresses and ports into sorted ranges with gaps between them, as nftables requires for interval sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.spec import address as addresses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.agent.policy.objects import Block
    from fastcni.agent.policy.state import Range

    Numbers = tuple[int, int]                   # (first, last)


def of_blocks(blocks: Iterable[Block], length: int) -> tuple[Range, ...]:
    """Return the address ranges of the blocks, without the networks that each block excepts. length: 4 for IPv4
    ranges, 16 for IPv6 ranges."""
    found: list[Numbers] = []
    for block in blocks:
        if len(block.network[0]) == length:
            found += less(of_network(block.network), merged(map(of_network, block.excepted)))
    return packed(merged(found), length)


def packed(ranges: Iterable[Numbers], length: int) -> tuple[Range, ...]:
    return tuple((first.to_bytes(length, "big"), last.to_bytes(length, "big")) for first, last in ranges)


def of_network(network: tuple[bytes, int]) -> Numbers:
    return int.from_bytes(network[0], "big"), int.from_bytes(addresses.broadcast(*network), "big")


def merged(ranges: Iterable[Numbers]) -> list[Numbers]:
    found: list[Numbers] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def less(whole: Numbers, holes: Iterable[Numbers]) -> list[Numbers]:
    """Return the ranges that remain of `whole` without `holes`. The holes are merged() ranges within `whole`."""
    found, at = [], whole[0]
    for first, last in holes:
        if first > at:
            found.append((at, first - 1))
        at = last + 1
    return [*found, (at, whole[1])] if at <= whole[1] else found
