"""Kill `fastcni serve` with SIGKILL while it claims a block in etcd, claims the next block ahead, and returns a block.

A proxy in front of etcd kills the server at the request for this: before etcd gets the request, before the server gets
the answer, or immediately after. One-shot requests and another server continue. Two nodes share the address space.
"""

import json
import threading

import pytest
from cluster.etcd import decoded
from cluster.proxy import Proxy
from unit.server.client import Server

from fastcni.handle import handle
from fastcni.kit.call.mode import Mode
from fastcni.kit.ipam.cluster import conf, node_state, upkeep
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.spec.config import Section
from fastcni.testing.witnesses import eventually

LIMIT_S = 30.0
UNSENT, UNANSWERED, ANSWERED = "before etcd sees it", "before its answer", "after its answer"
MAX_IDLE = 2                    # blocks without a pod that a server keeps
# Like `python -m fastcni serve`, but the server returns empty blocks after 0.1 s, not after ten minutes.
SERVE = """
import sys
from functools import partial
from fastcni.cli import main
from fastcni.server.cluster import upkeep
upkeep.Times = partial(upkeep.Times, idle_s=0.1, list_s=1.0)
sys.argv[1:1] = ["serve", "--socket"]
main()
"""


class Killer(Proxy):
    """A proxy that kills the server at a request that puts ("request_put") or deletes ("request_delete_range") a block.

    hit: an Event that is set when the server has ended.
    """

    def __init__(self, port):
        super().__init__(port)
        self.server, self.operation, self.moment, self.hit = None, "", "", threading.Event()

    def arm(self, server, operation, moment):
        self.hit.clear()
        self.server, self.operation, self.moment = server, operation, moment

    def request(self, data):
        return self._kill(data, UNSENT)

    def answer(self, data):
        return self._kill(data, UNANSWERED)

    def answered(self, data):
        self._kill(data, ANSWERED)

    def _kill(self, data, moment):
        if moment != self.moment or not changes_block(data, self.operation):
            return False
        self.moment = ""
        self.server.process.kill()
        self.server.process.wait()
        self.hit.set()
        return True


def changes_block(data, operation):
    """Return whether the piece of a request is a transaction with this operation on a block."""
    body = data.partition(b"\r\n\r\n")[2] or data
    if not body.startswith(b"{"):
        return False
    changes = [one[operation]["key"] for one in json.loads(body).get("success", ()) if operation in one]
    return any("/blk/" in decoded(key) for key in changes)


class Pods:
    """The pods of two nodes. live: {container: address} of pods that have an address."""

    def __init__(self, directory, stores):
        self.directory, self.stores, self.live = directory, stores, {}

    def conf(self, node):
        return {"cniVersion": "1.1.0", "name": "net", "type": "cluster", "ipam": {
            "type": "cluster", "store": self.stores[node], "range": "10.0.0.0/26", "block_size": 30, "cool_down": 0,
            "node_name": node, "dataDir": str(self.directory / node)}}

    def keys(self, node):
        return conf.read_keys(Section(self.conf(node)))

    def one_shot(self, node, command, number):
        """Make a one-shot request. Return False if the range is full."""
        container = f"c-{node}{number}"
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere",
               "CNI_NETNS": f"/nowhere/{node}{number}", "CNI_NETNS_OVERRIDE": "1"}
        reply = handle("cluster", env, json.dumps(self.conf(node)).encode(), Mode())
        document = json.loads(reply.stdout) if reply.stdout else {}
        if reply.status:
            assert "is full" in document["msg"], document
            return False
        self.note(command, container, document)
        return True

    def fill(self, node, first):
        """Add pods to the node until the range is full. Return the number of added pods."""
        return next(count for count in range(100) if not self.one_shot(node, "ADD", first + count))

    def by_server(self, server, command, number):
        """Make a request on node a by the server, which may be killed during the request."""
        answer = server.call(command, self.conf("a"), f"/nowhere/a{number}")
        assert answer.status in (0, None), answer.stdout
        if answer.status == 0:
            self.note(command, f"c-a{number}", answer.document)

    def note(self, command, container, document):
        if command == "DEL":
            self.live.pop(container, None)
            return
        address = document["ips"][0]["address"]
        assert self.live.get(container, address) == address, f"{container} has another address than before"
        others = [other for other, held in self.live.items() if held == address and other != container]
        assert not others, f"{address} of {container} is given to {others}, too"
        self.live[container] = address

    def blocks(self, node):
        with node_state.Space(self.keys(node), print) as space:
            return set(space.state.blocks) if space else set()

    def held(self):
        return [path.name for path in self.directory.glob("?/default/[0-9]*")]


@pytest.mark.parametrize("moment", [UNSENT, UNANSWERED, ANSWERED])
def test_a_killed_server_gives_no_address_twice_and_leaves_no_block(etcd, etcd_member, tmp_path, moment):
    with Killer(etcd_member.members[0].client) as killer:
        pods = Pods(tmp_path, {"a": etcd | {"endpoints": [killer.endpoint]}, "b": etcd})
        store = open_store(etcd)

        def serve():
            return Server(tmp_path, program=("-c", SERVE))

        def stored(node):
            return {block.cidr for block in store.blocks(node=node)}

        with serve() as server:
            killer.arm(server, "request_put", moment)
            pods.by_server(server, "ADD", 0)                    # the server claims the first block
            assert killer.hit.wait(LIMIT_S)
        for number in range(4):
            pods.one_shot("a", "ADD", number)
            pods.one_shot("b", "ADD", number)

        with serve() as server:
            pods.by_server(server, "ADD", 0)
            assert eventually(lambda: stored("a") == pods.blocks("a"))
            killer.arm(server, "request_put", moment)
            for number in range(4, 12):
                pods.by_server(server, "ADD", number)
                if upkeep.short_of(pods.keys("a"), print):      # the server claims the next block
                    break
            assert killer.hit.wait(LIMIT_S)
        for number in range(16):
            pods.one_shot("a", "ADD", number)
        for number in range(4, 8):
            pods.one_shot("b", "ADD", number)
        assert len(pods.live) == 24 and len(pods.blocks("a")) >= 4

        with serve() as server:
            killer.arm(server, "request_delete_range", moment)
            for number in range(16):
                pods.by_server(server, "DEL", number)           # the server returns the blocks that it does not need
                if killer.hit.is_set():
                    break
            assert killer.hit.wait(LIMIT_S)
        for number in range(16):
            pods.one_shot("a", "DEL", number)
        more = pods.fill("b", 8)                        # uses all free blocks of etcd, also those of the killed server
        assert more > 16 and pods.fill("a", 0) > 4

        with serve() as server:
            for container in list(pods.live):
                pods.one_shot(container[2], "DEL", int(container[3:]))
            pods.by_server(server, "ADD", 0)
            pods.by_server(server, "DEL", 0)
            assert eventually(lambda: len(stored("a")) <= MAX_IDLE and stored("a") == pods.blocks("a"))
            assert stored("b") == pods.blocks("b") and not stored("a") & stored("b")
            assert pods.held() == [] and pods.live == {}
            assert server.stop() == 0
        assert not server.lines("server_fault")
        store.close()
