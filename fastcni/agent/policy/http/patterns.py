r"""Validate the regular expressions of policies, and join the conditions of a request to one regular expression.

    read_pattern("GET|HEAD")                    # returned as it is
    read_pattern("(a+)+")                       # PatternError: a repetition repeats a repetition

A pattern is accepted if POSIX extended regular expressions, Python and PCRE2 give it the same meaning. A pattern must
match a complete value. The sender of a request chooses the text that is compared, so no pattern may need exponential
time.

HAProxy compares the joined regular expression, in the dialect PCRE2, with this text (configuration.py). Only lines of
headers end with \r\n:

    :chains of the pod:\n
    :nftables sets that contain the peer:\n
    port\n
    name: value\r\n                             (the headers, for rules with conditions on headers)
    \r\n
    method\n
    host\n
    path\n

No value contains a line break, so the text has as many lines as the regular expression, and a policy's pattern never
matches more than its own line. HAProxy cuts a text that is longer than its buffer. A cut text lacks the last line
break, and does not match.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fastcni.agent.policy.http.documents import Request

MAX_LENGTH = 512                # characters of a policy's regular expression
MAX_REPEATS = 256               # the largest number in {m,n}: PCRE2 copies the repeated part
# Character sequences that have a special meaning in only some of the dialects
SPECIAL = ("(?", "(*", "*+", "++", "?+", "}+", "*?", "+?", "??", "}?", "[[:", "[:", "[.", "[=")
ESCAPED = re.compile(r"\\(.)")
CLASSES = "dDwWsS"              # the character classes \d, \D, \w, \W, \s, \S


class PatternError(ValueError):
    """An error in a policy's regular expression. The text says why it is not accepted."""


def read_pattern(text: str) -> str:
    """Return `text` unchanged if it is an accepted regular expression. Raises PatternError."""
    if not 0 < len(text) <= MAX_LENGTH:
        raise PatternError(f"expected 1 to {MAX_LENGTH} characters")
    if not text.isascii() or not text.isprintable():
        raise PatternError("expected printable ASCII characters")
    if text.startswith("*") or (special := next((each for each in SPECIAL if each in text), "")):
        raise PatternError(f"{special if not text.startswith('*') else '*'} is not accepted here")
    if foreign := next((each for each in ESCAPED.findall(text) if each.isalnum() and each not in CLASSES), ""):
        raise PatternError(f"\\{foreign} is not accepted here")
    try:
        re.compile(text)
        parsed = re._parser.parse(text)         # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError) as e:
        raise PatternError(str(e)) from None
    check(parsed, False)
    return text


def check(parsed: Any, repeated: bool) -> None:
    """Raise PatternError for a repetition within a repetition, such as (a+)+, which may need exponential time.

    parsed: a parsed expression of re's parser. repeated: whether it is within a repetition."""
    for name, value in parsed:
        repeats = "REPEAT" in str(name)
        if repeats and repeated:
            raise PatternError("a repetition repeats a repetition")
        if repeats and (value[0] > MAX_REPEATS or (value[1] > MAX_REPEATS and value[1] != re._parser.MAXREPEAT)):  # type: ignore[attr-defined]
            raise PatternError(f"expected at most {MAX_REPEATS} repetitions")
        for part in parts(value):
            # (a+)? is accepted: an optional part occurs at most once
            check(part, repeated or (repeats and value[1] != 1))


def parts(value: Any) -> list[Any]:
    """Return the parsed expressions that a node of re's parser contains."""
    if isinstance(value, re._parser.SubPattern):                # type: ignore[attr-defined]
        return [value]
    return [part for each in value for part in parts(each)] if isinstance(value, list | tuple) else []


def ends(chain: str, peer: str, named: str, named_own: bool, spans: Iterable[tuple[int, int]]) -> str:
    """Return the regular expression for the first three lines of the text: chains, sets of the peer, port.

    chain: the hash of a chain's rules. peer, named: names of nftables sets; "": any. spans: ranges of ports; (): any.
    named_own: whether the named port is the pod's (ingress); otherwise it is the peer's."""
    lists = [rf"[^\n]*:{each}:[^\n]*\n" if each else r"[^\n]*\n" for each in (chain, peer)]
    of_named = [r"[^\n]*\n", r"[^\n]*\n"]
    of_named[not named_own] = rf"[^\n]*:{named}@(?P<port>[0-9]+):[^\n]*\n"
    # The group has a name, because HAProxy compiles regular expressions without numbered groups
    port = rf"(?={''.join(of_named)}(?P=port)\n)" if named else ""
    return rf"(?m)\A{port}{''.join(lists)}{ports(spans)}\n"


def ports(spans: Iterable[tuple[int, int]]) -> str:
    """Return the regular expression for the decimal numbers in `spans`, ranges (first, last); (): any number."""
    return f"(?:{'|'.join(each for span in spans for each in digits(*span)) or '[0-9]+'})"


def digits(first: int, last: int) -> Iterator[str]:
    """Yield regular expressions that together match the decimal numbers first to last: 80 to 99 is [8-9][0-9].

    Each regular expression has fixed digits, one digit of a range, and free digits."""
    while first <= last:
        free = 0                                        # how many of the last digits are free
        while first % 10 ** (free + 1) == 0 and first + 10 ** (free + 1) - 1 <= last and first:
            free += 1
        unit = 10 ** free
        steps = min(9 - first // unit % 10, (last - first + 1) // unit - 1)
        fixed, digit = str(first // unit)[:-1], first // unit % 10
        yield f"{fixed}[{digit}-{digit + steps}]{'[0-9]' * free}"
        first += (steps + 1) * unit


def of_request(req: Request) -> str:
    """Return the regular expression for the lines after the port: headers, method, host and path."""
    headers = "".join(f"(?={of_header(name, value)})" for name, value in req.headers)
    if req.headers:
        # Many servers read _ in a header's name as -. A header whose name has _ passes only if a condition names it
        names = "|".join(("[^:_\\r]*", *sorted({name for name, _ in req.headers if "_" in name})))
        headers += rf"(?:(?:{names}):[^\r]*+\r\n)*+"
    lines = "".join(rf"({flags}{pattern or '.*'})\n" for flags, pattern in (
        ("?:", req.method), ("?i:", req.host), ("?:", req.path)))
    return encoded(rf"{headers}\r\n{lines}\z")


def of_header(name: str, value: str) -> str:
    """Return the regular expression for a list of headers in which the header `name` occurs once. value: the header's
    value; "": any."""
    others = rf"(?:(?!{name}:)[^\r]++\r\n)*+"
    wanted = " " + re.escape(value) if value else r"[^\r]*+"
    return rf"{others}{name}:{wanted}\r\n{others}\r\n"


def of_host(pattern: str) -> str:
    """Return the regular expression for the line with the server name of a TLS handshake."""
    return encoded(rf"(?i:{pattern})\n\z")


def encoded(pattern: str) -> str:
    """Return the regular expression with hexadecimal escapes for characters that are special in HAProxy's map files and
    its runtime API, such as space and semicolon."""
    return re.sub(r"\\?([ ;#<\"'])|\\.", lambda it: f"\\x{ord(it[1]):02x}" if it[1] else it[0], pattern)


def word(text: str) -> str:
    """Return `text` with doubled backslashes, as HAProxy's runtime API expects in a command."""
    return text.replace("\\", "\\\\")
