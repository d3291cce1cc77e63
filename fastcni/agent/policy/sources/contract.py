"""Define the methods of a source of pods, namespaces and policies, which the loop in service.py calls. files.py and
kubernetes.py implement them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fastcni.daemon.attended import Attended

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Source(Attended, Protocol):
    """A source of pods, namespaces and policies. Only attend() puts objects into the Compiler.

    former: whether the Compiler began with the objects that an earlier agent had stored.
    """

    former: bool

    @property
    def complete(self) -> bool:
        """Whether the source has read all its documents at least once. Before that, the service writes only a table for
        `former` objects."""
        ...

    @property
    def busy(self) -> bool:
        """Whether the source has changes that are not yet in the Compiler."""
        ...

    @property
    def small(self) -> bool:
        """Whether the source is reading a small file, for which an ADD waits longer than for other changes."""
        ...

    @property
    def away(self) -> str:
        """Why the source cannot be read, or ""."""
        ...

    @property
    def errors(self) -> Mapping[str, Sequence[str]]:
        """The errors in documents, {place: texts}. A place is a file or an object of the API."""
        ...

    def close(self) -> None:
        """End the source's threads and processes."""
        ...
