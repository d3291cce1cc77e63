"""A cluster simulated in one process. Each node has a directory, a boot ID and a clock. The nodes share one store, and
requests can pause or crash.

A `Process` runs one request of the plugin in a thread. Only one thread runs at a time: the simulation waits until the
process ends or pauses at a call of the store. A fault makes a chosen call fail, or ends the process. After its end, as
after kill -9, each later call of the process raises Crash and has no effect.
"""

import contextlib
import importlib
import itertools
import json
import pkgutil
import sys
import threading
import time
import uuid

import pytest

from fastcni.clients.errors import Away
from fastcni.handle import handle
from fastcni.kernel import waiting
from fastcni.kernel.waiting import Crowded
from fastcni.kit import ipam
from fastcni.kit.call.mode import Mode
from fastcni.kit.ipam import store as files_store

CRASH_BEFORE, CRASH_AFTER, LOST_REPLY, AWAY, PAUSE = "crash before", "crash after", "lost reply", "away", "pause"
FAULTS = (CRASH_BEFORE, CRASH_AFTER, LOST_REPLY, AWAY, PAUSE)
OF_STORE = (LOST_REPLY, AWAY, PAUSE)
CHANGES = ("write_file",)       # functions of fastcni._system that change files
POSIX_CHANGES = ("unlink", "rename", "replace", "link", "symlink", "mkdir", "open", "write", "pwrite", "ftruncate")
waiting_readable = waiting.readable
START_S = 1_000_000.0           # start of the simulated clock
AHEAD_S = 1000.0                # at first, each simulated boot is so much later than the files' real times
here = threading.local()        # .process: the Process of this thread


class Crash(Crowded):
    """Raised in a process that was killed. handle() turns no Crowded into an answer, so this class is a Crowded."""


class Process:
    """A simulated process that runs one request. fault: (kind, the call's number from 1 or its name), or None. reply:
    the answer, or None after a crash."""

    def __init__(self, node, work, fault=None):
        self.node, self.work, self.fault = node, work, fault
        self.count, self.dead, self.paused, self.reply, self.error = 0, False, False, None, None
        self.proceed, self.stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.resume()

    def resume(self):
        """Let the process run until it ends or pauses."""
        self.paused = False
        self.node.begin()
        self.proceed.release()
        self.stopped.acquire()
        if not self.paused:
            self.thread.join()
        if self.error:
            raise self.error

    def kill(self):
        if self.paused:
            self.dead = True
            self.resume()

    def _run(self):
        here.process = self
        self.proceed.acquire()
        try:
            self.reply = self.work()
        except Crash:
            pass
        except BaseException as e:          # a defect of the simulation or of the plugin
            self.error = e
        finally:
            self.stopped.release()

    def call(self, of_store, function, *args, **named):
        """Call a function that has an effect. If `fault` names this call, apply the fault."""
        self._check()
        kind = ""
        if self.fault and (of_store or self.fault[0] not in OF_STORE):
            self.count += 1
            if self.fault[1] in (self.count, function.__name__):
                kind, self.fault = self.fault[0], None
        if kind == PAUSE:
            self.paused = True
            self.stopped.release()
            self.proceed.acquire()
            self._check()
        if kind == CRASH_BEFORE:
            self.dead = True
            self._check()
        if kind == AWAY or (of_store and not self.node.reachable):
            raise Away("simulated: no route to the store")
        result = function(*args, **named)
        if kind == CRASH_AFTER:
            self.dead = True
            self._check()
        if kind == LOST_REPLY:
            raise Away("simulated: no answer")
        return result

    def _check(self):
        if self.dead:
            raise Crash


class FaultyStore:
    """A process's connection to the store. Each call may have a fault."""

    def __init__(self, process, store):
        self.process, self.store, self.name, self.seen = process, store, store.name, None

    def __getattr__(self, name):
        def call(*args, **named):
            result = self.process.call(True, method, *args, **named)
            self.seen = self.store.history()
            return result
        method = getattr(self.store, name)
        return call

    def history(self):
        """Return the store's history as it was at the last answer. This is no call to which a fault applies."""
        return self.seen or self.process.call(True, self.store.history)

    def close(self):
        self.store.close()


class SimulatedMode(Mode):
    """The one-shot mode, with the simulation's store."""

    __slots__ = ("cluster",)

    def __init__(self, cluster):
        super().__init__()
        self.cluster = cluster

    def cluster_store(self, key, open_store):
        return super().cluster_store(key, lambda: FaultyStore(here.process, self.cluster.open_store()))

    def find_plugin(self, name, directories, own):
        return ""


class SimulatedNode:
    """A node. up: whether it has power. reachable: whether it reaches the store. skew: the error of its wall clock, in
    seconds."""

    def __init__(self, cluster, name, directory):
        self.cluster, self.name, self.directory = cluster, name, directory
        self.up, self.reachable, self.skew, self.process = True, True, 0.0, None
        self.boot()

    def boot(self):
        self.boot_id, self.booted, self.up = str(uuid.UUID(int=next(self.cluster.numbers))), self.cluster.now, True

    def begin(self):
        """Make this node the node whose clock and boot ID the code reads."""
        self.cluster.running = self
        files_store.known_boot_id = self.boot_id.encode()

    def call(self, command, conf, container="", args="", fault=None):
        """Begin a request. Return its Process, which has ended or paused."""
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere",
               "CNI_NETNS": "/nowhere/pod", "CNI_NETNS_OVERRIDE": "1", "CNI_ARGS": args}
        stdin = json.dumps(self.conf(conf))
        return Process(self, lambda: handle("cluster", env, stdin.encode(), SimulatedMode(self.cluster)), fault)

    def conf(self, conf):
        """Return the configuration with this node's name and directory."""
        return {**conf, "ipam": {**conf["ipam"], "dataDir": str(self.directory), "node_name": self.name}}

    def run(self, work, fault=None):
        """Run work(store) in a process of this node. Return the Process."""
        return Process(self, lambda: work(FaultyStore(here.process, self.cluster.open_store())), fault)


class Cluster:
    """The nodes and their store. open_store(): returns a connection to the store. now: the simulated clock in seconds,
    from START_S."""

    def __init__(self, directory, names, open_store):
        self.now, self.numbers, self.running = START_S, itertools.count(1), None
        self.began = time.time() + AHEAD_S
        self.open_store = open_store
        self.nodes = [SimulatedNode(self, name, directory / name) for name in names]

    # -- clock functions in place of the module `time` ----------------------------------------------------------------

    def monotonic(self):
        return self.now - (self.running.booted if self.running else START_S) + 60.0

    def time(self):
        return self.began + self.now - START_S + (self.running.skew if self.running else 0.0)

    def clock_gettime(self, clock):
        return self.time() if clock == time.CLOCK_REALTIME else self.monotonic()

    def clock_gettime_ns(self, clock):
        return int(self.clock_gettime(clock) * 1e9)

    def time_ns(self):
        return int(self.time() * 1e9)

    def monotonic_ns(self):
        return int(self.monotonic() * 1e9)

    def sleep(self, seconds):
        self.now += seconds

    def readable(self, fd, seconds, kind):
        """Wait as waiting.readable() does. Without a descriptor, only advance the clock."""
        if fd >= 0:
            return waiting_readable(fd, seconds, kind)
        self.sleep(seconds)
        return False


class Hook:
    """A module some of whose functions, POSIX_CHANGES, become calls of the thread's Process."""

    def __init__(self, module):
        self.module = module

    def __getattr__(self, name):
        function = getattr(self.module, name)
        return changing(function) if name in POSIX_CHANGES else function


def changing(function):
    """Return a function that calls `function` through the thread's Process, if the thread has a Process."""
    def call(*args, **named):
        process = getattr(here, "process", None)
        return process.call(False, function, *args, **named) if process else function(*args, **named)
    return call


@contextlib.contextmanager
def simulated_modules(cluster):
    """In the modules of IPAM, replace the clock by the cluster's clock, and make each change of a file a call of the
    thread's Process.

    cluster(): the running Cluster."""
    import posix

    # some modules are imported only where they are used
    for found in pkgutil.walk_packages(ipam.__path__, "fastcni.kit.ipam."):
        importlib.import_module(found.name)

    class Clock:
        def __getattr__(self, name):
            return getattr(cluster() if hasattr(Cluster, name) else time, name)

    clock, hook = Clock(), Hook(posix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_store, "known_boot_id", b"")
        patch.setattr(waiting, "readable", lambda *args: cluster().readable(*args))
        for name, module in list(sys.modules.items()):
            if not name.startswith("fastcni.kit.ipam") and name != "fastcni.plugins.cluster":
                continue
            for attribute, value in list(vars(module).items()):
                if value is posix:
                    patch.setattr(module, attribute, hook)
                elif value is time:
                    patch.setattr(module, attribute, clock)
                elif attribute in CHANGES:
                    patch.setattr(module, attribute, changing(value))
        yield
