"""Define the options of a daemon's log: --log-to, --log-level and --log-format."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

DESTINATIONS = ("stderr", "syslog", "journald")
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("logfmt", "json")

NAMES = ("log_to", "log_level", "log_format")


def log_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the log's options to a command. The command's function gets one argument `log`, a LogOptions, instead of
    these options. `log.to` is "" without --log-to."""
    @click.option("--log-to", default=None, type=click.Choice(DESTINATIONS),
                  help="The log's destination; syslog is /dev/log, journald gets structured fields.  [default: stderr]")
    @click.option("--log-level", default="info", show_default=True, type=click.Choice(LEVELS),
                  help="info: the server logs a line for each request.")
    @click.option("--log-format", default="logfmt", show_default=True, type=click.Choice(FORMATS))
    @wraps(function)
    def command(log_to: str | None, log_level: str, log_format: str, **rest: Any) -> Any:
        from fastcni.daemon.log import LogOptions

        return function(log=LogOptions(log_level, log_format, log_to or ""), **rest)
    return command
