"""Keep cluster-wide addresses in the Kubernetes API, as custom resources of the group ipam.fastcni.dev
(deploy/cluster-ipam-crds.yaml).

    IPSpace   the block sizes of an address space
    IPNode    a Node with its epoch
    IPBlock   a Block; a node claims it by creating the object
    IPClaim   an IPClaim of contract.py; a node makes the claim by creating the object
    IPUse     a Use. It is an object of its own, so that watchers of blocks do not receive it

A node's heartbeat is the Lease that its kubelet renews in kube-node-lease. While the Lease is old or missing, the node
itself writes a heartbeat: `status.heartbeat` of its IPNode. Without a Lease, the creation of the IPNode is the first
heartbeat.

Kubernetes has no transactions over several objects. For a change that depends on two objects, each of two nodes writes
its own object first, and then reads the other's. A read is never older than a write that the API server answered before
the read began (clients/kubernetes.py). So at least one of the two nodes sees the other's object, and withdraws its own.

A claim against declare_dead(). A node creates its IPBlocks or IPClaims, and then reads its IPNode. If the epoch was
raised, the node removes the objects that it created, and raises Fenced. declare_dead() raises the epoch, and then lists
the node's blocks to quarantine them. So a dead node's new block is either in that list, or the node removes it. If the
node stops before it removes the block, the block stays, with an old epoch, and no address of it was given. The node
adopts the block when it joins again, or forget() removes the block.

claim_address() against give_back() of its block. A node creates its IPClaim, and then reads the IPBlock. give_back()
marks the block (`status.draining`), and then lists the IPClaims in the block. If the list is not empty, give_back()
clears the mark, and the block stays. If the claiming node finds the mark, it clears the mark itself. This changes the
block's resourceVersion, a precondition of the removal, so give_back() fails to remove the block. If the claiming node
finds no block, it removes its IPClaim. claim(), adopt() and share() also clear the mark, so a mark that a crash has
left does no harm.

forget() against a node that joins again. forget() sets the state "forgotten", lists the node's objects, and reads the
IPNode once more. If the IPNode is the same object and still forgotten, the node made all listed objects before its end.
forget() then removes the listed objects, each with the uid and resourceVersion of the list, and the IPNode last. If the
node joins at the same time, it is alive with the raised epoch. An object that it claims or adopts after the join is not
in the list, or has another resourceVersion, so forget() does not remove it.

Claims of several blocks. All nodes create the blocks of a claim in the same order. If a block is taken, claim() removes
the blocks that it has created. If the API server is unavailable at that moment, this node keeps these blocks, unused,
and blocks() returns them.

Lost answers. A method that is called again gets 409 for an object that its first call created. The method then reads
the object, and finds that this node owns it.
"""

from __future__ import annotations

import time

from fastcni.clients.errors import Away, Rejected
from fastcni.clients.kubeconfig import in_cluster, read_kubeconfig
from fastcni.clients.kubernetes import Api, Conflict, Missing
from fastcni.clients.kubernetes_watch import watch_all
from fastcni.kit.ipam.cluster import states
from fastcni.kit.ipam.cluster.contract import (
    NODE_TTL_S,
    SHARED,
    Block,
    Changed,
    Event,
    Fenced,
    IPClaim,
    Joined,
    Node,
    Taken,
    Use,
)
from fastcni.kit.ipam.cluster.stores.kubernetes_blocks import block_of, path_of, version_of
from fastcni.kit.ipam.cluster.stores.kubernetes_nodes import NodeObjects
from fastcni.kit.ipam.cluster.stores.kubernetes_objects import (
    API_VERSION,
    BASE,
    BLOCKS,
    CLAIMS,
    NODES,
    SPACES,
    USES,
    claim_name,
    name_of,
    revision_of,
    space_name,
    spec_of,
    to_object,
    to_patch,
    to_record,
)
from fastcni.kit.ipam.cluster.stores.rules import claim_address, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fastcni.clients.kubeconfig import Access
    from fastcni.kit.ipam.cluster.stores.kubernetes_objects import Object

GRID = {"4": "ipv4PrefixLength", "6": "ipv6PrefixLength"}       # family: key of an IPSpace


class KubernetesStore(NodeObjects):
    """A store in the Kubernetes API, see contract.Store. settings: {"kubeconfig", "context", "k8s_api_root",
    "namespace", "node_ttl"}, all optional. Without a kubeconfig, the store uses the service account of its pod."""

    name = "kubernetes"

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(Api(lambda: find_access(settings)), settings.get("node_ttl", NODE_TTL_S))

    def grid(self, space: str, wanted: dict[str, int]) -> dict[str, int]:
        """Implement Store.grid() of contract.py."""
        name = space_name(space)
        while True:
            now = self.api.get(f"{BASE}/{SPACES}/{name}")
            if now is None and not wanted:
                return {}                       # the caller only reads, so create no IPSpace
            spec = now["spec"] if now else {}
            lacking = {GRID[family]: prefix for family, prefix in wanted.items() if GRID[family] not in spec}
            try:
                if now is None:
                    now = self.api.create(f"{BASE}/{SPACES}", to_object(SPACES, name, {"space": space} | lacking))
                elif lacking:
                    now = self.api.patch(path_of(SPACES, now), to_patch(lacking, version_of(now)))
            except (Conflict, Missing):
                continue
            return {family: now["spec"][key] for family, key in GRID.items() if key in now["spec"]}

    def join_space(self, node: str, boot_id: str, space: str, wanted: dict[str, int], new: bool = False) -> Joined:
        """Implement Store.join_space() of contract.py. If this call has created the IPNode, the node has no blocks or
        claims, because forget() removes these before the IPNode."""
        me, created = self._join(node, boot_id, new=new)
        grid = self.grid(space, wanted)
        if created:
            return Joined(me, grid, [], [])
        return Joined(me, grid, self.blocks(space, node), self.ip_claims(space, node))

    # -- blocks ---------------------------------------------------------------------------------------

    def blocks(self, space: str = "", node: str = "") -> list[Block]:
        """Implement Store.blocks() of contract.py."""
        return sorted((record for record, _ in self.list_of(BLOCKS, space=space, node=node)), key=place)

    def claim(self, me: Node, wanted: Sequence[tuple[str, str]]) -> list[Block]:
        """Implement Store.claim() of contract.py."""
        made: list[Object] = []
        found: dict[tuple[str, str], Block] = {}
        try:
            for space, cidr in sorted(set(wanted)):
                document, is_new = self._make(states.claim(states.free(space, cidr, time.time()), me))
                if is_new:
                    made.append(document)
                found[space, cidr] = states.claim(to_record(BLOCKS, document), me)
            self.check_epoch(me)
        except (Taken, Fenced, Changed):
            for document in reversed(made):
                self._undo(BLOCKS, document)
            raise
        return [found[one] for one in wanted]

    def adopt(self, me: Node, block: Block) -> Block:
        """Implement Store.adopt() of contract.py."""
        while True:
            self.check_epoch(me)
            seen = self.get_block(block.space, block.cidr)
            now = block_of(seen, block.space, block.cidr)
            new = states.adopt(now, me)
            assert seen                         # states.adopt() raises Changed if there is no IPBlock
            try:
                document = self.keep(seen)
                if new is not now:
                    document = self.set_block(document, epoch=new.epoch, state=new.state)
            except (Conflict, Missing):
                continue
            try:
                self.check_epoch(me)
            except (Fenced, Changed):
                self._undo(BLOCKS, document, seen)
                raise
            return block_of(document, block.space, block.cidr)

    def share(self, space: str, cidr: str) -> Block:
        """Implement Store.share() of contract.py."""
        document, _ = self._make(states.share(states.free(space, cidr, time.time())))
        return states.share(block_of(document, space, cidr))

    def give_back(self, block: Block) -> bool:
        """Implement Store.give_back() of contract.py."""
        now = self.get_block(block.space, block.cidr)
        if now is None:
            return True
        if revision_of(BLOCKS, now) != block.revision or (
                block.state == SHARED and self.list_of(CLAIMS, space=block.space, block=block.cidr)):
            return False
        try:
            return self.free(now)
        except Conflict:
            return False
        except Missing:
            return True

    def _make(self, block: Block) -> tuple[Object, bool]:
        """Create an IPBlock if it does not exist. Return (the IPBlock, whether this call has created it). Clear the
        draining mark of an existing IPBlock, unless another node has it."""
        while True:
            try:
                return self.api.create(f"{BASE}/{BLOCKS}", to_object(BLOCKS, name_of(block), spec_of(block))), True
            except Conflict:
                now = self.get_block(block.space, block.cidr)
            try:
                if now:
                    own = to_record(BLOCKS, now).node == block.node
                    return self.keep(now) if own else now, False
            except (Conflict, Missing):
                continue

    def _undo(self, plural: str, document: Object, before: Object | None = None) -> None:
        """Remove an object that a claim has created, or restore the object `before` the claim. If the API server is
        unavailable, the object stays unused, and the node later finds it among its own objects."""
        try:
            if before is None:
                self.remove(plural, document)
            else:
                lacking = dict.fromkeys(document["spec"].keys() - before["spec"].keys())
                self.api.patch(path_of(plural, document), to_patch(before["spec"] | lacking, version_of(document)))
        except (Conflict, Missing, Away):
            return

    # -- IP claims -----------------------------------------------------------------------------

    def claim_address(self, me: Node, ip_claim: IPClaim) -> IPClaim:
        """Implement Store.claim_address() of contract.py."""
        while True:
            document, before, needs_block = self._make_claim(me, ip_claim)
            if document is None:
                continue
            try:
                self.check_epoch(me)
                if needs_block:
                    self._check_block(me, ip_claim)
            except (Taken, Fenced, Changed):
                if document is not before:
                    self._undo(CLAIMS, document, before)
                raise
            mine: IPClaim = to_record(CLAIMS, document)
            return mine

    def _make_claim(self, me: Node, ip_claim: IPClaim) -> tuple[Object | None, Object | None, bool]:
        """Create or take over an IPClaim. Return (the IPClaim, the IPClaim before this call or None, whether its block
        has to be checked). The first is None if the IPClaim changed during the call: call again. Raises Taken."""
        new, needs_block = claim_address(None, me, ip_claim)
        path = f"{BASE}/{CLAIMS}/{claim_name(new.space, new.address)}"
        try:
            document = self.api.create(f"{BASE}/{CLAIMS}", to_object(CLAIMS, name_of(new), spec_of(new)))
            return document, None, needs_block
        except Conflict:
            before = self.api.get(path)
        if before is None:
            return None, None, True
        now: IPClaim = to_record(CLAIMS, before)
        new, needs_block = claim_address(now, me, ip_claim)
        if new is now:
            return before, before, needs_block          # an earlier call has asked for the address
        try:
            return self.api.patch(path, to_patch(spec_of(new), version_of(before))), before, needs_block
        except (Conflict, Missing):
            return None, None, True

    def _check_block(self, me: Node, ip_claim: IPClaim) -> None:
        """Read the claim's block, and check by states.check_hold() that it allows the claim. If give_back() has marked
        the block, clear the mark, so that the block stays."""
        while True:
            document = self.get_block(ip_claim.space, ip_claim.block)
            states.check_hold(block_of(document, ip_claim.space, ip_claim.block), me, ip_claim)
            try:
                if document:
                    self.keep(document)
                return
            except (Conflict, Missing):
                continue

    def change_ip_claim(self, ip_claim: IPClaim, **fields: Any) -> IPClaim:
        """Implement Store.change_ip_claim() of contract.py."""
        new: IPClaim = ip_claim.copy(**fields)
        uid, _, version = ip_claim.revision.partition("/")
        path = f"{BASE}/{CLAIMS}/{claim_name(ip_claim.space, ip_claim.address)}"
        try:
            document: Object | None = self.api.patch(path, to_patch(spec_of(new), version))
        except (Conflict, Missing):
            document = self.api.get(path)
        now: IPClaim | None = to_record(CLAIMS, document) if document else None
        if document is None or now is None or document["metadata"]["uid"] != uid or now != new:
            raise Changed(f"{ip_claim.address} has changed")
        return now

    def release_ip_claim(self, ip_claim: IPClaim) -> bool:
        """Implement Store.release_ip_claim() of contract.py."""
        uid, _, version = ip_claim.revision.partition("/")
        try:
            self.api.delete(f"{BASE}/{CLAIMS}/{claim_name(ip_claim.space, ip_claim.address)}", uid, version)
        except Conflict:
            return False
        except Missing:
            return True
        return True

    def ip_claim(self, space: str, address: str) -> IPClaim | None:
        """Implement Store.ip_claim() of contract.py."""
        document = self.api.get(f"{BASE}/{CLAIMS}/{claim_name(space, address)}")
        return to_record(CLAIMS, document) if document else None

    def ip_claims(self, space: str = "", node: str = "", pod: str = "") -> list[IPClaim]:
        """Implement Store.ip_claims() of contract.py."""
        return sorted((record for record, _ in self.list_of(CLAIMS, space=space, node=node, pod=pod)), key=place)

    # -- records for people and tools -----------------------------------------------------------------

    def write_uses(self, me: Node, uses: Sequence[Use]) -> None:
        """Implement Store.write_uses() of contract.py. An IPBlock owns its IPUse, so that Kubernetes removes the IPUse
        with the IPBlock. If the API server rejects an IPUse, write the other uses, and then raise the error."""
        self.check_epoch(me)
        rejected: Rejected | None = None
        own = {(block.space, block.cidr): document for block, document in self.list_of(BLOCKS, node=me.name)}
        for use in uses:
            if block := own.get((use.space, use.cidr)):
                document = to_object(USES, name_of(use), spec_of(use))
                document["metadata"]["ownerReferences"] = [{
                    "apiVersion": API_VERSION, "kind": "IPBlock", "name": block["metadata"]["name"],
                    "uid": block["metadata"]["uid"]}]
                try:
                    self._write_use(document, to_patch(spec_of(use)))
                except Rejected as e:
                    rejected = rejected or e
        if rejected:
            raise rejected

    def _write_use(self, document: Object, changes: Object) -> None:
        changes["metadata"]["ownerReferences"] = document["metadata"]["ownerReferences"]
        while True:
            try:
                self.api.patch(path_of(USES, document), changes)
                return
            except Missing:
                pass
            try:
                self.api.create(f"{BASE}/{USES}", document)
                return
            except Conflict:
                continue

    def uses(self, space: str = "") -> list[Use]:
        """Implement Store.uses() of contract.py."""
        return sorted((record for record, _ in self.list_of(USES, space=space)), key=place)

    def watch(self, changed: Callable[[Event], object], stop: Callable[[], bool]) -> None:
        """Implement Store.watch() of contract.py."""
        self.nodes()

        def tell(plural: str, document: Object, gone: bool) -> None:
            changed(Event(self.watched_node(document) if plural == NODES else to_record(plural, document), gone))

        watch_all(self.api, (BLOCKS, NODES, CLAIMS), tell, stop, base=BASE)

    def close(self) -> None:
        """Implement Store.close() of contract.py."""
        self.api.close()


def find_access(settings: dict[str, Any]) -> Access:
    """Return how to reach the API server that the settings name. Raises Away."""
    path = settings.get("kubeconfig")
    access = read_kubeconfig(path, settings.get("context", "")) if path else in_cluster()
    access.server = settings.get("k8s_api_root") or access.server
    access.namespace = settings.get("namespace") or access.namespace
    return access
