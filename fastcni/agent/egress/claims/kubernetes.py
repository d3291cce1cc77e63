"""Store claims as Lease objects (coordination.k8s.io/v1) in kube-system, one for each egress address.

A node renews each of its Leases. Another node takes over a Lease if it has seen no renewal for LEASE_S, by its own
clock. The takeover names the resourceVersion that the node has last seen. So if the holder has renewed the Lease, and
the watch of the other node is slow, the API server rejects the takeover.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from ipaddress import ip_address
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.egress.claims.contract import FIRST_PAUSE_S, LEASE_S, MAX_PAUSE_S, REQUEST_S
from fastcni.agent.tries import tries
from fastcni.clients.errors import Away, Rejected
from fastcni.clients.kubernetes import Conflict, Missing, number_of, open_api
from fastcni.clients.kubernetes_watch import KindWatch
from fastcni.daemon.kubernetes_events import micro_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    Object = dict[str, Any]

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
PREFIX = "fastcni-egress-"
LABEL, ADDRESS = "fastcni.dev/egress-address", "fastcni.dev/address"    # the Leases' label; annotation with the address
SELECTOR = "labelSelector=fastcni.dev%2Fegress-address%3Dtrue"
GRACE_S = 0.1           # seconds to wait after a lease's end: the holder's kernel removes the address about 30 ms late


class Seen:
    """The last version of a Lease that this node has seen. holder: the node that holds the Lease, or "". revision: the
    resourceVersion. at: the monotonic time when the version arrived."""

    __slots__ = ("at", "document", "holder", "revision")

    def __init__(self, document: Object) -> None:
        self.document, self.at = document, monotonic()
        self.holder = str((document.get("spec") or {}).get("holderIdentity") or "")
        self.revision = str(document["metadata"]["resourceVersion"])


class Kubernetes:
    """The store of claims in Kubernetes (contract.Claims). settings: "kubeconfig", a path; "": the pod's service
    account."""

    def __init__(self, settings: Mapping[str, Any], node: str) -> None:
        self.api, self.node = open_api(settings.get("kubeconfig", "")), node
        self.api.timeout_s = REQUEST_S
        self._lock = threading.Lock()
        self._seen: dict[bytes, Seen] = {}
        self._listed = False
        self._pause = threading.Event()

    def close(self) -> None:
        self._pause.set()
        self.api.close()

    def renew(self, held: Collection[bytes]) -> Mapping[bytes, float]:
        found, rejected = {}, None
        for address in held:
            began, seen = monotonic(), self._seen.get(address)
            try:
                if seen and seen.holder == self.node and self._write(address, seen):
                    found[address] = began + LEASE_S
            except Rejected as e:       # this node gives the address up; the next claim() raises this error again
                rejected = e
        if rejected and not found:
            raise rejected
        return found

    def claim(self, address: bytes) -> float:
        began, seen = monotonic(), self._seen.get(address)
        if monotonic() < self.free_at(address):
            return 0.0
        try:
            done = self._write(address, seen) if seen else self._create(address)
        except Conflict:                        # another node was faster
            return 0.0
        return began + LEASE_S if done else 0.0

    def release(self, addresses: Collection[bytes]) -> None:
        for address in addresses:
            if (seen := self._seen.get(address)) and seen.holder == self.node:
                self._write(address, seen, holder="")

    def holders(self) -> Mapping[bytes, str]:
        with self._lock:
            return {address: seen.holder for address, seen in self._seen.items() if seen.holder}

    def free_at(self, address: bytes) -> float:
        seen = self._seen.get(address)
        if not self._listed:
            return inf
        return 0.0 if seen is None or seen.holder in ("", self.node) else seen.at + LEASE_S + GRACE_S

    def watch(self, changed: Callable[[], object], stop: Callable[[], bool]) -> None:
        def tell(_: str, document: Object, gone: bool) -> None:
            if self._note(document, gone):
                changed()

        def listed(_: str) -> None:
            self._listed = True
            changed()

        for _ in tries(stop, self._pause.wait, FIRST_PAUSE_S, MAX_PAUSE_S):
            with suppress(Away):        # the thread that renews claims logs this error
                KindWatch(self.api, "leases", LEASES, tell, listed, selector=SELECTOR).follow(stop)

    # -- Leases --------------------------------------------------------------------------------------------------------

    def _note(self, document: Object, gone: bool = False) -> bool:
        """Record a Lease. gone: the Lease was deleted. Return whether the Lease's holder has changed. A version that is
        already recorded keeps its time of arrival, so that a new list does not prolong a lease."""
        try:
            address = ip_address((document["metadata"].get("annotations") or {}).get(ADDRESS, "")).packed
        except ValueError:
            return False
        with self._lock:
            old = self._seen.get(address)
            if gone:
                self._seen.pop(address, None)
                return old is not None
            new = Seen(document)
            if old and (old.revision == new.revision or number_of(new.revision) < number_of(old.revision)):
                return False
            self._seen[address] = new
            return not old or old.holder != new.holder

    def _write(self, address: bytes, seen: Seen, holder: str | None = None) -> bool:
        """Renew or take over a Lease; with holder="", release the Lease. Return False if the Lease has another version
        than `seen`."""
        now, spec = micro_time(time.time()), seen.document.get("spec") or {}
        changes: Object = {"holderIdentity": self.node if holder is None else holder, "renewTime": now,
                           "leaseDurationSeconds": LEASE_S}
        if seen.holder != changes["holderIdentity"]:
            changes |= {"acquireTime": now, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        try:
            self._note(self.api.patch(f"{LEASES}/{name_of(address)}", {
                "metadata": {"resourceVersion": seen.revision}, "spec": changes}))
        except Conflict:
            return False
        except Missing:
            self._note(seen.document, gone=True)
            return False
        return True

    def _create(self, address: bytes) -> bool:
        now = micro_time(time.time())
        self._note(self.api.create(LEASES, {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name_of(address), "namespace": "kube-system", "labels": {LABEL: "true"},
                         "annotations": {ADDRESS: str(ip_address(address))}},
            "spec": {"holderIdentity": self.node, "leaseDurationSeconds": LEASE_S, "acquireTime": now,
                     "renewTime": now, "leaseTransitions": 0}}))
        return True


def name_of(address: bytes) -> str:
    """Return the name of the Lease for an address."""
    return PREFIX + ip_address(address).exploded.replace(":", "-")


