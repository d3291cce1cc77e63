"""Regular expressions of policies, which HAProxy compares with complete values.

    read_pattern("GET|HEAD")                    # returned as it is
    read_pattern("(a+)+")                       # PatternError: a repetition repeats a repetition

A pattern is accepted if POSIX extended regular expressions, Python and PCRE2 give it the same meaning. The sender of a
request chooses the text that is compared, so no pattern may need exponential time.
"""

from __future__ import annotations

import re
from typing import Any

MAX_LENGTH = 512                # characters
MAX_REPEATS = 256               # the largest number in {m,n}: PCRE2 copies the repeated part
# Parts that only some of the dialects know
SPECIAL = ("(?", "(*", "*+", "++", "?+", "}+", "*?", "+?", "??", "}?", "[[:", "[:", "[.", "[=")
ESCAPED = re.compile(r"\\(.)")
CLASSES = "dDwWsS"              # the character classes \d, \D, \w, \W, \s, \S


class PatternError(ValueError):
    """A regular expression that is not accepted. The text of the exception says why."""


def read_pattern(text: str) -> str:
    """Return the regular expression. Raises PatternError."""
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
    """Refuse a repetition within a repetition, such as (a+)+: it may need time exponential in the text's length."""
    for name, value in parsed:
        repeats = "REPEAT" in str(name)
        if repeats and repeated:
            raise PatternError("a repetition repeats a repetition")
        if repeats and (value[0] > MAX_REPEATS or (value[1] > MAX_REPEATS and value[1] != re._parser.MAXREPEAT)):  # type: ignore[attr-defined]
            raise PatternError(f"expected at most {MAX_REPEATS} repetitions")
        for part in parts(value):
            # An optional part is no loop: (a+)? ends
            check(part, repeated or (repeats and value[1] != 1))


def parts(value: Any) -> list[Any]:
    """Return the parsed expressions within a value of re's parser."""
    if isinstance(value, re._parser.SubPattern):                # type: ignore[attr-defined]
        return [value]
    return [part for each in value for part in parts(each)] if isinstance(value, list | tuple) else []
