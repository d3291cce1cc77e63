"""Write the log line of a one-shot request. FASTCNI_LOG names the log: journald, syslog, or the path of a file.

The plugin writes the line after the answer, so an error in the log does not change the answer. The line has the events
and fields of the server's log (docs/server-log.md).
"""

from __future__ import annotations

import posix
import time

from fastcni.kernel import logs
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastcni.kit.call.request import Reply

JOURNAL, SYSLOG = "/run/systemd/journal/socket", "/dev/log"
LOG_INFO, LOG_WARNING = 6, 4        # syslog(3)
LOG_DAEMON = 3 << 3
LEVELS = {LOG_INFO: "info", LOG_WARNING: "warning"}
MAX_VALUE = 8192                    # characters of one value: an error may contain a program's output


class Entry:
    """The log entry of one request. The request's duration is the time from __init__() to write()."""

    __slots__ = ("env", "plugin", "started", "stdin")

    def __init__(self, plugin: str, env: Mapping[str, str], stdin: bytes) -> None:
        self.plugin, self.env, self.stdin = plugin, env, stdin
        self.started = time.perf_counter()

    def write(self, where: str, reply: Reply) -> None:
        """Write the entry to the log `where`. If that log is missing, full or not writable, the entry is lost."""
        priority, fields = self.fields(reply)
        try:
            if where == "journald":
                logs.send(JOURNAL, journal_entry(priority, fields))
            elif where == "syslog":
                logs.send(SYSLOG, syslog_line(priority, fields))
            elif where.startswith("/"):
                logs.append(where, file_line(priority, fields))
        except (OSError, ValueError):       # ValueError: a path with a NUL
            return

    def fields(self, reply: Reply) -> tuple[int, dict[str, str]]:
        """Return (priority, {name: text}), in the order of the server's log."""
        values = {"event": "request_failed" if reply.status else "request_done", "id": posix.urandom(4).hex(),
                  "pid": posix.getpid(), "caller": posix.getppid(), "command": self.env.get("CNI_COMMAND", ""),
                  "plugin": self.plugin, "network": network_of(self.stdin),
                  "container": self.env.get("CNI_CONTAINERID", ""), "ifname": self.env.get("CNI_IFNAME", ""),
                  "ms": f"{(time.perf_counter() - self.started) * 1000:.3f}"}
        if reply.status:
            values["error"] = error_of(reply.stdout)
        elif reply.stderr:
            values["warning"] = reply.stderr.decode("utf-8", "replace").strip().replace("\n", "; ")
        priority = LOG_WARNING if reply.status or reply.stderr else LOG_INFO
        return priority, {name: readable(value) for name, value in values.items()}


def network_of(stdin: bytes) -> object:
    """Return the network's name in a configuration, or ""."""
    try:
        return json.read(stdin).get("name", "")
    except (json.JsonError, AttributeError):
        return ""


def error_of(stdout: bytes) -> str:
    """Return the error document in `stdout` as JSON on one line."""
    try:
        return json.write(json.read(stdout)).decode()
    except json.JsonError:
        return stdout.decode("utf-8", "replace")


def readable(value: object) -> str:
    """Return the value as text that can be encoded: bytes that are not UTF-8 become question marks."""
    return str(value)[:MAX_VALUE].encode("utf-8", "replace").decode()


# The formats of the logs --------------------------------------------------------------------------

def logfmt(fields: dict[str, str]) -> str:
    """Return the fields as logfmt: name=value name="a value" ..."""
    return " ".join(f"{name}={quoted(value)}" for name, value in fields.items())


def quoted(value: str) -> str:
    """Return a value as the server's log prints it: in quotes if it is empty or has a space, a quote or an equals
    sign."""
    plain = value and value.isprintable() and not {*' "=\\'} & {*value}
    return value if plain else json.quote(value)


def file_line(priority: int, fields: dict[str, str]) -> bytes:
    now = time.time()
    stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1e6):06d}Z"
    return f"timestamp={stamp} level={LEVELS[priority]} {logfmt(fields)}\n".encode()


def syslog_line(priority: int, fields: dict[str, str]) -> bytes:
    stamp = time.strftime("%b %e %H:%M:%S")
    return f"<{LOG_DAEMON | priority}>{stamp} fastcni[{posix.getpid()}]: {logfmt(fields)}".encode()


def journal_entry(priority: int, fields: dict[str, str]) -> bytes:
    """Return a datagram of journald's native protocol: NAME=value lines, or NAME, a length and the value."""
    entry = {"MESSAGE": logfmt(fields), "PRIORITY": str(priority), "SYSLOG_IDENTIFIER": "fastcni"}
    entry |= {f"FASTCNI_{name.upper()}": value for name, value in fields.items()}
    lines = []
    for name, value in entry.items():
        data = value.encode()
        if b"\n" in data:
            lines.append(name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n")
        else:
            lines.append(name.encode() + b"=" + data + b"\n")
    return b"".join(lines)
