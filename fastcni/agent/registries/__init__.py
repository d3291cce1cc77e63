"""Open the registry of the nodes' records: etcd, Kubernetes or a file.

    etcd             records in etcd, in flannel's layout
    etcd_view        a copy of all records in etcd
    flannel_records  encodes and decodes a record in etcd
    kubernetes       records as podCIDRs and annotations of Nodes
    static           records in a file that an administrator writes
    record_file      stores the registry's records on disk, for the agent's restart
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.registries import etcd, kubernetes, static

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from fastcni.agent.contract import Registry
    from fastcni.daemon.log import Logger

    Wait = Callable[[float], object]

TABLE: dict[str, Callable[[Mapping[str, Any], Logger, Wait], Registry]] = {
    "etcd": lambda settings, log, wait: etcd.Etcd(dict(settings), log, wait),
    "kubernetes": kubernetes.Kubernetes,
    "static": lambda settings, log, wait: static.Static(settings["path"], settings["name"], log, wait),
}


def open_registry(kind: str, settings: Mapping[str, Any], log: Logger, wait: Wait) -> Registry:
    """Return the registry of a kind in TABLE. wait(seconds): sleep, but return early when the agent ends."""
    return TABLE[kind](settings, log, wait)
