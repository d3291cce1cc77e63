"""A server in the test's own process, for what cannot be done to another one; Server's way to talk to it."""

import os
import sys
import threading
from contextlib import suppress
from threading import Lock

from server.client import Server

from fastcni.kernel import netns, wire
from fastcni.server import listening, log
from fastcni.server.acceptor import Acceptor
from fastcni.server.background import Background
from fastcni.server.configurations import Configurations
from fastcni.server.cpu_latency import LatencyRequest
from fastcni.server.hosts import Hosts
from fastcni.server.request_queue import RequestQueue
from fastcni.server.restoring import Restoring
from fastcni.server.workers import Workers, environment, preload
from fastcni.spec import json


class Local(Server):
    """What service.serve() puts together, without signals and the process's settings; its workers are threads that
    begin in this thread's network namespace."""

    def __init__(self, folder, monkeypatch, *, workers=4, busy=3, patience=60.0, level="info", fmt="logfmt", log=None):
        super().__init__(folder)
        self.log = log or self.log
        for module, names in ((wire, ("observe",)), (json, ("printer",))):
            for name in names:          # the server's for good; ours until the test ends
                monkeypatch.setattr(module, name, getattr(module, name))
        self.monkeypatch, self.crashed = monkeypatch, []
        monkeypatch.setattr(threading, "excepthook", lambda args: self.crashed.append(args.exc_value))
        self.size, self.options = workers, (busy, patience, level, fmt)

    def __enter__(self):
        busy, patience, level, fmt = self.options
        self.file = open(self.log, "w", buffering=1)
        self.monkeypatch.setattr(sys, "stderr", self.file)
        home = netns.open_own()
        logger, lock, background = log.make(level, fmt), Lock(), Background(8, home)
        self.listening = listening.make(str(self.path), False)
        preload()
        self.restoring = Restoring(logger)
        self.hosts, self.queue = Hosts(home, background, self.restoring), RequestQueue(patience=patience)
        self.door = Acceptor(self.listening.sock, self.queue, lock, frozenset({os.geteuid()}),
                              LatencyRequest(0, logger), logger)
        self.team = Workers(self.size, busy, self.queue, lock, self.door, self.hosts, background, Configurations(),
                            environment(), logger)
        self.team.start()
        self.restoring.start()
        return self

    def __exit__(self, *_):
        self.listening.vanish()
        self.team.stop(to_the_last=True)
        self.listening.release()
        ended = self.team.join(10)
        if ended:
            self.door.close()
            self.restoring.stop()
            self.hosts.close()
        with suppress(OSError):
            self.file.close()
        assert ended, "workers did not come to their end"

    @property
    def workers(self):
        """Threads that are alive."""
        return sum(thread.is_alive() for thread in self.team.threads)
