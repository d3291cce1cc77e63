"""Forward the DNS queries of pods to a resolver, and the answers to the pods. This code runs in a separate process,
which has no policies.

    serve(channel, [(UDP socket, listening TCP socket, "192.0.2.53"), ...])

An answer with addresses waits until the agent reports that the addresses are in the kernel. The process forwards all
other answers immediately. In an answer the process changes only the query ID. The process has no cache: each query goes
to the resolver.

Other hosts cannot forge answers: each query has its own socket, which is connected to the resolver and has a port that
the kernel chooses, and a random query ID. If the agent sends nothing for SILENCE_S, the process drops queries.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections import Counter, deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

import dns.rdata

from fastcni.agent.policy.names.answers import Question, read_addresses, read_question
from fastcni.agent.policy.names.channel import BEAT, read_numbers, write_answers

if TYPE_CHECKING:
    from collections.abc import Sequence

DNS_PORT = 53
HEADER_BYTES, MAX_BYTES = 12, 65535   # of a DNS message: header, maximum (RFC 1035, sections 4.1.1 and 4.2.2)
IS_ANSWER = 0x80                # the QR bit, in the third byte
QUERY_S = 5.0                   # seconds that a query waits for its answer; C libraries repeat a query after 5 s
IDLE_S = 10.0                   # seconds that a TCP connection may be idle; RFC 7766 requires some seconds
SILENCE_S = 1.5                 # after this silence of the agent, drop queries; less than LIVE_MS of redirect.py
MAX_QUERIES, MAX_QUERIES_OF_POD = 4096, 512
MAX_CONNECTIONS_OF_POD = 64
BURST = 64                      # datagrams read from one socket before other sockets have their turn
SWEEP_S = 0.5
NOBODY = 65534
IP_PKTINFO = 8                  # linux/in.h; struct in_pktinfo has the destination address of a datagram
IPV6_RECVPKTINFO, IPV6_PKTINFO = 49, 50         # linux/in6.h
PKTINFO_BYTES = 64


class Query:
    """A pod's query by UDP. number: the pod's query ID, 2 bytes. own_number: the query ID that the resolver gets.
    control: ancillary data that makes the address to which the pod has sent the query the answer's source."""

    __slots__ = ("answer", "control", "ends", "listener", "number", "own_number", "pod", "question", "upstream")

    def __init__(self, listener: socket.socket, data: bytes, pod: tuple[object, ...], upstream: socket.socket,
                 control: list[tuple[int, int, bytes]]) -> None:
        self.listener, self.pod, self.upstream, self.control = listener, pod, upstream, control
        self.number, self.own_number = data[:2], os.urandom(2)
        self.question = read_question(data)
        self.ends = monotonic() + QUERY_S
        self.answer = b""


class Forwarder:
    """The queries and connections of all pods. channel: the SOCK_SEQPACKET socket to the agent."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel, self.loop = channel, asyncio.get_running_loop()
        self.ended = self.loop.create_future()
        self.queries: dict[Query, None] = {}                    # sorted by `ends`
        self.of_pod: Counter[object] = Counter()                # {pod's address: number of its queries}
        self.connections: Counter[object] = Counter()           # {pod's address: number of its TCP connections}
        self.waiting: dict[int, Query | asyncio.Future[None]] = {}      # {number of an answer: its query}
        self.unsent: deque[tuple[int, str, str, dict[bytes, int]]] = deque()
        self.last_number, self.heard = 0, 0.0
        channel.setblocking(False)
        self.loop.add_reader(channel, self._hear)

    @property
    def silent(self) -> bool:
        """Whether the agent has sent nothing for SILENCE_S."""
        return monotonic() > self.heard + SILENCE_S

    # -- the agent -----------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Receive the agent's messages: answer each BEAT, and send the answers that the agent allows to the pods."""
        with suppress(BlockingIOError):
            while True:
                try:
                    data = self.channel.recv(MAX_BYTES)
                except ConnectionError:
                    data = b""
                if not data:
                    if not self.ended.done():
                        self.ended.set_result(None)
                    return
                self.heard = monotonic()
                if data == BEAT:
                    self.channel.send(BEAT)
                for number in () if data == BEAT else read_numbers(data):
                    found = self.waiting.pop(number, None)
                    if isinstance(found, Query):
                        self._deliver(found)
                    elif found and not found.done():
                        found.set_result(None)

    def _tell(self, waiting: Query | asyncio.Future[None], pod: str, name: str, addresses: dict[bytes, int]) -> None:
        """Send the addresses of an answer to the agent. One message has all answers of one turn of the event loop.
        waiting: the query whose answer waits for the agent; by TCP, a future that the agent's permission completes."""
        self.last_number += 1
        self.waiting[self.last_number] = waiting
        if not self.unsent:
            self.loop.call_soon(self._send)
        self.unsent.append((self.last_number, pod, name, addresses))

    def _send(self) -> None:
        each, self.unsent = self.unsent, deque()
        for numbers, data in write_answers(each):
            try:
                self.channel.send(data)
            except (BlockingIOError, ConnectionError):          # the agent is busy; the pods repeat their queries
                for number in numbers:
                    found = self.waiting.pop(number)
                    if isinstance(found, Query):
                        self._end(found)
                    else:
                        found.cancel()

    # -- UDP -----------------------------------------------------------------------------------------------------------

    def listen(self, listener: socket.socket, resolver: str) -> None:
        """Start to receive queries for `resolver` at a UDP socket."""
        listener.setblocking(False)
        if listener.family == socket.AF_INET:
            listener.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        else:
            listener.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)
        self.loop.add_reader(listener, self._take, listener, resolver)

    def _take(self, listener: socket.socket, resolver: str) -> None:
        with suppress(BlockingIOError):
            for _ in range(BURST):
                data, control, _, pod = listener.recvmsg(MAX_BYTES, PKTINFO_BYTES)
                if (len(data) < HEADER_BYTES or data[2] & IS_ANSWER or self.silent or len(self.queries) >= MAX_QUERIES
                        or self.of_pod[pod[0]] >= MAX_QUERIES_OF_POD):
                    continue
                with suppress(OSError):         # for example, no route to the resolver; the pod repeats its query
                    self._ask(listener, resolver, data, pod, control)

    def _ask(self, listener: socket.socket, resolver: str, data: bytes, pod: tuple[object, ...],
             control: list[tuple[int, int, bytes]]) -> None:
        upstream = socket.socket(listener.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            upstream.connect((resolver, DNS_PORT))
            query = Query(listener, data, pod, upstream, [answer_from(*each) for each in control])
            upstream.send(query.own_number + data[2:])
        except OSError:
            upstream.close()
            raise
        self.queries[query] = None
        self.of_pod[pod[0]] += 1
        self.loop.add_reader(upstream, self._answer, query)

    def _answer(self, query: Query) -> None:
        try:
            data = query.upstream.recv(MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:                         # no program listens at the resolver
            self._end(query)
            return
        if len(data) < HEADER_BYTES or data[:2] != query.own_number or not data[2] & IS_ANSWER:
            return
        self.loop.remove_reader(query.upstream)
        query.answer = query.number + data[2:]
        if query.question and (addresses := read_addresses(query.question, data)):
            self._tell(query, str(query.pod[0]), query.question.name, addresses)
        else:
            self._deliver(query)

    def _deliver(self, query: Query) -> None:
        if query in self.queries:
            with suppress(OSError):             # for example, the pod was deleted
                query.listener.sendmsg([query.answer], query.control, 0, query.pod)
            self._end(query)

    def _end(self, query: Query) -> None:
        if query in self.queries:
            del self.queries[query]
            self.of_pod[query.pod[0]] -= 1
            if not self.of_pod[query.pod[0]]:
                del self.of_pod[query.pod[0]]
            self.loop.remove_reader(query.upstream)
            query.upstream.close()

    async def sweep(self) -> None:
        """Forget queries that have had no answer for QUERY_S."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = monotonic()
            while self.queries and (first := next(iter(self.queries))).ends <= now:
                self._end(first)

    # -- TCP -----------------------------------------------------------------------------------------------------------

    async def serve(self, listener: socket.socket, resolver: str) -> None:
        """Start to accept TCP connections with queries for `resolver`."""
        await asyncio.start_server(lambda reader, writer: self._connected(resolver, reader, writer), sock=listener)

    async def _connected(self, resolver: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pod = writer.get_extra_info("peername")[0]
        self.connections[pod] += 1
        try:
            if self.connections[pod] <= MAX_CONNECTIONS_OF_POD and not self.silent:
                await self._pass_on(resolver, pod, reader, writer)
        except (OSError, EOFError, TimeoutError):
            return                              # the pod or the resolver has closed the connection, or is silent
        finally:
            writer.close()
            self.connections[pod] -= 1
            if not self.connections[pod]:
                del self.connections[pod]

    async def _pass_on(self, resolver: str, pod: str, reader: asyncio.StreamReader,
                       writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(QUERY_S):
            from_resolver, to_resolver = await asyncio.open_connection(resolver, DNS_PORT)
        asked: dict[bytes, tuple[bytes, Question | None]] = {}          # {query ID to the resolver: (pod's, question)}
        tasks = [asyncio.ensure_future(each) for each in (
            self._pass_queries(asked, reader, to_resolver), self._pass_answers(asked, pod, from_resolver, writer))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            to_resolver.close()

    async def _pass_queries(self, asked: dict[bytes, tuple[bytes, Question | None]], reader: asyncio.StreamReader,
                            writer: asyncio.StreamWriter) -> None:
        while True:
            data = await read_framed(reader)
            while (number := os.urandom(2)) in asked:
                pass
            if len(data) < HEADER_BYTES or data[2] & IS_ANSWER or len(asked) >= MAX_QUERIES_OF_POD:
                return
            asked[number] = data[:2], read_question(data)
            await write_framed(writer, number + data[2:])

    async def _pass_answers(self, asked: dict[bytes, tuple[bytes, Question | None]], pod: str,
                            reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            data = await read_framed(reader)
            if data[:2] not in asked:
                continue
            number, question = asked[data[:2]]
            if question:
                del asked[data[:2]]             # the resolver sends only one message for a question about addresses
            if question and (addresses := read_addresses(question, data)):
                told: asyncio.Future[None] = self.loop.create_future()
                self._tell(told, pod, question.name, addresses)
                async with asyncio.timeout(QUERY_S):
                    await told
            await write_framed(writer, number + data[2:])


async def read_framed(reader: asyncio.StreamReader) -> bytes:
    """Read one DNS message from a TCP connection: RFC 1035, section 4.2.2. Raises EOFError, OSError, TimeoutError."""
    async with asyncio.timeout(IDLE_S):
        return await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))


async def write_framed(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(len(data).to_bytes(2, "big") + data)
    async with asyncio.timeout(IDLE_S):
        await writer.drain()


def answer_from(level: int, kind: int, data: bytes) -> tuple[int, int, bytes]:
    """Return the control message that makes the datagram's destination address the source of the answer. level, kind,
    data: the control message received with the datagram.

    struct in_pktinfo      ipi_ifindex:int  ipi_spec_dst:in_addr  ipi_addr:in_addr
    struct in6_pktinfo     ipi6_addr:in6_addr  ipi6_ifindex:int
    """
    if (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
        return level, kind, struct.pack("=i4s4s", 0, data[8:12], bytes(4))
    return level, kind, data


def serve(channel: int, listeners: Sequence[tuple[int, int, str]]) -> None:
    """Forward queries until the agent closes the channel. listeners: (descriptor of a UDP socket, descriptor of a
    listening TCP socket, the resolver's address as text)."""
    for limit, wanted in ((resource.RLIMIT_NOFILE, 2 * MAX_QUERIES), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    dns.rdata.load_all_types()          # load now, because the user nobody may lack the right to read the modules
    drop_rights()
    asyncio.run(run(socket.socket(fileno=channel), listeners))


def drop_rights() -> None:
    """Change this process to the user nobody, if the kernel allows this, because the process needs no privileges."""
    with suppress(PermissionError):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


async def run(channel: socket.socket, listeners: Sequence[tuple[int, int, str]]) -> None:
    it = Forwarder(channel)
    for datagrams, connections, resolver in listeners:
        it.listen(socket.socket(fileno=datagrams), resolver)
        await it.serve(socket.socket(fileno=connections), resolver)
    sweeping = asyncio.ensure_future(it.sweep())
    await it.ended
    sweeping.cancel()
