"""Make the requests that a node's agent makes to the Kubernetes API, in the same order as
agent/registries/kubernetes.py.

tests/cluster/test_simulate.py compares these requests with those of the real registry.
"""

import json
import re
import ssl

from simulate.addresses import mac_of, public_of, subnet_of
from simulate.wire import Connection, Streams, compose

from fastcni.agent.registries.kubernetes import AVAILABLE, KEEP_S, NODES, POD_CIDRS, PREFIX
from fastcni.clients.kubernetes import (
    MANAGER,
    METADATA_LIST,
    METADATA_OBJECT,
    PAGE,
    STRATEGIC_PATCH,
)

REVISION = re.compile(rb'"resourceVersion": ?"(\d+)"')
STRATEGIC = STRATEGIC_PATCH["Content-Type"]
JSON = "application/json"
WATCH_S = 3600                  # longer than a simulation: a watch that ends would be an error
NOW = "2026-01-01T00:00:00Z"    # the time of a node's condition
SEED = 50                       # nodes that seed() writes at the same time


def name_of(number):
    return f"n{number}"


def annotations_of(number):
    """Return the annotations with which an agent publishes the node of this number."""
    data = json.dumps({"VNI": 1, "VtepMAC": mac_of(number)}, separators=(",", ":"))
    return {POD_CIDRS: str(subnet_of(number)), f"{PREFIX}/kube-subnet-manager": "true",
            f"{PREFIX}/backend-type": "vxlan", f"{PREFIX}/public-ip": str(public_of(number)),
            f"{PREFIX}/backend-data": data}


def node_of(number):
    """Return the Node object that a kubelet makes."""
    cidr = str(subnet_of(number))
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name_of(number)},
            "spec": {"podCIDR": cidr, "podCIDRs": [cidr]}}


class KubernetesNodes:
    """All simulated nodes, see etcd_nodes.EtcdNodes. scheme, host, port: the address of the API server.
    token: a valid token."""

    keep_s = KEEP_S

    def __init__(self, scheme, host, port, token, traffic):
        self.host, self.port, self.token, self.traffic = host, port, token, traffic
        self.ssl = None
        if scheme == "https":           # on loopback
            self.ssl = ssl.create_default_context()
            self.ssl.check_hostname, self.ssl.verify_mode = False, ssl.CERT_NONE
        self.streams = Streams(traffic)
        self.revision = 0

    def connect(self):
        return Connection(self.host, self.port, self.traffic, self._headers(), self.ssl)

    def _headers(self, accept=JSON):
        return f"Authorization: Bearer {self.token}\r\nAccept: {accept}\r\n"

    async def seed(self, numbers):
        """Write the Nodes of many agents, as if they had joined long ago."""
        connection = self.connect()
        for number in numbers:
            await self._make(connection, number)
            await self._annotate(connection, number)
            await self._ready(connection, number)
        self.revision = await self._list(connection)
        connection.close()

    async def leave(self, number):
        """Delete the Node object of a node that leaves."""
        connection = self.connect()
        await connection.ask("DELETE", f"{NODES}/{name_of(number)}")
        connection.close()

    async def join(self, number):
        """Join with a node whose kubelet has made its Node. Return the socket of its watch."""
        connection = self.connect()
        await self._make(connection, number)
        await self._read(connection, number)
        self.traffic.writes += 1
        await self._annotate(connection, number)
        stream = await self._follow(number, connection, await self._list(connection))
        self.traffic.writes += 1
        await self._ready(connection, number)
        connection.close()
        return stream

    async def restart(self, number):
        """Make the requests of a restarted agent that has a file with the records. Leave out start_pause(), so that all
        agents ask at the same time. Return the socket of the agent's watch."""
        connection = self.connect()
        await self._read(connection, number)
        stream = await self._follow(number, connection, await self._ask_nodes(connection, "limit=1"))
        connection.close()
        return stream

    async def _follow(self, number, connection, revision):
        """Make the later requests of the agent's two threads, which renew the record and read the Node's condition when
        the agent's network works."""
        stream = await self.watch(number, revision)
        for _ in range(3):
            await self._read(connection, number)
        return stream

    async def renew(self, number, connection):
        """Make the requests that a node makes every `keep_s`."""
        await self._read(connection, number)

    async def watch(self, number, revision=0):
        path = (f"{NODES}?watch=true&allowWatchBookmarks=true&resourceVersion={revision or self.revision}"
                f"&timeoutSeconds={WATCH_S}")
        request = compose("GET", path, None, self.host, self._headers(METADATA_OBJECT))
        return await self.streams.open(self.host, self.port, request, self.ssl)

    async def _list(self, connection):
        self.traffic.lists += 1
        return await self._ask_nodes(connection, f"limit={PAGE}&resourceVersion=0")

    async def _ask_nodes(self, connection, query):
        """List the Nodes. Return the list's revision."""
        connection.headers = self._headers(METADATA_LIST)
        answer = await connection.ask("GET", f"{NODES}?{query}")
        connection.headers = self._headers()
        return int(REVISION.search(answer)[1])

    async def _make(self, connection, number):
        await connection.ask("POST", f"{NODES}?{MANAGER}", node_of(number))

    async def _read(self, connection, number):
        await connection.ask("GET", f"{NODES}/{name_of(number)}")

    async def _annotate(self, connection, number):
        await self._patch(connection, number, {"metadata": {"annotations": annotations_of(number)}})

    async def _ready(self, connection, number):
        condition = {**AVAILABLE, "lastHeartbeatTime": NOW, "lastTransitionTime": NOW}
        await self._patch(connection, number, {"status": {"conditions": [condition]}})

    async def _patch(self, connection, number, changes):
        await connection.ask("PATCH", f"{NODES}/{name_of(number)}/status?{MANAGER}", changes, STRATEGIC)
