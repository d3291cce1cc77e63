"""Make the requests that a node's agent makes to etcd's JSON gateway, in the same order as agent/registries/etcd.py.

tests/cluster/test_simulate.py compares these requests with those of the real registry.
"""

import asyncio
import json
import re

from simulate.addresses import mac_of, public_of, subnet_of
from simulate.wire import Connection, Streams, compose

from fastcni.agent.contract import Node
from fastcni.agent.registries import flannel_records
from fastcni.agent.registries.etcd import KEEP_S, LEASE_S, PREFIX
from fastcni.clients.etcd import MAX_OPERATIONS, below, encode, get, put, revision_is

DIRECTORY = f"{PREFIX}/subnets/"
FIRST, END = below(DIRECTORY)
REVISION = re.compile(rb'"revision":"(\d+)"')
HOST_HEADER = "etcd"


def record_of(number):
    """Return (key, value) of the record of the node with this number."""
    node = Node("", {4: subnet_of(number)}, {4: public_of(number)}, "vxlan",
                {4: {"VNI": 1, "VtepMAC": mac_of(number)}})
    return DIRECTORY + flannel_records.key_of(node.subnets), flannel_records.value_of(node)


class EtcdNodes:
    """All simulated nodes. Each method except seed() makes the requests of one node."""

    keep_s = KEEP_S

    def __init__(self, host, port, traffic):
        self.host, self.port, self.traffic = host, port, traffic
        self.streams = Streams(traffic)
        self.leases = {}                # {node's number: its lease id}
        self.revision, self.newest = 0, 0           # the revision of the last answer, and of the newest record

    def connect(self):
        return Connection(self.host, self.port, self.traffic)

    async def seed(self, numbers):
        """Write many records at the same time, each with its own lease, as if the nodes had joined long ago."""
        connection = self.connect()
        for at in range(0, len(numbers), MAX_OPERATIONS):
            some = numbers[at:at + MAX_OPERATIONS]
            for number in some:
                self.leases[number] = await self._grant(connection)
            puts = [put(*record_of(number), self.leases[number]) for number in some]
            self.newest = self._note(await connection.ask("POST", "/v3/kv/txn", {
                "compare": [], "success": puts, "failure": []}))
        connection.close()

    async def leave(self, number):
        """Delete the record and the lease of a node that leaves."""
        connection = self.connect()
        await connection.ask("POST", "/v3/lease/revoke", {"ID": self.leases.pop(number)})
        connection.close()

    async def join(self, number):
        """Join with a node that has no record. Return the socket of its watch."""
        connection = self.connect()
        await self._read(connection, f"{PREFIX}/config")
        listed = self.newest
        await self._list(connection)
        key, value = record_of(number)
        self.leases[number] = lease = await self._grant(connection)
        self.traffic.writes += 1
        self.newest = self._note(await connection.ask("POST", "/v3/kv/txn", {
            "compare": [revision_is(key, 0)], "success": [put(key, value, lease)], "failure": []}))
        revision = await self._list(connection, listed)         # an agent checks here whether another record overlaps
        return await self._follow(number, connection, revision)

    async def restart(self, number):
        """Make the requests of a restarted agent that has a file with the records. Return the socket of the agent's
        watch."""
        connection = self.connect()
        await self._read(connection, f"{PREFIX}/config")
        revision = await self._list(connection, self.newest)
        await self._renew(connection, number)
        return await self._follow(number, connection, revision)

    async def _follow(self, number, connection, revision):
        """Make the later requests of the agent's two threads, and the second renewal, which the agent makes when its
        network works.

        revision: the revision of the last list."""
        stream = await self.watch(number, revision)
        for _ in range(2):
            await self.renew(number, connection)
        connection.close()
        return stream

    async def renew(self, number, connection):
        """Make the requests that a node makes every `keep_s`."""
        await self._read(connection, record_of(number)[0])
        await self._renew(connection, number)

    async def watch(self, number, revision=0):
        body = {"create_request": {"key": encode(FIRST), "range_end": encode(END),
                                   "start_revision": (revision or self.revision) + 1, "progress_notify": True}}
        request = compose("POST", "/v3/watch", body, HOST_HEADER)
        return await self.streams.open(self.host, self.port, request)

    async def _list(self, connection, since=0):
        self.traffic.lists += 1
        return self._note(await connection.ask("POST", "/v3/kv/range", {
            "key": encode(FIRST), "range_end": encode(END)} | ({"min_mod_revision": since} if since else {})))

    async def _read(self, connection, key):
        await connection.ask("POST", "/v3/kv/txn", {"compare": [], "success": [get(key)], "failure": []})

    async def _grant(self, connection):
        return int(json.loads(await connection.ask("POST", "/v3/lease/grant", {"TTL": LEASE_S}))["ID"])

    async def _renew(self, connection, number):
        await connection.ask("POST", "/v3/lease/keepalive", {"ID": self.leases[number]})

    def _note(self, answer):
        self.revision = int(REVISION.search(answer)[1])
        return self.revision


async def renew_for_ever(nodes, numbers):
    """Let each node renew its record once in `keep_s`, one node after another. numbers(): returns the numbers of the
    present nodes."""
    connection = nodes.connect()
    while True:
        for number in (known := numbers()):
            await asyncio.sleep(nodes.keep_s / len(known))
            if number in numbers():
                await nodes.renew(number, connection)
        if not known:
            await asyncio.sleep(0.1)
