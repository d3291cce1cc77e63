"""Dicts of a limited size that any number of threads fill."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def forget_oldest(known: dict[Any, Any], most: int, room: int = 0) -> None:
    """Remove the oldest entries of a dict with more than `most`. room: how many more to remove, so that a large dict is
    not copied for each new entry.

    An iterator over the dict raises RuntimeError if another thread adds an entry meanwhile. list() takes the keys in
    one step: the GIL is not released in it.
    """
    if len(known) > most:
        for key in list(known)[:len(known) - most + room]:
            known.pop(key, None)
