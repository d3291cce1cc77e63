"""Serve the pages of one address of --http or --metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.server.web import address
from fastcni.server.web.listener import Listener

if TYPE_CHECKING:
    from fastcni.daemon.listening import Listening
    from fastcni.daemon.log import Logger
    from fastcni.server.web.listener import Page


class Site:
    """An address and its pages. where: a result of address.read(). Call listen(), then attach(). Add pages before
    start()."""

    def __init__(self, where: str | tuple[str, int], log: Logger) -> None:
        self.where, self.log = where, log
        self.pages: dict[str, Page] = {}
        self.ready: list[str] = []      # events to log when the site begins to answer
        self.listening: Listening | None = None

    def listen(self) -> None:
        """Open the listening socket. Raises ListenError."""
        self.listening = address.listen(self.where)

    def release(self) -> None:
        """Undo listen(), because the server does not start."""
        if self.listening:
            self.listening.unlink()
            self.listening.unlock()
            self.listening.sock.close()

    def announce(self, event: str) -> None:
        """Log this event, with the address, when the site begins to answer."""
        self.ready.append(event)

    def attach(self, _: object = None) -> None:
        assert self.listening
        self.listener = Listener(self.listening.sock, self.pages, self.log)

    def start(self) -> None:
        if self.listener.start():
            for event in self.ready:
                self.log.info(event, address=address.text(self.where))

    def stop(self) -> None:
        assert self.listening
        self.listening.unlink()
        self.listener.stop()
        self.listening.unlock()
