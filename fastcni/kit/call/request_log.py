"""The log line of a request that a plugin file answers without a server, where FASTCNI_LOG says: journald, syslog, or
the path of a file.

The plugin writes it after the answer, and a failure to write it changes nothing. Events and fields are those of
the server's log (docs/server.md).
"""

import posix
import time

from fastcni.kernel import logs
from fastcni.spec import json

JOURNAL, SYSLOG = "/run/systemd/journal/socket", "/dev/log"
INFO, WARNING = 6, 4                # syslog(3)
DAEMON = 3 << 3
LEVELS = {INFO: "info", WARNING: "warning"}
LONGEST = 8192                      # characters of one value: an error has the words of programs in it


class Entry:
    """A request from here on, until write()."""

    __slots__ = ("env", "plugin", "started", "stdin")

    def __init__(self, plugin, env, stdin):
        self.plugin, self.env, self.stdin = plugin, env, stdin
        self.started = time.perf_counter()

    def write(self, where, reply):
        """One entry about the answer. A log that is missing, full or no log loses it."""
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

    def fields(self, reply):
        """(priority, {name: text}), in the order of the server's log."""
        values = {"event": "request_failed" if reply.status else "request_done", "id": posix.urandom(4).hex(),
                  "pid": posix.getpid(), "caller": posix.getppid(), "command": self.env.get("CNI_COMMAND", ""),
                  "plugin": self.plugin, "network": network_of(self.stdin),
                  "container": self.env.get("CNI_CONTAINERID", ""), "ifname": self.env.get("CNI_IFNAME", ""),
                  "ms": f"{(time.perf_counter() - self.started) * 1000:.3f}"}
        if reply.status:
            values["error"] = error_of(reply.stdout)
        return WARNING if reply.status else INFO, {name: readable(value) for name, value in values.items()}


def network_of(stdin):
    """The name in a configuration, "" where there is none."""
    try:
        return json.read(stdin).get("name", "")
    except (json.JsonError, AttributeError):
        return ""


def error_of(stdout):
    """The error document on one line."""
    try:
        return json.write(json.read(stdout)).decode()
    except json.JsonError:
        return stdout.decode("utf-8", "replace")


def readable(value):
    """Text that can be encoded: bytes that are no UTF-8 are question marks."""
    return str(value)[:LONGEST].encode("utf-8", "replace").decode()


# What each place gets ----------------------------------------------------------------------------

def logfmt(fields):
    return " ".join(f"{name}={quoted(value)}" for name, value in fields.items())


def quoted(value):
    """A value as the server's log has it: in quotes where it has a space, a quote, an equals sign, or nothing."""
    plain = value and value.isprintable() and not {*' "=\\'} & {*value}
    return value if plain else json.quote(value)


def file_line(priority, fields):
    now = time.time()
    stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1e6):06d}Z"
    return f"timestamp={stamp} level={LEVELS[priority]} {logfmt(fields)}\n".encode()


def syslog_line(priority, fields):
    stamp = time.strftime("%b %e %H:%M:%S")
    return f"<{DAEMON | priority}>{stamp} fastcni[{posix.getpid()}]: {logfmt(fields)}".encode()


def journal_entry(priority, fields):
    """A datagram of journald's native protocol: NAME=value lines, or NAME, a length and the value."""
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
