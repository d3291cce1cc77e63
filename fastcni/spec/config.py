"""Configuration as CNI programs read it: objects with typed keys, names, CNI_ARGS. Touches nothing."""

from fastcni.spec import address, errors, json
from fastcni.spec.errors import CniError

SHOWN = 80              # characters of a refused value that its error repeats
IFNAME_BYTES = 15       # IFNAMSIZ of linux/if.h, without the closing NUL
INT64 = 1 << 63

# unicode.IsSpace of Go; str.isspace() would also take U+001C to U+001F.
SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
NOT_IN_IFNAME = frozenset("/:\0" + SPACES)

TRUTH = {"1": True, "true": True, "0": False, "false": False}


class Section:
    """One JSON object of a configuration.

    Keys match in any case, the exact spelling before others; null is the same as absent. What has the
    wrong type is a CniError 7 that names the key by its path and shows the value.

    values  the object as decoded
    where   its path for errors, "ipam.ranges[0]"; "" for the top
    common  the Section that this one shares with others but for prevResult; itself where nobody has said so
    """

    __slots__ = ("_common", "_folded", "_read", "values", "where")

    def __init__(self, values, where=""):
        self.values, self.where, self._common, self._folded, self._read = values, where, None, None, None

    @property
    def common(self):
        return self._common or self

    @common.setter
    def common(self, section):
        self._common = section

    def once(self, read):
        """What read() says of the common Section, asked once: many requests may share it, so none changes it."""
        common = self._common or self
        if common._read is None:
            common._read = {}
        elif read in common._read:
            return common._read[read]
        common._read[read] = found = read(common)
        return found

    def raw(self, key, default=None):
        """The value as decoded."""
        value = self.values.get(key)
        if value is None:
            if self._folded is None:
                self._folded = fold(self.values)
            value = self._folded.get(key.lower())
        return default if value is None else value

    def has(self, key):
        return self.raw(key) is not None

    def text(self, key, default=""):
        return self._typed(key, str, "a string", default)

    def flag(self, key, default=False):
        return self._typed(key, bool, "true or false", default)

    def items(self, key):
        """The list under `key`, [] where absent."""
        return self._typed(key, list, "a list", [])

    def section(self, key):
        """The Section under `key`, an empty one where absent."""
        return self._below(self._typed(key, dict, "an object", {}), self.path(key))

    def integer(self, key, default=0, low=None, high=None):
        """An integer from low to high; those of 64 bits where the bounds are not given. 1500.0 is none."""
        value = self.raw(key)
        if value is None:
            return default
        least, most = -INT64 if low is None else low, INT64 - 1 if high is None else high
        if type(value) is not int or not least <= value <= most:
            bounds = ("" if low is None else f" from {low}") + ("" if high is None else f" up to {high}")
            return self.bad(key, f"expected an integer{bounds}, got {shown(value)}", default)
        return value

    def texts(self, key):
        """A list of strings; a null in it is an empty one, as in Go."""
        values = ["" if value is None else value for value in self.items(key)]
        for i, value in enumerate(values):
            if type(value) is not str:
                values[i] = self.bad(f"{key}[{i}]", f"expected a string, got {shown(value)}", "")
        return values

    def sections(self, key):
        """A list of objects as Sections; a null in it is an empty one, as in Go."""
        found = []
        for i, value in enumerate(self.items(key)):
            if value is not None and type(value) is not dict:
                value = self.bad(f"{key}[{i}]", f"expected an object, got {shown(value)}", {})
            found.append(self._below(value or {}, self.path(f"{key}[{i}]")))
        return found

    def ip(self, key):
        """An address as 4 or 16 bytes; None where absent or empty."""
        text = self.text(key)
        try:
            return address.read_ip(text) if text else None
        except ValueError:
            return self.bad(key, f"invalid IP address: {text[:SHOWN]}", None)

    def cidr(self, key):
        """`address/prefix` as (packed, prefix), host bits kept; None where absent (empty is an error)."""
        text = self.text(key, None)
        try:
            return None if text is None else address.read_cidr(text)
        except ValueError:
            return self.bad(key, f"invalid CIDR address: {text[:SHOWN]}", None)

    def path(self, key):
        """The path of a key from the top of the configuration, "ipam.subnet"."""
        return f"{self.where}.{key}" if self.where else key

    def wrong(self, key, why):
        """The CniError for a value that cannot be used."""
        return CniError(errors.INVALID_CONFIG, f"failed to load netconf: {self.path(key)}: {why}")

    def bad(self, key, why, _):
        """A value that cannot be used: raises the CniError. A Lenient returns the third argument instead."""
        raise self.wrong(key, why) from None

    @property
    def strict(self):
        """The same without leniency."""
        return self

    def _below(self, values, where):
        return Section(values, where)

    def _typed(self, key, kind, words, default):
        value = self.raw(key)
        if value is None:
            return default
        if type(value) is not kind:
            return self.bad(key, f"expected {words}, got {shown(value)}", default)
        return value


class Lenient(Section):
    """A Section for DEL: a bad value counts as absent, and warn(text) is called.

    A bad flag counts as set: a flag says what ADD may have made, and DEL is to look for it.
    """

    __slots__ = ("warn",)

    def __init__(self, values, warn, where=""):
        super().__init__(values, where)
        self.warn = warn

    def flag(self, key, default=False):
        value = self.raw(key, default)
        return value if type(value) is bool else self.bad(key, f"expected true or false, got {shown(value)}", True)

    def bad(self, key, why, instead):
        self.warn(f"{self.path(key)} is ignored: {why}")
        return instead

    @property
    def strict(self):
        return Section(self.values, self.where)

    def _below(self, values, where):
        return Lenient(values, self.warn, where)


def fold(values):
    """The values that are not null under their keys in lower case; of several spellings the last."""
    return {key.lower(): value for key, value in values.items() if value is not None}


def shown(value):
    """A JSON value for an error: its kind and its text, cut."""
    kinds = {str: "string ", int: "number ", float: "number ", list: "list ", dict: "object "}
    text = kinds.get(type(value), "") + json.write(value).decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN - 3]}..."


# Names (CNI spec 1.1.0, section 2, and what the reference library checks)

def check_container_id(text):
    """Raises CniError 3 where it is empty, 4 where it has characters that an id cannot have."""
    if not text:
        raise CniError(errors.UNKNOWN_CONTAINER, "missing containerID")
    if not is_name(text):
        raise CniError(errors.INVALID_ENVIRONMENT, "invalid characters in containerID", text)


def check_network_name(text):
    """Raises CniError 7."""
    if not text:
        raise CniError(errors.INVALID_CONFIG, "missing network name:")
    if not is_name(text):
        raise CniError(errors.INVALID_CONFIG, "invalid characters found in network name", text)


def check_ifname(text):
    """Raises CniError 4 for what Linux would not have as the name of an interface."""
    why, details = "", ""
    if not text:
        why = "interface name is empty"
    elif len(text.encode("utf-8", "replace")) > IFNAME_BYTES:
        why, details = "interface name is too long", "interface name should be less than 16 characters"
    elif text in (".", ".."):
        why = "interface name is . or .."
    elif not NOT_IN_IFNAME.isdisjoint(text):
        why = "interface name contains / or : or whitespace characters"
    elif any("\ud800" <= c <= "\udfff" for c in text):
        why, details = "interface name is not UTF-8", "a result, which is JSON, cannot name it"
    elif "%d" in text:
        why, details = "interface name contains %d", "the kernel would put a number there"
    if why:
        raise CniError(errors.INVALID_ENVIRONMENT, why, details)


def is_name(text):
    """[a-zA-Z0-9][a-zA-Z0-9_.-]*, the whole of it: such a name can be a file's."""
    bare = text.replace("_", "").replace(".", "").replace("-", "")
    return text.isascii() and text[:1].isalnum() and bare.isalnum()


# CNI_ARGS

def read_args(text, known):
    """CNI_ARGS, "K=V;K2=V2", as {name: value} of the names in `known`; a later pair replaces an earlier one.

    Others are a CniError 4, unless IgnoreUnknown is true among them. So is what is no pair.
    """
    found, unknown, ignore = {}, [], False
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
