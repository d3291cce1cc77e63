"""List the metrics with their types, labels and help texts. docs/metrics.md has the same table."""

from __future__ import annotations

from dataclasses import dataclass

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. name: as Prometheus scrapes it; for a histogram, the name without its suffixes."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


TABLE = (
    Metric("fastcni_info", GAUGE, ("version",), "Always 1. The label has the version of the server."),
    Metric("fastcni_requests_total", COUNTER, ("command", "plugin", "network", "code"),
           "Requests that have ended. code: 0, the code of the CNI error, or declined (it went one-shot), caller_gone, "
           "abandoned, fault."),
    Metric("fastcni_request_seconds", HISTOGRAM, ("command", "plugin"),
           "Time from the arrival of an answered request to its end."),
    Metric("fastcni_request_phase_seconds", HISTOGRAM, ("command", "phase"), "Time that a request spent in a phase, "
           "for requests with this phase. phase: queue, ipam, netlink, nftables, delegate (a third-party plugin), "
           "program (iptables and the like). Phases can lie inside each other."),
    Metric("fastcni_requests_waiting", GAUGE, (), "Requests in the queue."),
    Metric("fastcni_requests_running", GAUGE, (), "Requests that a worker has begun."),
    Metric("fastcni_queue_size", GAUGE, (), "Requests that may wait in the queue (--queue-size)."),
    Metric("fastcni_workers", GAUGE, (), "Requests that may run at the same time (--workers)."),
    Metric("fastcni_workers_busy", GAUGE, (), "Requests that run and do not wait for a lock, a program or the kernel."),
    Metric("fastcni_one_shot_requests_total", COUNTER, ("reason",),
           "Requests that went one-shot. reason: no_server, busy, unread (the server did not read in time), declined, "
           "too_long, lost (the server died), other."),
    Metric("fastcni_restores_total", COUNTER, (),
           "Tables of fastcni that the server restored after another program's change."),
    Metric("fastcni_restored_elements_total", COUNTER, (), "Elements that the server restored in tables of fastcni."),
    Metric("fastcni_replays_total", COUNTER, ("outcome",),
           "Replays of the pods' state in iptables and firewalld. outcome: done, failed."),
    Metric("fastcni_link_deletes_total", COUNTER, (), "Links that requests have deleted."),
    Metric("fastcni_link_delete_requests_total", COUNTER, (),
           "Requests to the kernel that delete links: one request deletes a group of links."),
    Metric("fastcni_addresses_held", GAUGE, ("ipam", "network", "range"),
           "Addresses that are given out. For ipam cluster the network is the space. range: none for addresses outside "
           "of all known ranges."),
    Metric("fastcni_addresses_free", GAUGE, ("ipam", "network", "range"),
           "Addresses that can still be given. For ipam cluster: in this node's blocks."),
    Metric("fastcni_attachments", GAUGE, ("network",), "Attachments in the runtimes' result cache."),
    Metric("fastcni_count_age_seconds", GAUGE, (),
           "Age of the numbers of addresses and attachments: the server counts them at most every 15 s."),
    Metric("fastcni_namespaces", GAUGE, (), "Network namespaces of callers that the server has open."),
    Metric("fastcni_threads", GAUGE, (), "Threads of the server."),
)
# Metrics of the Prometheus client itself (ProcessCollector)
OF_CLIENT = ("process_virtual_memory_bytes", "process_resident_memory_bytes", "process_start_time_seconds",
             "process_cpu_seconds_total", "process_open_fds", "process_max_fds")
