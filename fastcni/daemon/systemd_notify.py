"""Send messages to systemd about the state of the server (sd_notify(3))."""

from __future__ import annotations

import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastcni.daemon.log import Logger

TIMEOUT_S = 1.0                 # the longest wait of a thread if systemd's receive buffer is full


class Notifier:
    """A sender of messages to systemd. notify("READY=1") sends to the socket that the variable NOTIFY_SOCKET names;
    without this variable, notify() does nothing.

    environ: os.environ. An address that begins with @ is in the abstract namespace (unix(7)). If a message cannot be
    sent, notify() logs a warning.
    """

    def __init__(self, environ: Mapping[str, str], log: Logger) -> None:
        self.address, self.log = environ.get("NOTIFY_SOCKET", ""), log

    def notify(self, text: str) -> None:
        """Send one message. text: lines of NAME=VALUE."""
        if not self.address:
            return
        address = "\0" + self.address[1:] if self.address[0] == "@" else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(TIMEOUT_S)
                sock.sendto(text.encode(), address)
        except OSError as e:
            self.log.warning("systemd_not_notified", message=text, address=self.address, why=str(e))
