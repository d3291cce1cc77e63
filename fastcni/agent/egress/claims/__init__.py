"""Which node holds an egress address: claims with a lease of LEASE_S, in the same place as the nodes' records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.egress.claims import etcd, kubernetes, local

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from fastcni.agent.egress.claims.contract import Claims

# by the registry's name: claims of the node with this name
TABLE: dict[str, Callable[[Mapping[str, Any], str], Claims]] = {
    "etcd": etcd.Etcd,
    "kubernetes": kubernetes.Kubernetes,
    "static": local.Local,
}


def open_claims(kind: str, settings: Mapping[str, Any], node: str) -> Claims:
    """Return the claims next to a registry of this kind. node: the name of this node's record."""
    return TABLE[kind](settings, node)
