"""List the events of the log for operators. docs/traces-and-events.md has the same table."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """An event of the log. level: the level of its log line. fields: the fields that Kubernetes Events show. meaning:
    one sentence for operators."""

    level: str
    fields: tuple[str, ...]
    meaning: str


EVENTS = {
    "pool_nearly_full": Event("warning", ("network", "range", "held", "free"),
                              "Pods hold more than 90% of a range of host-local."),
    "pool_recovered": Event("info", ("network", "range", "held", "free"),
                            "Pods hold less than 80% of this range again."),
    "delete_retried": Event("warning", ("plugin", "network", "container", "ifname", "failures", "outcome"),
                            "The runtime repeated a DEL that had failed. outcome: the outcome of the last DEL."),
    "rules_restored": Event("warning", ("table", "gone", "by", "elements"), "Another program changed a table of "
                            "fastcni; the server restored the table. by: the program."),
    "rules_replayed": Event("warning", ("gone", "by"), "Another program removed rules of iptables or firewalld; the "
                            "server restored the pods' rules."),
    "pods_let_through": Event("warning", ("chain", "by", "attachments"),
                              "iptables began to filter; the server made iptables accept the pods' packets."),
    "pods_dropped": Event("warning", ("what", "do"),
                          "A chain or rule of another program drops packets of pods. do: the command to run."),
    "neighbours_restored": Event("warning", ("fdb", "neighbours"),
                                 "Another program removed neighbour entries of disableFlooding."),
    "restore_failed": Event("error", ("error",),
                            "The kernel rejected rules that the server restores; the server tries again."),
    "replay_failed": Event("error", ("gone", "by", "error"),
                           "The server could not restore the rules of pods; the server tries again."),
    "watch_unavailable": Event("warning", ("error",), "The server cannot watch the firewall and restores nothing."),
    "addresses_released": Event("info", ("network", "number", "addresses", "owners"),
                                "Stale state: addresses of pods from before a reboot were released."),
    "addresses_unread": Event("warning", ("network", "error"), "Address files of a network cannot be read."),
    "ovs_ports_removed": Event("info", ("address", "number", "ports", "owners"),
                               "Stale state: ports of Open vSwitch whose pod no longer exists were removed."),
    "ovs_ports_unread": Event("warning", ("address", "error"),
                              "A database of Open vSwitch, or a cache file that names one, cannot be read."),
    "datapath_unswept": Event("warning", ("error",), "Flows of the datapath ebpf that have ended stay in its map."),
    "networks_unchanged": Event("warning", ("pod", "container", "error"),
                                "Networks of a running pod could not be attached or detached; the server tries again."),
    "cluster_store_away": Event("warning", ("store", "why"), "The store of cluster-wide addresses does not answer."),
    "cluster_store_restored": Event("error", ("store", "why"),
                                    "The store went back to an older state: no new blocks for a while."),
    "cluster_range_full": Event("warning", ("space", "range"), "A cluster-wide range has no free block for this node."),
    "cluster_block_lost": Event("error", ("space", "block", "by"), "Another node has taken a block of this node."),
    "cluster_address_conflict": Event("error", ("space", "address"), "Two nodes gave out the same address."),
    "cluster_node_returned": Event("warning", ("node", "store"),
                                   "Another node had declared this node dead; this node has joined again."),
    "worker_replaced": Event("error", ("error",), "A fault of fastcni: a thread could not leave a pod's namespace."),
    "server_fault": Event("error", (), "A fault of fastcni: please report it."),
}
