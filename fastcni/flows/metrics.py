"""Export the number of flows to Prometheus: `fastcni serve --flows --metrics ADDRESS` (docs/flows.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from fastcni.flows.flow import DROPPED

if TYPE_CHECKING:
    from fastcni.flows.last_flows import LastFlows


class FlowsCollector(Collector):
    """The Prometheus collector that counts all flows since the server's start."""

    def __init__(self, last_flows: LastFlows) -> None:
        self.last_flows = last_flows

    def collect(self) -> Iterator[Any]:
        flows = CounterMetricFamily("fastcni_flows", "Flows of pods that the server has seen, by verdict: allowed, "
                                    "dropped. Busy nodes: a sample", labels=["verdict", "network"])
        drops = CounterMetricFamily("fastcni_flow_drops", "Dropped flows. by: policy, firewall, isolation. policy: the "
                                    "names of the policies that restrict the pod", labels=["by", "policy", "network"])
        counts = self.last_flows.copy_counts()
        by_verdict: dict[tuple[str, str], int] = {}
        for (verdict, by, policy, network), number in counts.items():
            by_verdict[verdict, network] = by_verdict.get((verdict, network), 0) + number
            if verdict == DROPPED:
                drops.add_metric((by, policy, network), number)
        for labels, number in by_verdict.items():
            flows.add_metric(labels, number)
        yield flows
        yield drops
