"""Report unreadable objects of the Kubernetes API by Events, which `kubectl describe networkpolicy` shows."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from fastcni.clients.errors import Away, Invalid
from fastcni.clients.kubernetes import Conflict
from fastcni.daemon.kubernetes_events import MAX_NOTE, micro_time

if TYPE_CHECKING:
    from fastcni.clients.kubernetes import Api
    from fastcni.daemon.log import Logger

PATH = "/apis/events.k8s.io/v1/namespaces/{namespace}/events"
CONTROLLER = "fastcni.dev/agent"
VERSIONS = {"NetworkPolicy": "networking.k8s.io/v1",
            "ClusterNetworkPolicy": "policy.networking.k8s.io/v1alpha2"}        # other kinds have v1
MAX_WAITING = 256
RETRY_S = 60.0                  # seconds until the next attempt after an error
MAX_OBJECT_NAME = 200           # characters of the object's name in an Event's name, which may have 253


class UnreadableEvents:
    """Sends Events in a thread, so that the agent does not wait for the API server. All nodes give an error's Event the
    same name, so the cluster has only one Event for each error."""

    def __init__(self, api: Api, node: str, log: Logger) -> None:
        self.api, self.node, self.log = api, node, log
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MAX_WAITING)
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="policy-events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Tell the thread to end. If the thread waits for an answer of the API server, the thread ends when the caller
        closes the connection."""
        self._stop.set()
        self._wake.set()

    def report(self, kind: str, metadata: dict[str, Any], text: str) -> None:
        """Let the thread send an Event about the object with this kind and metadata. text: the error."""
        self._waiting.appendleft(document(self.node, kind, metadata, text))
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
            before, failed = failed, False
            try:
                with suppress(Conflict):        # another node has sent this Event
                    self.api.create(PATH.format(**event["metadata"]), event)
            except Invalid as e:                # the API server would reject this Event each time
                self.log.warning("kubernetes_event_unsent", reason=event["reason"], why=str(e))
            except Away as e:
                failed = True
                if not before:
                    self.log.warning("kubernetes_event_unsent", reason=event["reason"], why=str(e))
                if len(self._waiting) < MAX_WAITING:        # at the end: the server may reject only this Event
                    self._waiting.append(event)
                self._stop.wait(RETRY_S)


def document(node: str, kind: str, metadata: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the Event of events.k8s.io/v1 that reports the error `text` of an object."""
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
