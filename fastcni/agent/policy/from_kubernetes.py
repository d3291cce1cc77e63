"""Pods, namespaces and policies from the Kubernetes API. Threads list and watch; the agent's thread applies."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.objects import PolicyError, read_closed, read_namespace, read_pod, read_policy
from fastcni.kit.ipam.cluster.contract import StoreAway
from fastcni.kit.ipam.cluster.stores.kubernetes_watch import key_of, watch_all
from fastcni.server.wakeup import Wakeup

if TYPE_CHECKING:
    from fastcni.agent.policy.evaluate import Cluster
    from fastcni.kit.ipam.cluster.stores.kubernetes_api import Api

    Event = tuple[str, Any, bool]               # (path, object or keys of a list, whether the object is gone)

PODS, NAMESPACES = "/api/v1/pods", "/api/v1/namespaces"
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
PATHS = (NAMESPACES, PODS, POLICIES)
RETRY_S = 1.0                   # after the API server was away


class Kubernetes:
    """Keeps a Compiler as the API says. start() starts the threads; attend() applies what they have read.

    complete: each kind has been listed, so the first table can be written. A policy that cannot be read stays as it was
    before, and without that allows nothing; errors: {path and key: text} of these. away: why the API server cannot be
    asked, "" if it can.
    """

    due = float("inf")              # see Files

    def __init__(self, api: Api, compiler: Compiler) -> None:
        self.api, self.compiler = api, compiler
        self.errors: dict[tuple[str, str], str] = {}
        self.away = ""
        self._fault: BaseException | None = None
        self._listed: set[str] = set()
        self._events: deque[Event] = deque()
        self._seen: dict[str, set[str]] = {path: set() for path in PATHS}       # since the last start of the watches
        self._own: dict[str, set[str]] = {path: set() for path in PATHS}        # keys that were put
        self._wakeup = Wakeup()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="policies", daemon=True)

    @property
    def complete(self) -> bool:
        return self._listed == set(PATHS)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the threads. An answer that they wait for ends with the connection."""
        self._stop.set()
        self.api.close()
        self._thread.join(RETRY_S)
        if not self._thread.is_alive():         # else it may still use the descriptor
            self._wakeup.close()

    def fileno(self) -> int:
        """The descriptor to wait on for attend()."""
        return self._wakeup.fileno()

    # -- in the threads -----------------------------------------------------------------------------------------------

    def _run(self):
        """A fault ends the agent: with policies that no longer change it would do harm."""
        try:
            self._follow()
        except BaseException as e:
            self._fault = e
            self._wakeup.wake()

    def _follow(self):
        while not self._stop.is_set():
            self._seen = {path: set() for path in PATHS}
            try:
                watch_all(self.api, PATHS, self._tell, self._stop.is_set, self._list_ended)
            except StoreAway as e:
                self.away = str(e)
            self._stop.wait(RETRY_S)

    def _tell(self, path, document, gone):
        (self._seen[path].discard if gone else self._seen[path].add)(name_of(document))
        self._add((path, document, gone))

    def _list_ended(self, path):
        """Objects that went while the API server was away are in no event: those that the list does not have."""
        self.away = ""
        self._add((path, frozenset(self._seen[path]), False))

    def _add(self, event):
        self._events.append(event)
        self._wakeup.wake()

    # -- in the agent's thread ----------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Apply what the threads have read since. Raises what has ended them."""
        try:
            self._wakeup.clear()
        except BlockingIOError:
            return
        if self._fault:
            raise self._fault
        while self._events:
            path, it, gone = self._events.popleft()
            if isinstance(it, frozenset):
                for key in self._own[path] - it:
                    self._delete(path, key)
                self._listed.add(path)
            elif gone:
                self._delete(path, name_of(it))
            else:
                self.put(path, it)

    def put(self, path: str, document: dict[str, Any]) -> None:
        """Apply one object."""
        key = name_of(document)
        try:
            if path == PODS:
                self.compiler.put_pod(read_pod(document))
            elif path == NAMESPACES:
                self.compiler.put_namespace(*read_namespace(document))
            else:
                self.compiler.put_policy(read_policy(document))
        except PolicyError as e:
            self.errors[path, key] = str(e)
            if path == POLICIES and key not in self._own[path] and (closed := read_closed(document)):
                self.compiler.put_policy(closed)
                self._own[path].add(key)
            return
        self._own[path].add(key)
        self.errors.pop((path, key), None)

    def _delete(self, path: str, key: str) -> None:
        if path == PODS:
            self.compiler.delete_pod(key)
        elif path == NAMESPACES:
            self.compiler.put_namespace(key, None)
        else:
            self.compiler.delete_policy(key)
        self._own[path].discard(key)
        self.errors.pop((path, key), None)


def read_cluster(api: Api) -> Cluster:
    """All that the API has now. Objects that cannot be read are as in Kubernetes. Raises StoreAway."""
    found = Compiler()
    source = Kubernetes(api, found)
    for path in PATHS:
        for document in api.list_with_revision(path)[0]:
            source.put(path, document)
    return found.cluster


def name_of(document: dict[str, Any]) -> str:
    """ "shop/web", of a namespace only its name."""
    return "/".join(filter(None, key_of(document)))
