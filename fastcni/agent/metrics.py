"""Collect the agent's metrics for Prometheus: `fastcni agent --metrics ADDRESS`. docs/cluster.md describes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from fastcni.agent.run import Agent

EVENTS = ("agent_directory_restored", "agent_failed", "agent_unreachable", "bgp_failed", "bridge_filter_off",
          "bridge_filter_restored", "conflist_kept", "datapath_unseen", "domain_names_closed", "egress_claims_away",
          "egress_lost", "egress_refused", "egress_restored", "entry_refused", "flowtable_unavailable",
          "http_proxy_ended", "http_proxy_missing", "http_proxy_refused", "http_rules_cut", "http_rules_on_bridge",
          "kubernetes_event_unsent", "link_failed", "masquerade_refused", "masquerade_restored", "network_repaired",
          "node_skipped", "nodes_not_kept", "pod_record_damaged", "pod_record_missing", "policies_gone",
          "policies_kept", "policies_not_kept", "policies_refused", "policies_restored", "policy_file_gone",
          "policy_unreadable", "port_renamed", "record_restored", "record_unreadable", "registry_away",
          "subnet_changed", "subnet_lost", "waiting")
GAUGES = {
    "nodes": "Other nodes with a record in the registry",
    "skipped": "Other nodes that cannot be reached; the log has the reason",
    "routes": "Routes to other nodes",
    "ready": "1 if the other nodes could be reached and pods can be made",
}
POLICY_GAUGES = {
    "policies": "Network policies in force",
    "cluster_policies": "Cluster network policies in force",
    "protected_pods": "Pods that ADDs have told of",
    "cut_connections": "Connections that a change of policies has ended",
    "domain_names": "Names of policies' domainNames in force on this node",
    "told_addresses": "Addresses of domain names that pods were told, for each pod",
    "dns_answers": "DNS answers with addresses that the agent has let go",
    "egress_addresses": "Egress addresses of all documents",
    "egress_held": "Egress addresses that this node holds",
    "egress_unheld": "Egress addresses that no node holds: the pods that leave from them are closed",
    "http_requests_denied": "HTTP requests that no rule of a policy has allowed",
    "unreadable_documents": "Documents of policies, pods and namespaces that cannot be read; the log has the reason",
}


class AgentCollector(Collector):
    """The collector of an agent's metrics. Set `agent` before each run. receive() counts the log events in
    EVENTS."""

    def __init__(self) -> None:
        self.agent: Agent | None = None
        self.events = Counter[str]()

    def receive(self, line: Mapping[str, Any]) -> None:
        if line["event"] in EVENTS:
            self.events[line["event"]] += 1

    def collect(self) -> Iterator[Any]:
        warnings = CounterMetricFamily("fastcni_agent_warnings", "Warnings and errors in the log", labels=["event"])
        for event in EVENTS:
            warnings.add_metric([event], self.events[event])
        yield warnings
        found = self.agent.figures() if self.agent else dict.fromkeys(GAUGES, 0)
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"fastcni_agent_{name}", text, found[name])
        if self.agent and self.agent.policies:
            figures = self.agent.policies.figures()
            for name, text in POLICY_GAUGES.items():
                yield GaugeMetricFamily(f"fastcni_agent_{name}", text, figures[name])
