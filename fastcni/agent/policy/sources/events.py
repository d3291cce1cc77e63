"""Report objects of the Kubernetes API that cannot be read as their Events: `kubectl describe networkpolicy`."""

from __future__ import annotations

import threading
import time
from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from fastcni.clients.away import Away
from fastcni.clients.kubernetes import Conflict
from fastcni.daemon.kubernetes_events import MAX_NOTE, micro_time

if TYPE_CHECKING:
    from fastcni.clients.kubernetes import Api
    from fastcni.daemon.log import Logger

PATH = "/apis/events.k8s.io/v1/namespaces/{namespace}/events"
CONTROLLER = "fastcni.dev/agent"
VERSIONS = {"NetworkPolicy": "networking.k8s.io/v1",
            "ClusterNetworkPolicy": "policy.networking.k8s.io/v1alpha2"}        # of other kinds: v1
MAX_WAITING = 256
RETRY_S = 60.0                  # after a failure
MAX_OBJECT_NAME = 200           # characters of it in the name of an Event, which has 253 at most


class UnreadableEvents:
    """Sends each Event once, in a thread, so that nothing waits for the API server. All nodes give the same error the
    same name, so the cluster has one Event of it."""

    def __init__(self, api: Api, node: str, log: Logger) -> None:
        self.api, self.node, self.log = api, node, log
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MAX_WAITING)
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="policy-events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread. An answer that it waits for ends with the connection, which the caller closes."""
        self._stop.set()
        self._wake.set()

    def report(self, kind: str, metadata: dict[str, Any], text: str) -> None:
        """Send an Event of the object with this metadata soon."""
        self._waiting.append(document(self.node, kind, metadata, text))
        self._wake.set()

    def _run(self) -> None:
        failed = False
        while not self._stop.is_set():
            try:
                event = self._waiting.popleft()
            except IndexError:
                self._wake.wait()
                self._wake.clear()
                continue
            try:
                self.api.create(PATH.format(**event["metadata"]), event)
                failed = False
            except Conflict:                    # another node has reported it
                failed = False
            except Away as e:
                if not failed:
                    self.log.warning("kubernetes_event_unsent", reason=event["reason"], why=str(e))
                failed = True
                self._waiting.appendleft(event)
                self._stop.wait(RETRY_S)


def document(node: str, kind: str, metadata: dict[str, Any], text: str) -> dict[str, Any]:
    """An Event of events.k8s.io/v1."""
    name, namespace, uid = metadata["name"], metadata.get("namespace") or "default", metadata.get("uid") or ""
    digest = blake2b(f"{uid} {text}".encode("utf-8", "replace"), digest_size=8).hexdigest()
    regarding = {"apiVersion": VERSIONS.get(kind, "v1"), "kind": kind, "name": name, "uid": uid}
    if metadata.get("namespace"):
        regarding["namespace"] = namespace
    return {"apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": f"{name[:MAX_OBJECT_NAME]}.{digest}", "namespace": namespace},
            "eventTime": micro_time(time.time()), "reportingController": CONTROLLER, "reportingInstance": node[:128],
            "action": "Read", "reason": "PolicyUnreadable", "type": "Warning", "regarding": regarding,
            "note": text.encode("utf-8", "replace")[:MAX_NOTE].decode("utf-8", "ignore")}
