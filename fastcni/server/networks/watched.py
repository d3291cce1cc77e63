"""Keep copies of this node's pods and the network definitions up to date by watches of the Kubernetes API."""

from __future__ import annotations

from threading import Lock

from fastcni.clients.errors import Away
from fastcni.kernel import waiting
from fastcni.kit.networks.api_objects import DEFINITIONS, PODS, STATUS_TIMEOUT_S, ApiObjects, Pod, read_definition
from fastcni.server.networks.watch import WatchThread
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.clients.kubernetes_watch import Key
    from fastcni.daemon.log import Logger
    from fastcni.kit.networks.copies import Stored

FIRST_LIST_S = 2.0              # seconds that a request waits for the first list
SEEN_S = 1.0                    # seconds that a request waits until the watch reports the request's pod
MAX_UNWRITTEN = 4096            # pod statuses that wait for the API server; a node has some hundred pods
WRITE_TIMEOUT_S = 5.0           # limit of a write of a status, in seconds, while no ADD waits for the write


class WatchedObjects:
    """ApiObjects that read the copies of the watches, and ask the API server only for missing objects. Any thread may
    call the methods.

    start() starts the watch of definitions. The watch of pods starts with watch_pods() or the first request that needs
    a pod, because most runtimes pass a pod's annotations with the request.
    """

    def __init__(self, objects: ApiObjects, node: str, log: Logger, home: int) -> None:
        self.objects, self.log, self.lock, self.writing = objects, log, Lock(), Lock()
        self.definitions = WatchThread(objects.api, DEFINITIONS, read_definition, log, home,
                                       changed=lambda key, found: objects.copies.keep(*key, found),
                                       complete=self._remove_copies)
        self.pods = WatchThread(objects.api, PODS, Pod, log, home, selector=f"fieldSelector=spec.nodeName%3D{node}")
        self.pods_wanted = False
        self.unwritten: dict[Key, tuple[str, str]] = {}         # {pod: (uid, status)}

    # For requests

    def pod(self, namespace: str, name: str, uid: str) -> Pod | None:
        """Return a pod, see ApiObjects.pod()."""
        if not self.pods_wanted:
            self.watch_pods()
        self._await_list(self.pods)
        key = namespace, name

        def seen() -> bool:
            return (pod := self.pods.found.get(key)) is not None and pod.is_of(uid)

        if seen() if not self.pods.current else waiting.until(seen, SEEN_S, waiting.STORE):
            return self.pods.found.get(key)
        return self.objects.pod(namespace, name, uid)

    def definition(self, namespace: str, name: str) -> Stored | None:
        """Return a network definition, see ApiObjects.definition()."""
        self._await_list(self.definitions)
        if self.definitions.current and (found := self.definitions.found.get((namespace, name))):
            return found
        return self.objects.definition(namespace, name)

    def write_status(self, namespace: str, name: str, uid: str, text: str) -> None:
        """Write a pod's status now, for at most STATUS_TIMEOUT_S. Raises Away if the API server does not accept the
        status in time: the ADD continues nevertheless, and keep() writes the status later."""
        key = namespace, name
        with self.lock:
            self.unwritten.pop(key, None)
        try:
            if self.away:
                raise Away(self.away)
            self.objects.write_status(namespace, name, uid, text, STATUS_TIMEOUT_S)
        except Away:
            with self.lock:
                if len(self.unwritten) < MAX_UNWRITTEN:
                    self.unwritten[key] = uid, text
            raise

    def _await_list(self, watch: WatchThread[Any]) -> None:
        if not watch.listed and not watch.why:
            waiting.until(lambda: watch.listed or watch.why, FIRST_LIST_S, waiting.STORE)

    # For the server

    @property
    def away(self) -> str:
        """Return why the API server does not answer; "" if the server answers."""
        return self.definitions.why

    def start(self) -> None:
        """Start the watch threads that do not run."""
        self.definitions.start()
        if self.pods_wanted:
            self.pods.start()

    def watch_pods(self) -> None:
        self.pods_wanted = True
        self.pods.start()

    def _remove_copies(self) -> None:
        """Remove the stored copies of definitions that the list does not have: these definitions were deleted before
        the server started."""
        copies = self.objects.copies
        try:
            copies.remove_incomplete()
            for key in list(copies.names()):
                if key not in self.definitions.found:
                    copies.keep(*key, None)
        except CniError as e:           # for example a file has the directory's name
            self.log.warning("networks_copies_unreadable", error=e.msg)

    def keep(self) -> None:
        """Write the pod statuses that write_status() could not write. Stop at the first error."""
        if self.unwritten and self.writing.acquire(blocking=False):
            try:
                self._write_later()
            finally:
                self.writing.release()

    def _write_later(self) -> None:
        for key, (uid, text) in list(self.unwritten.items()):
            try:
                self.objects.write_status(*key, uid, text, WRITE_TIMEOUT_S)
            except Away:
                with self.lock:         # write this status last: the API server may reject only this status
                    if (status := self.unwritten.pop(key, None)) is not None:
                        self.unwritten[key] = status
                return
            with self.lock:
                if self.unwritten.get(key) == (uid, text):      # no later ADD has replaced the status
                    del self.unwritten[key]

    def close(self) -> None:
        for watch in (self.definitions, self.pods):
            watch.stop()
        self.objects.close()
        for watch in (self.definitions, self.pods):
            watch.join()

    def describe(self) -> dict[str, Any]:
        found = {"definitions": len(self.definitions.found), "pods": len(self.pods.found),
                 "statusesUnwritten": len(self.unwritten)}
        return found | ({"why": self.away} if self.away else {})
