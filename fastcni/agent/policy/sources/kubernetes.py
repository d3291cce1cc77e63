"""Read pods, namespaces and policies from the Kubernetes API: threads list and watch the objects, and the agent's
thread puts them into the Compiler.

The threads watch ClusterNetworkPolicy, CiliumNetworkPolicy and EgressAddress if the API server has their CRDs, and
nodes while a policy has peers by nodes. They watch the pods of other nodes after the first policy that has pods as
peers. The agent applies such a policy when it knows all pods. Before that, the previous policies stay in force.
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
from fastcni.agent.policy.objects import DIRECTIONS, EGRESS, Group, Pod, Policy
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
from fastcni.clients.errors import Away
from fastcni.clients.kubernetes import NoSuchKind, number_of
from fastcni.clients.kubernetes_watch import KindWatch, key_of, watch_all
from fastcni.daemon.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from fastcni.agent.policy.evaluate import Cluster
    from fastcni.agent.policy.sources.content import Place
    from fastcni.agent.policy.sources.document_file import DocumentFile
    from fastcni.agent.policy.sources.documents import Entry
    from fastcni.agent.policy.sources.events import UnreadableEvents
    from fastcni.clients.kubernetes import Api

    # (path, key, document, version) of an object, document None: deleted. (path, keys, None, 0): a list has ended
    Event = tuple[str, str | frozenset[str], bytes | None, int]
    Seen = tuple[str, str, bytes, int]              # an Event with a document

PODS, NAMESPACES, NODES = "/api/v1/pods", "/api/v1/namespaces", "/api/v1/nodes"
OTHER_PODS = "/api/v1/pods-of-other-nodes"      # names the watch of other nodes' pods; no path of the API
TWINS = {PODS: OTHER_PODS, OTHER_PODS: PODS}
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
CLUSTER_GROUP = f"/apis/{API_VERSION}"
CLUSTER_POLICIES = f"{CLUSTER_GROUP}/clusternetworkpolicies"
CILIUM_POLICIES = f"/apis/{http.API_VERSION}/ciliumnetworkpolicies"
EGRESS_ADDRESSES = f"/apis/{egress.API_VERSION}/egressaddresses"
PATHS = {NAMESPACES: NAMESPACE, PODS: POD, OTHER_PODS: POD, POLICIES: POLICY, CLUSTER_POLICIES: CLUSTER_POLICY,
         NODES: NODE, CILIUM_POLICIES: CILIUM_POLICY, EGRESS_ADDRESSES: EGRESS_ADDRESS}
ALWAYS, OF_CRDS = (NAMESPACES, POLICIES), (CLUSTER_POLICIES, CILIUM_POLICIES, EGRESS_ADDRESSES)
# Clusters have many pods and nodes, so their lists come from the API server's cache. Lists of policies and namespaces
# come from etcd, so that a restarted agent never goes back to previous policies.
CACHED, METADATA = (NODES,), (NAMESPACES,)
# The watches leave out pods that have ended: such a pod has no address of its own, and jobs leave many such pods.
RUNNING = "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"
ON_NODE, ELSEWHERE = f"{RUNNING}%2Cspec.nodeName%3D", f"{RUNNING}%2Cspec.nodeName%21%3D"
RETRY_S = 1.0                   # seconds to wait after the API server was unavailable, times 0.5 to 1.5
ABSENT_S = 30.0                 # seconds between two checks for a CRD
CONFIRM_S = 5.0                 # seconds before a second check for a missing CRD, if the agent has objects of its kind
STEPS_S = 0.005                 # seconds for changes of the Compiler before the agent answers requests


class Kubernetes:
    """The Source that keeps a Compiler equal to the API's objects; see Content for unreadable objects. start() starts
    the threads, and attend() applies the objects that the threads have read.

    complete: whether each kind has been listed, so that the first table can be written; a kind without a CRD has no
    objects. Before that, the Compiler has the objects that a previous agent has stored (`kept`); without stored
    objects, `former` is False. errors: {path and key: texts}. away: why the API server is unavailable, or "". due: when
    to call attend() without an event, in monotonic seconds.
    """

    small = False                   # see contract.Source

    def __init__(self, api: Api, compiler: Compiler, kept: DocumentFile | None = None,
                 events: UnreadableEvents | None = None) -> None:
        self.api, self.kept, self.events = api, kept, events
        self.content = Content(compiler, kept.changed if kept else None)
        self.due = float("inf")
        self._away: dict[str, str] = {}         # {first path of a watch: why it failed}
        self._complete = False
        self._nodes = threading.Event()         # set when nodes have to be watched
        self._all_pods = threading.Event()      # set when the pods of other nodes have to be watched
        self._in_one: bool | None = None        # whether one watch has the pods of all nodes; None: not yet known
        self._fault: BaseException | None = None
        self._listed: set[str] = set()
        self._events: deque[Event] = deque()
        self._seen: dict[str, set[str]] = {path: set() for path in PATHS}       # {path: keys that its watch has}
        self._own: dict[str, set[str]] = {path: set() for path in PATHS}        # {path: keys in the Compiler}
        self._versions: dict[str, int] = {}     # resourceVersion of each pod
        # {(path, key): a pod of this watch that is not in force, because the other watch has a later pod of its name}
        self._behind: dict[tuple[str, str], Seen] = {}
        self._wakeup = Wakeup()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(follow,), name="policies", daemon=True)
                         for follow in (partial(self._watch, ALWAYS, self._stop.is_set), self._follow_pods,
                                        self._follow_other_pods, self._follow_nodes,
                                        *(partial(self._follow_crd, path) for path in OF_CRDS))]
        former = kept.read() if kept else None
        self.former = former is not None
        for place, lines in (former or {}).items():
            path, _, key = place.partition(" ")
            if path in PATHS:
                self._replace(place, [("", line) for line in lines])
                self._own[self._path_of(path, place)].add(key)
        if not compiler.node or any(map(names_pods, self.content.places.values())):
            self._all_pods.set()
        self._has_all_pods = self._all_pods.is_set()    # whether policies with pods of other nodes may be in force
        self._waiting: list[Event] = []                 # changes of policies that wait for all pods

    @property
    def complete(self) -> bool:
        self._complete = self._complete or (self._listed.issuperset((*ALWAYS, PODS, *OF_CRDS)) and (
            NODES in self._listed or not self.content.compiler.names_nodes) and (
            OTHER_PODS in self._listed or not self._all_pods.is_set()))
        return self._complete

    @property
    def away(self) -> str:
        return next(filter(None, list(self._away.values())), "")

    @property
    def busy(self) -> bool:
        """Whether the threads have read changes that are not yet in the Compiler."""
        return bool(self._events)

    @property
    def errors(self) -> dict[str, list[str]]:
        found = self.content.told()
        if self._waiting and (why := self._away.get(OTHER_PODS) or self._away.get(PODS)):
            found[PODS] = [f"policies are not in force until all pods are listed: {why}"]
        return found

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        if self.events:
            self.events.start()

    def close(self) -> None:
        """End the threads. A thread that waits for an answer ends when close() closes its connection."""
        self._stop.set()
        self._nodes.set()
        self._all_pods.set()
        if self.kept:
            self.kept.close()
        if self.events:
            self.events.close()
        self.api.close()
        for thread in self._threads:
            thread.join(RETRY_S)
        if not any(thread.is_alive() for thread in self._threads):      # a living thread may still use the descriptor
            self._wakeup.close()

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when attend() has work."""
        return self._wakeup.fileno()

    # -- in the threads -----------------------------------------------------------------------------------------------

    def _run(self, follow: Callable[[], None]) -> None:
        """Call follow() until close(). An exception ends the agent: without this thread, policies would no longer
        change."""
        try:
            while not self._stop.is_set():
                follow()
                self._stop.wait(random.uniform(0.5, 1.5) * RETRY_S)
        except BaseException as e:
            self._fault = e
            self._wakeup.wake()

    def _follow_pods(self) -> None:
        """Watch the pods of this node; watch all pods if the API server has no Node with this node's name."""
        node, in_one = self.content.compiler.node, self._in_one
        if in_one is None:
            in_one = not node or not self._is_node(node)

        def listed(path: str) -> None:
            self._in_one = in_one
            self._list_ended(path)

        self._watch_pods(PODS, RUNNING if in_one else f"{ON_NODE}{node}", listed)

    def _follow_other_pods(self) -> None:
        """Wait for the first policy that needs the pods of other nodes, and then watch these pods."""
        self._all_pods.wait()
        if self._in_one is False:
            self._watch_pods(OTHER_PODS, f"{ELSEWHERE}{self.content.compiler.node}", self._list_ended)

    def _watch_pods(self, path: str, selector: str, listed: Callable[[str], object]) -> None:
        self._seen[path] = set()
        try:
            watch = KindWatch(self.api, path, PODS, self._tell, listed, selector=selector, cached=True)
            watch.follow(self._stop.is_set)
        except Away as e:
            self._lost(path, e)

    def _is_node(self, name: str) -> bool:
        """Return whether the API server has a Node of this name. By default --node-name is the host's name; if the Node
        has another name, a watch of this node's pods would find none."""
        try:
            return self.api.get(f"{NODES}/{name}") is not None
        except Away:                    # also if the agent may not read Nodes
            return False

    def _follow_crd(self, path: str) -> None:
        """Watch the objects of a kind if its CRD exists; without the CRD, remove its objects. If the agent has objects
        of the kind, check twice for the CRD, because a starting API server does not know all CRDs yet."""
        try:
            if self.is_served(path) or (self._own[path] and not self._stop.wait(CONFIRM_S) and self.is_served(path)):
                self._watch((path,), self._stop.is_set)
            else:
                self._add((path, frozenset(), None, 0))
                self._away.pop(path, None)
                self._stop.wait(ABSENT_S)
        except Away as e:
            self._away[path] = str(e)

    def is_served(self, path: str) -> bool:
        """Return whether the API server has the kind of a path. Raises Away. This request needs no right to list the
        kind's objects."""
        group, _, plural = path.rpartition("/")
        try:
            found = self.api.get(group) or {}
        except NoSuchKind:
            return False
        return any(each.get("name") == plural for each in found.get("resources") or ())

    def _follow_nodes(self) -> None:
        self._nodes.wait()
        self._watch((NODES,), lambda: self._stop.is_set() or not self._nodes.is_set())

    def _watch(self, paths: tuple[str, ...], stop: Callable[[], bool]) -> None:
        for path in paths:
            self._seen[path] = set()
        try:
            watch_all(self.api, paths, self._tell, stop, self._list_ended, cached=CACHED, metadata=METADATA)
        except Away as e:
            self._lost(paths[0], e)

    def _lost(self, path: str, error: Away) -> None:
        self._away[path] = str(error)
        if not self._stop.is_set():
            self._wakeup.wake()

    def _tell(self, path: str, document: dict[str, Any], gone: bool) -> None:
        key = name_of(document)
        (self._seen[path].discard if gone else self._seen[path].add)(key)
        version = number_of(document["metadata"].get("resourceVersion", ""))
        self._add((path, key, None if gone else line_of(path, document), version))

    def _list_ended(self, path: str) -> None:
        """Let attend() remove the objects that the list lacks. No event reports an object that was deleted while the
        API server was unavailable."""
        self._away.pop(path if path not in ALWAYS else ALWAYS[0], None)
        self._add((path, frozenset(self._seen[path]), None, 0))

    def _add(self, event: Event) -> None:
        self._events.append(event)
        self._wakeup.wake()

    # -- in the agent's thread ----------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Apply the objects that the threads have read, for at most STEPS_S. If objects remain, `due` becomes 0. If an
        exception has ended a thread, attend() raises the exception."""
        with suppress(BlockingIOError):
            self._wakeup.clear()
        if self._fault:
            raise self._fault
        until = monotonic() + STEPS_S
        while self._events and monotonic() < until:
            path, it, line, version = event = self._events.popleft()
            if self._has_to_wait(path, line):
                self._waiting.append(event)
            elif isinstance(it, frozenset):
                self._end_list(path, it)
            elif line is None:
                self._withdraw(path, it, version)
            elif self._is_outdated(path, it, version):
                self._behind[path, it] = (path, it, line, version)
            else:
                self.put(path, it, line, version)
        if self.content.compiler.names_nodes:
            self._nodes.set()
        elif not self._stop.is_set():
            self._nodes.clear()
        self.due = 0.0 if self._events else float("inf")
        if self.kept and self.complete:
            self.kept.follow(self.content)

    def _has_to_wait(self, path: str, line: bytes | None) -> bool:
        """Return whether this change concerns policies and has to wait for the pods of all nodes. All later changes of
        policies wait, too, so that they keep their order."""
        if path in (PODS, OTHER_PODS, NAMESPACES, NODES):
            return False
        if not self._all_pods.is_set() and line and names_pods(read_entry(line)):
            self._all_pods.set()
        return self._all_pods.is_set() and not self._has_all_pods

    def _end_list(self, path: str, keys: frozenset[str]) -> None:
        self._withdraw_others(path, keys)
        self._listed.add(path)
        if path == PODS and (self._in_one or not self._all_pods.is_set()):
            self._withdraw_others(OTHER_PODS, frozenset())      # pods that an earlier agent has stored
        if path == OTHER_PODS or (path == PODS and self._in_one):
            self._listed.add(OTHER_PODS)
            self._has_all_pods = True
            self._events.extendleft(reversed(self._waiting))
            self._waiting.clear()

    def _withdraw_others(self, path: str, keys: frozenset[str]) -> None:
        """Withdraw the objects of `path` that are not in `keys`, the keys of a complete list."""
        for key in (self._own[path] | {key for _, key in self._behind}) - keys:
            self._withdraw(path, key, -1)

    def _withdraw(self, path: str, key: str, version: int) -> None:
        """Delete an object that a watch no longer has. If the other watch of pods has a pod of this name, created after
        the deletion, put the other watch's pod.

        version: the resourceVersion of the deletion; -1: a list lacks the object. With -1 any pod of the other watch
        counts, because versions are lower after a restore of etcd from a backup."""
        self._behind.pop((path, key), None)
        if key in self._own[path]:
            self.delete(path, key)
        behind = self._behind.get((TWINS.get(path, ""), key))
        if behind and behind[-1] > version:
            self.put(*behind)

    def _is_outdated(self, path: str, key: str, version: int) -> bool:
        """Return whether the other watch of pods has a later pod of this name: a pod of a StatefulSet may have moved to
        another node, and the events of two watches come in no common order."""
        return path in TWINS and key in self._own[TWINS[path]] and version < self._versions.get(key, 0)

    def put(self, path: str, key: str, line: bytes, version: int = 0) -> None:
        """Put one object into the Compiler. line: see line_of(). version: the object's resourceVersion."""
        place = place_of(path, key)
        self._own[path].add(key)
        if path in TWINS:
            self._behind.pop((path, key), None)
            if key in self._own[other := TWINS[path]]:
                self._own[other].remove(key)
                former = next(iter(self.content.places[place].entries))
                self._behind[other, key] = (other, key, former, self._versions.get(key, 0))
            self._versions[key] = version
        told = self.errors.get(place, []) if self.events else []
        self._replace(place, [("", line)])
        if self.events:
            for text in self.errors.get(place, []):
                if text not in told:
                    self.events.report(PATHS[path], json.loads(line)["metadata"], text)

    def delete(self, path: str, key: str) -> None:
        self._own[path].discard(key)
        if path in TWINS:
            self._versions.pop(key, None)
        self._replace(place_of(path, key), [])

    def _path_of(self, path: str, place: str) -> str:
        """Return `path`; OTHER_PODS if `place` has a pod of another node, which a previous agent has stored."""
        pods = [it for it in self.content.places[place].records.values() if isinstance(it, Pod)]
        node = self.content.compiler.node
        return OTHER_PODS if path == PODS and node and any(pod.node != node for pod in pods) else path

    def _replace(self, place: str, documents: Collection[tuple[str, bytes]]) -> None:
        for _ in self.content.replace(place, documents):
            pass


def read_cluster(api: Api) -> Cluster:
    """List all objects of the API and return them. Unreadable objects are handled as in class Kubernetes. Raises Away.
    """
    source = Kubernetes(api, Compiler())
    for path in (*ALWAYS, PODS, *filter(source.is_served, OF_CRDS), NODES):
        if path == NODES and not source.content.compiler.names_nodes:
            continue
        for document in api.list_with_revision(path)[0]:
            source.put(path, name_of(document), line_of(path, document))
    return source.content.compiler.cluster


def names_pods(of: Entry | Place) -> bool:
    """Return whether an object in `of` needs the pods of other nodes: a policy with pods as peers, a policy with named
    ports for egress, or any egress address."""
    return any(isinstance(record, EgressAddress) or (isinstance(record, Policy | ClusterPolicy) and any(
        any(isinstance(peer, Group) for peer in rule.peers)
        or (direction == EGRESS and any(port.name for port in rule.ports))
        for direction in DIRECTIONS for rule in record.rules(direction) or ())) for record in of.records.values())


def line_of(path: str, document: dict[str, Any]) -> bytes:
    """Return the keys of an object that fastcni reads, as encode() writes them. For a pod, the result has a tenth of
    the object's size."""
    kept = reduced({**document, "kind": PATHS[path]})
    assert kept
    return encode(kept)


def place_of(path: str, key: str) -> str:
    """Return the name of an object's place in Content, "/api/v1/pods shop/web"."""
    return f"{PODS if path == OTHER_PODS else path} {key}"


def name_of(document: dict[str, Any]) -> str:
    """Return "namespace/name" of an object; only the name if it has no namespace."""
    return "/".join(filter(None, key_of(document)))
