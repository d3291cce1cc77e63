"""Write the log to stderr, syslog or journald: a line for each request or event, as logfmt, JSON or journald fields."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from functools import partialmethod
from time import monotonic
from types import ModuleType
from typing import NamedTuple

from fastcni.kernel import logs
from fastcni.kit.call.request_log import JOURNAL, LOG_DAEMON, SYSLOG, journal_entry, readable

# structlog imports the package rich, if it is installed, for coloured tracebacks: 50 ms and 5 MB. It imports asyncio
# for coroutines that log: 14 ms and 3 MB. fastcni's logs have no colours and no coroutines, so the next lines prevent
# both imports.
absent: Any = None
unused = {"rich": absent, "asyncio": ModuleType("asyncio")}
loaded = {name: sys.modules.setdefault(name, module) for name, module in unused.items()}
import structlog  # noqa: E402

for name, module in unused.items():
    if loaded[name] is module:
        del sys.modules[name]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
    from typing import Any, Protocol, TextIO

    from structlog.typing import Processor

    class Logger(Protocol):
        """The contract of loggers: the loggers of make(), and the logger of `dhcp daemon`, which does not use
        structlog. Each level has a method; exception() logs an error with the traceback of the current exception."""

        def debug(self, event: str, **fields: Any) -> object: ...
        def info(self, event: str, **fields: Any) -> object: ...
        def warning(self, event: str, **fields: Any) -> object: ...
        def error(self, event: str, **fields: Any) -> object: ...
        def exception(self, event: str, **fields: Any) -> object: ...

MAX_NAMES = 3
LEVELS = ("debug", "info", "warning", "error")
SAME_LEVEL = {"warn": "warning", "exception": "error"}      # {method of a logger that is no level: its level}
SPECIAL = frozenset(' "=\\')


class LogOptions(NamedTuple):
    """The options of the log, in the order of make()'s arguments."""

    level: str = "info"         # debug, info, warning or error
    fmt: str = "logfmt"         # or json
    to: str = ""                # "" for stderr, "syslog" or "journald"


def make(level: str, fmt: str, to: str = "", receivers: Iterable[Processor] = ()) -> Logger:
    """Return a logger: call log.info(event, key=value, ...). level, fmt, to: as in LogOptions; fmt has no effect on
    journald, which gets fields. receivers: structlog processors that get the fields of each line."""
    render: Any = logfmt if fmt == "logfmt" else structlog.processors.JSONRenderer(serializer=as_json)
    if to == "journald":
        render = journal_fields
    return structlog.wrap_logger(
        Journal(JOURNAL) if to == "journald" else Syslog() if to == "syslog" else Lines(sys.stderr),
        processors=[*receivers, stamp, render], wrapper_class=logger_class(level)).bind()


def logger_class(level: str) -> type:
    """Return structlog's class of loggers for `level`, with the shorter methods of method(): loggers of fastcni have no
    context, and the last processor returns the only argument of a method of Lines, Syslog or Journal."""
    lowest = getattr(logging, level.upper())
    shorter = {name: method(name) for name in LEVELS if getattr(logging, name.upper()) >= lowest}
    return type("FilteringLogger", (structlog.make_filtering_bound_logger(lowest),), shorter)


def method(name: str) -> Callable[..., None]:
    """Return a method that passes the fields of a line through the processors, then to the method `name` of Lines,
    Syslog or Journal."""
    def log_line(logger: Any, event: str, /, **fields: Any) -> None:
        line: Any = fields
        line["event"] = event
        for process in logger._processors:
            line = process(logger._logger, name, line)
        getattr(logger._logger, name)(line)
    return log_line


class Lines:
    """A logger that writes lines to a file. It drops lines that it cannot write, for example because the disk is full,
    so that no request fails because of the log."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def msg(self, message: str) -> None:
        try:
            self.file.write(f"{message}\n")
            self.file.flush()
        except OSError:
            return

    log = debug = info = warn = warning = error = critical = exception = fatal = msg


class Syslog:
    """A logger that sends lines to /dev/log, with the facility daemon (RFC 3164). The lines have no time; the log
    daemon adds it. If /dev/log is missing or busy, lines are lost."""

    def __init__(self, path: str = SYSLOG) -> None:
        self.path = path

    def _send(self, severity: int, message: Any) -> None:
        try:
            logs.send(self.path, self._datagram(severity, message))
        except OSError:
            return

    def _datagram(self, severity: int, message: Any) -> bytes:
        return f"<{LOG_DAEMON | severity}>fastcni[{os.getpid()}]: {message}".encode()

    debug, info, warning = partialmethod(_send, 7), partialmethod(_send, 6), partialmethod(_send, 4)
    exception = critical = error = partialmethod(_send, 3)


class Journal(Syslog):
    """A logger that sends entries to journald in its native protocol, with the same field names as one-shot requests:
    FASTCNI_EVENT and so on. If journald is missing or busy, entries are lost. The methods get the dict that
    journal_fields() returns."""

    def _datagram(self, severity: int, message: dict[str, str]) -> bytes:
        return journal_entry(severity, message)


class RateLimited:
    """A limit for the log lines of events that any caller can cause: at most one line of each event every `seconds`
    seconds. Each line has the number of lines of its event that were dropped before.

    log: a method of a logger. Threads use no lock, so the number may be slightly wrong.
    """

    def __init__(self, log: Callable[..., Any], seconds: float = 10.0) -> None:
        self.log, self.seconds = log, seconds
        self.events: dict[str, tuple[float, int]] = {}      # {event: (when its next line may be logged, dropped lines)}

    def __call__(self, event: str, **fields: object) -> None:
        now = monotonic()
        due, left_out = self.events.get(event, (0.0, 0))
        if now < due:
            self.events[event] = due, left_out + 1
            return
        self.events[event] = now + self.seconds, 0
        self.log(event, **fields, left_out=left_out)


def few(names: Sequence[str]) -> str:
    """Return the first MAX_NAMES names and the number of further names: "a, b, c and 4 more"."""
    return ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def as_json(event: Mapping[str, Any], **_: object) -> str:
    """Return an event as a line of JSON. Bytes that are not UTF-8, for example in a container id, become question
    marks."""
    return to_utf8(json.dumps(event, ensure_ascii=False, separators=(",", ":")))


def stamp(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add level, timestamp and exception to an event; a structlog processor. stamp() replaces three processors of
    structlog, which make nine function calls for each line."""
    event["level"] = SAME_LEVEL.get(method, method)
    event["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return structlog.processors.format_exc_info(logger, method, event) if "exc_info" in event else event


def logfmt(_: object, __: str, event: MutableMapping[str, Any]) -> str:
    """Render an event as key=value, in the order of the call; a structlog processor. It is faster than structlog's
    LogfmtRenderer."""
    first = f"timestamp={event.pop('timestamp')} level={event.pop('level')} event={text(event.pop('event'))}"
    return f"{first} {logfmt_fields(event)}" if event else first


def logfmt_fields(fields: Mapping[str, Any]) -> str:
    """Return the fields as key=value, separated by spaces."""
    line = " ".join([f"{name}={value}" for name, value in fields.items()])
    # In most lines no value needs quotes: the line has an equals sign for each field, and spaces only between fields
    if (line.count("=") == len(fields) == line.count(" ") + 1 and "= " not in line and not line.endswith("=")
            and '"' not in line and "\\" not in line and line.isprintable()):
        return line
    return " ".join([f"{name}={text(str(value))}" for name, value in fields.items()])


def journal_fields(_: object, __: str, event: MutableMapping[str, Any]) -> dict[str, str]:
    """Return the fields for a method of Journal; a structlog processor. Leave out time and level, which journald has in
    its own fields."""
    fields = {"event": event.pop("event"), **event}
    return {name: readable(value) for name, value in fields.items() if name not in ("timestamp", "level")}


def text(value: str) -> str:
    """Return `value` for logfmt: in quotes if it is empty or has a space, a quote, a backslash or an equals sign."""
    if value and plain(value):
        return value
    return to_utf8(json.dumps(value, ensure_ascii=False))


def to_utf8(text: str) -> str:
    """Return a text that can be encoded in UTF-8: bytes that are not UTF-8 become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def plain(value: str) -> bool:
    return value.isprintable() and SPECIAL.isdisjoint(value)
