"""Use Kubernetes as the registry, like flanneld with --kube-subnet-mgr: a node's subnets are its podCIDRs, and
annotations of its Node publish its address.

    flannel.alpha.coreos.com/kube-subnet-manager: "true"
    flannel.alpha.coreos.com/backend-type: vxlan
    flannel.alpha.coreos.com/backend-data: '{"VNI":1,"VtepMAC":"82:4b:b6:2f:54:4e"}'        backend-v6-data for IPv6
    flannel.alpha.coreos.com/public-ip: 192.0.2.7                                           public-ipv6
    flannel.alpha.coreos.com/public-ip-overwrite: 198.51.100.7                              set by an operator
    fastcni.dev/pod-cidrs: 10.244.1.0/24,fd00:10:0:1::/64                                   the same as spec.podCIDRs

The agent watches only the metadata of all Nodes, without images and conditions. So an annotation repeats the podCIDRs.
A Node that runs flanneld lacks this annotation, so the agent reads its complete Node object once.

The network's configuration is a file, which each node gets from a ConfigMap. All writes are patches of a Node's status;
deploy/agent.yaml has the needed rights.
"""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from fastcni.agent import conf as confs
from fastcni.agent.contract import FAMILIES, ConfigurationError, Node, SubnetLost
from fastcni.agent.registries.flannel_records import read_address, read_json
from fastcni.agent.registries.record_file import RecordFile, start_pause
from fastcni.agent.subnets import within
from fastcni.agent.tries import tries
from fastcni.clients.errors import Away
from fastcni.clients.kubernetes import Conflict, Expired, Missing, number_of, open_api

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from fastcni.agent.contract import Address, NetworkConf
    from fastcni.daemon.log import Logger

    Object = dict[str, Any]

NODES = "/api/v1/nodes"
PREFIX = "flannel.alpha.coreos.com"
PUBLIC = {4: "public-ip", 6: "public-ipv6"}
DATA = {4: "backend-data", 6: "backend-v6-data"}
OVERWRITE = "-overwrite"
POD_CIDRS = "fastcni.dev/pod-cidrs"
KEEP_S = 300.0                  # seconds between two checks of this node's record; the watch also reports changes
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0       # seconds before a lost watch is opened again: the pause doubles
MAX_SHOWN = 200                 # characters of an annotation in the log
MAX_ASKED = 20                  # the maximum of Nodes to read one by one; for more, the agent lists all Nodes in pages
# All agents may have to list all Nodes at the same time. Each agent waits for a random time, so that one processor of
# the API server can answer up to 1,000 agents. A list costs LIST_S_OF_A_NODE for each Node.
LIST_S_OF_A_NODE, MAX_SPREAD_S = 60e-6, 60.0
# How long a stopped agent's records are valid, in seconds. The API server deletes older changes from etcd, every 5
# minutes by default, so a watch from an older revision would expire.
MAX_KEPT_S = 300.0
AVAILABLE = {"type": "NetworkUnavailable", "status": "False", "reason": "FastcniIsUp",
             "message": "fastcni's agent is running on this node"}


class Kubernetes:
    """The registry in Kubernetes (contract.Registry): the nodes' records are annotations of their Node objects.

    settings: "kubeconfig" (a path; "": the service account of the pod), "node" (this node's name), "net_conf" (the path
    of the network's configuration), "annotation_prefix" (begins the names of the annotations), "kept" (the path of the
    file that stores all nodes' records; without it, nothing is stored).
    """

    publishes = True

    def __init__(self, settings: Mapping[str, Any], log: Logger, wait: Callable[[float], object]) -> None:
        self.api = open_api(settings.get("kubeconfig", ""))
        self.node, self.net_conf = settings["node"], settings["net_conf"]
        self.prefix = settings.get("annotation_prefix", PREFIX)
        self.log, self.wait = log, wait
        self.unreadable: dict[str, str] = {}
        self.uid = ""                                   # the uid of this node's Node object, set by join()
        self.kept = RecordFile(settings.get("kept", ""), f"{NODES} {self.prefix}", log)
        self._asked: dict[str, dict[int, Any]] = {}     # {uid of a Node without POD_CIDRS: its podCIDRs by family}

    def close(self) -> None:
        self.api.close()

    def conf(self) -> NetworkConf:
        try:
            with open(self.net_conf, encoding="utf-8") as file:
                return confs.read(file.read())
        except OSError as e:
            raise ConfigurationError(f"{self.net_conf}: {e.strerror}") from None

    # -- this node -----------------------------------------------------------------------------------------------------

    def join(self, conf: NetworkConf, me: Node) -> Node:
        document, subnets = self._own()
        missing = [family for family in conf.families if family not in subnets]
        if missing:
            raise ConfigurationError(f'node "{self.node}" pod cidr not assigned: spec.podCIDRs has no IPv{missing[0]}; '
                                     "does the controller manager run with --allocate-node-cidrs?")
        for family in conf.families:
            network = conf.families[family].network
            if not within(subnets[family], network):
                raise ConfigurationError(f'podCIDRs of node "{self.node}": {subnets[family]} is not in {network}')
        joined = Node(self.node, {family: subnets[family] for family in conf.families},
                      {**me.public, **self._overwrites(document)}, me.backend, me.data)
        self._publish(document, joined)
        self.uid = document["metadata"]["uid"]
        return joined

    def keep(self, me: Node) -> float:
        document, subnets = self._own()
        if any(subnets.get(family) != subnet for family, subnet in me.subnets.items()):
            raise SubnetLost(f'node "{self.node}" now has other podCIDRs: {", ".join(map(str, subnets.values()))}')
        for name, value in self._publish(document, me).items():
            self.log.warning("record_restored", key=name, found=value[:MAX_SHOWN])
        return KEEP_S

    def leave(self, me: Node) -> None:
        self._annotate(dict.fromkeys(self._annotations(me)))
        self.kept.remove()

    def ready(self, me: Node) -> None:
        """Set the node's condition NetworkUnavailable to False. If it is False already, write nothing, because the API
        server would send the changed Node to all agents."""
        conditions = (self._own()[0].get("status") or {}).get("conditions") or ()
        if any(AVAILABLE.items() <= condition.items() for condition in conditions):
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._patch({"status": {"conditions": [{**AVAILABLE, "lastHeartbeatTime": now, "lastTransitionTime": now}]}})

    def _own(self) -> tuple[Object, dict[int, Any]]:
        """Return (this node's Node object, its subnets by family). Raises ConfigurationError, Away."""
        document = self.api.get(f"{NODES}/{self.node}")
        if document is None:
            raise ConfigurationError(f'there is no Node "{self.node}": --node-name names this node')
        try:
            return document, read_subnets(document)
        except ValueError as e:
            raise ConfigurationError(f'podCIDRs of node "{self.node}": {e}') from None

    def _overwrites(self, document: Object) -> dict[int, Address]:
        notes, found = notes_of(document), {}
        for family, name in PUBLIC.items():
            if text := notes.get(key := f"{self.prefix}/{name}{OVERWRITE}"):
                try:
                    found[family] = read_address(text, family)
                except ValueError as e:
                    raise ConfigurationError(f'annotation {key} of node "{self.node}": {e}') from None
        return found

    def _annotations(self, me: Node) -> dict[str, str | None]:
        """Return {name: value} of the annotations that publish the record `me`. None: the annotation must not exist.
        _read() decodes these annotations."""
        found: dict[str, str | None] = {"kube-subnet-manager": "true", "backend-type": me.backend}
        cidrs = ",".join(str(me.subnets[family]) for family in FAMILIES if family in me.subnets)
        for family in FAMILIES:
            found[PUBLIC[family]] = str(me.public[family]) if family in me.public else None
            found[DATA[family]] = json.dumps(me.data.get(family) or None, separators=(",", ":")) \
                if family in me.subnets else None
        return {POD_CIDRS: cidrs, **{f"{self.prefix}/{name}": value for name, value in found.items()}}

    def _publish(self, document: Object, me: Node) -> dict[str, str]:
        """Write the annotations of `me` that are missing or different in `document`, this node's object. Return {name:
        previous value} of the changed annotations."""
        there = notes_of(document)
        changes = {name: value for name, value in self._annotations(me).items() if there.get(name) != value}
        if changes:
            self._annotate(changes)
        return {name: there.get(name, "") for name in changes}

    def _annotate(self, changes: Mapping[str, str | None]) -> None:
        self._patch({"metadata": {"annotations": dict(changes)}})

    def _patch(self, changes: Object) -> None:
        try:
            self.api.patch_by_keys(f"{NODES}/{self.node}/status", changes)
        except (Missing, Conflict) as e:
            raise Away(str(e)) from None

    # -- the records of all nodes --------------------------------------------------------------------------------------

    def watch(self, changed: Callable[[Collection[Node]], object], stop: Callable[[], bool]) -> None:
        view = self._kept_view()
        if view:
            changed(view.nodes())
            self.wait(start_pause(len(view.known)))
        for pause in tries(stop, self.wait, FIRST_PAUSE_S, MAX_PAUSE_S):
            try:
                if view is None or not self._goes_on(view):
                    view = self._list(stop)
                    changed(view.nodes())
                for _ in self._follow(view, stop):
                    changed(view.nodes())
            except Expired:
                count = len(view.known) if view else 0
                self.wait(random.uniform(0.0, min(LIST_S_OF_A_NODE * count ** 2, MAX_SPREAD_S)))
                view = None
            except Away as e:
                if not stop():
                    self.log.warning("registry_away", error=str(e), retry_in=pause)
                if view:
                    view.lost = True
        if view:
            self._store(view)

    def _kept_view(self) -> View | None:
        """Return the records that the previous agent stored at its end; None if no records are stored, if the previous
        agent ended more than MAX_KEPT_S ago, or if the records are of another cluster, where this node's Node object
        had another uid."""
        stored = self.kept.read()
        if stored is None or stored["uid"] != self.uid or abs(time.time() - stored["time"]) > MAX_KEPT_S:
            return None
        known = {name: self._read({"metadata": {"name": name, "annotations": notes}})
                 for name, notes in stored["nodes"].items()}
        view = View(known, stored["revision"])
        view.lost = True
        return view

    def _store(self, view: View) -> None:
        """Write the file that _kept_view() reads."""
        nodes = {node.name: {name: value for name, value in self._annotations(node).items() if value is not None}
                 for node in view.nodes()}
        self.kept.write({"uid": self.uid, "time": time.time(), "revision": view.revision, "nodes": nodes})

    def _list(self, stop: Callable[[], bool]) -> View:
        """Return the records of all Nodes from the API server's cache. Each Node is decoded as it arrives, because all
        Nodes of a large cluster take much more memory than their records. Raises Expired, after which the caller lists
        again; and Away, also if stop() returns true."""
        known: dict[str, Node | None] = {}
        unknown: list[Object] = []
        uids: set[str] = set()

        def tell(document: Object) -> None:
            uids.add(uid := document["metadata"]["uid"])
            if self._is_member(document) and POD_CIDRS not in notes_of(document) and uid not in self._asked:
                unknown.append(document)
            else:
                known[document["metadata"]["name"]] = self._read(document)

        revision = self.api.list_each(NODES, tell, stop, metadata=True)
        self._asked = {uid: subnets for uid, subnets in self._asked.items() if uid in uids}
        if len(unknown) > MAX_ASKED:
            self._ask_all({document["metadata"]["uid"] for document in unknown})
        known |= {document["metadata"]["name"]: self._read(document) for document in unknown}
        return View(known, revision)

    def _goes_on(self, view: View) -> bool:
        """Return whether a watch will report all changes since the revision of `view`. After a lost connection, the API
        server may have an older revision, if etcd was restored from a backup."""
        if view.lost and self.api.revision_of(NODES) < number_of(view.revision):
            return False
        view.lost = False
        return True

    def _follow(self, view: View, stop: Callable[[], bool]) -> Iterator[None]:
        """Apply the changes of a watch to `view`, and yield after each change of a record. End if the server ends the
        watch soon and without an error. Raises Expired, Away."""
        while not stop():
            opened = time.monotonic()
            for kind, document in self.api.watch(NODES, view.revision, stop, metadata=True):
                if kind != "BOOKMARK":
                    name = document["metadata"]["name"]
                    before, now = view.known.get(name), None if kind == "DELETED" else self._read(document)
                    view.known[name] = now
                    if before != now:           # the kubelet writes its Node often, without changing the record
                        view.revision = document["metadata"]["resourceVersion"]
                        yield
                view.revision = document["metadata"]["resourceVersion"]
            if time.monotonic() - opened < MAX_PAUSE_S:
                return

    def _read(self, document: Object) -> Node | None:
        """Return the record in a Node object; None if the Node is not in the network or its annotations are unreadable.
        Log unreadable annotations once."""
        name, notes = document["metadata"]["name"], notes_of(document)
        if not self._is_member(document):
            return None
        try:
            public = {family: read_address(text, family) for family, each in PUBLIC.items()
                      if (text := notes.get(f"{self.prefix}/{each}"))}
            data = {family: found for family, each in DATA.items()
                    if isinstance(found := read_json(notes.get(f"{self.prefix}/{each}") or "null"), dict)}
            node = Node(name, self._subnets(document), public, notes.get(f"{self.prefix}/backend-type", ""), data)
        except ValueError as e:
            if self.unreadable.get(name) != str(e):
                self.log.warning("record_unreadable", key=name, error=str(e))
            self.unreadable[name] = str(e)
            return None
        self.unreadable.pop(name, None)
        return node if node.subnets else None

    def _subnets(self, document: Object) -> dict[int, Any]:
        """Return a Node's podCIDRs by family, from the annotation or from the complete Node object. Raises ValueError,
        Away."""
        if text := notes_of(document).get(POD_CIDRS):
            return by_family(text.split(","))
        name, uid = document["metadata"]["name"], document["metadata"]["uid"]
        if uid not in self._asked:
            whole = document if "spec" in document else self.api.get(f"{NODES}/{name}") or {}
            if subnets := read_subnets(whole):
                self._asked[uid] = subnets
        return self._asked.get(uid, {})

    def _ask_all(self, uids: Collection[str]) -> None:
        """Read the podCIDRs of the Nodes `uids`, which lack the annotation, from one list of all Nodes: one request for
        each Node would be too many."""
        for page in self.api.pages(NODES):
            for document in page.get("items") or ():
                if (uid := document["metadata"]["uid"]) in uids:
                    with suppress(ValueError):          # _read() logs the error
                        if subnets := read_subnets(document):
                            self._asked[uid] = subnets

    def _is_member(self, document: Object) -> bool:
        return notes_of(document).get(f"{self.prefix}/kube-subnet-manager") == "true"


class View:
    """A copy of all Nodes' records. known: {name: record, or None for a Node that is not in the network}.

    revision: the resourceVersion of the last change. lost: whether the watch has ended by an error, or with the
    previous agent.
    """

    def __init__(self, known: dict[str, Node | None], revision: str) -> None:
        self.known, self.revision, self.lost = known, revision, False

    def nodes(self) -> list[Node]:
        return [node for node in self.known.values() if node]


def notes_of(document: Object) -> dict[str, str]:
    """Return the annotations of an object."""
    return document["metadata"].get("annotations") or {}


def read_subnets(document: Object) -> dict[int, Any]:
    """Return spec.podCIDRs of a Node object, {family: network}. Raises ValueError."""
    spec = document.get("spec") or {}
    return by_family(spec.get("podCIDRs") or filter(None, [spec.get("podCIDR")]))


def by_family(texts: Iterable[str]) -> dict[int, Any]:
    """Return {family: network} of networks such as 10.244.1.0/24. Raises ValueError."""
    return {subnet.version: subnet for subnet in map(ip_network, texts)}
