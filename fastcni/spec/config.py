"""Read a configuration by the rules of CNI programs: objects with typed keys, names, CNI_ARGS."""

from __future__ import annotations

from fastcni.spec import address, errors, json
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, TypeVar

    T = TypeVar("T")

MAX_SHOWN = 80          # an error message shows at most this many characters of a bad value
IFNAME_BYTES = 15       # IFNAMSIZ of linux/if.h, without the closing NUL
INT64 = 1 << 63
VALID_ATTACHMENTS = "cni.dev/valid-attachments"       # GC releases all other attachments (spec section 2)

# unicode.IsSpace of Go; str.isspace() would also take U+001C to U+001F.
SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
NOT_IN_IFNAME = frozenset("/:\0" + SPACES)

TRUTH = {"1": True, "true": True, "0": False, "false": False}


class Section:
    """One JSON object of a configuration.

    Keys are case-insensitive, and the exact spelling has precedence. null is read as absent. A value of the wrong type
    raises a CniError 7, which names the key by its path and shows the value. The subclass Lenient warns instead.

    values  the decoded object
    where   the object's path for errors, "ipam.ranges[0]"; "" for the whole configuration
    common  the Section without prevResult, which several requests share; None: this Section itself
    """

    __slots__ = ("_common", "_folded", "_read", "values", "where")

    def __init__(self, values: dict[str, Any], where: str = "", common: Section | None = None) -> None:
        self.values, self.where, self._common = values, where, common
        self._folded: dict[str, Any] | None = None
        self._read: dict[Callable[[Section], Any], Any] = common._read if common else {}

    @property
    def common(self) -> Section:
        return self._common or self

    def once(self, read: Callable[[Section], T]) -> T:
        """Return read(the common Section). once() calls read() only the first time, and many requests share the result,
        so do not change the result."""
        if read not in self._read:
            self._read[read] = read(self.common)
        found: T = self._read[read]
        return found

    def raw(self, key: str, default: Any = None) -> Any:
        """Return the decoded value under `key`; the parameter `default` if the key is absent."""
        value = self.values.get(key)
        if value is None:
            if self._folded is None:
                self._folded = fold(self.values)
            value = self._folded.get(key.lower())
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Return whether the key has a value that is not null."""
        return self.raw(key) is not None

    def text(self, key: str, default: str = "") -> str:
        """Return the string under `key`; the parameter `default` if the key is absent."""
        return self._typed(key, str, "a string", default)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return the boolean under `key`; the parameter `default` if the key is absent."""
        return self._typed(key, bool, "true or false", default)

    def items(self, key: str) -> list[Any]:
        """Return the list under `key`, [] if the key is absent."""
        return self._typed(key, list, "a list", [])

    def section(self, key: str) -> Section:
        """Return the Section under `key`, an empty Section if the key is absent."""
        return self.below(self._typed(key, dict, "an object", {}), self.path(key))

    def integer(self, key: str, default: Any = 0, low: int | None = None, high: int | None = None) -> Any:
        """Return the integer under `key`, or the parameter `default` if the key is absent. The integer must be from
        `low` to `high`; without these bounds, it must fit in 64 bits. 1500.0 is not an integer."""
        value = self.raw(key)
        if value is None:
            return default
        least, most = -INT64 if low is None else low, INT64 - 1 if high is None else high
        if type(value) is not int or not least <= value <= most:
            bounds = ("" if low is None else f" from {low}") + ("" if high is None else f" up to {high}")
            return self.bad(key, f"expected an integer{bounds}, got {shown(value)}", default)
        return value

    def texts(self, key: str) -> list[str]:
        """Return the list of strings under `key`, [] if the key is absent. A null in the list is an empty string, as in
        Go."""
        values = ["" if value is None else value for value in self.items(key)]
        for i, value in enumerate(values):
            if type(value) is not str:
                values[i] = self.bad(f"{key}[{i}]", f"expected a string, got {shown(value)}", "")
        return values

    def sections(self, key: str) -> list[Section]:
        """Return the list of objects under `key` as Sections, [] if the key is absent. A null in the list is an empty
        object, as in Go."""
        found = []
        for i, value in enumerate(self.items(key)):
            if value is not None and type(value) is not dict:
                value = self.bad(f"{key}[{i}]", f"expected an object, got {shown(value)}", {})
            found.append(self.below(value or {}, self.path(f"{key}[{i}]")))
        return found

    def ip(self, key: str) -> bytes | None:
        """Return the address under `key` as 4 or 16 bytes; None if the key is absent or its text is empty."""
        text = self.text(key)
        try:
            return address.read_ip(text) if text else None
        except ValueError:
            return self.bad(key, f"invalid IP address: {text[:MAX_SHOWN]}", None)

    def cidr(self, key: str) -> tuple[bytes, int] | None:
        """Return `address/prefix` under `key` as (packed address with its host bits, prefix length); None if the key is
        absent. An empty text is an error."""
        text: Any = self._typed(key, str, "a string", None)
        try:
            return None if text is None else address.read_cidr(text)
        except ValueError:
            return self.bad(key, f"invalid CIDR address: {text[:MAX_SHOWN]}", None)

    def file(self, key: str, default: str = "", *, absolute: bool = True) -> str:
        """Return the path under `key`; the parameter `default` if the key is absent or its text is empty. With
        `absolute`, the path must begin with "/"."""
        path = self.text(key) or default
        if "\0" in path or (absolute and path and not path.startswith("/")):
            why = f"expected an absolute path, got {shown(path)}" if absolute else "a path has no NUL byte"
            return self.bad(key, why, default)
        return path

    def path(self, key: str) -> str:
        """Return the path of a key from the top of the configuration, "ipam.subnet"."""
        return f"{self.where}.{key}" if self.where else key

    def wrong(self, key: str, why: str) -> CniError:
        """Return the CniError 7 for a bad value under `key`. why: the text after the key's path."""
        return CniError(errors.INVALID_CONFIG, f"failed to load netconf: {self.path(key)}: {why}")

    def bad(self, key: str, why: str, instead: T) -> T:
        """Raise the CniError 7 for a bad value. The subclass Lenient warns and returns `instead`."""
        raise self.wrong(key, why) from None

    @property
    def strict(self) -> Section:
        """Return a Section that raises errors for bad values: this Section, or for a Lenient a Section of the same
        object."""
        return self

    def below(self, values: dict[str, Any], where: str) -> Section:
        """Return a Section of the same class for an object inside this Section. where: the object's path."""
        return Section(values, where)

    def _typed(self, key: str, kind: type[T], expected: str, default: T) -> T:
        value = self.raw(key)
        if value is None:
            return default
        if type(value) is not kind:
            return self.bad(key, f"expected {expected}, got {shown(value)}", default)
        return value


class Lenient(Section):
    """A Section for DEL: it treats a bad value as absent, and calls warn(text).

    A bad flag is read as true: ADD may have acted on the flag, so DEL must search for what ADD has made.
    """

    __slots__ = ("warn",)

    def __init__(self, values: dict[str, Any], warn: Callable[[str], object], where: str = "") -> None:
        super().__init__(values, where)
        self.warn = warn

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw(key, default)
        return value if type(value) is bool else self.bad(key, f"expected true or false, got {shown(value)}", True)

    def bad(self, key: str, why: str, instead: T) -> T:
        self.warn(f"{self.path(key)} is ignored: {why}")
        return instead

    @property
    def strict(self) -> Section:
        return Section(self.values, self.where)

    def below(self, values: dict[str, Any], where: str) -> Section:
        return Lenient(values, self.warn, where)


def fold(values: dict[str, Any]) -> dict[str, Any]:
    """Return {key in lower case: value} of the values that are not null. If a key occurs in several spellings, its last
    value counts."""
    return {key.lower(): value for key, value in values.items() if value is not None}


def shown(value: Any) -> str:
    """Return the text of a JSON value for an error: the value's kind and at most MAX_SHOWN characters."""
    kinds = {str: "string ", int: "number ", float: "number ", list: "list ", dict: "object "}
    text = kinds.get(type(value), "") + json.write(value).decode()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN - 3]}..."


# Names (CNI spec 1.1.0, section 2, and the checks of the reference library)

def check_container_id(text: str) -> None:
    """Raise CniError 3 for an empty id, 4 for an id with invalid characters."""
    if not text:
        raise CniError(errors.UNKNOWN_CONTAINER, "missing containerID")
    if not is_name(text):
        raise CniError(errors.INVALID_ENVIRONMENT, "invalid characters in containerID", text)


def check_network_name(text: str) -> None:
    """Raise CniError 7 for a name that is empty or has invalid characters."""
    if not text:
        raise CniError(errors.INVALID_CONFIG, "missing network name:")
    if not is_name(text):
        raise CniError(errors.INVALID_CONFIG, "invalid characters found in network name", text)


def check_ifname(text: str) -> None:
    """Raise CniError 4 for a text that cannot be the name of an interface in Linux."""
    if text.isascii() and text.isalnum() and len(text) <= IFNAME_BYTES:      # the usual case
        return
    why, details = "", ""
    if not text:
        why = "interface name is empty"
    elif len(text.encode("utf-8", "replace")) > IFNAME_BYTES:
        why, details = "interface name is too long", "interface name should be less than 16 characters"
    elif text in (".", ".."):
        why = "interface name is . or .."
    elif not NOT_IN_IFNAME.isdisjoint(text):
        why = "interface name contains / or : or whitespace characters"
    elif not text.isascii() and any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        why, details = "interface name is not UTF-8", "a result, which is JSON, cannot name it"
    elif "%d" in text:
        why, details = "interface name contains %d", "the kernel would put a number there"
    if why:
        raise CniError(errors.INVALID_ENVIRONMENT, why, details)


def is_name(text: str) -> bool:
    """Return whether the whole text matches [a-zA-Z0-9][a-zA-Z0-9_.-]*. Such a text can be the name of a file."""
    if not text.isascii():
        return False
    return text.isalnum() or (text[:1].isalnum()
                              and text.replace("_", "").replace(".", "").replace("-", "").isalnum())


def valid_attachments(conf: Section) -> set[tuple[str, str]]:
    """Return {(containerID, ifname)} of the attachments that a GC keeps. Raises CniError 7."""
    return {(item.text("containerID"), item.text("ifname")) for item in conf.sections(VALID_ATTACHMENTS)}


# CNI_ARGS

def read_args(text: str, known: Collection[str]) -> dict[str, str]:
    """Parse the text of CNI_ARGS, "K=V;K2=V2". Return {name: value} for the names in `known`. If a name occurs twice,
    its last value counts.

    Raises CniError 4 for text that is not a pair, and for names outside `known` unless IgnoreUnknown is true.
    """
    found: dict[str, str] = {}
    unknown: list[str] = []
    ignore: bool | None = False
    for pair in text.split(";") if text else ():
        name, equals, value = pair.partition("=")
        if not equals or "=" in value:
            raise CniError(errors.INVALID_ENVIRONMENT, f"ARGS: invalid pair {json.quote(pair)}")
        if name in known:
            found[name] = value
        elif name == "IgnoreUnknown":
            ignore = TRUTH.get(value.lower())
            if ignore is None:
                raise CniError(errors.INVALID_ENVIRONMENT, "ARGS: error parsing value of pair "
                               f"{json.quote(pair)}: boolean unmarshal error: invalid input {value.lower()}")
        else:
            unknown.append(json.quote(pair))
    if unknown and not ignore:
        raise CniError(errors.INVALID_ENVIRONMENT, f"ARGS: unknown args [{' '.join(unknown)}]")
    return found
