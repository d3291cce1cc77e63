"""Log lines on stderr, one a request: logfmt, or JSON."""

import sys

import orjson
import structlog

LEVELS = ("debug", "info", "warning", "error")
SPECIAL = frozenset(' "=\\')
ORDER = ["timestamp", "level", "event", "command", "plugin", "network", "container", "ifname"]


def make(level, fmt):
    """A logger: log.info(event, key=value, ...). level is one of LEVELS, fmt "logfmt" or "json"."""
    render = logfmt if fmt == "logfmt" else structlog.processors.JSONRenderer(
        serializer=lambda event, **_: orjson.dumps(event).decode())
    return structlog.wrap_logger(
        structlog.WriteLogger(sys.stderr),
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso"),
                    structlog.processors.format_exc_info, render],
        wrapper_class=structlog.make_filtering_bound_logger(level), cache_logger_on_first_use=True)


def logfmt(_, __, event):
    """A structlog processor: key=value, the known keys first. Its own LogfmtRenderer takes 15 us for this."""
    first = [f"{key}={text(event.pop(key))}" for key in ORDER if key in event]
    return " ".join(first + [f"{key}={text(value)}" for key, value in event.items()])


def text(value):
    """A value as logfmt has it: in quotes where it has a space, a quote, an equals sign, or nothing."""
    if type(value) is not str:
        return str(value)
    if value and value.isprintable() and not SPECIAL.intersection(value):
        return value
    return orjson.dumps(value.encode("utf-8", "replace").decode()).decode()
