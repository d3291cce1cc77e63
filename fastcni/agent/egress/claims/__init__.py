"""Open the store of claims: etcd, Kubernetes or a file, as for the nodes' records. A claim says which node holds an
egress address.

    contract    the methods of a store of claims
    etcd        claims as keys
    kubernetes  claims as Lease objects
    local       claims of a node that is alone
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.egress.claims import etcd, kubernetes, local

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from fastcni.agent.egress.claims.contract import Claims

# {registry's name: function(settings, this node's name) that returns the store of claims}
TABLE: dict[str, Callable[[Mapping[str, Any], str], Claims]] = {
    "etcd": etcd.Etcd,
    "kubernetes": kubernetes.Kubernetes,
    "static": local.Local,
}


def open_claims(kind: str, settings: Mapping[str, Any], node: str) -> Claims:
    """Return the store of claims that belongs to a registry of this kind. node: the name of this node's record."""
    return TABLE[kind](settings, node)
