"""Read and write IPNodes and the heartbeats of their nodes. The docstring of kubernetes.py explains the order of
steps."""

from __future__ import annotations

import time

from fastcni.clients.kubernetes import Api, Conflict, Missing
from fastcni.kit.ipam.cluster import states
from fastcni.kit.ipam.cluster.contract import ALIVE, DEAD, KEPT, Changed, Node
from fastcni.kit.ipam.cluster.stores.kubernetes_blocks import BlockObjects, path_of, version_of
from fastcni.kit.ipam.cluster.stores.kubernetes_objects import (
    BASE,
    BLOCKS,
    CLAIMS,
    FORGOTTEN,
    NODES,
    SPACES,
    is_name,
    node_name,
    read_time,
    to_object,
    to_patch,
    to_record,
    to_time,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.ipam.cluster.contract import History
    from fastcni.kit.ipam.cluster.stores.kubernetes_objects import Object

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CORE_NODES = "/api/v1/nodes"
CLUSTER = "/api/v1/namespaces/kube-system"      # the uid of this namespace identifies the cluster
OWN_LEASE_PART = 0.5            # part of node_ttl: with an older Lease, the node writes a heartbeat itself


class Signs:
    """The heartbeat times of each node, and for how long they have been unchanged. Only this machine's clock measures
    that, because other machines' clocks may be wrong."""

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self._seen: dict[str, tuple[tuple[float, ...], float, bool]] = {}   # {node: (signs, first seen, any newer)}

    def alive(self, node: str, signs: tuple[float, ...], now: float) -> bool:
        """Return whether a node is alive. signs: the unix times of the last heartbeats in its Lease and in its
        IPNode. now: the API server's time. Until a newer heartbeat comes, the node is alive if a time is younger than
        the ttl. From then on, only heartbeats that arrive within the ttl count, whatever their times."""
        before, at, moved = self._seen.get(node, ((), 0.0, False))
        if signs != before:
            at, moved = time.monotonic(), any(new > old for new, old in zip(signs, before, strict=False))
            self._seen[node] = signs, at, moved
        if time.monotonic() - at >= self.ttl:
            return False
        return moved or now - max(signs) < self.ttl


class NodeObjects(BlockObjects):
    """The methods of contract.Store about nodes."""

    def __init__(self, api: Api, ttl: float) -> None:
        super().__init__(api)
        self.node_ttl, self._signs = ttl, Signs(ttl)
        self._last: dict[str, Node] = {}        # {name: Node}, as nodes() last returned them
        self._cluster = ""

    def join(self, node: str, boot_id: str, address: str = "") -> Node:
        """Implement Store.join() of contract.py."""
        return self._join(node, boot_id, address)[0]

    def _join(self, node: str, boot_id: str, address: str = "", new: bool = False) -> tuple[Node, bool]:
        """Join the node. Return the Node, and whether this call has created its IPNode. new: see
        contract.Store.join_space()."""
        lease = self._lease(node)
        me = {"bootID": boot_id or None, "address": address or None, "state": ALIVE,
              "registered": self._is_registered(node, lease)}
        while True:
            now = None if new else self._stored(node)
            created = now is None
            try:
                if now is None:
                    now = self.api.create(f"{BASE}/{NODES}", to_object(
                        NODES, node_name(node), {"name": node, "epoch": 1} | me))
                else:
                    now = self.api.patch(path_of(NODES, now), to_patch(me, version_of(now)))
            except (Conflict, Missing):
                new = False
                continue
            return self._sign(now, lease, created), created

    def keep_alive(self, node: Node) -> Node:
        """Implement Store.keep_alive() of contract.py."""
        return self._sign(self.check_epoch(node), self._lease(node.name))

    def nodes(self) -> list[Node]:
        """Implement Store.nodes() of contract.py."""
        leases = {it["metadata"]["name"]: renewed(it) for it in self.api.list_all(LEASES)}
        found = [self._to_node(it, leases.get(it["spec"]["name"], 0.0)) for it in self.api.list_all(f"{BASE}/{NODES}")]
        self._last = {node.name: node for node in found}
        return sorted(found, key=lambda node: node.name)

    def declare_dead(self, node: Node) -> Node:
        """Implement Store.declare_dead() of contract.py."""
        while True:
            document = self._stored(node.name)
            now = self._to_node(document, renewed(self._lease(node.name))) if document else states.unknown(node.name)
            dead = states.declare_dead(now, node)
            if document and dead is not now:
                try:
                    self.api.patch(path_of(NODES, document), to_patch({"epoch": dead.epoch, "state": dead.state},
                                                                      version_of(document)))
                except (Conflict, Missing):
                    continue
            self.expire(dead)
            return dead

    def forget(self, node: Node) -> None:
        """Implement Store.forget() of contract.py."""
        while (now := self._stored(node.name)) is not None:
            if now["spec"]["state"] == ALIVE:
                raise Changed(f"node {node.name} is not dead any more")
            try:
                if now["spec"]["state"] == DEAD:
                    now = self.api.patch(path_of(NODES, now), to_patch({"state": FORGOTTEN}, version_of(now)))
                self._remove_belongings(now)
                self.remove(NODES, now)
            except (Conflict, Missing):
                continue

    def node_gone(self, node: str) -> bool:
        """Implement Store.node_gone() of contract.py. False for a node that had no Node object when it joined."""
        now = self._stored(node)
        registered = bool(now and now["spec"].get("registered"))
        return registered and self.api.get(f"{CORE_NODES}/{node}") is None

    def history(self) -> History:
        """Implement Store.history() of contract.py."""
        if not self._cluster:
            self._cluster = (self.api.get(CLUSTER) or {"metadata": {"uid": "no kube-system"}})["metadata"]["uid"]
        if not self.api.revision:
            self.api.list_all(f"{BASE}/{SPACES}")
        return self._cluster, self.api.revision, 0

    def log(self) -> None:
        """Implement Store.log() of contract.py: the API server does not report the index of etcd's log."""

    def settle(self) -> None:
        """Implement Store.settle() of contract.py: without a log, there is nothing to record."""

    # -- for the rest of the store --------------------------------------------------------------

    def check_epoch(self, me: Node) -> Object:
        """Return the IPNode of a node that may write. Raises Fenced if the node was declared dead, Changed if it was
        forgotten."""
        now = self._stored(me.name)
        if now is None or now["spec"]["state"] == FORGOTTEN:
            raise states.refusal(states.unknown(me.name), me)
        states.heartbeat(to_record(NODES, now), me)
        return now

    def watched_node(self, document: Object) -> Node:
        """Return the record of a changed IPNode for watch(). Leases are not watched, so `state` is the one that nodes()
        last returned, or ALIVE for a new node."""
        node: Node = to_record(NODES, document)
        last = self._last.get(node.name)
        node.seen = max(heartbeat(document), last.seen if last else 0.0)
        if node.state != ALIVE:
            node.state = DEAD
        elif last and node.seen == last.seen and last.state != DEAD:
            node.state = last.state
        return node

    # -- internal -------------------------------------------------------------------------------------

    def _stored(self, node: str) -> Object | None:
        return self.api.get(f"{BASE}/{NODES}/{node_name(node)}")

    def _to_node(self, document: Object, lease: float) -> Node:
        """Return the record of an IPNode. lease: the unix time at which the node's Lease was renewed, 0 without a
        Lease."""
        node: Node = to_record(NODES, document)
        signs = lease, heartbeat(document) or (0.0 if lease else created_at(document))
        node.seen = max(signs)
        if node.state != ALIVE:
            node.state = DEAD
        elif not self._signs.alive(node.name, signs, time.time() + self.api.clock_offset):
            return states.silence(node)
        return node

    def _lease(self, node: str) -> Object:
        """Return the Lease of a node's kubelet, {} without a Lease."""
        return (self.api.get(f"{LEASES}/{node}") or {}) if is_name(node) else {}

    def _is_registered(self, node: str, lease: Object) -> bool:
        """Return whether the API server has a Node object for this node. An owner reference of the kubelet's Lease
        shows that too, without a request."""
        owners = lease["metadata"].get("ownerReferences", []) if self._is_recent(renewed(lease)) else []
        return any(owner["kind"] == "Node" for owner in owners) or (
            is_name(node) and self.api.get(f"{CORE_NODES}/{node}") is not None)

    def _is_recent(self, seen: float) -> bool:
        """Return whether a heartbeat is recent enough, so that this node need not write its own. seen: the heartbeat's
        unix time, by this node's clock."""
        return abs(time.time() - seen) < self.node_ttl * OWN_LEASE_PART

    def _sign(self, document: Object, lease: Object, created: bool = False) -> Node:
        """Return the record of this node's IPNode, `document`. If the node's Lease is old or missing, first write a
        heartbeat. created: the caller has just created the IPNode; without a Lease, the creation is the first
        heartbeat."""
        node: Node = to_record(NODES, document)
        node.seen = renewed(lease) or (created_at(document) if created else 0.0)
        if not self._is_recent(renewed(lease)) and not (created and not lease):
            node.seen = time.time() + self.api.clock_offset
            try:
                self.api.patch(f"{path_of(NODES, document)}/status", {"status": {"heartbeat": to_time(node.seen)}})
            except Missing:
                raise Changed(f"node {node.name} was forgotten") from None
        return node

    def _remove_belongings(self, forgotten: Object) -> None:
        """Remove the blocks and claims of a forgotten node. Raises Conflict if the node has joined again."""
        node = forgotten["spec"]["name"]
        claims, blocks = self.list_of(CLAIMS, node=node), self.list_of(BLOCKS, node=node)
        now = self._stored(node)
        if not now or now["metadata"]["uid"] != forgotten["metadata"]["uid"] or now["spec"]["state"] != FORGOTTEN:
            raise Conflict(f"node {node} is not forgotten any more")
        for claim, document in claims:
            if claim.state != KEPT:
                self.remove(CLAIMS, document)
        for _, document in blocks:
            self.free(document)


def renewed(lease: Object) -> float:
    """Return the unix time of a Lease's renewal, 0 without renewal."""
    return read_time((lease.get("spec") or {}).get("renewTime") or "")


def heartbeat(document: Object) -> float:
    """Return the unix time of the heartbeat in an IPNode, 0 without a heartbeat."""
    return read_time((document.get("status") or {}).get("heartbeat") or "")


def created_at(document: Object) -> float:
    """Return the unix time at which an object was created, by the API server's clock."""
    return read_time(document["metadata"].get("creationTimestamp", ""))
