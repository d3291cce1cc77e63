"""A node with cluster-wide addresses in this process: it makes requests for its pods, and has the server's thread for
cluster IPAM."""

import contextlib
import fcntl
import json
import os
import time
import traceback

from unit.server.flushed import Log

from fastcni.handle import handle
from fastcni.kernel import netns
from fastcni.kit.ipam.cluster import stores
from fastcni.kit.ipam.cluster.conf import read_keys
from fastcni.kit.ipam.cluster.node_state import Space
from fastcni.runtime.mode import InProcessMode
from fastcni.server.cluster.pods import Pods
from fastcni.server.cluster.times import NEVER, Times
from fastcni.server.cluster.upkeep import ClusterUpkeep
from fastcni.spec.config import Section
from fastcni.testing.witnesses import eventually

# So long that no job begins by itself: a test shortens the times of the jobs that it tests
SLOW = {"gather_s": 0.001, "confirm_s": 3600.0, "list_s": 3600.0, "write_s": 0.01, "idle_s": 3600.0,
        "reconcile_s": 3600.0, "apart_s": 0.05, "nodes_s": 3600.0, "grace_s": 3600.0, "restored_s": 3600.0,
        "away_s": 0.01, "max_away_s": 0.02, "stop_s": 30.0}
RANGE = "10.0.0.0/24"           # 16 blocks of 16 addresses


class NodeLog(Log):
    def exception(self, event, **values):
        self.warning(event, trace=traceback.format_exc(), **values)

    def debug(self, event, **values):
        """Ignore the event."""


class WithServer(InProcessMode):
    """The mode of a request in the server: the request reports its changes to a ClusterUpkeep."""

    __slots__ = ("cluster",)

    def __init__(self, cluster):
        super().__init__()
        self.cluster = cluster

    def cluster_store(self, key, open_store):
        return self.cluster.store(key, open_store)

    def note_space(self, keys, addresses):
        self.cluster.note(keys, addresses)


class ClusterNode:
    """A node of a cluster, whose server's thread runs until stop().

    Nodes with the same directory share the store. states: {path of a network namespace: ALIVE
                                                                    or GONE}. times: arguments of Times.
    """

    def __init__(self, directory, name, *, configured=(), states=None, ipam=None, **times):
        self.directory, self.name, self.log = directory, name, NodeLog()
        self.states = {} if states is None else states
        self.ipam = {"type": "cluster", "range": RANGE, "node_name": name, "dataDir": str(directory / name),
                     "store": {"type": "local", "path": str(directory / "store")}, **(ipam or {})}
        self.conf = {"cniVersion": "1.1.0", "name": "net", "type": "cluster", "ipam": self.ipam}
        self.keys = read_keys(Section(self.conf))
        self.home = netns.open_own()
        pods = Pods(lambda path, since: (self.states.get(path, "unknown"), ""), dict)
        self.cluster = ClusterUpkeep(self.home, self.log, pods, lambda: configured, Times(**SLOW | times))
        self.store = stores.open_store(self.keys.store)

    def stop(self):
        if self.home >= 0:
            self.cluster.stop()
            os.close(self.home)
            self.home = -1
            assert not self.cluster.thread or not self.cluster.thread.is_alive()

    @property
    def faults(self):
        return [values for event, values in self.log.lines if event in ("server_fault", "cluster_failed")
                # a request may report a restored store before the server
                and "the store was restored" not in values.get("error", "")]

    def call(self, command, cid, *, one_shot=False, args="", netns="", **conf):
        """Make a request. Return its answer. one_shot: make it as a one-shot process does, so that the server does not
        notice it."""
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": cid, "CNI_NETNS": f"/run/netns/{netns or cid}",
               "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere", "CNI_ARGS": args}
        stdin = json.dumps({**self.conf, **conf}).encode()
        reply = handle("cluster", env, stdin, InProcessMode() if one_shot else WithServer(self.cluster))
        return reply.status, json.loads(reply.stdout) if reply.stdout else None

    def add(self, cid, **more):
        """Make the ADD of a pod. Return the pod's address."""
        status, document = self.call("ADD", cid, **more)
        assert status == 0, document
        return document["ips"][0]["address"].partition("/")[0]

    def delete(self, cid, **more):
        status, document = self.call("DEL", cid, **more)
        assert status == 0, document

    @property
    def blocks(self):
        """Return the blocks, as CIDRs, in the node's local state."""
        with self.space() as space:
            return set(space.state.blocks) if space else set()

    @property
    def stored(self):
        """Return the node's blocks in the store, as CIDRs."""
        return {block.cidr for block in self.store.blocks(node=self.name)}

    @property
    def held(self):
        """Return {address: first line of its file} of the addresses that have a file."""
        directory = self.directory / self.name / "default"
        found = {}
        for path in directory.iterdir() if directory.exists() else ():
            with contextlib.suppress(FileNotFoundError):        # another thread released the address just now
                if path.name[0].isdigit():
                    found[path.name] = path.read_bytes().decode().split("\r\n")[0]
        return found

    def space(self):
        return Space(self.keys, lambda text: None)

    def logged(self, event):
        """Wait until the log has a line of this event. Return the values of the last one."""
        def find():
            return [values for name, values in list(self.log.lines) if name == event]
        assert eventually(find), (event, self.log.lines)
        return find()[-1]


def ready(node):
    """Wait until the node has joined the cluster and compared its blocks with the store. Return its Member."""
    assert eventually(lambda: node.cluster.status() and node.cluster.status()[0]["epoch"])
    member = next(iter(node.cluster.members.values()))
    assert eventually(lambda: time.monotonic() < member.compare.due < NEVER and member.own)
    return member


@contextlib.contextmanager
def edited(directory):
    """`with edited(directory) as data:` lets a test change the content of the local store in this directory. The store
    is locked meanwhile."""
    path = directory / "store.json"
    with open(directory / "lock", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        data = json.loads(path.read_text())
        yield data
        new = path.with_suffix(".test")
        new.write_text(json.dumps(data))
        new.rename(path)
