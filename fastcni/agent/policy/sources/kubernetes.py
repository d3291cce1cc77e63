"""Pods, namespaces and policies from the Kubernetes API. Threads list and watch; the agent's thread applies."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.sources.content import Content
from fastcni.agent.policy.sources.documents import NAMESPACE, POD, POLICY, encode, reduced
from fastcni.clients.away import Away
from fastcni.clients.kubernetes_watch import key_of, watch_all
from fastcni.daemon.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastcni.agent.policy.evaluate import Cluster
    from fastcni.agent.policy.sources.events import UnreadableEvents
    from fastcni.agent.policy.sources.kept import Kept
    from fastcni.clients.kubernetes import Api

    Event = tuple[str, Any, bool]               # (path, object or keys of a list, whether the object is gone)

PODS, NAMESPACES = "/api/v1/pods", "/api/v1/namespaces"
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
PATHS = {NAMESPACES: NAMESPACE, PODS: POD, POLICIES: POLICY}
RETRY_S = 1.0                   # after the API server was unavailable
STEPS_S = 0.005                 # of changes to the Compiler, before requests are answered


class Kubernetes:
    """Keeps a Compiler as the API says; see Content for objects that cannot be read. start() starts the threads, and
    attend() applies what they have read.

    complete: each kind has been listed, so the first table can be written. Until then the Compiler has what an agent
    before this one has `kept`; without that, `former` is False. errors: {path and key: texts}. away: why the API server
    cannot be asked, "" if it can. due: see Files.
    """

    small = False                   # see Files

    def __init__(self, api: Api, compiler: Compiler, kept: Kept | None = None,
                 events: UnreadableEvents | None = None) -> None:
        self.api, self.kept, self.events = api, kept, events
        self.content = Content(compiler, kept.changed if kept else None)
        self.due = float("inf")
        self.away = ""
        self._fault: BaseException | None = None
        self._listed: set[str] = set()
        self._events: deque[Event] = deque()
        self._seen: dict[str, set[str]] = {path: set() for path in PATHS}       # since the last start of the watches
        self._own: dict[str, set[str]] = {path: set() for path in PATHS}        # keys that were put
        self._wakeup = Wakeup()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="policies", daemon=True)
        former = kept.read() if kept else None
        self.former = former is not None
        for place, lines in (former or {}).items():
            path, _, key = place.partition(" ")
            if path in PATHS:
                self._own[path].add(key)
                self._replace(place, [("", line) for line in lines])

    @property
    def complete(self) -> bool:
        return self._listed == PATHS.keys()

    @property
    def busy(self) -> bool:
        """Whether there are changes that the Compiler does not have so far."""
        return bool(self._events)

    @property
    def errors(self) -> dict[str, list[str]]:
        return self.content.errors

    def start(self) -> None:
        self._thread.start()
        if self.events:
            self.events.start()

    def close(self) -> None:
        """End the threads. An answer that they wait for ends with the connection."""
        self._stop.set()
        if self.kept:
            self.kept.close()
        if self.events:
            self.events.close()
        self.api.close()
        self._thread.join(RETRY_S)
        if not self._thread.is_alive():         # else it may still use the descriptor
            self._wakeup.close()

    def fileno(self) -> int:
        """The descriptor to wait on for attend()."""
        return self._wakeup.fileno()

    # -- in the threads -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """A fault ends the agent: with policies that no longer change it would do harm."""
        try:
            self._follow()
        except BaseException as e:
            self._fault = e
            self._wakeup.wake()

    def _follow(self) -> None:
        while not self._stop.is_set():
            self._seen = {path: set() for path in PATHS}
            try:
                watch_all(self.api, tuple(PATHS), self._tell, self._stop.is_set, self._list_ended)
            except Away as e:
                self.away = str(e)
            self._stop.wait(RETRY_S)

    def _tell(self, path: str, document: dict[str, Any], gone: bool) -> None:
        (self._seen[path].discard if gone else self._seen[path].add)(name_of(document))
        self._add((path, document, gone))

    def _list_ended(self, path: str) -> None:
        """Objects that went while the API server was away are in no event: those that the list does not have."""
        self.away = ""
        self._add((path, frozenset(self._seen[path]), False))

    def _add(self, event: Event) -> None:
        self._events.append(event)
        self._wakeup.wake()

    # -- in the agent's thread ----------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Apply what the threads have read since, for STEPS_S; the rest is due immediately. Raises what has ended
        them."""
        with suppress(BlockingIOError):
            self._wakeup.clear()
        if self._fault:
            raise self._fault
        until = monotonic() + STEPS_S
        while self._events and monotonic() < until:
            path, it, gone = self._events.popleft()
            if isinstance(it, frozenset):
                for key in self._own[path] - it:
                    self.delete(path, key)
                self._listed.add(path)
            elif gone:
                self.delete(path, name_of(it))
            else:
                self.put(path, it)
        self.due = 0.0 if self._events else float("inf")
        if self.kept and self.complete:
            self.kept.follow(self.content)

    def put(self, path: str, document: dict[str, Any]) -> None:
        """Apply one object."""
        kept = reduced({**document, "kind": PATHS[path]})
        assert kept
        self._own[path].add(key := name_of(document))
        place = place_of(path, key)
        told = self.errors.get(place, [])
        self._replace(place, [("", encode(kept))])
        if self.events:
            for text in self.errors.get(place, []):
                if text not in told:
                    self.events.report(PATHS[path], document["metadata"], text)

    def delete(self, path: str, key: str) -> None:
        self._own[path].discard(key)
        self._replace(place_of(path, key), [])

    def _replace(self, place: str, documents: Collection[tuple[str, bytes]]) -> None:
        for _ in self.content.replace(place, documents):
            pass


def read_cluster(api: Api) -> Cluster:
    """All that the API has now. Objects that cannot be read are as in Kubernetes. Raises Away."""
    source = Kubernetes(api, Compiler())
    for path in PATHS:
        for document in api.list_with_revision(path)[0]:
            source.put(path, document)
    return source.content.compiler.cluster


def place_of(path: str, key: str) -> str:
    """An object as a place of Content."""
    return f"{path} {key}"


def name_of(document: dict[str, Any]) -> str:
    """ "shop/web", of a namespace only its name."""
    return "/".join(filter(None, key_of(document)))
