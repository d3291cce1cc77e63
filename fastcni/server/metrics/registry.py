"""Collect the current values of all metrics for the Prometheus client."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

import fastcni
from fastcni.server.metrics import one_shot
from fastcni.server.metrics.pools import MAX_POOLS, Counted, Pool, cluster_pools
from fastcni.server.metrics.requests import Requests, text
from fastcni.server.metrics.table import COUNTER, HISTOGRAM, TABLE
from fastcni.server.web.listener import Page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastcni.daemon.log import Logger
    from fastcni.server.cluster.upkeep import ClusterUpkeep
    from fastcni.server.latest import Latest
    from fastcni.server.requests.hosts import Hosts
    from fastcni.server.requests.request_queue import RequestQueue
    from fastcni.server.restoring.restorer import Restoring

    Sample = tuple[tuple[str, ...], Any]        # (label values, number), for a histogram (label values, Histogram)

FAMILIES: dict[str, Any] = {COUNTER: CounterMetricFamily, HISTOGRAM: HistogramMetricFamily}
PATH = "/metrics"


class ServerCollector(Collector):
    """The collector of the metrics in table.py. The arguments are the parts of the server from which the collector
    reads the values.

    counts: None if the file PATH.one-shot cannot be used.
    """

    def __init__(self, requests: Requests, queue: RequestQueue, hosts: Hosts, restoring: Restoring,
                 cluster: ClusterUpkeep, pools: Latest[Counted],
                 counts: one_shot.OneShotCount | None, log: Logger) -> None:
        self.requests, self.queue, self.hosts, self.restoring = requests, queue, hosts, restoring
        self.cluster, self.pools, self.counts, self.log = cluster, pools, counts, log

    def collect(self) -> Iterator[Any]:
        values = self.values()
        for metric in TABLE:
            family = FAMILIES.get(metric.kind, GaugeMetricFamily)(metric.name, metric.text, labels=metric.labels)
            for labels, value in values.get(metric.name, ()):
                if metric.kind == HISTOGRAM:
                    family.add_metric(labels, buckets=value.buckets(), sum_value=value.total)
                else:
                    family.add_metric(labels, value)
            yield family

    def values(self) -> dict[str, Iterable[Sample]]:
        """Return {name of a metric: its samples}."""
        counts, times, phases = self.requests.copy()
        links, link_requests = self.hosts.link_deletes()
        counted = self.pools.get()
        pools = [*counted.pools, *cluster_pools(self.cluster.status())][:MAX_POOLS]
        restoring = self.restoring
        one: dict[str, float] = {
            "fastcni_requests_waiting": self.queue.waiting, "fastcni_requests_running": self.queue.running,
            "fastcni_queue_size": self.queue.size, "fastcni_workers": self.queue.workers,
            "fastcni_workers_busy": self.queue.working, "fastcni_restores_total": restoring.restores,
            "fastcni_restored_elements_total": restoring.elements, "fastcni_link_deletes_total": links,
            "fastcni_link_delete_requests_total": link_requests, "fastcni_namespaces": len(self.hosts.known),
            "fastcni_threads": threading.active_count()}
        found: dict[str, Iterable[Sample]] = {name: [((), value)] for name, value in one.items()}
        found["fastcni_info"] = [((fastcni.__version__,), 1)]
        found["fastcni_requests_total"] = counts.items()
        found["fastcni_request_seconds"] = times.items()
        found["fastcni_request_phase_seconds"] = phases.items()
        found["fastcni_replays_total"] = [((name,), number) for name, number in restoring.replays.items()]
        found["fastcni_one_shot_requests_total"] = [((name,), number) for name, number in self._one_shot().items()]
        if counted.moment:
            found["fastcni_count_age_seconds"] = [((), monotonic() - counted.moment)]
            found["fastcni_attachments"] = [((name,), number) for name, number in counted.attachments.items()]
        found["fastcni_addresses_held"] = [(labels_of(it), it.held) for it in pools]
        found["fastcni_addresses_free"] = [(labels_of(it), it.free) for it in pools if it.free is not None]
        return found

    def _one_shot(self) -> Mapping[str, int]:
        if not self.counts:
            return {}
        try:
            return self.counts.read()
        except OSError:                 # an error of the disk: use the previous values
            return self.counts.counts


def labels_of(pool: Pool) -> tuple[str, str, str]:
    return pool.ipam, text(pool.network), pool.range


def make_page(*collectors: Collector) -> Page:
    """Return the page that Prometheus scrapes."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    ProcessCollector(registry=registry)
    return Page(CONTENT_TYPE_LATEST, lambda: generate_latest(registry))
