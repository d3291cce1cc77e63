"""Read the API server's answer to a list request while the answer arrives: one object after the other, in little
memory."""

from __future__ import annotations

from codecs import getincrementaldecoder

from fastcni.spec.json import scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

MAX_OBJECT = 16 << 20           # limit of one object in characters; the API server limits a request to 3 MB
SPACE = " \t\r\n"


class ListError(ValueError):
    """The answer is not a list, or it ends too early."""


def read_list(pieces: Iterator[bytes], tell: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Call tell() for each of `items` as soon as the object has arrived. Return the list's other members: the list's
    metadata may come after the items. Raises ListError."""
    text, found = Text(pieces), {}
    text.expect("{")
    while text.next() != "}":
        key = text.value()
        text.expect(":")
        if key == "items" and text.next() == "[":
            text.expect("[")
            while text.next() != "]":
                tell(text.value())
                text.skip_comma("]")
            text.expect("]")
        else:
            found[key] = text.value()
        text.skip_comma("}")
    return found


class Text:
    """The part of a document that has arrived and was not read yet. pieces: the bytes of the document."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.text, self.at = pieces, "", 0
        self.decode = getincrementaldecoder("utf-8")("replace").decode

    def next(self) -> str:
        """Return the next character that is no space, without reading past it."""
        while True:
            while self.at < len(self.text):
                if (character := self.text[self.at]) not in SPACE:
                    return character
                self.at += 1
            self._read_more()

    def expect(self, character: str) -> None:
        """Read one character. Raises ListError if it is not `character`."""
        if (found := self.next()) != character:
            raise ListError(f"expected {character!r}, got {found!r}")
        self.at += 1

    def skip_comma(self, end: str) -> None:
        """Read a comma, unless the next character is `end`."""
        if self.next() != end:
            self.expect(",")

    def value(self) -> Any:
        """Read one JSON value. More text follows each value of a list, so a value at the end may be incomplete."""
        self.next()
        while True:
            try:
                value, end = scan(self.text, self.at)
            except (StopIteration, ValueError):         # the value is incomplete, or is not JSON
                end = len(self.text)
            except RecursionError:
                raise ListError("exceeded max depth") from None
            if end < len(self.text):
                self.at = end
                return value
            if len(self.text) - self.at > MAX_OBJECT:
                raise ListError(f"an object is no JSON, or has more than {MAX_OBJECT >> 20} MB")
            self._read_more()

    def _read_more(self) -> None:
        piece = next(self.pieces, None)
        if piece is None:
            raise ListError("the answer ends too early")
        self.text, self.at = self.text[self.at:] + self.decode(piece), 0
