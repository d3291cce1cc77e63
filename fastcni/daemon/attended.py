"""What an event loop serves: it waits on a descriptor and until a time, then calls attend()."""

from __future__ import annotations

from typing import Protocol


class Attended(Protocol):
    """Something with a descriptor to wait on, and a time."""

    @property
    def due(self) -> float:
        """When to call attend() without an event, in monotonic seconds; infinite: only after an event."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when attend() has to be called."""
        ...

    def attend(self) -> None:
        """Do what is to be done now, without waiting, and set `due`."""
        ...
