"""Enforce DNS names in policies: run the forwarder while a policy names a domain, and add the addresses of each answer
to the kernel's sets before the pod gets the answer.

An answer allows addresses only to the pod that has sent the query. If the agent ends, these addresses stay in the
kernel until their TTL ends, and the next agent takes them over.
"""

from __future__ import annotations

import select
from contextlib import ExitStack, closing
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.policy import cut, interpret
from fastcni.agent.policy.evaluate import Connection
from fastcni.agent.policy.names import elements
from fastcni.agent.policy.names.addresses import AnsweredAddresses, sets_of
from fastcni.agent.policy.names.process import BEAT_S, Listener, Process
from fastcni.agent.policy.names.redirect import DNS_PORT, Redirect
from fastcni.agent.policy.names.resolvers import read_resolvers
from fastcni.agent.policy.own_addresses import node_addresses
from fastcni.agent.policy.state import OUT, VERSIONS
from fastcni.kernel import conntrack
from fastcni.kernel.wire import NetlinkError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastcni.agent.policy.engine import Engine
    from fastcni.agent.policy.names.channel import Answer
    from fastcni.agent.policy.names.redirect import Query
    from fastcni.agent.policy.objects import Domain
    from fastcni.agent.policy.service import Settings
    from fastcni.daemon.log import Logger

FOREVER = float("inf")
NEEDS = "DNS names need the Python package dnspython: install fastcni[names], or Debian's python3-dnspython"
NO_RESOLVER = "no resolver is known that pods can ask: run `fastcni agent` with --dns-server ADDRESS"


class Names:
    """The part of the policy service for DNS names, see parts.py. The service's thread makes the object and calls all
    methods.
    """

    def __init__(self, engine: Engine, settings: Settings, log: Logger) -> None:
        self.engine, self.log, self.servers = engine, log, settings.dns_servers
        self.compiler = engine.compiler
        self.compiler.state.resolved.update(elements.read_resolved(engine.rules.sock))
        self.answered = AnsweredAddresses(self.compiler.state)
        self.redirect = Redirect(engine.rules.sock)
        self.redirect.remove()                  # a previous agent's table has ports that no longer exist
        self.poll = select.epoll()
        self.process: Process | None = None
        self.listeners: list[Listener] = []
        self.due = FOREVER
        self._opened = ExitStack()
        self._wanted: dict[Query, int] = {}
        self._renewed = 0.0                     # when the redirection was renewed, monotonic seconds
        self._held: list[int] = []              # numbers of answers that wait until the kernel has their addresses
        self._domains: dict[str, list[tuple[str, Domain]]] = {}         # {chain: [(set, domain)]}
        # {address: keys of the pods with this address}, of pods that have received an answer with addresses
        self._owners = {pod: keys for pods in self.answered.resolved.values() for pod in pods
                        if (keys := self.compiler.pods_with(pod))}
        self._why = ""                          # the reason in the last log line
        self.answers = 0

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when attend() has work."""
        return self.poll.fileno()

    def figures(self) -> Mapping[str, int]:
        """Return the figures of DNS names for metrics.py: {name: value}."""
        told = [each for pods in list(self.answered.resolved.values()) for each in list(pods.values())]
        return {"domain_names": len(self.compiler.domains), "told_addresses": sum(map(len, told)),
                "dns_answers": self.answers}

    def close(self) -> None:
        """End the forwarder, so that queries go to the resolver directly. The addresses of answers stay in the kernel.
        """
        self._stop()
        self.poll.close()

    # -- the policies --------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Adapt to changed policies and pods: start or stop the forwarder, and update the queries to redirect."""
        self._domains.clear()
        self._forget_pods()
        if bool(self.compiler.domains) != bool(self.process):
            self._start() if self.compiler.domains else self._stop()
        self.compiler.put_forwarders(port for each in self.listeners for port in each.ports.values())
        self.engine.commit()
        self._wanted = self._queries() if self.process else {}
        if self.redirect.written is not None:
            self.redirect.write(self._wanted, self.engine.rules.flags)

    def _start(self) -> None:
        resolvers = read_resolvers(self.servers)
        if why := NEEDS if find_spec("dns") is None else "" if resolvers else NO_RESOLVER:
            self._tell(why)
            return
        with ExitStack() as opened:
            self.listeners = [opened.enter_context(closing(Listener(each))) for each in resolvers]
            self.process = opened.enter_context(closing(Process(self.listeners)))
            self.poll.register(self.process.fileno(), select.EPOLLIN)
            self._opened = opened.pop_all()
        self.due = 0.0
        self._forget_flows()                    # the flows of a previous agent's forwarder

    def _stop(self) -> None:
        if self.process:
            self.redirect.remove()
            self._forget_flows()
        self._opened.close()
        self.process, self.listeners, self.due, self._held = None, [], FOREVER, []
        self._tell("")

    def _forget_flows(self) -> None:
        """Delete conntrack's flows of redirected queries. Otherwise conntrack would send later queries from the same
        port to a forwarder that no longer runs."""
        own, resolvers = node_addresses(), {each.resolver for each in self.listeners}
        cut.delete(self.engine.rules.sock, [
            flow for flow in conntrack.list_flows(self.engine.rules.sock)
            if flow.port == DNS_PORT != flow.replier_port and flow.replier in own and flow.destination in resolvers])

    def _queries(self) -> dict[Query, int]:
        """Return the queries to redirect, {query: the forwarder's port}: queries of pods with domain names in their
        policies, to resolvers that these policies allow. The packet rules decide about all other queries."""
        own, state = node_addresses(), self.compiler.state
        pods = [pod for version in VERSIONS.values() for pod in state.elements[f"{OUT}{version}"]
                if self._domains_of(pod)]
        found = {}
        for each in self.listeners:
            allows = interpret.allows_to_node if each.resolver in own else interpret.allows
            found.update({(pod, each.resolver, protocol): port for pod in pods for protocol, port in each.ports.items()
                          if len(pod) == len(each.resolver)
                          and allows(state, Connection(pod, each.resolver, protocol, DNS_PORT))})
        return found

    def _domains_of(self, pod: bytes) -> list[tuple[str, Domain]]:
        """Return [(set, domain)] for the domain names in the policies of the pod with the address `pod`."""
        state = self.compiler.state
        chain = state.elements[f"{OUT}{VERSIONS[len(pod)]}"].get(pod)
        if chain is None:
            return []
        if chain not in self._domains:
            self._domains[chain] = [(name, self.compiler.domains[name]) for name in sets_of(state, pod)]
        return self._domains[chain]

    def _forget_pods(self) -> None:
        """Forget the addresses that deleted pods have received, because another pod may get a deleted pod's address."""
        resolved = self.answered.resolved
        for name in resolved.keys() - self.compiler.domains.keys():
            del resolved[name]
        owners = {pod: self.compiler.pods_with(pod) for pods in resolved.values() for pod in pods}
        gone = {pod for pod, keys in owners.items() if not keys & self._owners.get(pod, keys)}
        self.answered.forget_pods(gone.__contains__)
        self._owners = {pod: keys for pod, keys in owners.items() if pod not in gone}
        added, removed = self.answered.take()
        if removed:
            elements.change(self.engine.rules.sock, added, removed)

    # -- answers -------------------------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Write the addresses of new answers to the kernel, let the forwarder send these answers, and renew the
        redirection while the forwarder works. Raises OSError; the caller then writes the complete table, with these
        addresses."""
        if not self.process:
            return
        for answer in self.process.attend():
            self._take(answer)
            self._held.append(answer.number)
        self.due = self.process.due
        added, removed = self.answered.take()
        if added or removed:
            elements.change(self.engine.rules.sock, added, removed)
        if self._held:
            self.process.let(self._held)
            self._held = []
        self._redirect(self.process)
        if self.process.why or self.process.works:
            self._tell(self.process.why)

    def _take(self, answer: Answer) -> None:
        self.answers += 1
        now = monotonic()
        for pod in self.compiler.addresses_of(answer.pod):
            told = {each: ttl for each, ttl in answer.addresses.items() if len(each) == len(pod)}
            for name, domain in self._domains_of(pod) if told else ():
                if name.startswith(f"d{VERSIONS[len(pod)]}") and domain.matches(answer.name):
                    self.answered.put(name, pod, told, now)
                    self._owners.setdefault(pod, self.compiler.pods_with(pod))

    def _redirect(self, process: Process) -> None:
        """Renew the redirection if the forwarder works, and end it if the forwarder has ended. If the forwarder hangs,
        the kernel ends the redirection by the timeout of its elements."""
        now = monotonic()
        if process.sock is None and self.redirect.written is not None:
            self.redirect.remove()
        if not process.works or now < self._renewed + BEAT_S / 2:
            return
        self._renewed = now
        resolvers = [each.resolver for each in self.listeners]
        ports = [(len(each.resolver), *port) for each in self.listeners for port in each.ports.items()]
        for again in (True, False):
            try:
                self.redirect.write(self._wanted, self.engine.rules.flags)
                self.redirect.renew(resolvers, ports)
                break
            except NetlinkError:                # for example, another program has changed the table
                self.redirect.written = None
                if not again:
                    raise

    def _tell(self, why: str) -> None:
        """Log `why`, the reason why pods cannot reach new addresses of domain names, or "" if pods can. Log each change
        once."""
        if why != self._why:
            self._why = why
            if why:
                self.log.error("domain_names_closed", error=why, effect="pods reach no new address of a domain name")
            else:
                self.log.info("domain_names_open")
