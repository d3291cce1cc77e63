"""JSON in the dialect of CNI's Go programs: what they refuse, what they escape, how they print numbers.

Built on the C scanner below the json package, whose own import would cost a plugin six milliseconds. Where it
refuses a document it imports that package itself, for its exception.
"""

from _json import encode_basestring, make_scanner

SPACE = " \t\n\r"
MAX_DEPTH = 500         # Go allows 10,000; this much every Python can go down
EXACT = 1 << 53         # integers up to here survive a float64
HEX = "0123456789abcdefABCDEF"

# The scanner's complaint by its first words, Go's words for it, and how far on the wrong character is.
COMPLAINTS = (
    ("Expecting property name", "looking for beginning of object key string", 0),
    ("Illegal trailing comma before end of o", "looking for beginning of object key string", 0),
    ("Illegal trailing comma before end of a", "looking for beginning of value", 0),
    ("Expecting ':'", "after object key", 0),
    ("Expecting ','", "after array element or object key:value pair", 0),
    ("Invalid control character", "in string literal", 0),
    ("Invalid \\escape", "in string escape code", 1),
)

# What may stand only inside of strings, and how it is written there (HTML and JavaScript hosts).
ESCAPES = (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))

# strconv.Quote of Go.
QUOTED = {'"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r",
          "\t": "\\t", "\v": "\\v"}


class JsonError(ValueError):
    """Bytes that are no JSON document, in Go's words where they are well known."""


# Reading

def read(data):
    """One JSON document of bytes as dict, list, str, int, float, bool, None. Raises JsonError.

    The last of several equal keys counts. Bytes that are no UTF-8, and lone surrogates, become U+FFFD.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = mend(data.decode("utf-8", "surrogateescape"))        # one U+FFFD for each bad byte, as in Go
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
        raise reworded(text, e) from None
    if end != len(text):
        end += len(text) - end - len(text[end:].lstrip(SPACE))
        raise unexpected(text, end, "after top-level value")
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        check_depth(value)
    return mend(value) if b"\\u" in data else value


def repeated_keys(data, name):
    """The keys that stand more than once in the object `name` of a document that read() has read."""
    pairs = make_scanner(Pairs)(data.decode("utf-8", "replace").strip(SPACE), 0)[0]
    found = [value for key, value in pairs if key.lower() == name.lower() and type(value) is tuple]
    keys = [key for key, _ in found[-1]] if found else []
    return [key for at, key in enumerate(keys) if key in keys[:at]]


def scan(text):
    """(value, where it ends) of the start of a text. Raises StopIteration, RecursionError, ValueError."""
    try:
        return SCAN(text, 0)
    except SystemError:         # Python 3.11 finds its exception only where the json package is loaded
        __import__("json.decoder")
        return SCAN(text, 0)


def check_depth(value):
    """Raises JsonError where lists and objects stand too deep in each other."""
    level, depth = [value], 0
    while level := [item for item in level if type(item) in (dict, list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise JsonError("exceeded max depth")
        level = [child for item in level for child in (item.values() if type(item) is dict else item)]


def mend(value):
    """The value with U+FFFD for each lone surrogate in its strings."""
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in value)
    elif type(value) is dict:
        return {mend(key): mend(item) for key, item in value.items()}
    elif type(value) is list:
        return [mend(item) for item in value]
    return value


def read_float(text):
    number = float(text)
    if number - number:         # infinite
        raise JsonError(f"json: cannot unmarshal number {text[:80]} into Go value of type float64")
    return number


def refuse_constant(name):
    """NaN, Infinity, -Infinity: the scanner knows them, JSON does not."""
    if name[0] == "-":
        raise JsonError("invalid character 'I' in numeric literal")
    raise JsonError(f"invalid character '{name[0]}' looking for beginning of value")


def unexpected(text, at, where):
    """The JsonError for the character at a place of the text, or for its end."""
    if at >= len(text):
        return JsonError("unexpected end of JSON input")
    shown = chr(text[at].encode("utf-8", "replace")[0])         # Go shows a byte
    shown = {"'": "\\'", '"': '"'}.get(shown) or quote(shown)[1:-1]
    return JsonError(f"invalid character '{shown}' {where}")


def reworded(text, error):
    """A complaint of the scanner as Go would have made it."""
    words, at = getattr(error, "msg", ""), getattr(error, "pos", None)
    if at is None:              # an integer of thousands of digits
        return JsonError("json: cannot unmarshal number into Go value of type float64")
    if words.startswith("Illegal trailing comma"):      # Go complains of what follows it
        at = len(text) - len(text[at + 1:].lstrip(SPACE))
    for start, where, offset in COMPLAINTS:
        if words.startswith(start):
            return unexpected(text, at + offset, where)
    if words.startswith("Invalid \\uXXXX"):
        at = text.rfind("\\u", 0, at + 2) + 2
        while text[at:at + 1] in HEX and at < len(text):
            at += 1
        return unexpected(text, at, "in \\u hexadecimal character escape")
    return JsonError("unexpected end of JSON input")


class Dialect:
    """What the scanner asks for."""

    strict = True               # control characters in strings are errors
    object_hook = object_pairs_hook = array_hook = None
    parse_float, parse_int, parse_constant = read_float, int, refuse_constant


class Pairs(Dialect):
    """Objects as tuples of (key, value)."""

    object_pairs_hook = tuple


SCAN = make_scanner(Dialect)


# Writing

printer = None          # a door where orjson is warm sets it to a function of a value that gives its indented bytes


def write(value, indent=0, sort=False):
    """A value of dict, list, tuple, str, int, float, bool, None as bytes, without a newline at the end.

    indent: spaces of each level, 0 for all on one line. sort: keys in the order of their bytes, else as they
    stand. Raises TypeError for other types (subclasses of these are fine), ValueError for NaN and infinity.
    """
    if printer and indent and not sort:
        try:
            return printer(value)
        except TypeError:           # it knows no integer of more than 64 bits, and no lone surrogate
            return write_text(value, indent, sort)
    return write_text(value, indent, sort)


def write_text(value, indent, sort):
    parts = []
    if indent:
        put_value(value, parts.append, ": ", "\n", " " * indent, sort)
    else:
        put_value(value, parts.append, ":", "", "", sort)
    text = "".join(parts)
    for raw, escape in ESCAPES:
        if raw in text:
            text = text.replace(raw, escape)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return mend(text).encode()


def put_value(value, put, colon, line, step, sort):
    """Pass the pieces of a value's text to `put`; `line` is what starts a line on its level."""
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


def float_text(number):
    """A float as Go prints it: shortest, 1 for 1.0, exponents only below 1e-6 and from 1e21 on."""
    if number - number:         # NaN is true as well
        raise ValueError(f"json: unsupported value: {number}")
    text, _, exponent = repr(number).partition("e")
    if not exponent:
        return text.removesuffix(".0")
    power = int(exponent)
    if number and not 1e-6 <= abs(number) < 1e21:
        return f"{text}e{power:+d}"
    sign, digits = ("-", text[1:]) if text[0] == "-" else ("", text)
    whole, _, rest = digits.partition(".")
    if power < 0:
        return f"{sign}0.{'0' * (-power - len(whole))}{whole}{rest}"
    return f"{sign}{whole}{rest.ljust(power, '0')}"


def quote(text):
    """The text in double quotes as Go's %q has it; a byte that surrogateescape let through is \\xNN again."""
    return '"' + "".join([QUOTED.get(c) or (c if c.isprintable() else escape(c)) for c in text]) + '"'


def escape(c):
    number = ord(c)
    if number < 0x20 or number == 0x7F:
        return f"\\x{number:02x}"
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def normalize(value):
    """The value as it is after a Go map[string]interface{}: each number a float64.

    Integers that a float64 holds stay what they are, they print the same. Raises JsonError for one too large.
    """
    if type(value) is dict:
        return {key: item if type(item) is str else normalize(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [normalize(item) for item in value]
    if type(value) is int and not -EXACT <= value <= EXACT:
        try:
            return float(value)
        except OverflowError:
            raise JsonError("json: cannot unmarshal number into Go value of type float64") from None
    return value
