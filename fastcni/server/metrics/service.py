"""Serve the page /metrics of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.daemon.listening import ListenError
from fastcni.server.latest import Latest
from fastcni.server.metrics import one_shot
from fastcni.server.metrics.pools import COUNT_S, Counted
from fastcni.server.metrics.requests import Requests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prometheus_client.registry import Collector

    from fastcni.daemon.log import Logger
    from fastcni.server.service import Server
    from fastcni.server.web.site import Site


class Metrics:
    """The page /metrics of a site. Create the object before the server, then call attach() with the server.

    count: counts addresses and attachments. more: collectors of other parts of the server, such as the agent. The
    constructor raises ListenError.
    """

    def __init__(self, site: Site, count: Callable[[], Counted], log: Logger, more: Sequence[Collector] = ()) -> None:
        try:
            from fastcni.server.metrics import registry
        except ImportError as e:
            raise ListenError(f"--metrics needs the Python package prometheus_client ({e}): install fastcni[metrics], "
                              "or Debian's python3-prometheus-client") from e
        self.site, self.registry, self.count, self.log, self.more = site, registry, count, log, more
        self.counts: one_shot.OneShotCount | None = None

    def attach(self, server: Server) -> None:
        """Read the metrics from the parts of this server."""
        requests = Requests()
        server.acceptor.records.receivers.append(requests.note)
        try:
            self.counts = one_shot.OneShotCount(server.listen.sock.getsockname())
        except OSError as e:            # for example a read-only directory; the page then lacks only this metric
            self.log.warning("one_shot_uncounted", error=str(e))
        collector = self.registry.ServerCollector(
            requests, server.queue, server.hosts, server.restoring, server.cluster,
            Latest(self.count, Counted(), COUNT_S, self.log, "metrics-count"), self.counts, self.log)
        self.site.pages[self.registry.PATH] = self.registry.make_page(collector, *self.more)
        self.site.announce("metrics_ready")

    def start(self) -> None:
        """Do nothing: the site starts the listener."""

    def stop(self) -> None:
        if self.counts:
            self.counts.close()
