"""Measure policies by DNS name: lost first packets, packets of other pods that pass, answers a second, added latency.

    FIRST_PACKETS=100000 .venv/bin/python -m pytest -s benchmarks/bench_names.py        # as root

Each client asks the resolver for a name, and sends a UDP packet to the address immediately after the answer. Another
pod, which got no answer, also sends a packet. Clients, resolver and receiver are separate processes. `direct` is the
measurement without the policy.

`make test` runs the benchmark with few packets, and asserts no time.
"""

import multiprocessing
import os
import socket
import statistics
import time

import pytest
from unit.agent.policy.names_world import RESOLVERS, host
from unit.agent.policy.test_names import named_pods, node, running, world  # noqa: F401 - fixtures

from fastcni.testing.namespaces import Inside
from fastcni.testing.witnesses import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
FIRST_PACKETS = int(os.environ.get("FIRST_PACKETS", "400"))
CLIENTS = 4                     # processes, in two pods
PODS = ("a", "d")
HOSTS = 1 << 16                 # addresses of the names; the agent allows a pod the last hundred addresses
FORK = multiprocessing.get_context("fork")
SUFFIX = b"\1b\4test\0"
ADDRESS_IN = b"\0\1\0\1"        # type A, class IN
ALLOWED_S = 20


def query(number):
    label = b"n%d" % number
    header = (number & 0xFFFF).to_bytes(2, "big") + b"\1\0\0\1" + bytes(6)
    return header + bytes((len(label),)) + label + SUFFIX + ADDRESS_IN


def resolve(sock):
    """Answer queries for n<number>.b.test with the address of host number, TTL 300."""
    while True:
        data, client = sock.recvfrom(512)
        number = int(data[14:13 + data[12]])
        sock.sendto(data[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + data[12:] + b"\xc0\x0c" + ADDRESS_IN + b"\0\0\1\x2c\0\4"
                    + socket.inet_aton(host(number % HOSTS)), client)


def receive(sock, told, others, stop):
    """Count the first packets that arrived, and the packets of the pod that got no answer."""
    seen = bytearray(FIRST_PACKETS)
    sock.settimeout(0.1)
    while not stop.is_set():
        try:
            data = sock.recv(64)
        except TimeoutError:
            continue
        if data == b"other":
            others.value += 1
        elif not seen[int(data)]:
            seen[int(data)] = 1
            told.value += 1


def ask(netns, other_netns, numbers, took):
    """Ask for each name, and send a packet immediately after the answer. Put the list of the answers' seconds into
    `took`."""
    with Inside(other_netns):
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    times = []
    with Inside(netns):
        sends = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for number in numbers:
            address = host(number % HOSTS), 80
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
                it.settimeout(5)
                it.connect((RESOLVERS[0], 53))
                began = time.perf_counter()
                it.send(query(number))
                it.recv(512)
                times.append(time.perf_counter() - began)
            sends.sendto(b"%d" % number, address)
            other.sendto(b"other", address)
    took.put(times)


def measure(it):
    """Return (first packets that arrived, packets of the other pod, answers a second, median latency in ms)."""
    told, others, stop, took = FORK.Value("l", 0), FORK.Value("l", 0), FORK.Event(), FORK.Queue()
    helpers = [FORK.Process(target=resolve, args=(it.udp[0],), daemon=True),
               FORK.Process(target=receive, args=(it.datagrams, told, others, stop), daemon=True)]
    clients = [FORK.Process(target=ask, daemon=True, args=(
        it.node.names[PODS[number % 2]], it.node.names["b"], range(number, FIRST_PACKETS, CLIENTS), took))
        for number in range(CLIENTS)]
    for each in helpers:
        each.start()
    began = time.perf_counter()
    for each in clients:
        each.start()
    times = [each for _ in clients for each in took.get(timeout=ALLOWED_S + FIRST_PACKETS / 500)]
    rate = FIRST_PACKETS / (time.perf_counter() - began)
    eventually(lambda: told.value == FIRST_PACKETS, 2)
    stop.set()
    for each in clients:
        each.join()
    helpers[1].join()
    helpers[0].terminate()
    helpers[0].join()
    return told.value, others.value, rate, statistics.median(times) * 1000


def test_first_packets_by_name_beside_direct_ones(named_pods, running):  # noqa: F811
    it = named_pods
    it.ended = True
    it.thread.join()                    # another process answers instead of this thread
    by_name = measure(it)
    running.write()
    assert eventually(lambda: running.it.parts[0].process is None)
    direct = measure(it)
    print(f"\n{FIRST_PACKETS} first packets, {CLIENTS} clients: lost, of other pods, answers/s, median latency in ms")
    for name, (told, others, rate, ms) in (("by name", by_name), ("direct, no policy", direct)):
        print(f"{name:32} {FIRST_PACKETS - told:9} {others:15} {rate:11,.0f} {ms:20.2f}")
    assert by_name[:2] == (FIRST_PACKETS, 0)
    assert direct[0] == FIRST_PACKETS
