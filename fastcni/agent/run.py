"""Run the agent: join the network, and maintain the agent's state in the kernel. The state stays when the agent ends.

    conf        read the network's configuration, and choose the underlay and the backend
    join        take the node's subnets, and publish its address
    write       write links, neighbours, FDB entries, routes, masquerading; then subnet.env; the conflist last
    keep        until SIGTERM, follow the kernel's notifications; in threads, watch the registry and renew the record

A separate thread applies network policies from the start, because policies do not need the registry.

While the registry is unavailable, the network stays unchanged. SIGTERM leaves the kernel's state and the record, so
that traffic continues while the agent is restarted or replaced.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from fastcni.agent import files, peer_list
from fastcni.agent.backends import open_backend
from fastcni.agent.bgp import Bgp
from fastcni.agent.bgp import Settings as BgpSettings
from fastcni.agent.contract import ConfigurationError, Node, NoSubnetLeft, State, SubnetLost
from fastcni.agent.egress import routes
from fastcni.agent.egress.claims import open_claims
from fastcni.agent.egress.service import Egress
from fastcni.agent.egress.table import Table
from fastcni.agent.keeper import Keeper
from fastcni.agent.masquerade import Masquerade
from fastcni.agent.network import FIGURES, Network, text
from fastcni.agent.peer_list import DIRECTORY
from fastcni.agent.policy.http.part import DIRECTORY as PROXY_DIRECTORY
from fastcni.agent.policy.priority import raise_priority
from fastcni.agent.policy.ruleset import Ruleset
from fastcni.agent.policy.service import Policies
from fastcni.agent.policy.service import Settings as PolicySettings
from fastcni.agent.registries import open_registry
from fastcni.agent.underlay import Options as UnderlayOptions
from fastcni.agent.underlay import choose
from fastcni.clients.errors import Away
from fastcni.daemon import garbage
from fastcni.daemon.backoff import Backoff
from fastcni.daemon.wakeup import Wakeup
from fastcni.kernel import sysctl
from fastcni.kit import policies
from fastcni.kit.sysctls.forwarding import SYSCTLS

if TYPE_CHECKING:
    from fastcni.agent.contract import Backend, NetworkConf, Registry
    from fastcni.daemon.log import Logger

Found = TypeVar("Found")
PROBLEMS = (Away, ConfigurationError, SubnetLost, NoSubnetLeft)        # errors after which the agent tries again
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0           # seconds between two tries to join: the pause doubles
FOREVER = float("inf")
SUBNET_FILE, CONFLIST = "/run/flannel/subnet.env", "/etc/cni/net.d/10-flannel.conflist"


@dataclass(frozen=True)
class Options:
    """The operator's options. registry, settings: arguments of open_registry(). conflist: a path; "": write none."""

    registry: str
    settings: dict[str, Any]
    underlay: UnderlayOptions = field(default_factory=UnderlayOptions)
    subnet_file: str = SUBNET_FILE
    conflist: str = CONFLIST
    directory: str = DIRECTORY
    masquerade: bool = True
    bgp: BgpSettings | None = None
    policies: PolicySettings | None = None


class Agent:
    """One node's agent. Call run() in the node's network namespace. Any thread or signal handler may call stop()."""

    def __init__(self, options: Options, log: Logger, ready: Callable[[], object] = lambda: None) -> None:
        self.options, self.log, self.tell_ready = options, log, ready
        self.stopped = threading.Event()
        self.wakeup, self.policies_wakeup = Wakeup(), Wakeup()
        self.threads: list[threading.Thread] = []
        self.registry: Registry = open_registry(options.registry, options.settings, log, self.stopped.wait)
        self.nodes: deque[Collection[Node]] = deque(maxlen=1)       # the registry's last list, until _keep() takes it
        self.rejoined: deque[Node] = deque()                # records that replace a lost record of this node
        self.renew_now = threading.Event()                  # wakes the thread that renews the record
        self.announce_now = threading.Event()               # wakes the thread that calls the BGP engine
        self.problems: dict[int, str] = {}                  # {thread: its last logged problem}
        self.fault: BaseException | None = None             # the exception that ended a thread
        self.bgp = Bgp(options.bgp, log) if options.bgp else None
        self.policies: Policies | None = None
        self.egress: Egress | None = None
        self.network: Network | None = None
        self.ready = False                                  # whether runtimes may create pods on this node

    def stop(self) -> None:
        """Make run() return soon."""
        self.stopped.set()
        self.renew_now.set()
        self.announce_now.set()
        self.wakeup.wake()
        self.policies_wakeup.wake()
        if self.egress:
            self.egress.wakeup.wake()

    def figures(self) -> dict[str, int]:
        """Return the values of the agent's gauges, by the names of metrics.GAUGES."""
        found = self.network.figures if self.network else dict.fromkeys(FIGURES, 0)
        return {**found, "ready": int(self.ready)}

    def close(self) -> None:
        """Close the descriptors that stop() needs. Call close() after run()."""
        self.wakeup.close()
        self.policies_wakeup.close()
        if self.egress:
            self.egress.close()

    def run(self) -> None:
        """Run until stop(). Raises OSError for a kernel error at the start."""
        if self.options.policies:
            self.egress = Egress(self.log)
            self._start(self._serve_policies, replace(self.options.policies, egress=self.egress))
        elif self._persist(remove_policies):
            self.log.warning("policies_removed", why="the agent now runs without --policies")
        try:
            self._run()
        finally:
            self.stop()
            for thread in self.threads:
                thread.join()
            self.registry.close()
        if self.fault:
            raise self.fault
        self.log.info("ended")

    def _run(self) -> None:
        """Join the network, and maintain it until stop()."""
        joined = self._persist(self._join)
        if joined is None:
            return
        conf, backend, me = joined
        self.log.info("joined", subnets=text(me.subnets), backend=backend.name, public=text(me.public),
                      mtu=backend.mtu())
        self.network = network = Network(conf, backend, me, self.log, self.options.directory)
        # Requests to the registry and to the BGP engine may take long. They run in other threads, so that this thread
        # reads the kernel's notifications without delay.
        self._start(self.registry.watch, self._changed, self.stopped.is_set)
        self._start(self._renew_until_stop, conf, me)
        if self.egress:
            self._start(self.egress.run, open_claims(self.options.registry, self.options.settings, me.name),
                        self.stopped)
        if self.bgp:
            self._start(self._announce_until_stop, self.bgp)
        try:
            self._keep(network)
        finally:
            network.close()

    def leave(self) -> None:
        """Leave the network: remove the node's record, and the agent's objects in the kernel. Raises Away,
        ConfigurationError, OSError."""
        with closing(Ruleset()) as rules:
            rules.adopt()               # first, because adopt() raises if a running agent has policies
            conf, _, me = self._prepare()
            mine = self.registry.join(conf, me)
            self.registry.leave(mine)
            rules.remove()
        remove_egress()
        keeper, masquerade = Keeper(self.log), Masquerade(self.log)
        keeper.set(State())
        masquerade.remove()
        keeper.close()
        masquerade.close()
        if self.bgp:
            self.bgp.set([], mine.public.get(4))
        for path in (self.options.subnet_file, self.options.conflist):
            if path and files.is_ours(path):
                os.unlink(path)
        peer_list.remove(self.options.directory)
        remove_leftovers(self.options.directory)
        self.log.info("left", subnets=text(mine.subnets))

    # -- joining -------------------------------------------------------------------------------------------------------

    def _persist(self, attempt: Callable[[], Found]) -> Found | None:
        """Repeat attempt() until it succeeds, and return its result; None if the agent is stopped first."""
        pause = FIRST_PAUSE_S
        while not self.stopped.is_set():
            try:
                return attempt()
            except PROBLEMS as e:
                self._tell_problem("waiting", e)
            self.stopped.wait(random.uniform(0.5, 1.5) * pause)
            pause = min(2 * pause, MAX_PAUSE_S)
        return None

    def _tell_problem(self, event: str, e: Exception) -> None:
        """Log the problem `e`, unless this thread's last logged problem has the same text."""
        thread = threading.get_ident()
        if str(e) != self.problems.get(thread):
            self.log.error(event, error=str(e))
        self.problems[thread] = str(e)

    def _prepare(self) -> tuple[NetworkConf, Backend, Node]:
        """Return the configuration, the backend, and this node's record without subnets."""
        conf = self.registry.conf()
        underlay = choose(self.options.underlay, list(conf.families))
        backend = open_backend(conf, underlay, self.options.directory, self.registry.publishes)
        former = files.read_former(self.options.subnet_file)
        return conf, backend, Node("", former, underlay.public, backend.name, backend.data())

    def _join(self) -> tuple[NetworkConf, Backend, Node]:
        conf, backend, me = self._prepare()
        joined = self.registry.join(conf, me)
        if me.subnets.items() - joined.subnets.items():         # another node or configuration has the subnet now
            self.log.error("subnet_changed", former=text(me.subnets), subnets=text(joined.subnets))
        return conf, backend, joined

    # -- keeping -------------------------------------------------------------------------------------------------------

    def _keep(self, network: Network) -> None:
        poll = select.poll()
        for fd in (self.wakeup.fileno(), network.fileno()):
            poll.register(fd, select.POLLIN)
        while not self.stopped.is_set():
            if self.wakeup.fileno() in [fd for fd, _ in poll.poll(milliseconds(network.due))]:
                self.wakeup.clear()
            network.attend()
            while self.rejoined:
                if network.move(self.rejoined.popleft()):
                    self.ready = False
            if self.nodes:
                network.take(self.nodes.pop())
            if not network.written:
                network.write()
                if network.written and self.egress:
                    self.egress.see(network.conf, network.me, network.others, network.keeper.wanted.routes)
                if network.written and not network.has_record():
                    self.renew_now.set()                    # the record is missing or was overwritten
            if network.written and not self.ready and self._policies_are_ready():
                self._begin(network)

    def _begin(self, network: Network) -> None:
        """Allow pods on the node: write the files that runtimes read. Call _begin() when the kernel has the routes to
        other nodes, and policies are in force."""
        conf, me, options = network.conf, network.me, self.options
        for family in conf.families:
            sysctl.ensure(SYSCTLS[4 if family == 4 else 16], "1")
        if options.masquerade:
            network.masquerade.set(conf, me.subnets)
        if self.bgp:
            self.bgp.announce(me.subnets.values(), me.public.get(4))
            self.announce_now.set()
        files.write_subnet(options.subnet_file, conf, me, network.backend.mtu(), options.masquerade)
        if options.conflist and not files.write_conflist(options.conflist, bool(options.policies)):
            self.log.warning("conflist_kept", path=options.conflist, why="the file is not the agent's conflist")
        self.ready = True
        self.renew_now.set()
        self.tell_ready()

    # -- functions that run in other threads ---------------------------------------------------------------------------

    def _start(self, run: Callable[..., object], *args: object) -> None:
        """Start a thread that calls run(*args). Agent.run() waits for the thread before it returns."""
        self.threads.append(threading.Thread(target=self._guarded, args=(run, *args)))
        self.threads[-1].start()

    def _guarded(self, run: Callable[..., object], *args: object) -> None:
        """Call run(*args) in a thread. An exception ends the agent, because without this thread the agent would work
        with outdated data, for example an old list of nodes."""
        try:
            run(*args)
        except BaseException as e:
            self.fault = e
            self.stop()

    def _renew_until_stop(self, conf: NetworkConf, me: Node) -> None:
        """Renew the record when it is due or renew_now is set, and take a new record if the record is lost. Report once
        to the registry that the network works. If two programs overwrite each other's records, each renewal waits
        longer."""
        told, pause, seconds, backoff = False, FIRST_PAUSE_S, 0.0, Backoff()
        while not self.stopped.is_set():
            try:
                seconds = self.registry.keep(me)
                if self.ready and not told:
                    self.registry.ready(me)
                    told = True
                self.problems.pop(threading.get_ident(), None)
                pause = FIRST_PAUSE_S
                backoff.begin()
            except Away as e:
                self._tell_problem("registry_away", e)
                seconds = pause = min(2 * pause, MAX_PAUSE_S)
            except (SubnetLost, ConfigurationError) as e:
                self._tell_problem("subnet_lost", e)
                seconds = 0.0
                if found := self._persist(lambda: self.registry.join(conf, me)):        # noqa: B023 - called here
                    me, told = found, False
                    self.rejoined.append(found)
                    self.wakeup.wake()
            self.renew_now.wait(seconds)
            self.stopped.wait(max(0.0, backoff.until - monotonic()))
            self.renew_now.clear()

    def _serve_policies(self, settings: PolicySettings) -> None:
        policies = self._persist(lambda: Policies(settings, self.log))
        if policies is None:
            return
        self.policies = policies
        raise_priority()                        # affects only this thread: the source's threads have started already
        poll = select.poll()
        for fd in (policies.fileno(), self.policies_wakeup.fileno()):
            poll.register(fd, select.POLLIN)
        told = False
        try:
            while not self.stopped.is_set():
                policies.attend()
                if policies.ready and not told:
                    told = True
                    self.wakeup.wake()
                    garbage.freeze()    # so that no ADD waits while Python's garbage collector visits all policies
                poll.poll(milliseconds(policies.due))
        finally:
            policies.close()

    def _policies_are_ready(self) -> bool:
        return not self.options.policies or bool(self.policies and self.policies.ready)

    def _announce_until_stop(self, bgp: Bgp) -> None:
        while not self.stopped.is_set():
            bgp.attend()
            self.announce_now.wait(None if bgp.due == FOREVER else max(0.0, bgp.due - monotonic()))
            self.announce_now.clear()

    def _changed(self, nodes: Collection[Node]) -> None:
        self.nodes.append(nodes)
        self.wakeup.wake()


def milliseconds(due: float) -> float | None:
    """Return poll()'s timeout in milliseconds until `due`, a monotonic time; None (wait forever) for FOREVER."""
    return None if due == FOREVER else max(0.0, due - monotonic()) * 1000


def remove_policies() -> bool:
    """Remove the nftables table of policies, and the state of egress addresses. Return whether the table existed.
    Raises ConfigurationError, OSError."""
    with closing(Ruleset()) as rules:
        rules.adopt()                   # first, because adopt() raises if a running agent has policies
        remove_egress()
        return rules.remove()


def remove_leftovers(directory: str) -> None:
    """Remove the files that a killed agent has left in its directory: the HTTP proxy's files and the policy socket. The
    records of pods stay, because pods may run. Raises OSError."""
    shutil.rmtree(os.path.join(directory, PROXY_DIRECTORY), ignore_errors=True)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, os.path.basename(policies.SOCKET)))


def remove_egress() -> None:
    """Remove the nftables table, routing rules and routes of egress addresses. Raises OSError."""
    with closing(Table()) as table:
        table.remove()
    routes.remove()
