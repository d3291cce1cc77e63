"""The server, from its start to its last answer."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from time import monotonic

from fastcni import _ipam_bitmap
from fastcni.kernel import netns
from fastcni.server import listening, log, status
from fastcni.server.acceptor import Acceptor
from fastcni.server.background import Background
from fastcni.server.cluster.pods import Pods, blind
from fastcni.server.cluster.upkeep import ClusterUpkeep
from fastcni.server.configurations import Configurations
from fastcni.server.cpu_latency import DEFAULT_S, LatencyRequest
from fastcni.server.former_boot import release_addresses
from fastcni.server.hosts import Hosts
from fastcni.server.idle import IdleExit
from fastcni.server.request_queue import RequestQueue
from fastcni.server.restoring import Restoring
from fastcni.server.systemd_notify import Notifier
from fastcni.server.upkeep import TIDY_S, Upkeep, Watchdog, watchdog_seconds
from fastcni.server.wakeup import Wakeup
from fastcni.server.workers import Workers, environment, preload, preload_third_party

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any, Protocol

    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.server.replay import Run

    class Beside(Protocol):
        """What runs beside the requests, in a thread of its own: the dhcp daemon."""

        def start(self) -> None: ...
        def join(self) -> None: ...

MAX_BACKGROUND_THREADS = 64     # background threads: they wait for the kernel's deferred work
DRAIN_TIMEOUT_S = 80            # systemd usually waits for 90
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
SWITCH_INTERVAL_S = 0.0005      # seconds: after a system call a thread waits so long for a thread that computes


def serve(path: str = listening.PATH, *, workers: int = 32, queue_size: int = 1024, queue_timeout_s: float = 60.0,
          uids: Collection[int] = (0,), latency_request_s: float = DEFAULT_S, level: str = "info", fmt: str = "logfmt",
          log_to: str = "stderr", replay: Run | None = None, idle_exit_s: float = 0.0, tidy_s: float = TIDY_S,
          pods: Pods | None = None, configured: Callable[[], Iterable[Keys]] = tuple,
          beside: Callable[[Any], Beside] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then finish the requests that have begun. Return the exit status.

    workers: requests that run at once. queue_size: requests that may wait. queue_timeout_s: how long each may wait.
    uids: user ids whose requests are served. latency_request_s: see LatencyRequest. log_to: "stderr" or "syslog".
    replay: see Restoring. idle_exit_s: see IdleExit. pods, configured: see ClusterUpkeep.
    beside: given the log, it makes what runs beside the requests.

    It has to run in the main thread. Raises ListenError.
    """
    started = monotonic()
    faulthandler.enable()           # systemd ends a stuck server by SIGABRT: the log shows where each thread is
    # Threads inherit the mask; this thread waits for the signals below
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    logger = log.make(level, fmt, log_to)
    listen = listening.listen(path, open_to_all=not set(uids) <= {0, os.geteuid()})
    another = beside(logger) if beside else None
    preload()
    preload_third_party(logger)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()                     # the present objects stay: no garbage collection needs to search them
    gc.set_threshold(10_000)        # a request makes hundreds of objects, and almost no cycles
    # One more than there are processors: one request usually waits for a lock of the kernel
    busy = len(os.sched_getaffinity(0)) + 1
    home, wakeup = netns.open_own(), Wakeup()
    background, restoring = Background(MAX_BACKGROUND_THREADS, home), Restoring(logger, replay)
    queue = RequestQueue(workers, busy, size=queue_size, timeout_s=queue_timeout_s, wake=wakeup.wake)
    cluster = ClusterUpkeep(home, logger, pods or blind(), configured)
    hosts = Hosts(home, background, restoring, cluster)
    acceptor = Acceptor(listen.sock, queue, wakeup, frozenset(uids), LatencyRequest(latency_request_s, logger), logger)
    pool = Workers(queue, acceptor, hosts, background, Configurations(), environment(), logger)
    acceptor.describe = lambda: status.document(started, queue, restoring, cluster)
    notify = Notifier(os.environ, logger).notify

    def tidy() -> None:
        hosts.tidy()
        pool.keep()
        restoring.start()
        cluster.keep()
        _ipam_bitmap.forget()

    watchdog = Watchdog(notify, acceptor.probe, watchdog_seconds(os.environ))
    upkeep = Upkeep(tidy, watchdog, IdleExit(acceptor, queue, idle_exit_s, logger), logger, tidy_s=tidy_s)
    notify("READY=1")               # before the first answer: requests may wait in the socket already
    logger.info("server_ready", socket=listen.path or "handed over", workers=workers,
                ms=round((monotonic() - started) * 1e3, 1))
    # This starts first, so that it notices from the first request on if the server was stopped
    upkeep.start()
    if another:
        another.start()                 # before the workers: a request may need it
    pool.start()
    restoring.start()
    background(release_addresses, logger)
    background(cluster.learn)

    signal.sigwait(STOP_SIGNALS)    # not sigtimedwait(): interrupted after its time it returns a signal that never came

    notify("STOPPING=1")
    logger.info("server_stopping", waiting=queue.waiting, running=queue.running)
    listen.unlink()
    # The next server accepts the connections that wait in systemd's socket.
    pool.stop(accept_waiting=not listen.handed_over)
    listen.unlock()
    drained = pool.join(DRAIN_TIMEOUT_S)
    if not drained:
        logger.error("requests_unanswered", running=queue.running)
        return 1
    if another:
        another.join()
    upkeep.stop()
    acceptor.close()
    restoring.stop()
    cluster.stop()
    hosts.close()
    logger.info("server_stopped")
    return 0
