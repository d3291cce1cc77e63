"""Define Attended, the contract of objects that an event loop serves: it waits on a descriptor and until a time, then
calls attend()."""

from __future__ import annotations

from typing import Protocol


class Attended(Protocol):
    """An object with a descriptor and a time to wait for."""

    @property
    def due(self) -> float:
        """Return when to call attend() without an event, in monotonic seconds; infinite: only after an event."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when attend() must be called."""
        ...

    def attend(self) -> None:
        """Do the work that is due without blocking, and set `due`."""
        ...
