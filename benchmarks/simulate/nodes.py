"""Run all simulated nodes in one process, with one socket for each node's watch.

    python -m simulate.nodes etcd HOST PORT
    python -m simulate.nodes kubernetes https HOST PORT TOKEN

The process reads commands from stdin, one JSON object a line. When a command is done, the process answers with a line
on stdout:

    {"do": "seed", "numbers": [1, 2]}                   write the records of these nodes, and open their watches
    {"do": "replace", "old": [1], "new": [3]}           old nodes leave at the same time, then the new nodes join
    {"do": "restart", "numbers": [2, 3]}                restart these agents at the same time
    {"do": "figures"}                                   return the number and size of the requests so far
"""

import asyncio
import json
import sys
import time

from simulate.etcd_nodes import EtcdNodes, renew_for_ever
from simulate.kubernetes_nodes import KubernetesNodes
from simulate.wire import Traffic

AT_ONCE = 64                    # the most requests of seed() and new watches that wait for an answer at the same time
KINDS = {"etcd": EtcdNodes, "kubernetes": KubernetesNodes}


class Crowd:
    """The simulated nodes and their watches. nodes: an object of a class in KINDS."""

    def __init__(self, nodes, traffic):
        self.nodes, self.traffic, self.watches = nodes, traffic, {}
        self.gate = asyncio.Semaphore(AT_ONCE)

    async def seed(self, numbers):
        await self.nodes.seed(numbers)
        await asyncio.gather(*(self._open(number) for number in numbers))

    async def _open(self, number):
        async with self.gate:
            self.watches[number] = await self.nodes.watch(number)

    async def replace(self, old, new):
        """Let the nodes `old` leave and the nodes `new` join. Return {"began": {new number: monotonic time at which the
        node's agent began to join}}."""
        await asyncio.gather(*(self._leave(number) for number in old))
        began = dict.fromkeys(map(str, new), time.monotonic())
        for number, watch in zip(new, await asyncio.gather(*map(self.nodes.join, new)), strict=True):
            self.watches[number] = watch
        return {"began": began}

    async def _leave(self, number):
        self.nodes.streams.close(self.watches.pop(number))
        await self.nodes.leave(number)

    async def restart(self, numbers):
        """Restart these agents. Return the seconds until the last agent has restarted."""
        began = time.monotonic()
        for number in numbers:
            self.nodes.streams.close(self.watches.pop(number))
        for number, watch in zip(numbers, await asyncio.gather(*map(self.nodes.restart, numbers)), strict=True):
            self.watches[number] = watch
        return {"seconds": time.monotonic() - began}

    async def figures(self):
        return vars(self.traffic)


async def main(kind, *words):
    traffic = Traffic()
    crowd = Crowd(KINDS[kind](*words, traffic), traffic)
    renewing = asyncio.create_task(renew_for_ever(crowd.nodes, lambda: list(crowd.watches)))
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        print(json.dumps(await getattr(crowd, command.pop("do"))(**command)), flush=True)
        if renewing.done():
            renewing.result()
        if crowd.nodes.streams.lost:
            raise RuntimeError(crowd.nodes.streams.lost)
    renewing.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
