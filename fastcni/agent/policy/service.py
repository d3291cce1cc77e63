"""Run the policy service of the agent: keep the kernel's tables equal to the policies of a source and the pods of ADDs.

    source      gives pods, namespaces and policies, from the Kubernetes API or a directory of files
    requests    come from the plugin `policy`: the service protects a pod before it answers the pod's ADD
    kernel      notifies of rules that another program changes; the service writes them again

The table stays when the agent ends. While the agent restarts, existing pods are protected and ADDs fail.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from errno import EINTR
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.contract import ConfigurationError
from fastcni.agent.policy import attached, parts, ports, renames, salvage, tunnels
from fastcni.agent.policy.answers import MAX_TOLD, READ_WAIT_S, Answers
from fastcni.agent.policy.attached import AttachedCompiler
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.leaving import Leaving
from fastcni.agent.policy.requests import Requests
from fastcni.agent.policy.ruleset import (
    BRIDGE_FAMILY,
    FAMILY,
    FLOWTABLE,
    LOAD_TRANSACTIONS,
    TABLE,
    see_bridged_traffic,
    sees_bridged_traffic,
)
from fastcni.agent.policy.sources.document_file import DocumentFile
from fastcni.agent.policy.sources.events import UnreadableEvents
from fastcni.agent.policy.sources.files import Files
from fastcni.agent.policy.sources.kubernetes import Kubernetes
from fastcni.agent.policy.sources.unreadable import SUFFIX
from fastcni.daemon.listening import ListenError
from fastcni.kernel import nft, uapi, wire
from fastcni.kernel.deletions import generation
from fastcni.kit.links import find
from fastcni.kit.policies import SOCKET

if TYPE_CHECKING:
    from _typeshed import HasFileno

    from fastcni.agent.egress.service import Egress
    from fastcni.agent.policy.requests import Answer, Asked
    from fastcni.agent.policy.sources.contract import Source
    from fastcni.clients.kubernetes import Api
    from fastcni.daemon.log import Logger

EVENT_BYTES = 64 << 20          # receive buffer for the notifications of one load()
LOOK_S = 0.5                    # seconds between two attempts to answer a waiting request
CUT_PAUSE_S = 0.03              # seconds between two searches for connections to cut; a search takes some 10 ms
LINKS_S = 1.0                   # seconds before the next attempt to list links, if links changed during the list
RETRY_S = 1.0                   # seconds before the next attempt, after the kernel has rejected a transaction
BRIDGED_S = 1.0                 # seconds between two reads of the sysctls of bridges; each read takes 30 us
WATCHED = ((FAMILY, TABLE), (BRIDGE_FAMILY, TABLE), (FAMILY, FLOWTABLE))


@dataclass(frozen=True)
class Settings:
    """The settings of the policy service. directory: the directory of files with pods and policies; "": pods and
    policies come from the Kubernetes API, `api`. node: this node's name in the source. state: the directory of
    attachments. socket: the path of the socket for the plugin. kept: the file with the source's last content; "":
    policies.kept next to `state`. dns_servers: the resolvers that pods use for domain names in policies; (): the
    resolvers in /etc/resolv.conf. egress: the node's Egress, which claims egress addresses. flowtable: whether the
    kernel forwards established connections between pods by a flowtable."""

    directory: str = ""
    api: Callable[[], Api] | None = None
    node: str = ""
    state: str = "/run/fastcni/agent/pods"
    socket: str = SOCKET
    kept: str = ""
    dns_servers: tuple[str, ...] = ()
    egress: Egress | None = None
    flowtable: bool = False


class Policies:
    """The policy service of a node. One thread in the node's namespace makes the object and calls all methods. Raises
    OSError, and ConfigurationError if the operator has to change the configuration.

    ready: whether the table was written. due: when to call attend() even without an event, in monotonic seconds.
    """

    def __init__(self, settings: Settings, log: Logger) -> None:
        self.settings, self.log = settings, log
        self.ready, self.due = False, 0.0
        self.errors: dict[str, Sequence[str]] = {}          # {place: errors of unreadable documents}
        self.stale = False                                  # whether the kernel's table may differ from the state
        self.asked = False                                  # whether this attend() has handled a request
        self.cut = 0                                        # number of cut connections
        self.links_due = 0.0                                # when to list the node's links, monotonic seconds
        self.next_cut = 0.0                                 # earliest time of the next search, monotonic
        self.next_bridged = 0.0                             # when to read the sysctls of bridges, monotonic
        self.bypassed = ""                                  # why these sysctls cannot be read or written
        self.unreachable = ""                               # why the agent's directory cannot be made again
        self.not_offloaded = ""                             # why no flowtable forwards connections
        if not see_bridged_traffic():
            raise ConfigurationError("policies need the kernel module br_netfilter. Without it, traffic between "
                                     "two pods on one bridge bypasses the policies: modprobe br_netfilter")
        # The node of a pod in files does not matter: rules for another node's pod do no harm here.
        self.compiler = AttachedCompiler("" if settings.directory else settings.node, wire.index_of)
        for each in attached.read_all(settings.state):
            if each.pod.startswith(salvage.NAMESPACE):
                self.compiler.put_policy(salvage.CLOSED)
            self.compiler.expect(each)
        self.compiler.settle()
        self.leaving = Leaving(self.compiler, settings.state)
        self.leaving.keep_replaced()
        with ExitStack() as opened:             # after an error, close all; the caller tries again
            self.tunnels = opened.enter_context(tunnels.watch())
            self.renames = opened.enter_context(renames.watch())
            self.ports = opened.enter_context(closing(ports.Finder()))
            self.engine = opened.enter_context(closing(Engine(self.compiler, offload=settings.flowtable)))
            self._close_unrecorded()
            self.events = opened.enter_context(wire.open_socket(uapi.NETLINK_NETFILTER,
                                                                groups=(uapi.NFNLGRP_NFTABLES,)))
            wire.set_buffer_size(self.events, EVENT_BYTES)
            try:
                self.requests = opened.enter_context(closing(Requests(settings.socket, self._answer)))
            except ListenError as e:
                raise ConfigurationError(str(e)) from None
            self.source = opened.enter_context(closing(self._open_source()))
            self.answers = Answers(self.engine, self.ports, self.source, self.leaving, settings, self._write,
                                   self._not_ready)
            self.parts = [opened.enter_context(closing(part(self.engine, settings, log))) for part in parts.OPENERS]
            self.poll = opened.enter_context(closing(select.epoll()))
            readable: tuple[HasFileno, ...] = (self.source, self.events, self.tunnels, self.renames, self.requests,
                                               self.engine.flows, *self.parts)
            for waited_for in readable:
                self.poll.register(waited_for.fileno(), select.EPOLLIN)
            # The previous agent's table stays until the source has answered. Without a table, as after a reboot,
            # _write() loads the stored content of the source.
            self.stale = self.source.former and not self.engine.rules.exists()
            self._opened = opened.pop_all()
        self._tell_errors()
        for path in attached.damaged(settings.state):
            closed = attached.id_of(path) in self.compiler.attachments
            log.error("pod_record_damaged", path=str(path), do="fastcni restore",
                      effect="the pod is closed" if closed else "no policy protects the pod")

    def _close_unrecorded(self) -> None:
        """Close the ports in the kernel's tables for which no attachment is recorded, see salvage.py."""
        held = [salvage.held(*port) for port in self.engine.rules.held_ports()]
        found = attached.unrecorded(self.compiler, held, attached.damaged(self.settings.state))
        if found:
            self.compiler.put_policy(salvage.CLOSED)
        for it in found:
            self.compiler.attach(it)
            if it.leaving and it.port:
                self.leaving.due = 0.0
                self.log.error("pod_record_missing", port=it.port.name, do="fastcni restore",
                               effect="the pod is closed")

    def _open_source(self) -> Source:
        settings, compiler = self.settings, self.compiler
        kept = DocumentFile(settings.kept or os.path.join(os.path.dirname(settings.state), "policies.kept"),
                            settings.directory or "kubernetes", self.log, f"{settings.state}.outdated")
        if settings.directory:
            return Files(settings.directory, compiler, kept)
        assert settings.api
        api = settings.api()
        found = Kubernetes(api, compiler, kept, UnreadableEvents(api, settings.node, self.log))
        found.start()
        return found

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when attend() has work."""
        return self.poll.fileno()

    def close(self) -> None:
        """Close the sockets and parts. The table stays in the kernel, so pods stay protected."""
        self._opened.close()

    def attend(self) -> None:
        """Apply changes of the source, write the table, answer requests, cut connections that are no longer allowed."""
        ready = {fd for fd, _ in self.poll.poll(0)}
        if self.source.fileno() in ready or monotonic() >= self.source.due:
            self.source.attend()
            self._tell_errors()
        if self.events.fileno() in ready:
            wire.drain(self.events, self._note, self._note_dropped, own=self.engine.rules.port)
        for watch in (self.tunnels, self.renames):
            if watch.fileno() in ready:
                renames.discard(watch)
                self.links_due = 0.0
        self._try(self._see_links)
        self._try(self._write)
        self.asked = False
        self.requests.attend()
        self._try(self.leaving.forget_gone)
        self._try(self._write)                  # write the rules of pods that these ADDs have closed
        if self.asked or monotonic() >= self.next_bridged:
            self._see_bridged()
            self._see_directory()
        changed = self.engine.changed
        self._try(self._cut)
        for part in self.parts:
            if changed:
                self._try(part.changed)
            if part.fileno() in ready or monotonic() >= part.due:
                self._try(part.attend)
        self.due = min(self.due, self.source.due, self.links_due, self.next_bridged, self.leaving.due,
                       *[part.due for part in self.parts])
        if self.requests.waiting:
            self.due = min(self.due, monotonic() + (READ_WAIT_S / 4 if self.source.busy else LOOK_S))

    def figures(self) -> dict[str, int]:
        """Return the figures of policies for metrics.py: {name: value}."""
        policies = [key for key in list(self.compiler.cluster.policies) if not key.endswith(SUFFIX)]
        namespaced = sum("/" in key for key in policies)
        return {"policies": namespaced, "cluster_policies": len(policies) - namespaced,
                "protected_pods": len(self.compiler.attachments), "cut_connections": self.cut,
                "unreadable_documents": sum(map(len, self.errors.values()))} | {
            name: figure for part in self.parts for name, figure in part.figures().items()}

    # -- the kernel ----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        if not self.source.complete:
            self.due = float("inf")
            if self.stale and self.source.former:       # the kernel lacks rules of the stored objects
                self._load()
                self.log.warning("policies_kept", policies=len(self.compiler.cluster.policies), why=self.source.away)
            return
        if not self.ready or self.stale:
            self._load()
            event = "policies_restored" if self.ready else "policies_ready"
            cluster = self.compiler.cluster
            self.log.info(event, policies=len(cluster.policies), pods=len(cluster.pods))
            self.ready = True
        else:
            self.engine.commit()
        self.leaving.keep_replaced()
        if links := self.engine.redirects.take_count():
            self.log.error("datapath_unseen", links=links, why=self.engine.redirects.unseen, effect="these links are "
                           "out of the datapath", do="mount /sys/fs/bpf of the node into the agent's container")
        self._tell_offload()
        self.due = monotonic() + RETRY_S if self.stale else float("inf")

    def _tell_offload(self) -> None:
        """Log why no flowtable is in use. Log each reason once."""
        before, self.not_offloaded = self.not_offloaded, self.engine.not_offloaded
        if self.not_offloaded and self.not_offloaded != before:
            self.log.warning("flowtable_unavailable", why=self.not_offloaded, effect="established connections between "
                             "pods pass through the host's stack")

    def _cut(self) -> None:
        self.engine.reopen()
        flows = self.engine.flows
        if flows.ended:
            self.next_cut = monotonic() + max(CUT_PAUSE_S, flows.took_s)
            if count := self.engine.end_cut():
                self.cut += count
                self.log.info("connections_cut", count=count)
        if self.engine.suspects and not flows.begun:
            if monotonic() >= self.next_cut:
                self.engine.begin_cut()
            else:
                self.due = min(self.due, self.next_cut)

    def _see_links(self) -> None:
        """Read the node's tunnels, and the names of the ports' links."""
        if monotonic() < self.links_due:
            return
        self.links_due = monotonic() + LINKS_S
        try:
            links = find.all_links(self.ports.sock)
        except wire.NetlinkError as e:
            if e.errno != EINTR:            # on EINTR, keep the previous result until the next read
                raise
            return
        self.compiler.put_tunnels(tunnels.elements(links))
        for before, now in self.compiler.follow(links):
            if now.sequence:                # 0: the record is damaged or lost; a file would hide the fault
                attached.keep(self.settings.state, now)
            if now.port != before.port:
                self.log.warning("port_renamed", pod=now.pod, before=before.port and before.port.name,
                                 now=now.port and now.port.name)
                if self.engine.flowtable:
                    self.engine.flowtable.renew()
        self.links_due = float("inf")

    def _see_bridged(self) -> None:
        """Set the sysctls of bridges again if another program changed them. The kernel does not notify of changes."""
        self.next_bridged = monotonic() + BRIDGED_S
        before, self.bypassed = self.bypassed, ""
        try:
            if not sees_bridged_traffic():
                see_bridged_traffic()
                self.log.warning("bridge_filter_restored")
        except OSError as e:            # for example, the module was unloaded; log each error once
            self.bypassed = str(e)
            if self.bypassed != before:
                self.log.error("bridge_filter_off", error=self.bypassed)

    def _see_directory(self) -> None:
        """Write the pods' records and listen again, if another program has removed the agent's directory."""
        if os.path.isdir(self.settings.state) and not self.requests.listening.lost:
            return
        before = self.unreachable
        try:
            os.makedirs(self.settings.state, 0o700, exist_ok=True)
            for it in self.compiler.attachments.values():
                if it.sequence:         # 0: the record is damaged or lost; a file would hide the fault
                    attached.keep(self.settings.state, it)
            if self.requests.listening.lost:
                self.requests.listen_again()
            self.unreachable = ""
            self.log.warning("agent_directory_restored", directory=os.path.dirname(self.settings.state))
        except (OSError, ListenError) as e:
            self.unreachable = str(e)
            if self.unreachable != before:
                self.log.error("agent_unreachable", error=self.unreachable, effect="no pod with policies can be added")

    def _try(self, step: Callable[[], object]) -> None:
        """Call `step`. After an OSError, for example ENOMEM, log it and write the complete table RETRY_S later."""
        try:
            step()
        except OSError as e:
            self.log.error("policies_refused", error=str(e))
            self.stale, self.due = True, monotonic() + RETRY_S

    def _load(self) -> None:
        """Write the complete table. If the notifications of this write overflow the socket's buffer, and another
        program made a transaction at the same time, `stale` stays true, because the other program may have changed the
        table."""
        before, dropped = generation(self.engine.rules.sock), []
        self.engine.load()
        self.stale = False
        wire.drain(self.events, self._note, lambda: dropped.append(True), own=self.engine.rules.port)
        if dropped and generation(self.engine.rules.sock) != before + LOAD_TRANSACTIONS:
            self.stale = True

    def _note(self, kind: int, payload: bytes) -> None:
        """Set `stale` if the notification is another program's change of a table of policies."""
        self.stale = self.stale or nft.read_table_name(payload) in WATCHED      # NEWGEN: family 0, so never in WATCHED

    def _note_dropped(self) -> None:
        self.stale = True

    def _tell_errors(self) -> None:
        errors = self.source.errors
        for place, texts in errors.items():
            told = self.errors.get(place, ())
            for text in [text for text in texts if text not in told][:MAX_TOLD]:
                self.log.error("policy_unreadable", error=text)
        self.errors = dict(errors)

    def _answer(self, request: Asked, waited: float) -> Answer | None:
        """Return the answer to a request; None if the answer is not ready, see requests.py."""
        self.asked = True
        try:
            return self.answers.to(request, waited)
        except OSError as e:
            self.stale, self.due = True, monotonic() + RETRY_S
            return {"error": str(e), "again": True}

    def _not_ready(self) -> Answer:
        """Return the error that says why no pod can be added; {} if pods can be added."""
        if self.ready:
            return {}
        away = getattr(self.source, "away", "")
        return {"error": f"policies are not known yet{': ' + away if away else ''}", "again": True}
