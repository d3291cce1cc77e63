"""Receive by datagram sockets, from the agents, the HTTP requests that the agents' proxies have allowed or denied."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcni.agent.policy.http.access_log import LISTENERS, MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_TAKEN = 500                 # the most requests that read() takes from one agent, so that other flows are shown, too


class Requests:
    """The sockets to which agents send HTTP requests. agents: the paths of the agents' sockets. If the directory for a
    socket cannot be made, no agent has run there, and the agent is left out."""

    def __init__(self, agents: Iterable[str]) -> None:
        self.paths: list[Path] = []
        self.socks: list[socket.socket] = []
        for agent in agents:
            directory = Path(agent).parent / LISTENERS
            with suppress(OSError):
                directory.mkdir(mode=0o700, exist_ok=True)
                self._open(directory / f"{os.getpid()}.sock")

    def _open(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        it = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            it.bind(str(path))
        except OSError:
            it.close()
            raise
        self.socks.append(it)
        self.paths.append(path)

    def close(self) -> None:
        for it in self.socks:
            it.close()
        for path in self.paths:
            path.unlink(missing_ok=True)

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the records that have arrived. access_log.record() describes their keys."""
        for it in self.socks:
            with suppress(BlockingIOError):
                for _ in range(MAX_TAKEN):
                    yield json.loads(it.recv(MAX_BYTES))
