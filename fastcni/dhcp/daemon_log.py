"""Write the log of `dhcp daemon` as logfmt lines to stderr, with the same fields and events as the server's log.

The server's log, daemon/log.py, imports modules of Python that this daemon does not need: json, typing, datetime."""

from __future__ import annotations

import sys
import time
import traceback

from fastcni.daemon.stream import Stream
from fastcni.kit.call.request_log import logfmt, readable


class Log:
    """The log, used as log.info(event, name=value, ...). A line that cannot be written is lost."""

    def __init__(self) -> None:
        self.stream = Stream(sys.stderr)
        self.lost = 0                   # see daemon/log.py

    def debug(self, event: str, /, **fields: object) -> None:
        """Do nothing: the lowest level that is written is info."""

    def info(self, event: str, /, **fields: object) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._write("error", event, fields)

    def exception(self, event: str, /, **fields: object) -> None:
        self._write("error", event, fields | {"exception": traceback.format_exc()})

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1e6):06d}Z"
        values = {"timestamp": stamp, "level": level, "event": event, **fields}
        if not self.stream.write(logfmt({name: readable(value) for name, value in values.items()})):
            self.lost += 1
        elif self.lost:
            lines, self.lost = self.lost, 0
            self.warning("log_lines_lost", lines=lines)
