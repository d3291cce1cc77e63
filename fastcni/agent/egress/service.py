"""Claim egress addresses for this node, add them to its links, and route pods to the node that holds their address.

    put(), protect()    called by the thread of policies: which pods have which egress addresses
    see()               called by the agent's thread: this node, the other nodes and the routes to them
    run()               the thread of the Egress. Only this thread waits for requests to the store

Until this node knows which node holds a pod's egress address, the rules drop the pod's packets to outside the cluster
(table.py). When the agent ends, it releases its claims, and waits until other nodes have claimed the addresses, so that
its own pods keep a route.
"""

from __future__ import annotations

import select
import threading
from contextlib import ExitStack, closing, suppress
from ipaddress import ip_address
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.egress import flows
from fastcni.agent.egress.holding import Holding
from fastcni.agent.egress.lending import Lending
from fastcni.agent.egress.objects import preferred
from fastcni.agent.egress.routes import NextHop, Routes
from fastcni.agent.egress.surroundings import Surroundings
from fastcni.agent.egress.table import Table
from fastcni.daemon.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fastcni.agent.contract import NetworkConf, Node, Route
    from fastcni.agent.egress.claims.contract import Claims
    from fastcni.agent.egress.objects import EgressAddress, Subjects
    from fastcni.daemon.log import Logger

CHECK_S = 1.0           # seconds between two comparisons of rules and routes with the kernel
RETRY_S = 1.0           # seconds until the next try after a kernel error
HANDOVER_S = 1.5        # at its end, the agent waits at most this long for other nodes to claim its addresses
NEVER_S = 3600.0


class Egress:
    """The node's egress addresses. Create the object in a thread that is in the node's namespace. Call close() after
    run() has returned."""

    def __init__(self, log: Logger) -> None:
        self.log = log
        self.table, self.wakeup = Table(), Wakeup()
        self.documents: Mapping[str, EgressAddress] = {}
        self.subjects: Subjects = {}
        # Pods that are no longer subjects. Their packets are dropped until _end_flows() has deleted their flows. The
        # value is an object of the call of put() that removed the pod
        self._leaving: dict[bytes, object] = {}
        self._adding: set[bytes] = set()                # addresses of new pods, until the next put()
        self._lock = threading.Lock()                   # protects documents, subjects, _leaving and _adding
        self.around: Surroundings | None = None
        self.holders: Mapping[bytes, str] = {}          # {egress address: name of the node that holds it}
        self.held = 0                                   # how many addresses this node holds
        self._inside: set[bytes] = set()                # egress addresses inside the cluster, which no node can hold
        self._changed = True
        self._poll = select.poll()
        self._poll.register(self.wakeup.fileno(), select.POLLIN)
        # What _lead() has last written: {a pod's address: its egress address on this node, or "elsewhere"}. None: a
        # previous agent has written the table
        self._former: dict[bytes, object] | None = None if self.table.exists() else {}
        self._gaps = self._mended = 0   # how often the table was lost; how many of these losses _end_flows() handled

    def close(self) -> None:
        self.table.close()
        self.wakeup.close()

    # -- from other threads --------------------------------------------------------------------------------------------

    def put(self, documents: Mapping[str, EgressAddress], subjects: Subjects) -> None:
        """Enforce `documents`. Before put() returns, packets of the pods in `subjects` to outside the cluster are
        dropped until the thread has written their routes. Raises OSError."""
        with self._lock:
            gone = dict.fromkeys(self.subjects.keys() - subjects.keys(), object()) if self.around else {}
            self._leaving = {pod: call for pod, call in (self._leaving | gone).items() if pod not in subjects}
            self._adding = set()
            self._close(documents, subjects)
            self.documents, self.subjects = dict(documents), subjects
        self.changed()

    def _close(self, documents: Mapping[str, EgressAddress], subjects: Subjects) -> None:
        """Write the set `subjects`: the pods of the documents, leaving pods and new pods. Packets of these pods leave
        the cluster only by the routes that _lead() has written. The caller has the lock."""
        if documents or self._leaving or self._adding:
            self.table.put("subjects", dict.fromkeys((*subjects, *self._leaving, *self._adding)))
        else:
            self.table.remove()

    def protect(self, addresses: Collection[bytes]) -> None:
        """During an ADD: drop packets from a new pod's `addresses` to outside the cluster until the thread has written
        the pod's route. Raises OSError."""
        with self._lock:
            self._adding.update(addresses)
            self.table.add_subjects(addresses)

    def restore(self) -> None:
        """Write the table again after another program has changed it. The thread then deletes the flows of connections
        that pods have begun without the table. Raises OSError."""
        self.table.restore()
        self._gaps += 1
        self.changed()

    def see(self, conf: NetworkConf, me: Node, nodes: Collection[Node], routes: Collection[Route]) -> None:
        """Record this node, the other nodes, and the routes to their subnets."""
        self.around = Surroundings(conf, me, nodes, routes)
        self.changed()

    def changed(self) -> None:
        """Wake the thread, so that it compares claims, routes and table with the documents again."""
        self._changed = True
        self.wakeup.wake()

    def wanted(self) -> set[bytes]:
        """Return the egress addresses of all documents, packed."""
        return {packed for it in self.documents.values() for packed in it.addresses}

    def figures(self) -> Mapping[str, int]:
        """Return the metrics of egress addresses: {name: value}."""
        wanted = self.wanted()
        return {"egress_addresses": len(wanted), "egress_held": self.held,
                "egress_unheld": len(wanted - self.holders.keys())}

    def unheld(self) -> list[str]:
        """Return the egress addresses that no node holds, as text."""
        return [str(ip_address(packed)) for packed in sorted(self.wanted() - self.holders.keys())]

    def describe(self, pod: bytes) -> dict[str, str] | None:
        """Return {"name": the document that applies to the address `pod`, "address": the egress address, "node": the
        addresses of the node that holds it}, with "" if no node holds an egress address for this pod; None if no
        document applies."""
        it = self.subjects.get(pod)
        if it is None:
            return None
        address = preferred(pod, [each for each in it.of_family(pod) if each in self.holders])
        node = self.around.nodes.get(self.holders[address]) if self.around and address else None
        return {"name": it.name, "address": str(ip_address(address)) if address else "",
                "node": " ".join(map(str, node.public.values())) if node else ""}

    # -- the thread ----------------------------------------------------------------------------------------------------

    def run(self, claims: Claims, stopped: threading.Event) -> None:
        """Maintain egress addresses until `stopped` is set. To stop, set `stopped` and wake `wakeup`. Raises OSError at
        the start only."""
        ended = threading.Event()
        with ExitStack() as opened:
            lending, ways = opened.enter_context(closing(Lending())), opened.enter_context(closing(Routes()))
            holding = Holding(claims, lending, self.table, self.log)
            watch = threading.Thread(target=claims.watch, args=(self.changed, ended.is_set), name="egress-claims",
                                     daemon=True)
            watch.start()
            opened.callback(claims.close)
            opened.callback(watch.join)
            opened.callback(ended.set)
            due = checked = 0.0
            while not stopped.is_set():
                self._wait(due)
                due = monotonic() + RETRY_S
                try:
                    due = min(self._hold(holding), checked + CHECK_S if self.documents else due + NEVER_S)
                    if self._changed or monotonic() >= checked + CHECK_S:
                        self._changed, checked = False, monotonic()
                        self._lead(holding, ways)
                except OSError as e:
                    self.log.error("egress_refused", error=str(e))
                    checked = 0.0
            self._hand_over(holding, ways)

    def _wait(self, due: float) -> None:
        self._poll.poll(max(0.0, due - monotonic()) * 1000)
        with suppress(BlockingIOError):
            self.wakeup.clear()

    def _hold(self, holding: Holding) -> float:
        """Claim and renew egress addresses. Return the monotonic time of the next call."""
        if self.around is None:
            return monotonic() + NEVER_S
        if holding.claims.node != self.around.me.name:          # this node's subnet has changed
            holding.give_up(list(holding.until))
            holding.claims.node = self.around.me.name
        before, wanted = set(holding.until), self.wanted()
        inside = {packed for packed in wanted if flows.within(packed, self.around.inside)}
        for packed in sorted(inside - self._inside):
            self.log.error("egress_refused", error=f"{ip_address(packed)} is an address of a node, of the network of "
                           "pods or of a link, so no node claims it")
        self._inside = inside
        holding.attend(wanted - inside)
        self._changed = self._changed or before != holding.until.keys()
        self.holders, self.held = holding.claims.holders(), len(holding.until)
        return holding.due

    def _lead(self, holding: Holding, ways: Routes) -> None:
        """Write for each pod the egress address that this node gives it, or the route to the node that holds its egress
        address."""
        around = self.around
        if around is None:
            return
        with self._lock:
            leaving = dict(self._leaving)
        hops: dict[bytes, NextHop] = {}
        given: dict[bytes, bytes] = {}
        for pod, it in self.subjects.items():
            if mine := preferred(pod, [each for each in it.of_family(pod) if each in holding.until]):
                given[pod] = mine
            address = preferred(pod, [each for each in it.of_family(pod) if each in self.holders])
            if address and address != mine and around.is_mine(pod) and (
                    hop := around.hop(self.holders[address], len(pod))):
                hops[pod] = hop
        ways.put(hops)
        if self.documents or leaving:
            self.table.put_ranges("inside", around.inside)
            self.table.put_ranges("foreign", around.foreign)
            self.table.put("to", {pod: address for pod, address in given.items() if pod not in hops})
            self.table.put("ways", {pod + hop.gateway: None for pod, hop in hops.items()})
        self._end_flows(given, hops, around)
        if leaving:
            with self._lock:
                self._leaving = {pod: call for pod, call in self._leaving.items() if leaving.get(pod) is not call}
                self._close(self.documents, self.subjects)

    def _end_flows(self, given: Mapping[bytes, bytes], hops: Mapping[bytes, NextHop], around: Surroundings) -> None:
        """Delete the flows of pods whose egress address or next hop has changed. If the table was missing for a time,
        delete also the flows that have a wrong source address.

        given: {a pod's address: the egress address that this node gives it}. hops: {a pod's address: next hop}."""
        now: dict[bytes, object] = {**given, **dict.fromkeys(hops, "elsewhere")}
        former, gaps = now if self._former is None else self._former, self._gaps
        ended = {} if gaps == self._mended else {**given, **{pod: pod for pod in hops}}
        ended.update({pod: b"" for pod in former.keys() | now.keys() if former.get(pod) != now.get(pod)})
        flows.end(ended, around.inside)
        self._former, self._mended = now, gaps

    def _hand_over(self, holding: Holding, ways: Routes) -> None:
        gone, until = set(holding.until), monotonic() + HANDOVER_S
        holding.give_up(gone)
        holding.lending.lend({}, {})
        me = holding.claims.node
        while gone and self.around and len(self.around.nodes) > 1 and monotonic() < until:
            self.holders = holding.claims.holders()
            if all(self.holders.get(packed, me) != me for packed in gone):
                break
            self._wait(until)
        with suppress(OSError):         # the pods' packets are dropped, as after a kill of the agent
            self._lead(holding, ways)
