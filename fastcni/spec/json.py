"""Decode and encode JSON like Go, in which most CNI programs are written: with Go's errors, escapes and number formats.

This module uses only the C scanner of the json package, because importing the package takes a plugin six milliseconds.
If a document is invalid, the scanner imports the package for its exception.
"""

from __future__ import annotations

from _json import encode_basestring, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SPACE = " \t\n\r"
MAX_DEPTH = 500         # depth of nested lists and objects. Go allows 10,000; all Pythons can recurse to 500
EXACT = 1 << 53         # integers up to here are exact as a float64
HEX = "0123456789abcdefABCDEF"

# (begin of the scanner's message, Go's text for the same error, offset of the wrong character from the scanner's
# position)
MESSAGES = (
    ("Expecting property name", "looking for beginning of object key string", 0),
    ("Illegal trailing comma before end of o", "looking for beginning of object key string", 0),
    ("Illegal trailing comma before end of a", "looking for beginning of value", 0),
    ("Expecting ':'", "after object key", 0),
    ("Expecting ','", "after array element or object key:value pair", 0),
    ("Invalid control character", "in string literal", 0),
    ("Invalid \\escape", "in string escape code", 1),
)

# Characters that Go escapes so that its output is safe in HTML and JavaScript. JSON has them only in strings.
ESCAPES = (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))

# Escapes of Go's strconv.Quote.
QUOTED = {'"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r",
          "\t": "\\t", "\v": "\\v"}


class JsonError(ValueError):
    """The bytes are not a JSON document. Where CNI programs are known to compare Go's error text, the exception has
    that text."""


# Reading

def read(data: bytes) -> Any:
    """Decode one JSON document to dict, list, str, int, float, bool, None. Raises JsonError.

    If an object repeats a key, the last value counts. Bytes that are not UTF-8, and lone surrogates, become U+FFFD.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = replace_surrogates(data.decode("utf-8", "surrogateescape"))      # one U+FFFD for each bad byte, as in Go
    text = text.strip(SPACE)
    try:
        value, end = scan(text)
    except StopIteration as e:
        raise unexpected(text, e.value, "looking for beginning of value") from None
    except JsonError:
        raise
    except RecursionError:
        raise JsonError("exceeded max depth") from None
    except ValueError as e:
        raise to_go_error(text, e) from None
    if end != len(text):
        end += len(text) - end - len(text[end:].lstrip(SPACE))
        raise unexpected(text, end, "after top-level value")
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        check_depth(value)
    return replace_surrogates(value) if b"\\u" in data else value


def repeated_keys(data: bytes, name: str) -> list[str]:
    """Return the keys that occur more than once in the object `name` of a document. read() must have accepted the
    document."""
    pairs = make_scanner(Pairs)(data.decode("utf-8", "replace").strip(SPACE), 0)[0]  # type: ignore[arg-type]
    found = [value for key, value in pairs if key.lower() == name.lower() and type(value) is tuple]
    keys = [key for key, _ in found[-1]] if found else []
    return [key for at, key in enumerate(keys) if key in keys[:at]]


def scan(text: str, at: int = 0) -> tuple[Any, int]:
    """Return the value that begins at text[at], and the index of the character after the value. Raises StopIteration,
    RecursionError, ValueError."""
    try:
        return SCAN(text, at)
    except SystemError:         # Python 3.11's scanner finds its exception only if the json package is loaded
        __import__("json.decoder")
        return SCAN(text, at)


def check_depth(value: Any) -> None:
    """Raise JsonError for lists and objects that are nested too deep."""
    level, depth = [value], 0
    while level := [item for item in level if type(item) in (dict, list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise JsonError("exceeded max depth")
        level = [child for item in level for child in (item.values() if type(item) is dict else item)]


def replace_surrogates(value: Any) -> Any:
    """Return the value with U+FFFD for each lone surrogate in its strings."""
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return "".join("\ufffd" if 0xD800 <= ord(c) <= 0xDFFF else c for c in value)
    elif type(value) is dict:
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    elif type(value) is list:
        return [replace_surrogates(item) for item in value]
    return value


def read_float(text: str) -> float:
    number = float(text)
    if number - number:         # infinite
        raise JsonError(f"json: cannot unmarshal number {text[:80]} into Go value of type float64")
    return number


def refuse_constant(name: str) -> None:
    """Raise JsonError for NaN, Infinity, -Infinity: the scanner accepts them, JSON does not."""
    if name[0] == "-":
        raise JsonError("invalid character 'I' in numeric literal")
    raise JsonError(f"invalid character '{name[0]}' looking for beginning of value")


def unexpected(text: str, at: int, where: str) -> JsonError:
    """Return the JsonError that reports the character at an index of the text, or the end of the text."""
    if at >= len(text):
        return JsonError("unexpected end of JSON input")
    shown = chr(text[at].encode("utf-8", "replace")[0])         # Go prints only the first byte
    shown = {"'": "\\'", '"': '"'}.get(shown) or quote(shown)[1:-1]
    return JsonError(f"invalid character '{shown}' {where}")


def to_go_error(text: str, error: ValueError) -> JsonError:
    """Convert the scanner's error to a JsonError with Go's text."""
    message, at = getattr(error, "msg", ""), getattr(error, "pos", None)
    if at is None:              # int() raised the error, because the integer has thousands of digits
        return JsonError("json: cannot unmarshal number into Go value of type float64")
    if message.startswith("Illegal trailing comma"):    # Go reports the character after the comma
        at = len(text) - len(text[at + 1:].lstrip(SPACE))
    for start, where, offset in MESSAGES:
        if message.startswith(start):
            return unexpected(text, at + offset, where)
    if message.startswith("Invalid \\uXXXX"):
        at = text.rfind("\\u", 0, at + 2) + 2
        while text[at:at + 1] in HEX and at < len(text):
            at += 1
        return unexpected(text, at, "in \\u hexadecimal character escape")
    return JsonError("unexpected end of JSON input")


class Dialect:
    """The settings of the json package's scanner."""

    strict = True               # control characters in strings are errors
    object_hook: Any = None
    object_pairs_hook: Any = None
    array_hook: Any = None
    parse_float, parse_int, parse_constant = read_float, int, refuse_constant


class Pairs(Dialect):
    """The settings with which the scanner returns each object as a tuple of (key, value)."""

    object_pairs_hook = tuple


SCAN = make_scanner(Dialect)  # type: ignore[arg-type]


# Writing

def write(value: Any, indent: int = 0, sort: bool = False) -> bytes:
    """Encode a value of dict, list, tuple, str, int, float, bool, None, without a newline at the end.

    indent: spaces of each level, 0 for one line. sort: keys in the order of their bytes, otherwise in the dict's order.
    Raises TypeError for other types (subclasses are allowed), ValueError for NaN and infinity.
    """
    parts: list[str] = []
    colon, line = (": ", "\n") if indent else (":", "")
    put_value(value, parts.append, colon, line, " " * indent, sort)
    text = "".join(parts)
    for raw, escape in ESCAPES:
        if raw in text:
            text = text.replace(raw, escape)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return str(replace_surrogates(text)).encode()


def write_members(members: dict[str, bytes]) -> bytes:
    """Encode an object of members that are already encoded, in one line, with the keys in the order of their bytes."""
    # Strings in the order of code points are also in the order of their UTF-8 bytes.
    return b"{" + b",".join([write(key) + b":" + members[key] for key in sorted(members)]) + b"}"


def put_value(value: Any, put: Callable[[str], object], colon: str, line: str, step: str, sort: bool) -> None:
    """Pass the pieces of a value's JSON text to put(). line: the text that begins a new line at the value's depth.
    step: the indent of each further depth."""
    kind = type(value)
    if kind is str:
        put(encode_basestring(value))
    elif kind is dict:
        if not value:
            put("{}")
            return
        inner = line + step
        before = "{" + inner
        for key in sorted(value) if sort else value:
            put(before + encode_basestring(key) + colon)
            put_value(value[key], put, colon, inner, step, sort)
            before = "," + inner
        put(line + "}")
    elif kind is list or kind is tuple:
        if not value:
            put("[]")
            return
        inner = line + step
        before = "[" + inner
        for item in value:
            put(before)
            put_value(item, put, colon, inner, step, sort)
            before = "," + inner
        put(line + "]")
    elif kind is int:
        put(str(value))
    elif value is None:
        put("null")
    elif kind is bool:
        put("true" if value else "false")
    elif kind is float:
        put(float_text(value))
    else:
        plain = next((base for base in (dict, list, tuple, str, int, float) if isinstance(value, base)), None)
        if plain is None:
            raise TypeError(f"{kind.__name__} is not a JSON type")
        put_value(plain(value), put, colon, line, step, sort)


def float_text(number: float) -> str:
    """Return a float as Go prints it: the shortest text, 1 for 1.0, exponents only below 1e-6 and from 1e21 on."""
    if number - number:         # true for NaN, too
        raise ValueError(f"json: unsupported value: {number}")
    text, _, exponent = repr(number).partition("e")
    if not exponent:
        return text.removesuffix(".0")
    power = int(exponent)
    if number and not 1e-6 <= abs(number) < 1e21:
        return f"{text}e{power:+d}"
    sign, digits = ("-", text[1:]) if text[0] == "-" else ("", text)
    integer, _, rest = digits.partition(".")
    if power < 0:
        return f"{sign}0.{'0' * (-power - len(integer))}{integer}{rest}"
    return f"{sign}{integer}{rest.ljust(power, '0')}"


def quote(text: str) -> str:
    """Return the text in double quotes, as by Go's %q. A byte that surrogateescape has decoded becomes \\xNN."""
    return '"' + "".join([QUOTED.get(c) or (c if c.isprintable() else escape(c)) for c in text]) + '"'


def escape(c: str) -> str:
    number = ord(c)
    if number < 0x20 or number == 0x7F:
        return f"\\x{number:02x}"
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def normalize(value: Any) -> Any:
    """Return the value as Go decodes it into a map[string]interface{}: each number is a float64.

    Integers that are exact as a float64 stay integers, because both print the same text. Raises JsonError for a number
    that is too large.
    """
    if type(value) is int:
        if -EXACT <= value <= EXACT:
            return value
        try:
            return float(value)
        except OverflowError:
            raise JsonError("json: cannot unmarshal number into Go value of type float64") from None
    if type(value) is dict:
        return {key: item if type(item) is str else normalize(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [normalize(item) for item in value]
    return value
