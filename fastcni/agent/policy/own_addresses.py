"""Read the node's own addresses. NetworkPolicies always allow traffic between a pod and its own node."""

from __future__ import annotations

from fastcni.kernel import rtnl, uapi, wire

FAMILIES = (uapi.AF_INET, uapi.AF_INET6)


def node_addresses() -> set[bytes]:
    """Return all addresses, packed, in the calling thread's network namespace. Raises OSError."""
    with wire.open_socket() as sock:
        return {rtnl.Address(payload).packed for family in FAMILIES for _, payload in wire.dump(
            sock, uapi.RTM_GETADDR, rtnl.ifaddrmsg(family, 0, 0), "list addresses")}
