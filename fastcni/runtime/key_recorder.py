"""Record which keys of a configuration a plugin reads, and which values have a wrong type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastcni.spec.config import Section, fold


class KeyRecorder(Section):
    """A Section that records which of its keys are read. A value of a wrong type is recorded as a fault, and treated as
    absent.

    document  the object as decoded
    asked     {key in lower case: the reader's spelling} of the keys that were read
    taken     whether a reader took the whole object: each of its keys then counts as read
    journal   {path: KeyRecorder} of the top object and of the objects below it that were read
    faults    [(path, what is wrong)] of the whole configuration
    """

    __slots__ = ("asked", "document", "faults", "journal", "taken")

    def __init__(self, values: dict[str, Any], where: str = "", top: KeyRecorder | None = None) -> None:
        super().__init__(values, where)
        self.asked: dict[str, str] = {}
        self.taken = False
        self.journal: dict[str, KeyRecorder] = top.journal if top else {where: self}
        self.faults: list[tuple[str, str]] = top.faults if top else []

    @property
    def values(self) -> dict[str, Any]:
        self.taken = True
        return self.document

    @values.setter
    def values(self, values: dict[str, Any]) -> None:
        self.document = values

    def raw(self, key: str, default: Any = None) -> Any:
        self.asked[key.lower()] = key
        value = self.document.get(key)
        if value is None:
            value = fold(self.document).get(key.lower())
        return default if value is None else value

    def bad(self, key: str, why: str, instead: Any) -> Any:
        fault = (self.path(key), why)
        if fault not in self.faults:
            self.faults.append(fault)
        return instead

    def below(self, values: dict[str, Any], where: str) -> Section:
        return self.journal.setdefault(where, KeyRecorder(values, where, self))

    def unknown(self) -> Iterator[tuple[KeyRecorder, str]]:
        """Yield (object, key) for each key of the configuration that no reader has read."""
        for section in self.journal.values():
            if not section.taken:
                yield from ((section, key) for key in section.document if key.lower() not in section.asked)
