"""A server in the test's process, for faults that a test cannot cause in another process. Its client is Server, the
base class."""

import os
import sys
import threading
from contextlib import suppress

from unit.server.client import Server

from fastcni.daemon import listening, log
from fastcni.daemon.background import Background
from fastcni.daemon.wakeup import Wakeup
from fastcni.kernel import netns
from fastcni.server.cluster.pods import blind
from fastcni.server.cluster.upkeep import ClusterUpkeep
from fastcni.server.cpu_latency import LatencyRequest
from fastcni.server.networks.sources import NetworkSources
from fastcni.server.requests.acceptor import Acceptor
from fastcni.server.requests.configurations import Configurations
from fastcni.server.requests.hosts import Hosts
from fastcni.server.requests.request_queue import RequestQueue
from fastcni.server.requests.workers import Workers, environment, preload
from fastcni.server.restoring.restorer import Restoring


class Local(Server):
    """A server with the parts of service.Server, but without signals and without the settings of the process. Its
    workers are threads of this process. They begin in this thread's network namespace."""

    def __init__(self, directory, monkeypatch, *, workers=4, busy=3, queue_timeout_s=60.0, level="info", fmt="logfmt",
                 log=None):
        super().__init__(directory)
        self.log = log or self.log
        self.monkeypatch, self.crashed = monkeypatch, []
        monkeypatch.setattr(threading, "excepthook", lambda args: self.crashed.append(args.exc_value))
        self.size, self.options = workers, (busy, queue_timeout_s, level, fmt)

    def __enter__(self):
        busy, queue_timeout_s, level, fmt = self.options
        self.file = open(self.log, "w", buffering=1)
        self.monkeypatch.setattr(sys, "stderr", self.file)
        home = netns.open_own()
        logger, wakeup = log.make(level, fmt), Wakeup()
        background = Background(8, home, logger)
        self.listening = listening.make(str(self.path), False)
        preload()
        self.restoring = Restoring(logger)
        self.cluster = ClusterUpkeep(home, logger, blind())
        self.networks = NetworkSources(home, logger, node="node-1")
        self.hosts = Hosts(home, background, self.restoring, self.cluster, self.networks)
        self.queue = RequestQueue(self.size, busy, timeout_s=queue_timeout_s, wake=wakeup.wake)
        self.acceptor = Acceptor(self.listening.sock, self.queue, wakeup, frozenset({os.geteuid()}),
                                 LatencyRequest(0, logger), logger)
        self.networks.attach(self.acceptor)
        self.pool = Workers(self.queue, self.acceptor, self.hosts, background, Configurations(), environment(), logger)
        self.pool.start()
        self.restoring.start()
        return self

    def __exit__(self, *_):
        self.listening.unlink()
        self.pool.stop(accept_waiting=True)
        self.listening.unlock()
        ended = self.pool.join(10)
        if ended:
            self.acceptor.close()
            self.restoring.stop()
            self.cluster.stop()
            self.networks.stop()
            self.hosts.close()
        with suppress(OSError):
            self.file.close()
        assert ended, "workers did not end"

    @property
    def workers(self):
        """Return the number of workers whose thread is alive."""
        return sum(thread.is_alive() for thread in self.pool.threads)
