"""Log lines on stderr, one a request: logfmt, or JSON."""

import sys

import orjson
import structlog

LEVELS = ("debug", "info", "warning", "error")
ORDER = ["timestamp", "level", "event", "command", "plugin", "network", "container", "ifname"]


def make(level, fmt):
    """A logger: log.info(event, key=value, ...). level is one of LEVELS, fmt "logfmt" or "json"."""
    render = [structlog.processors.LogfmtRenderer(key_order=ORDER, drop_missing=True)] if fmt == "logfmt" else [
        structlog.processors.JSONRenderer(serializer=lambda event, **_: orjson.dumps(event).decode())]
    return structlog.wrap_logger(
        structlog.WriteLogger(sys.stderr),
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso"), *render],
        wrapper_class=structlog.make_filtering_bound_logger(level), cache_logger_on_first_use=True)
