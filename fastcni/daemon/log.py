"""Write the log to stderr, syslog or journald: a line for each request or event, as logfmt, JSON or journald fields."""

from __future__ import annotations

import json
import os
import sys
import traceback
from datetime import UTC, datetime
from time import monotonic
from typing import NamedTuple

from fastcni.daemon.stream import Stream
from fastcni.kernel import logs
from fastcni.kit.call.request_log import (
    JOURNAL,
    LOG_DAEMON,
    LOG_INFO,
    LOG_WARNING,
    SYSLOG,
    journal_entry,
    readable,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Protocol, TextIO

    Receiver = Callable[[Mapping[str, Any]], object]        # gets the event and the fields of a line

    class Logger(Protocol):
        """The contract of loggers: Log, and the logger of `dhcp daemon`. Each level has a method; exception() logs an
        error with the traceback of the current exception."""

        def debug(self, event: str, /, **fields: Any) -> object: ...
        def info(self, event: str, /, **fields: Any) -> object: ...
        def warning(self, event: str, /, **fields: Any) -> object: ...
        def error(self, event: str, /, **fields: Any) -> object: ...
        def exception(self, event: str, /, **fields: Any) -> object: ...

MAX_NAMES = 3
LOG_DEBUG, LOG_ERR = 7, 3           # syslog(3)
SEVERITIES = {"debug": LOG_DEBUG, "info": LOG_INFO, "warning": LOG_WARNING, "error": LOG_ERR}
SPECIAL = frozenset(' "=\\')


class LogOptions(NamedTuple):
    """The options of the log, in the order of make()'s arguments."""

    level: str = "info"         # debug, info, warning or error
    fmt: str = "logfmt"         # or json
    to: str = ""                # "" for stderr, "syslog" or "journald"


def make(level: str, fmt: str, to: str = "", receivers: Iterable[Receiver] = ()) -> Log:
    """Return a logger. level, fmt, to: as in LogOptions; fmt has no effect on journald, which gets fields."""
    if to == "journald":
        return Log(level, journal_fields, Journal(JOURNAL), receivers)
    return Log(level, logfmt if fmt == "logfmt" else as_json, Syslog() if to == "syslog" else Lines(sys.stderr),
               receivers)


class Log:
    """A logger: call log.info(event, key=value, ...).

    level: the lowest level that is written. render: the function that makes the argument of to.write() from the fields
    of a line. receivers: functions that get the event and the fields of each line, without level and timestamp.

    lost: the number of lines that to.write() has lost since the last written line. Threads use no lock, so the number
    may be slightly wrong. A line `log_lines_lost` follows the next written line.
    """

    def __init__(self, level: str, render: Callable[[dict[str, Any]], Any], to: Lines | Syslog,
                 receivers: Iterable[Receiver] = ()) -> None:
        self.max_severity = SEVERITIES[level]
        self.render, self.write, self.receivers = render, to.write, tuple(receivers)
        self.lost = 0

    def debug(self, event: str, /, **fields: Any) -> None:
        if self.max_severity >= LOG_DEBUG:
            self._log("debug", event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        if self.max_severity >= LOG_INFO:
            self._log("info", event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        if self.max_severity >= LOG_WARNING:
            self._log("warning", event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._log("error", event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        self._log("error", event, fields, traceback.format_exc().removesuffix("\n"))

    def _log(self, level: str, event: str, fields: dict[str, Any], exception: str = "") -> None:
        fields["event"] = event
        for receive in self.receivers:
            receive(fields)
        fields["level"] = level
        fields["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        if exception:
            fields["exception"] = exception
        if not self.write(level, self.render(fields)):
            self.lost += 1
        elif self.lost:
            lines, self.lost = self.lost, 0
            self.warning("log_lines_lost", lines=lines)


class Lines:
    """Write lines to a file. Lines that cannot be written are lost."""

    def __init__(self, file: TextIO) -> None:
        self.stream = Stream(file)

    def write(self, level: str, message: str) -> bool:
        """Return False if the line is lost."""
        return self.stream.write(message)


class Syslog:
    """Send lines to /dev/log, with the facility daemon (RFC 3164). The lines have no time; the log daemon adds it. If
    /dev/log is missing or busy, lines are lost."""

    def __init__(self, path: str = SYSLOG) -> None:
        self.path = path

    def write(self, level: str, message: Any) -> bool:
        """Return False if the line is lost."""
        try:
            logs.send(self.path, self._datagram(SEVERITIES[level], message))
        except OSError:
            return False
        return True

    def _datagram(self, severity: int, message: Any) -> bytes:
        return f"<{LOG_DAEMON | severity}>fastcni[{os.getpid()}]: {message}".encode()


class Journal(Syslog):
    """Send entries to journald in its native protocol, with the same field names as one-shot requests: FASTCNI_EVENT
    and so on. If journald is missing or busy, entries are lost. write() gets the dict that journal_fields() returns."""

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


def as_json(event: Mapping[str, Any]) -> str:
    """Return an event as a line of JSON. Bytes that are not UTF-8, for example in a container id, become question
    marks."""
    return to_utf8(json.dumps(event, ensure_ascii=False, separators=(",", ":")))


def logfmt(event: dict[str, Any]) -> str:
    """Return an event as key=value, in the order of the call."""
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


def journal_fields(event: dict[str, Any]) -> dict[str, str]:
    """Return the fields for Journal.write(). Leave out time and level, which journald has in its own fields."""
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
