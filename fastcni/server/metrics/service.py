"""The metrics of a server, from --metrics to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.server.listening import ListenError
from fastcni.server.metrics import address, one_shot
from fastcni.server.metrics.listener import Listener
from fastcni.server.metrics.pools import Counted, Counter
from fastcni.server.metrics.requests import Requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.server.listening import Listening
    from fastcni.server.log import Logger
    from fastcni.server.service import Server


class Metrics:
    """The listener and what it needs. Make it before the server, attach() it to the server, then start() it.

    where: as address.read() returns it. count: see pools.Counter. Raises ListenError.
    """

    def __init__(self, where: str | tuple[str, int], count: Callable[[], Counted], log: Logger) -> None:
        try:
            from fastcni.server.metrics import registry
        except ImportError as e:
            raise ListenError(f"--metrics needs the Python package prometheus_client ({e}): install fastcni[metrics], "
                              "or Debian's python3-prometheus-client") from e
        self.registry, self.count, self.log = registry, count, log
        self.listening: Listening = address.listen(where)
        self.where = where if isinstance(where, str) else f"{where[0]}:{where[1]}"
        self.counts: one_shot.OneShotCount | None = None

    def attach(self, server: Server) -> None:
        """Read the values of this server from now on."""
        requests = Requests()
        server.acceptor.records.receivers.append(requests.note)
        try:
            self.counts = one_shot.OneShotCount(server.listen.sock.getsockname())
        except OSError as e:            # a read-only folder, for instance; all other metrics are there
            self.log.warning("one_shot_uncounted", error=str(e))
        collector = self.registry.ServerCollector(
            requests, server.queue, server.hosts, server.restoring, server.cluster, Counter(self.count, self.log),
            self.counts, self.log)
        self.listener = Listener(self.listening.sock, {self.registry.PATH: self.registry.make_page(collector)},
                                 self.log)

    def start(self) -> None:
        if self.listener.start():
            self.log.info("metrics_ready", address=self.where)

    def stop(self) -> None:
        self.listening.unlink()
        self.listener.stop()
        self.listening.unlock()
        if self.counts:
            self.counts.close()
