"""Measure the cost of policies for a packet between two pods of ptp, and of a bridge with br_netfilter, with and
without the plugin policy.

    .venv/bin/python benchmarks/bench_policy.py --packets       # as root
    .venv/bin/python benchmarks/bench_policy.py --packets --before /path/to/another/python

Policies select both pods in both directions, and allow the measured traffic. One thread sends and receives, and the
kernel handles each packet within the sender's call. So the figures are this thread's processor time, which depends
little on other processes. Between the rounds, the benchmark removes and writes the tables, so the variants alternate
within seconds. With --before, one variant has the tables of another version of fastcni (policy_tables.py).
"""

import contextlib
import json
import os
import socket
import statistics
import struct
import subprocess
import threading
import time

import policy_tables

from fastcni.agent.policy.attached import AttachedCompiler, Attachment
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.ports import Port
from fastcni.agent.policy.ruleset import see_bridged_traffic
from fastcni.kernel import sysctl, wire
from fastcni.spec.address import read_ip

PODS = {"ptp": ("10.2.0.1", "10.2.0.2"), "bridge": ("10.1.0.1", "10.1.0.2")}
GATEWAYS = {"ptp": "10.2.0.254", "bridge": "10.1.0.254"}
CASES = ("one-way", "request-response", "connect-request-close")
PAYLOAD = b"x" * 18             # makes an Ethernet frame of 64 bytes with headers and checksum
RESET = struct.pack("ii", 1, 0)         # SO_LINGER: close() leaves no connection in TIME-WAIT
TIMES = {"one-way": 4000, "request-response": 1500, "connect-request-close": 200}  # {case: repetitions in one round}
POLICY = {"metadata": {"name": "allow"}, "spec": {
    "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
    "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 80}, {"port": 80, "protocol": "UDP"}]}],
    "egress": [{"to": [{"podSelector": {}}]}]}}


class Pods:
    """Pods in unnamed namespaces, which the kernel removes when the process ends."""

    def __init__(self):
        self.spaces = {address: new_netns() for pair in PODS.values() for address in pair}
        lines = ["link add br0 type bridge", "link set br0 up", f"addr add {GATEWAYS['bridge']}/24 dev br0"]
        for number, (address, space) in enumerate(self.spaces.items()):
            bridged, path = address in PODS["bridge"], f"/proc/{os.getpid()}/fd/{space}"
            lines += [f"link add {self.port(address)} {'master br0' if bridged else ''} type veth peer eth0 "
                      f"address 02:00:00:00:00:{number:02x} netns {path}", f"link set {self.port(address)} up"]
            if not bridged:
                lines += [f"addr add {GATEWAYS['ptp']}/32 dev {self.port(address)}",
                          f"route add {address} dev {self.port(address)}"]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
        for address, space in self.spaces.items():
            bridged = address in PODS["bridge"]
            commands = ["link set lo up", "link set eth0 up", f"addr add {address}/{24 if bridged else 32} dev eth0"]
            if not bridged:
                commands += [f"route add {GATEWAYS['ptp']} dev eth0", f"route add default via {GATEWAYS['ptp']}"]
            with inside(space):
                subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)
        sysctl.write("net/ipv4/ip_forward", "1")
        if not see_bridged_traffic():
            raise SystemExit("needs br_netfilter in the kernel")

    @staticmethod
    def port(address):
        return f"port-{address}"

    def attachments(self, kind):
        """Return the attachments of the pods of one kind of link, as on a node with one network."""
        for number, address in enumerate(self.spaces):
            if address not in PODS[kind]:
                continue
            port = Port(self.port(address), address in PODS["bridge"], bytes((2, 0, 0, 0, 0, number)))
            yield Attachment(("net", address, "eth0"), f"default/{address}", {}, (read_ip(address),), number, port)

    def socket(self, address, kind):
        with inside(self.spaces[address]):
            return socket.socket(socket.AF_INET, kind)


def new_netns():
    """Return a descriptor of a new network namespace."""
    found = []

    def make():
        os.unshare(os.CLONE_NEWNET) if hasattr(os, "unshare") else unshare()
        found.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return found[0]


def unshare():
    """Call unshare(2), as os.unshare() of Python 3.12 does."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):
        raise SystemExit("cannot make a network namespace: are you root?")


@contextlib.contextmanager
def inside(space):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    libc.setns(space, 0x40000000)
    try:
        yield
    finally:
        libc.setns(home, 0x40000000)
        os.close(home)


class Connections:
    """Connections between the two pods of a kind of link. The methods that measure return us."""

    def __init__(self, pods, kind):
        self.pods, (self.source, self.destination) = pods, PODS[kind]
        self.udp, self.echo, self.listener = (pods.socket(address, way) for address, way in (
            (self.source, socket.SOCK_DGRAM), (self.destination, socket.SOCK_DGRAM),
            (self.destination, socket.SOCK_STREAM)))
        for it in (self.echo, self.listener):
            it.bind((self.destination, 80))
        self.listener.listen(16)
        self.udp.connect((self.destination, 80))
        self.udp.settimeout(5)
        self.echo.settimeout(5)

    def warm(self):
        """Exchange a packet on each connection, so that conntrack has an entry for it."""
        self.udp.send(PAYLOAD)
        data, source = self.echo.recvfrom(64)
        self.echo.sendto(data, source)
        self.udp.recv(64)
        self.answer_to = source

    def measure(self, case):
        times = TIMES[case]
        run = {"one-way": self.one_way, "request-response": self.request, "connect-request-close": self.connect}[case]
        began = time.thread_time()
        run(times)
        took = (time.thread_time() - began) / times * 1e6
        self.echo.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.echo.recv(64)
        self.echo.settimeout(5)
        return took

    def one_way(self, times):
        send = self.udp.send
        for _ in range(times):
            send(PAYLOAD)

    def request(self, times):
        send, receive, answer, get, to = self.udp.send, self.echo.recv, self.echo.sendto, self.udp.recv, self.answer_to
        for _ in range(times):
            send(PAYLOAD)
            answer(receive(64), to)
            get(64)

    def connect(self, times):
        for _ in range(times):
            with self.pods.socket(self.source, socket.SOCK_STREAM) as client:
                client.connect((self.destination, 80))
                server, _ = self.listener.accept()
                with server:
                    client.send(PAYLOAD)
                    server.send(server.recv(64))
                    client.recv(64)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def load(pods, kind, *, offload=False):
    """Write the agent's tables for the pods of a kind of link. offload: see Engine."""
    engine = Engine(AttachedCompiler(link_of=wire.index_of), offload=offload)
    policy_tables.write(engine, pods.attachments(kind), POLICY)
    if engine.not_offloaded:
        raise SystemExit(f"this kernel has no flowtable: {engine.not_offloaded}")
    return engine.close


def remove():
    engine = Engine(AttachedCompiler())
    engine.rules.remove()
    engine.close()


def rounds_of(pods, variants, rounds):
    """Return {(kind of link, case, variant): [us]}. variants: {name: function that writes the tables for a kind of
    link}."""
    connections = {kind: Connections(pods, kind) for kind in PODS}
    found = {}
    for number in range(rounds):
        for name in sorted(variants, reverse=bool(number % 2)):
            for kind, each in connections.items():
                variants[name](kind)
                each.warm()
                for case in CASES:
                    found.setdefault((kind, case, name), []).append(each.measure(case))
    return found


def load_before(python, pods, kind):
    """Write the tables of the fastcni that is installed in this Python."""
    ports = [(each.pod.removeprefix("default/"), each.port.name, each.port.bridged, each.port.mac[-1])
             for each in pods.attachments(kind)]
    subprocess.run([python, f"{os.path.dirname(__file__)}/policy_tables.py", json.dumps(POLICY), json.dumps(ports)],
                   check=True)


def measure(table, rounds, before=""):
    """Measure all variants, and add the rows to the table. before: the Python of another version of fastcni, or ""."""
    pods = Pods()
    loaded = []

    def without(_=""):
        if loaded:
            loaded.pop()()
        remove()

    def with_plugin(kind):
        without()
        loaded.append(load(pods, kind))

    def with_before(kind):
        without()
        load_before(before, pods, kind)

    variants = {"without": without, "with the plugin": with_plugin, **({"before": with_before} if before else {})}
    found = rounds_of(pods, variants, rounds)
    without()
    for kind in PODS:
        for case in CASES:
            medians = {name: statistics.median(found[kind, case, name]) for name in variants}
            plain, policed = medians["without"], medians["with the plugin"]
            text = f"{plain:.2f} us, with the plugin policy {policed:.2f} us, {(policed / plain - 1) * 100:+.0f}%"
            if before:
                text += f"; of --before {medians['before']:.2f} us, now {(policed / medians['before'] - 1) * 100:+.1f}%"
            table.add(f"{kind}, {case}", text)
