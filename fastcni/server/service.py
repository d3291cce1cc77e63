"""Run the server, from its start to its last answer."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from dataclasses import dataclass, field
from time import monotonic

from fastcni import _ipam_bitmap
from fastcni.daemon import garbage, listening, log
from fastcni.daemon.background import Background
from fastcni.daemon.stop_signals import UNUSED_SIGNALS, stop_signals
from fastcni.daemon.systemd_notify import Notifier
from fastcni.daemon.wakeup import Wakeup
from fastcni.kernel import netns, procfs, sysctl
from fastcni.server import control, status
from fastcni.server.cluster.upkeep import ClusterUpkeep
from fastcni.server.cpu_latency import DEFAULT_S, LatencyRequest
from fastcni.server.datapath import DatapathSweep
from fastcni.server.idle import IdleExit
from fastcni.server.metrics.pool_watch import PoolWatch
from fastcni.server.networks.sources import NetworkSources
from fastcni.server.node_view import NodeView
from fastcni.server.periodic import TIDY_S, Upkeep, Watchdog, watchdog_seconds
from fastcni.server.reboot import release_addresses
from fastcni.server.records import history
from fastcni.server.records.history import History
from fastcni.server.records.retried_deletes import RetriedDeletes
from fastcni.server.requests.acceptor import Acceptor
from fastcni.server.requests.configurations import Configurations
from fastcni.server.requests.hosts import Hosts
from fastcni.server.requests.request_queue import RequestQueue
from fastcni.server.requests.workers import Workers, environment, preload, preload_third_party
from fastcni.server.restoring.restorer import Restoring
from fastcni.server.stale_ports import remove_stale_ports
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any, Protocol

    from prometheus_client.registry import Collector

    from fastcni.daemon.kubernetes_events import KubernetesEvents
    from fastcni.daemon.log import Logger, Receiver

    class Beside(Protocol):
        """A part that runs in its own thread next to the server: the dhcp daemon, the node agent."""

        def start(self) -> None: ...
        def join(self) -> None: ...

    class Part(Protocol):
        """A part that an option adds to the server. The server also calls start() periodically, because Python cannot
        always start a thread."""

        def attach(self, server: Server) -> None: ...
        def start(self) -> None: ...
        def stop(self) -> None: ...

MAX_BACKGROUND_THREADS = 64     # limit of the threads that wait for the kernel's deferred work
DRAIN_TIMEOUT_S = 80            # limit of the drain in seconds; systemd usually waits 90 s
# GIL: if another thread computes when a system call returns, the caller waits at most this time for the GIL.
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `fastcni serve`. A field that is an option of the command has the option's name and help text."""

    workers: int = 32
    queue_size: int = 1024
    queue_timeout_s: float = 60.0
    uids: Collection[int] = (0,)                        # user ids whose requests are served
    latency_request_s: float = DEFAULT_S                # see LatencyRequest
    idle_exit_s: float = 0.0                            # see IdleExit
    tidy_s: float = TIDY_S                              # see Upkeep
    metrics: str | tuple[str, int] | None = None        # address of the metrics, see web/address.py; None: no metrics
    http: str | tuple[str, int] | None = None           # address of the status page
    history: int = history.DEFAULT_SIZE                 # number of kept requests, see history.py; 0: no history
    otlp: str = ""                                      # the URL of a collector of traces; "": no traces
    kubernetes_events: str = ""                         # a kubeconfig's path, or "in-cluster"; "": no Kubernetes Events
    log: log.LogOptions = field(default_factory=log.LogOptions)
    receivers: Sequence[Receiver] = ()                  # called with the fields of each log line
    node: NodeView = field(default_factory=NodeView)    # what the server reads about its node
    beside: Sequence[Callable[[Logger], Beside]] = ()   # functions that make a Beside
    parts: Sequence[Part] = ()                          # further parts
    collectors: Sequence[Collector] = ()                # for the metrics of `beside` and `parts`


def serve(path: str = listening.PATH, options: Options | None = None) -> int:
    """Serve until one of stop_signals(), then finish the requests that have begun. Return the exit status.

    serve() must run in the main thread. Raises ListenError.
    """
    started, options = monotonic(), options or Options()
    faulthandler.enable()           # systemd ends a stuck server by SIGABRT: the log shows where each thread is
    # Threads inherit this mask, so the signals stay pending until sigwait() below
    ends = stop_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, [*ends, *UNUSED_SIGNALS])
    events = kubernetes_events(options)
    logger = log.make(*options.log, [*(it.receive for it in events), *options.receivers])
    listen = listening.listen(path, open_to_all=not set(options.uids) <= {0, os.geteuid()})
    try:
        beside = [make(logger) for make in options.beside]
        parts = [*events, *make_parts(options, logger), *options.parts]
    except listening.ListenError:
        listen.unlink()
        raise
    prepare_process(logger)
    server = Server(options, listen, beside, logger, started, parts)
    server.start()
    signal.sigwait(ends)            # not sigtimedwait(), which may return a signal that never came
    return server.stop()


def kubernetes_events(options: Options) -> list[KubernetesEvents]:
    """Return the part that sends Kubernetes Events, or [] if the options have no kubeconfig. The server makes this part
    first, because the part reads the log of the other parts."""
    if not options.kubernetes_events:
        return []
    from fastcni.daemon.kubernetes_events import KubernetesEvents

    return [KubernetesEvents(options.kubernetes_events)]


def make_parts(options: Options, logger: log.Logger) -> list[Part]:
    """Make the parts that the options ask for. Only the modules and packages of these parts are imported. Raises
    ListenError."""
    parts: list[Part] = []
    if options.otlp:
        from fastcni.server.otel.traces import Traces

        parts.append(Traces(options.otlp, logger))
    if options.metrics or options.http:
        parts += make_pages(options, logger)
    return parts


def make_pages(options: Options, logger: log.Logger) -> list[Part]:
    """Make the parts of --metrics and --http. If both options have the same address, one listener serves both pages.
    Raises ListenError."""
    from fastcni.server.web.site import Site

    sites = {where: Site(where, logger) for where in (options.metrics, options.http) if where}
    parts: list[Part] = [*sites.values()]           # before the pages, because parts stop in this order
    if options.metrics:
        from fastcni.server.metrics.service import Metrics

        parts.append(Metrics(sites[options.metrics], options.node.count, logger, options.collectors))
    if options.http:
        from fastcni.server.web.status_page import StatusPage

        parts.append(StatusPage(sites[options.http], options.node.make_status, options.node.topology, logger))
    try:
        for site in sites.values():                 # last: if an earlier step fails, no socket is open
            site.listen()
    except listening.ListenError:
        for site in sites.values():
            site.release()
        raise
    return parts


def prepare_process(logger: log.Logger) -> None:
    """Import the modules that requests may need, and set up the process for many short requests."""
    preload()
    preload_third_party(logger)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    garbage.freeze()


def open_mounts(later: Callable[..., object]) -> procfs.Mounts | None:
    """Return mounts of procfs for the sysctls of pods. None: this process may not mount; requests then use /proc."""
    try:
        return procfs.Mounts(later)
    except OSError:
        return None


class Server:
    """The server's parts, made in an order in which each part finds the parts that it needs. started: monotonic() at
    the start. parts: the parts that options add."""

    def __init__(self, options: Options, listen: listening.Listening, beside: Sequence[Beside], logger: log.Logger,
                 started: float, parts: Sequence[Part] = ()) -> None:
        self.listen, self.beside, self.logger, self.started = listen, beside, logger, started
        self.workers, self.parts, self.unreachable = options.workers, parts, False
        # One more call than processors may work, because one request usually waits for a lock of the kernel
        busy = len(os.sched_getaffinity(0)) + 1
        home, wakeup = netns.open_own(), Wakeup()
        self.background = Background(MAX_BACKGROUND_THREADS, home, logger)
        self.sysctls = open_mounts(self.background)
        self.restoring = Restoring(logger, options.node.replay, options.node.drops)
        self.queue = RequestQueue(options.workers, busy, size=options.queue_size, timeout_s=options.queue_timeout_s,
                                  wake=wakeup.wake)
        self.cluster = ClusterUpkeep(home, logger, options.node.pods, options.node.configured)
        self.networks = NetworkSources(home, logger, options.node.networks)
        self.hosts = Hosts(home, self.background, self.restoring, self.cluster, self.networks)
        self.acceptor = Acceptor(listen.sock, self.queue, wakeup, frozenset(options.uids),
                                 LatencyRequest(options.latency_request_s, logger), logger)
        self.described: dict[str, Callable[[], Any]] = {}       # {key of the status document: function of a part}
        self.answer_control(options.history)
        self.acceptor.records.receivers.append(RetriedDeletes(logger).note)
        self.networks.attach(self.acceptor)
        self.datapath = DatapathSweep(self.background, logger)
        self.pool_watch = PoolWatch(options.node.count, self.background, logger)
        self.pool = Workers(self.queue, self.acceptor, self.hosts, self.background, Configurations(), environment(),
                            logger)
        self.notify = Notifier(os.environ, logger).notify
        watchdog = Watchdog(self.notify, self.acceptor.probe, watchdog_seconds(os.environ))
        idle_exit = IdleExit(self.acceptor, self.queue, options.idle_exit_s, logger)
        self.upkeep = Upkeep(self.tidy, watchdog, idle_exit, logger, tidy_s=options.tidy_s)
        for part in parts:
            part.attach(self)

    def answer_control(self, history_size: int) -> None:
        """Answer control requests. The accepting thread makes the status document itself, so that the document is
        available even if no other thread is free."""
        self.acceptor.control[status.NAME] = lambda conn, _: control.answer(conn, lambda: json.write(self.describe()))
        self.history = past = History(history_size) if history_size else None
        if past:
            self.queue.recording = True
            self.acceptor.records.receivers.append(past.note)
            self.acceptor.control[history.NAME] = lambda conn, variables: self.background(
                control.answer, conn, lambda: past.document(variables))

    def describe(self) -> dict[str, Any]:
        """Return the status document, with the entries of the parts."""
        found = status.document(self.started, self.queue, self.restoring, self.cluster)
        if networks := self.networks.describe():
            found["networks"] = networks
        return found | {key: describe() for key, describe in self.described.items()}

    def start(self) -> None:
        """Start the threads, and notify systemd that the server is ready."""
        self.notify("READY=1")          # before the first answer, because requests may already wait in the socket
        self.logger.info("server_ready", socket=self.listen.path or "handed over", workers=self.workers,
                         ms=round((monotonic() - self.started) * 1e3, 1))
        # This thread starts first, so that it detects from the first request on that the process was stopped
        self.upkeep.start()
        sysctl.mounts = self.sysctls
        for each in self.beside:
            each.start()                # before the workers, because a request may need the part
        self.pool.start()
        self.restoring.start()
        for part in self.parts:
            part.start()
        self.background(release_addresses, self.logger)
        self.background(remove_stale_ports, self.logger)
        self.background(self.cluster.learn)
        self.background(self.networks.learn)
        self.background(self.report_unseen)

    def report_unseen(self) -> None:
        """Log the directories in which this process does not see the namespaces of pods, and why."""
        for directory, why in self.cluster.pods.unseen():
            self.logger.warning("namespaces_unseen", directory=directory, why=why)

    def tidy(self) -> None:
        """Free resources that no request needs any more, and start threads that could not be started. Stop a server
        that no caller finds, because otherwise this server and the next one both restore rules."""
        if self.listen.lost and not self.unreachable:
            self.unreachable = True
            self.logger.error("socket_lost", socket=self.listen.path, effect="the server stops")
            os.kill(os.getpid(), signal.SIGTERM)
        self.hosts.tidy()
        self.pool.keep()
        self.restoring.start()
        for part in self.parts:
            part.start()
        self.cluster.keep()
        self.background(self.networks.keep)
        self.pool_watch.poll()
        self.datapath.poll()
        _ipam_bitmap.forget()

    def stop(self) -> int:
        """Finish the requests that have begun, then end the other threads. Return the exit status."""
        self.notify("STOPPING=1")
        self.logger.info("server_stopping", waiting=self.queue.waiting, running=self.queue.running)
        self.listen.unlink()
        # The next server accepts the connections that wait in systemd's socket.
        self.pool.stop(accept_waiting=not self.listen.handed_over)
        self.listen.unlock()
        if not self.pool.join(DRAIN_TIMEOUT_S):
            self.logger.error("requests_unanswered", running=self.queue.running)
            return 1
        for each in self.beside:
            each.join()
        self.upkeep.stop()
        for part in self.parts:
            part.stop()
        self.acceptor.close()
        self.restoring.stop()
        self.cluster.stop()
        self.networks.stop()
        self.hosts.close()
        sysctl.mounts = None
        self.logger.info("server_stopped")
        return int(self.unreachable)
