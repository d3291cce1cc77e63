"""Pods, namespaces and policies from the Kubernetes API. Threads list and watch; the agent's thread applies.

Objects of ClusterNetworkPolicy, CiliumNetworkPolicy and EgressAddress are watched if the API server has their CRD, and
nodes while a policy names nodes. Pods of other nodes are watched from the first policy on that names pods as peers. The
agent applies such a policy when all pods are known. Until then the policies before it stay in force.
"""

from __future__ import annotations

import json
import random
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from fastcni.agent.egress import objects as egress
from fastcni.agent.egress.objects import EgressAddress
from fastcni.agent.policy.cluster_policies import API_VERSION, ClusterPolicy
from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.http import documents as http
from fastcni.agent.policy.objects import DIRECTIONS, EGRESS, Group, Policy
from fastcni.agent.policy.sources.content import Content
from fastcni.agent.policy.sources.documents import (
    CILIUM_POLICY,
    CLUSTER_POLICY,
    EGRESS_ADDRESS,
    NAMESPACE,
    NODE,
    POD,
    POLICY,
    encode,
    read_entry,
    reduced,
)
from fastcni.clients.away import Away
from fastcni.clients.kubernetes import NoSuchKind
from fastcni.clients.kubernetes_watch import key_of, watch_all
from fastcni.daemon.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from fastcni.agent.policy.evaluate import Cluster
    from fastcni.agent.policy.sources.content import Place
    from fastcni.agent.policy.sources.documents import Entry
    from fastcni.agent.policy.sources.events import UnreadableEvents
    from fastcni.agent.policy.sources.kept import Kept
    from fastcni.clients.kubernetes import Api

    # (path, key and document of an object), without a document: deleted; or (path, keys of a list, None)
    Event = tuple[str, str | frozenset[str], bytes | None]

PODS, NAMESPACES, NODES = "/api/v1/pods", "/api/v1/namespaces", "/api/v1/nodes"
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
CLUSTER_GROUP = f"/apis/{API_VERSION}"
CLUSTER_POLICIES = f"{CLUSTER_GROUP}/clusternetworkpolicies"
CILIUM_POLICIES = f"/apis/{http.API_VERSION}/ciliumnetworkpolicies"
EGRESS_ADDRESSES = f"/apis/{egress.API_VERSION}/egressaddresses"
PATHS = {NAMESPACES: NAMESPACE, PODS: POD, POLICIES: POLICY, CLUSTER_POLICIES: CLUSTER_POLICY, NODES: NODE,
         CILIUM_POLICIES: CILIUM_POLICY, EGRESS_ADDRESSES: EGRESS_ADDRESS}
ALWAYS, OF_CRDS = (NAMESPACES, POLICIES), (CLUSTER_POLICIES, CILIUM_POLICIES, EGRESS_ADDRESSES)
# Pods and nodes are many, so their lists come from the API server's cache. Lists of policies and namespaces are read
# from etcd: a restarted agent never goes back to previous policies.
CACHED, METADATA = (PODS, NODES), (NAMESPACES,)
# A pod that has ended has no address of its own. A cluster with many jobs has many such pods.
RUNNING = "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"
ON_NODE = f"{RUNNING}%2Cspec.nodeName%3D"
ALL_PODS = b"all"               # the third part of the Event at the end of a list with the pods of all nodes
RETRY_S = 1.0                   # after the API server was unavailable; random by half
ABSENT_S = 30.0                 # between two questions for a CRD
CONFIRM_S = 5.0                 # between two questions for the CRD of objects that the agent has
STEPS_S = 0.005                 # of changes to the Compiler, before requests are answered


class Kubernetes:
    """Keeps a Compiler equal to the API's objects; see Content for objects that cannot be read. start() starts the
    threads, and attend() applies the objects that the threads have read.

    complete: each kind has been listed, so the first table can be written; an API server without the CRD of a kind has
    no objects of that kind. Until then the Compiler has the objects that a previous agent has `kept`; `former` is False
    without kept objects. errors: {path and key: texts}. away: why the API server is unavailable, "" if it is available.
    due: see Files.
    """

    small = False                   # see Files

    def __init__(self, api: Api, compiler: Compiler, kept: Kept | None = None,
                 events: UnreadableEvents | None = None) -> None:
        self.api, self.kept, self.events = api, kept, events
        self.content = Content(compiler, kept.changed if kept else None)
        self.due = float("inf")
        self._away: dict[str, str] = {}         # by the first path of a watch
        self._complete = False
        self._nodes = threading.Event()         # set when nodes have to be watched
        self._all_pods = threading.Event()      # set when the pods of all nodes have to be watched
        self._lists_all_pods = False            # whether the last list of pods had no node
        self._fault: BaseException | None = None
        self._listed: set[str] = set()
        self._events: deque[Event] = deque()
        self._seen: dict[str, set[str]] = {path: set() for path in PATHS}       # since the last start of the watches
        self._own: dict[str, set[str]] = {path: set() for path in PATHS}        # keys that were put
        self._wakeup = Wakeup()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(follow,), name="policies", daemon=True)
                         for follow in (self._follow, self._follow_pods, self._follow_nodes,
                                        *(partial(self._follow_crd, path) for path in OF_CRDS))]
        former = kept.read() if kept else None
        self.former = former is not None
        for place, lines in (former or {}).items():
            path, _, key = place.partition(" ")
            if path in PATHS:
                self._own[path].add(key)
                self._replace(place, [("", line) for line in lines])
        if not compiler.node or any(map(names_pods, self.content.places.values())):
            self._all_pods.set()
        self._has_all_pods = self._all_pods.is_set()    # whether policies may name pods of other nodes
        self._waiting: list[Event] = []                 # of policies, until _has_all_pods

    @property
    def complete(self) -> bool:
        self._complete = self._complete or (self._listed.issuperset((*ALWAYS, PODS, *OF_CRDS)) and (
            NODES in self._listed or not self.content.compiler.names_nodes))
        return self._complete

    @property
    def away(self) -> str:
        return next(filter(None, list(self._away.values())), "")

    @property
    def busy(self) -> bool:
        """Whether there are changes that the Compiler does not have so far."""
        return bool(self._events)

    @property
    def errors(self) -> dict[str, list[str]]:
        found = self.content.told()
        if self._waiting and (why := self._away.get(PODS)):
            found[PODS] = [f"policies are not in force until all pods are listed: {why}"]
        return found

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        if self.events:
            self.events.start()

    def close(self) -> None:
        """End the threads. An answer that they wait for ends with the connection."""
        self._stop.set()
        self._nodes.set()
        if self.kept:
            self.kept.close()
        if self.events:
            self.events.close()
        self.api.close()
        for thread in self._threads:
            thread.join(RETRY_S)
        if not any(thread.is_alive() for thread in self._threads):      # else one may still use the descriptor
            self._wakeup.close()

    def fileno(self) -> int:
        """The descriptor to wait on for attend()."""
        return self._wakeup.fileno()

    # -- in the threads -----------------------------------------------------------------------------------------------

    def _run(self, follow: Callable[[], None]) -> None:
        """Run a thread. A fault ends the agent, because policies that no longer change would do harm."""
        try:
            while not self._stop.is_set():
                follow()
                self._stop.wait(random.uniform(0.5, 1.5) * RETRY_S)
        except BaseException as e:
            self._fault = e
            self._wakeup.wake()

    def _follow(self) -> None:
        self._watch(ALWAYS, self._stop.is_set)

    def _follow_pods(self) -> None:
        """Watch the pods of this node, or of all nodes. This ends when the agent's thread sets _all_pods."""
        wanted, node = self._all_pods.is_set(), self.content.compiler.node
        self._lists_all_pods = every = wanted or not self._is_node(node)
        self._watch((PODS,), lambda: self._stop.is_set() or self._all_pods.is_set() != wanted,
                    RUNNING if every else f"{ON_NODE}{node}")

    def _is_node(self, name: str) -> bool:
        """Return whether the API server has a Node of this name. The default of --node-name is the host's name. If the
        Node has another name, the agent would find no pod of its node."""
        try:
            return self.api.get(f"{NODES}/{name}") is not None
        except Away:                    # also without the right to read it
            return False

    def _follow_crd(self, path: str) -> None:
        """Watch the objects of a kind if its CRD exists. Without the CRD there are no objects. If there were objects
        before, ask the API server twice for the CRD, because a starting API server does not know all CRDs."""
        try:
            if self.is_served(path) or (self._own[path] and not self._stop.wait(CONFIRM_S) and self.is_served(path)):
                self._watch((path,), self._stop.is_set)
            else:
                self._add((path, frozenset(), None))
                self._away.pop(path, None)
                self._stop.wait(ABSENT_S)
        except Away as e:
            self._away[path] = str(e)

    def is_served(self, path: str) -> bool:
        """Whether the API server has the kind of a path. Raises Away. Any account may ask, as the list may not."""
        group, _, plural = path.rpartition("/")
        try:
            found = self.api.get(group) or {}
        except NoSuchKind:
            return False
        return any(each.get("name") == plural for each in found.get("resources") or ())

    def _follow_nodes(self) -> None:
        self._nodes.wait()
        self._watch((NODES,), lambda: self._stop.is_set() or not self._nodes.is_set())

    def _watch(self, paths: tuple[str, ...], stop: Callable[[], bool], selector: str = "") -> None:
        for path in paths:
            self._seen[path] = set()
        try:
            watch_all(self.api, paths, self._tell, stop, self._list_ended, cached=CACHED, metadata=METADATA,
                      selectors=dict.fromkeys(paths, selector))
        except Away as e:
            if not stop():
                self._away[paths[0]] = str(e)
                self._wakeup.wake()

    def _tell(self, path: str, document: dict[str, Any], gone: bool) -> None:
        key = name_of(document)
        (self._seen[path].discard if gone else self._seen[path].add)(key)
        self._add((path, key, None if gone else line_of(path, document)))

    def _list_ended(self, path: str) -> None:
        """Remove the objects that the list does not have: no event reports objects that were deleted while the API
        server was unavailable."""
        self._away.pop(path if path not in ALWAYS else ALWAYS[0], None)
        every = path == PODS and self._lists_all_pods
        self._add((path, frozenset(self._seen[path]), ALL_PODS if every else None))

    def _add(self, event: Event) -> None:
        self._events.append(event)
        self._wakeup.wake()

    # -- in the agent's thread ----------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Apply the objects that the threads have read, for at most STEPS_S; the remaining objects are due immediately.
        Raises the exception that has ended a thread."""
        with suppress(BlockingIOError):
            self._wakeup.clear()
        if self._fault:
            raise self._fault
        until = monotonic() + STEPS_S
        while self._events and monotonic() < until:
            path, it, line = event = self._events.popleft()
            if self._has_to_wait(path, line):
                self._waiting.append(event)
            elif isinstance(it, frozenset):
                for key in self._own[path] - it:
                    self.delete(path, key)
                self._listed.add(path)
                if line == ALL_PODS:
                    self._has_all_pods = True
                    self._events.extendleft(reversed(self._waiting))
                    self._waiting.clear()
            elif line is None:
                self.delete(path, it)
            else:
                self.put(path, it, line)
        if self.content.compiler.names_nodes:
            self._nodes.set()
        elif not self._stop.is_set():
            self._nodes.clear()
        self.due = 0.0 if self._events else float("inf")
        if self.kept and self.complete:
            self.kept.follow(self.content)

    def _has_to_wait(self, path: str, line: bytes | None) -> bool:
        """Return whether a change of policies waits for the pods of all nodes. All later changes of policies wait, too,
        so they keep their order."""
        if path in (PODS, NAMESPACES, NODES):
            return False
        if not self._all_pods.is_set() and line and names_pods(read_entry(line)):
            self._all_pods.set()
        return self._all_pods.is_set() and not self._has_all_pods

    def put(self, path: str, key: str, line: bytes) -> None:
        """Apply one object. line: see line_of()."""
        self._own[path].add(key)
        place = place_of(path, key)
        told = self.errors.get(place, []) if self.events else []
        self._replace(place, [("", line)])
        if self.events:
            for text in self.errors.get(place, []):
                if text not in told:
                    self.events.report(PATHS[path], json.loads(line)["metadata"], text)

    def delete(self, path: str, key: str) -> None:
        self._own[path].discard(key)
        self._replace(place_of(path, key), [])

    def _replace(self, place: str, documents: Collection[tuple[str, bytes]]) -> None:
        for _ in self.content.replace(place, documents):
            pass


def read_cluster(api: Api) -> Cluster:
    """Return all objects of the API. Unreadable objects are treated as in Kubernetes. Raises Away."""
    source = Kubernetes(api, Compiler())
    for path in (*ALWAYS, PODS, *filter(source.is_served, OF_CRDS), NODES):
        if path == NODES and not source.content.compiler.names_nodes:
            continue
        for document in api.list_with_revision(path)[0]:
            source.put(path, name_of(document), line_of(path, document))
    return source.content.compiler.cluster


def names_pods(of: Entry | Place) -> bool:
    """Return whether policies need pods of other nodes: as peers, or for names of ports at any destination."""
    return any(isinstance(record, EgressAddress) or (isinstance(record, Policy | ClusterPolicy) and any(
        any(isinstance(peer, Group) for peer in rule.peers)
        or (direction == EGRESS and any(port.name for port in rule.ports))
        for direction in DIRECTIONS for rule in record.rules(direction) or ())) for record in of.records.values())


def line_of(path: str, document: dict[str, Any]) -> bytes:
    """Return the part of an object that is read, as encode() writes it: a tenth of a pod."""
    kept = reduced({**document, "kind": PATHS[path]})
    assert kept
    return encode(kept)


def place_of(path: str, key: str) -> str:
    """Return the place of an object in Content."""
    return f"{path} {key}"


def name_of(document: dict[str, Any]) -> str:
    """ "shop/web"; only the name without a namespace."""
    return "/".join(filter(None, key_of(document)))
