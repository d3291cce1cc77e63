"""The server from its start to its last answer."""

import faulthandler
import gc
import os
import signal
import sys
from threading import Lock
from time import monotonic

import sdnotify

from fastcni import _ipam_bitmap
from fastcni.kernel import netns
from fastcni.server import listening, log
from fastcni.server.acceptor import Acceptor
from fastcni.server.background import Background
from fastcni.server.configurations import Configurations
from fastcni.server.cpu_latency import LatencyRequest
from fastcni.server.hosts import Hosts
from fastcni.server.request_queue import RequestQueue
from fastcni.server.restoring import Restoring
from fastcni.server.upkeep import TIDY_SECONDS, Upkeep, Watchdog, watchdog_seconds
from fastcni.server.workers import Workers, environment, preload

BACKGROUND_THREADS = 64                       # threads that sit out the kernel's deferred work
DRAIN_SECONDS = 80              # systemd's usual patience is 90
ENDS = {signal.SIGTERM, signal.SIGINT}
SWITCH_SECONDS = 0.0005         # a thread back from the kernel waits so long for one that computes


def serve(path=listening.PATH, *, workers=32, room=1024, patience=60.0, uids=(0,), awake=0.01, level="info",
          fmt="logfmt", replay=None, tidy_seconds=TIDY_SECONDS):
    """Serve until SIGTERM or SIGINT, then finish what was begun. Returns the exit status.

    workers: requests that run at once. room: requests that may wait. patience: seconds that each may.
    uids: user ids whose requests are served. awake: seconds, see LatencyRequest. replay: see Restoring. Raises
    ListenError. Has to run in the main thread.
    """
    started = monotonic()
    faulthandler.enable()           # where each thread is, in the log: systemd ends a stuck server by SIGABRT
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)      # threads inherit it; this one waits for them below
    logger = log.make(level, fmt)
    listen = listening.listen(path, open_to_all=not set(uids) <= {0, os.geteuid()})
    preload()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()                     # what is there now stays: no collection need look through it
    gc.set_threshold(10_000)        # a request makes hundreds of objects, and hardly a cycle
    busy = len(os.sched_getaffinity(0)) + 1     # one more than processors: one waits for a lock of the kernel
    home = netns.open_own()
    lock, queue, background = Lock(), RequestQueue(room=room, patience=patience), Background(BACKGROUND_THREADS, home)
    restoring = Restoring(logger, replay)
    hosts = Hosts(home, background, restoring)
    door = Acceptor(listen.sock, queue, lock, frozenset(uids), LatencyRequest(awake, logger), logger)
    team = Workers(workers, busy, queue, lock, door, hosts, background, Configurations(), environment(), logger)
    notify = sdnotify.SystemdNotifier()

    def tidy():
        hosts.tidy()
        team.keep()
        restoring.start()
        _ipam_bitmap.forget()

    upkeep = Upkeep(tidy, Watchdog(notify.notify, door.ask, watchdog_seconds(os.environ)), logger,
                    tidy_seconds=tidy_seconds)
    notify.notify("READY=1")        # before the first answer: requests may wait in the socket already
    logger.info("server_ready", socket=listen.path or "handed over", workers=workers,
                ms=round((monotonic() - started) * 1e3, 1))
    upkeep.start()                  # first: from the first request on it is known whether we were stopped
    team.start()
    restoring.start()

    signal.sigwait(ENDS)            # not sigtimedwait(): interrupted after its time it returns a signal that never came

    notify.notify("STOPPING=1")
    logger.info("server_stopping", waiting=queue.waiting, running=queue.running)
    listen.vanish()
    team.stop(to_the_last=not listen.handed_over)   # a socket of systemd's: the next server takes who waits there
    listen.release()
    drained = team.join(DRAIN_SECONDS)
    if not drained:
        logger.error("requests_unanswered", running=queue.running)
        return 1
    upkeep.stop()
    door.close()
    restoring.stop()
    hosts.close()
    logger.info("server_stopped")
    return 0
