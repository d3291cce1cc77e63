"""Define Attended, the contract of objects that an event loop serves. The loop waits until the object's descriptor is
readable or its time is due, then calls attend()."""

from __future__ import annotations

from typing import Protocol


class Attended(Protocol):
    """An object that an event loop serves: it has a descriptor, a time, and work to do."""

    @property
    def due(self) -> float:
        """Return the time at which the loop calls attend() even if the descriptor is not readable, in monotonic
        seconds; inf: never."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when attend() must be called."""
        ...

    def attend(self) -> None:
        """Do the work that is due without blocking, and set `due`."""
        ...
