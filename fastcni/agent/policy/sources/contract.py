"""The contract of a source of pods, namespaces and policies with the loop in service.py: a directory of files, or the
API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fastcni.daemon.attended import Attended

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Source(Attended, Protocol):
    """A source puts its objects into the Compiler, in attend() alone.

    former: whether the Compiler has the objects that an earlier agent kept, until the source is complete.
    """

    former: bool

    @property
    def complete(self) -> bool:
        """Whether all documents of the source were read once. Until then no table is written but that of `former`."""
        ...

    @property
    def busy(self) -> bool:
        """Whether the source has changes that the Compiler does not have so far."""
        ...

    @property
    def small(self) -> bool:
        """Whether the source is reading a small file: a request waits longer for a small file."""
        ...

    @property
    def away(self) -> str:
        """Why the source cannot be read, or ""."""
        ...

    @property
    def errors(self) -> Mapping[str, Sequence[str]]:
        """The errors of documents that cannot be read, by place."""
        ...

    def close(self) -> None:
        """End the source's threads and processes."""
        ...
