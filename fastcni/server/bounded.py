"""Limit the size of dicts that several threads fill."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def forget_oldest(known: dict[Any, Any], most: int, room: int = 0) -> None:
    """Remove the oldest entries of a dict that has more than `most` entries. room: how many further entries to remove,
    so that the calls for the next new entries remove nothing.

    An iterator over the dict would raise RuntimeError if another thread adds an entry. list() copies the keys in one
    step, without releasing the GIL.
    """
    if len(known) > most:
        for key in list(known)[:len(known) - most + room]:
            known.pop(key, None)
