"""Receive HAProxy's log, a JSON datagram for each request, and send a record of each request to all listeners.

A listener is a socket `<pid>.sock` in the directory LISTENERS next to the agent's socket; `fastcni flows` makes both.
HAProxy logs allowed requests only while a listener exists (configuration.py), because HAProxy handles requests faster
than the agent can read the log.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastcni.agent.policy.http.configuration import LOG

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LISTENERS = "http-listeners"
MAX_BYTES, MAX_TAKEN = 16384, 200       # bytes of a datagram; datagrams that one take() reads
REASONS = {"target": "the target is no path", "path": "the path has empty, dot or needlessly encoded parts",
           "upgrade": "an upgrade to another protocol than websocket", "host": "more than one Host"}
DENIED = (403, -1, 0)           # status values of denied requests; -1 and 0: HAProxy sent no answer


class AccessLog:
    """The socket that receives HAProxy's log. labels: {rule id: name of the rule}. counts: {verdict: number of
    requests}, and the numbers of "unreadable" and "missed" datagrams. Allowed HTTP requests are counted only while a
    listener exists. Raises OSError."""

    def __init__(self, directory: Path) -> None:
        self.listeners, self.labels, self.counts = directory.parent / LISTENERS, dict[str, str](), Counter[str]()
        self.path = directory / LOG
        self.path.unlink(missing_ok=True)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self.sock.bind(str(self.path))
            self.path.chmod(0o600)
        except OSError:
            self.sock.close()
            raise

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()
        self.path.unlink(missing_ok=True)

    @property
    def listening(self) -> list[Path]:
        return list(self.listeners.glob("*.sock"))

    def take(self) -> None:
        """Read the datagrams that have arrived, at most MAX_TAKEN, and send their records to the listeners."""
        listeners = self.listening
        with suppress(BlockingIOError):
            for _ in range(MAX_TAKEN):
                self._read(self.sock.recv(MAX_BYTES), listeners)

    def _read(self, data: bytes, listeners: list[Path]) -> None:
        try:
            found = record(json.loads(data), self.labels.get)
        except (ValueError, TypeError, KeyError):       # HAProxy cuts long lines
            self.counts["unreadable"] += 1
            return
        if found is None:
            return
        self.counts[found["verdict"]] += 1
        line = json.dumps(found).encode()
        for path in listeners:
            try:
                self.sock.sendto(line, str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                path.unlink(missing_ok=True)            # the listener was killed
            except BlockingIOError:                     # the listener reads too slowly
                self.counts["missed"] += 1


def record(said: dict[str, Any], label: Callable[[str, str], str]) -> dict[str, Any] | None:
    """Return a request as the record that `fastcni flows` shows; None if the connection ended without a request.

    said: the decoded line of HAProxy's log. label(id, ""): returns the name of a rule, "" if the id is unknown.
    """
    sides = {"both": ("egress", "ingress")}.get(said["side"], (said["side"],))
    rules = {side: label(said[side], "") if said[side] != "-" else "" for side in sides}
    why, tls = said["why"], said["tls"] not in ("", "-")
    if not tls and said["method"] in ("-", "", "<BADREQ>") and said["status"] <= 0:
        return None
    allowed = all(rules.values()) and why == "-" and said["status"] not in (400,)
    return {"verdict": "allowed" if allowed else "dropped", "by": "http",
            "policy": ", ".join(dict.fromkeys(filter(None, rules.values()))),
            "source": said["source"], "source_port": said["source_port"], "destination": said["destination"],
            "port": said["port"], "status": max(said["status"], 0), "method": "" if tls else said["method"],
            "host": said["tls"] if tls else said["host"], "path": "" if tls else said["path"],
            "reason": "" if allowed else REASONS.get(why, f"no rule for {why} allows it" if why != "-" else
                                                     "the request cannot be read")}
