"""Log lines on stderr, one a request: logfmt, or JSON."""

from __future__ import annotations

import sys
from time import monotonic

import orjson
import structlog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
    from typing import Any

    from structlog.typing import FilteringBoundLogger as Logger

LEVELS = ("debug", "info", "warning", "error")
MAX_NAMES = 3
SPECIAL = frozenset(' "=\\')


def make(level: str, fmt: str) -> Logger:
    """Return a logger: log.info(event, key=value, ...). level is one of LEVELS, fmt "logfmt" or "json"."""
    render: Any = logfmt if fmt == "logfmt" else structlog.processors.JSONRenderer(serializer=as_json)
    return structlog.wrap_logger(
        Lines(sys.stderr),
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso"),
                    structlog.processors.format_exc_info, render],
        wrapper_class=structlog.make_filtering_bound_logger(level)).bind()


class Lines(structlog.WriteLogger):
    """Writes lines, and drops what it cannot write (journald is gone, a full disk): no request fails by that."""

    def msg(self, message: str) -> None:
        try:
            super().msg(message)
        except OSError:
            return

    log = debug = info = warn = warning = error = critical = exception = fatal = msg


class RateLimited:
    """Log an event that a caller can cause at will: one line in `seconds`, which counts the lines left out before it.

    log: a method of a logger. Threads take no lock here: a count may be off by a few.
    """

    def __init__(self, log: Callable[..., Any], seconds: float = 10.0) -> None:
        self.log, self.seconds, self.next, self.left_out = log, seconds, 0.0, 0

    def __call__(self, event: str, **fields: object) -> None:
        now = monotonic()
        if now < self.next:
            self.left_out += 1
            return
        self.next, left_out, self.left_out = now + self.seconds, self.left_out, 0
        self.log(event, **fields, left_out=left_out)


def few(names: Sequence[str]) -> str:
    """The first names, and how many more there are: "a, b, c and 4 more"."""
    return ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def as_json(event: Mapping[str, Any], **_: object) -> str:
    """A line of JSON. Bytes that are not UTF-8, for instance in a container id, become question marks."""
    try:
        return orjson.dumps(event).decode()
    except TypeError:
        return orjson.dumps({key: value.encode("utf-8", "replace").decode() if type(value) is str else value
                             for key, value in event.items()}).decode()


def logfmt(_: object, __: str, event: MutableMapping[str, Any]) -> str:
    """A structlog processor: key=value in the order of the call. structlog's LogfmtRenderer takes longer."""
    first = f"timestamp={event.pop('timestamp')} level={event.pop('level')} event={text(event.pop('event'))}"
    texts: Iterable[str] = [*map(str, event.values())]
    if "" in texts or not plain("".join(texts)):        # one check for most lines, not one a value
        texts = map(text, texts)
    return " ".join([first, *map("{}={}".format, event, texts)])


def text(value: str) -> str:
    """A value of logfmt: in quotes if it is empty or has a space, a quote or an equals sign."""
    if value and plain(value):
        return value
    return orjson.dumps(value.encode("utf-8", "replace").decode()).decode()


def plain(value: str) -> bool:
    return value.isprintable() and SPECIAL.isdisjoint(value)
