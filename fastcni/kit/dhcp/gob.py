"""Encode and decode Go's gob format, as far as the protocol of the dhcp daemon needs it.

A stream is a sequence of messages, each preceded by its length. A message is either a type definition or a value. A
type definition begins with the negated number of the type, a value with the number of its type. A struct consists of
its nonzero fields and a final 0. Before each field stands the difference between the field's number and the number of
the preceding field (https://pkg.go.dev/encoding/gob):

    39                  57 bytes follow
    7f                  -64: the definition of type 64
    03 01 01 08 ...     wireType.StructT.CommonType.Name = "Response"
    11                  17 bytes follow
    ff80                64: a value of type 64
    01 0c "DHCP.Release" 00
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A type is the number of one of gob's own types, ("list", element) or ("struct", ((name, type), ...))
INT, UINT, BYTES, STRING = 2, 3, 5, 6
BOOL, FLOAT, COMPLEX = 1, 4, 7
FIRST_ID = 65                   # number of the encoder's first type; gob allows numbers from 64
MAX_MESSAGE_BYTES = 40 << 20    # a GC's configuration may have up to 32 MiB
MAX_DEPTH = 16
MAX_TYPES = 64

# The type of type definitions: wireType in gob's type.go, without the kinds of types that the daemon's messages lack
_COMMON = ("struct", (("Name", STRING), ("Id", INT)))
_SLICE = ("struct", (("CommonType", _COMMON), ("Elem", INT)))
_FIELDS = ("list", ("struct", (("Name", STRING), ("Id", INT))))
_STRUCT = ("struct", (("CommonType", _COMMON), ("Field", _FIELDS)))
WIRE_TYPE = ("struct", (("ArrayT", _SLICE), ("SliceT", _SLICE), ("StructT", _STRUCT)))


class GobError(ValueError):
    """The error for bytes that are not valid gob, or have a type that this module does not support."""


def uint(number: int) -> bytes:
    """Encode an unsigned number: up to 127 as one byte, otherwise as the negated count of bytes and these bytes."""
    if number < 128:
        return bytes((number,))
    size = (number.bit_length() + 7) // 8
    return bytes((256 - size,)) + number.to_bytes(size, "big")


def signed(number: int) -> bytes:
    """Encode a signed number: the lowest bit is the sign."""
    return uint(number << 1 if number >= 0 else ~number << 1 | 1)


def sized(data: bytes) -> bytes:
    return uint(len(data)) + data


class Encoder:
    """The encoder of a stream. Before the first value of a type it writes the type's definition."""

    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids: dict[Any, int] = {}

    def value(self, kind: Any, value: dict[str, Any]) -> bytes:
        """Return the messages for a struct of the type `kind`. value: the fields as a dict; absent fields are zero."""
        definitions: list[bytes] = []
        number = self._define(kind, definitions)
        return b"".join(definitions) + sized(signed(number) + encoded(kind, value))

    def _define(self, kind: Any, definitions: list[bytes]) -> int:
        if isinstance(kind, int):
            return kind
        if kind in self.ids:
            return self.ids[kind]
        number = self.ids[kind] = FIRST_ID + len(self.ids)
        common = {"Id": number}
        if kind[0] == "list":
            wire = {"SliceT": {"CommonType": common, "Elem": self._define(kind[1], definitions)}}
        else:
            fields = [{"Name": name, "Id": self._define(of, definitions)} for name, of in kind[1]]
            wire = {"StructT": {"CommonType": common, "Field": fields}}
        definitions.append(sized(signed(-number) + encoded(WIRE_TYPE, wire)))
        return number


def encoded(kind: Any, value: Any) -> bytes:
    """Encode a value of the type `kind`, without its length and type number."""
    if kind in (INT, UINT):
        return signed(value) if kind == INT else uint(value)
    if kind in (BYTES, STRING):
        return sized(value.encode("utf-8", "surrogateescape") if kind == STRING else value)
    if kind[0] == "list":
        return uint(len(value)) + b"".join(encoded(kind[1], item) for item in value)
    pieces, last = [], -1
    for number, (name, of) in enumerate(kind[1]):
        if value.get(name):
            pieces.append(uint(number - last) + encoded(of, value[name]))
            last = number
    return b"".join(pieces) + b"\0"


class Decoder:
    """The decoder of a stream. feed() takes bytes, next_value() returns the next struct as a dict."""

    __slots__ = ("data", "types")

    def __init__(self) -> None:
        self.data = bytearray()
        self.types: dict[int, Any] = {}

    def feed(self, data: bytes) -> None:
        self.data += data

    def next_value(self) -> dict[str, Any] | None:
        """Return the next struct without its zero fields; None if its bytes are not complete yet. Raises GobError."""
        while message := self._next_message():
            reader = Reader(message, self.types)
            number = reader.signed()
            if number >= 0:
                found = reader.value(number)
                if not isinstance(found, dict):
                    raise GobError("a value that is no struct")
                return found
            if len(self.types) == MAX_TYPES:
                raise GobError(f"more than {MAX_TYPES} types")
            self.types[-number] = kind_of(reader.value(WIRE_TYPE))
        return None

    def _next_message(self) -> bytes:
        if not self.data:
            return b""
        first = self.data[0]
        start = 1 if first < 128 else 257 - first
        if start > 9:
            raise GobError("a length of more than 8 bytes")
        if len(self.data) < start:
            return b""
        size = first if first < 128 else int.from_bytes(self.data[1:start], "big")
        if not 0 < size <= MAX_MESSAGE_BYTES:
            raise GobError(f"a message of {size} bytes")
        if len(self.data) < start + size:
            return b""
        message = bytes(self.data[start:start + size])
        del self.data[:start + size]
        return message


def kind_of(wire: dict[str, Any]) -> Any:
    """Return the type of a type definition, in this module's notation; ("other", None) for a type without notation."""
    if "SliceT" in wire:
        return "list", wire["SliceT"].get("Elem", 0)
    if "StructT" in wire:
        return "struct", [(one.get("Name", ""), one.get("Id", 0)) for one in wire["StructT"].get("Field", [])]
    return "other", None


class Reader:
    """A reader of the values in a message. Each method raises GobError if the message is cut short."""

    __slots__ = ("at", "data", "types")

    def __init__(self, data: bytes, types: dict[int, Any]) -> None:
        self.data, self.types, self.at = data, types, 0

    def uint(self) -> int:
        first = self.take(1)[0]
        return first if first < 128 else int.from_bytes(self.take(256 - first), "big")

    def signed(self) -> int:
        number = self.uint()
        return ~(number >> 1) if number & 1 else number >> 1

    def take(self, size: int) -> bytes:
        piece = self.data[self.at:self.at + size]
        if len(piece) < size:
            raise GobError("a message cut short")
        self.at += size
        return piece

    def value(self, kind: Any, depth: int = 0) -> Any:
        """Read a value of `kind`: a type in this module's notation, or the number of a type that the stream has
        defined. depth: the nesting so far."""
        if kind in (BOOL, UINT, FLOAT):
            return self.uint()
        if kind == INT:
            return self.signed()
        if kind == BYTES:
            return self.take(self.uint())
        if kind == STRING:
            return self.take(self.uint()).decode("utf-8", "surrogateescape")
        if kind == COMPLEX:
            return self.uint(), self.uint()
        defined = self.types.get(kind) if isinstance(kind, int) else kind
        if defined is None or depth > MAX_DEPTH:
            raise GobError(f"a value of the unknown type {kind}")
        if defined[0] == "list":
            return self.items(defined[1], depth + 1)
        if defined[0] == "struct":
            return self.fields(defined[1], depth + 1)
        raise GobError("a type that is neither a list nor a struct")

    def items(self, kind: Any, depth: int) -> list[Any]:
        count = self.uint()
        if count > len(self.data) - self.at:
            raise GobError(f"a list of {count} items")
        return [self.value(kind, depth) for _ in range(count)]

    def fields(self, known: Any, depth: int) -> dict[str, Any]:
        found, number = {}, -1
        while step := self.uint():
            number += step
            if number >= len(known):
                raise GobError(f"field {number} of a struct with {len(known)}")
            name, kind = known[number]
            found[name] = self.value(kind, depth)
        return found
