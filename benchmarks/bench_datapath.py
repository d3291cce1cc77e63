"""Measure the cost of a packet between two pods by the datapath ebpf, the host's stack, and other kinds of links.

    .venv/bin/python benchmarks/bench_datapath.py               # as root; some two minutes
    .venv/bin/python benchmarks/bench_datapath.py --part add    # the time that the datapath adds to ADD and DEL of ptp
    .venv/bin/python benchmarks/bench_datapath.py --part policy # how soon a policy ends redirected connections
    .venv/bin/python benchmarks/bench_datapath.py --part flowtable      # pods of ptp with policies, with --flowtable

One thread sends and receives on one CPU. The kernel handles each packet within the sender's call, so the thread's CPU
time is the cost. The variants take turns, and each figure is a median. The node tracks connections, as every node with
ipMasq or services does. The policies select other pods, so they do not restrict the measured flows.

`make test` runs the benchmark once, with small numbers, and asserts no time.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import policy_packets
import pytest
from bench_cluster_ipam import Table
from policy_packets import Connections, Pods, inside, new_netns

from fastcni.agent.policy.attached import AttachedCompiler
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.objects import read_policy
from fastcni.handle import handle
from fastcni.kernel import sysctl, wire
from fastcni.kernel.bpf import objects
from fastcni.kernel.bpf.redirect_programs import PROGRAMS
from fastcni.kit.datapath import filters, pins
from fastcni.kit.datapath.maps import mapped, pod_value
from fastcni.kit.datapath.redirect import flows
from fastcni.kit.links import find
from fastcni.runtime.mode import SharedMode
from fastcni.spec.address import read_ip

BARE, MACVLAN = ("10.3.0.1", "10.3.0.2"), ("10.4.0.1", "10.4.0.2")
BRIDGED = "net/bridge/bridge-nf-call-iptables"
STREAM_BYTES, CHUNK_BYTES = 4 << 20, 64 << 10
TRACKED = "table ip nat { chain post { type nat hook postrouting priority 100; oifname none masquerade; }; }"
CASES = (*policy_packets.CASES, "TCP stream, 1 MB")
# {variant: (kind of link, method of Redirect that attaches programs, whether with br_netfilter)}
VARIANTS = {"bare veth": ("bare", None, False), "ptp, least redirect": ("ptp", "least", False),
            "ptp with ebpf": ("ptp", "on", False), "ptp": ("ptp", None, False), "bridge": ("bridge", None, False),
            "bridge, br_netfilter": ("bridge", None, True), "macvlan": ("macvlan", None, False)}
POLICED = ("ptp with ebpf", "ptp", "bridge, br_netfilter")


class Measured(Connections):
    """Connections, measured in CPU time of this thread. Adds the measurement stream()."""

    def measure(self, case):
        if case != CASES[-1]:
            return super().measure(case)
        began = time.thread_time()
        self.stream()
        return (time.thread_time() - began) / STREAM_BYTES * 1e6 * (1 << 20)

    def stream(self):
        """Send STREAM_BYTES over one connection, and receive each chunk before the next chunk is sent."""
        with self.pods.socket(self.source, socket.SOCK_STREAM) as client:
            client.connect((self.destination, 80))
            server, _ = self.listener.accept()
            with server:
                for _ in range(STREAM_BYTES // CHUNK_BYTES):
                    client.sendall(bytes(CHUNK_BYTES))
                    left = CHUNK_BYTES
                    while left:
                        left -= len(server.recv(left))


def bare_pods(pods, kind, addresses, *links):
    """Add two pods that packets reach without the host's stack. links: arguments of `ip link add`; {0} and {1} stand
    for the pods' namespaces."""
    policy_packets.PODS[kind] = addresses
    spaces = [new_netns(), new_netns()]
    for line in links:
        words = line.format(*(f"/proc/{os.getpid()}/fd/{space}" for space in spaces)).split()
        subprocess.run(["ip", "link", "add", *words], check=True)
    for address, space in zip(addresses, spaces, strict=True):
        pods.spaces[address] = space
        with inside(space):
            lines = "link set lo up\nlink set eth0 up\n" + f"addr add {address}/24 dev eth0"
            subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)


def instruction(code, registers=0, offset=0, value=0):
    """Return one instruction of a BPF program (linux/bpf.h): an opcode, the registers as source << 4 | destination."""
    return struct.pack("=BBhi", code, registers, offset, value)


def program(*instructions):
    """Load a program for cls_bpf that ends with `instructions`, or passes a packet that is not IPv4. Return its
    descriptor."""
    pass_on = instruction(0xB7, 0, value=-1) + instruction(0x95)                    # r0 = TC_ACT_UNSPEC; exit
    ethertype = instruction(0x61, 0x12, offset=16)                                  # r2 = skb->protocol
    skip = instruction(0x55, 2, len(instructions), int.from_bytes(b"\x08\0", sys.byteorder))      # if r2 != IPv4 goto
    return objects.load(ethertype + skip + b"".join(instructions) + pass_on, (), {})


class Redirect:
    """BPF programs at the host ends of ptp's pods. on() attaches the ebpf datapath without the plugin, least() attaches
    programs that do no more than redirect each packet to the other pod: the least that a redirect by cls_bpf can take.
    off() detaches them."""

    def __init__(self, pods):
        self.pods, self.sock = pods, wire.open_socket()

    def least(self):
        first, second = (find.link(self.sock, self.pods.port(address)) for address in policy_packets.PODS["ptp"])
        for host, other in ((first, second), (second, first)):
            programs = {"to_pod": program(), "from_pod": program(
                instruction(0xB7, 1, value=other.index), instruction(0xB7, 2),      # r1 = the other link; r2 = 0
                instruction(0x85, value=155), instruction(0x95))}                   # bpf_redirect_peer(r1, r2); exit
            filters.add(self.sock, host, programs)
            objects.close(*programs.values())

    def on(self):
        with pins.open_or_load(self.sock, print) as opened:
            for number, address in enumerate(self.pods.spaces):
                if address in policy_packets.PODS["ptp"]:
                    host = find.link(self.sock, self.pods.port(address))
                    objects.update(opened.pods, mapped(read_ip(address)), pod_value(
                        host.index, 0, host.mtu, bytes((2, 0, 0, 0, 0, number)), host.address))
                    filters.add(self.sock, host, opened.programs)

    def off(self):
        for address in policy_packets.PODS["ptp"]:
            filters.leave(self.sock, find.link(self.sock, self.pods.port(address)).index)


def policies(pods, count):
    """Write the agent's table with policies that select other pods. Return a function that removes the table."""
    engine = Engine(AttachedCompiler(link_of=wire.index_of))
    engine.compiler.put_namespace("default", {})
    for kind in ("ptp", "bridge"):
        for each in pods.attachments(kind):
            engine.compiler.attach(each)
    for number in range(count):
        engine.compiler.put_policy(read_policy({"metadata": {"name": f"other-{number}"}, "spec": {
            "podSelector": {"matchLabels": {"app": f"other-{number}"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 80}]}]}}))
    engine.load()

    def remove():
        engine.rules.remove()
        engine.close()

    return remove


def rounds_of(connections, redirect, variants, rounds):
    """Measure all cases of all variants. Return {(variant, case): median CPU time in us}."""
    found = {}
    for number in range(rounds):
        for name in sorted(variants, reverse=bool(number % 2)):
            kind, attach, bridged = VARIANTS[name]
            sysctl.write(BRIDGED, str(int(bridged)))
            if attach:
                getattr(redirect, attach)()
            for case in CASES:
                connections[kind].warm()
                connections[kind].warm()
                found.setdefault((name, case), []).append(connections[kind].measure(case))
            if attach:
                redirect.off()
    return {key: statistics.median(values) for key, values in found.items()}


def measure(table, rounds, counts):
    """Add a row for each case and variant: the CPU time in us, and its ratio to a bare veth pair's."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pods = Pods()
    subprocess.run(["nft", TRACKED], check=True)
    bare_pods(pods, "bare", BARE, "eth0 netns {0} type veth peer eth0 netns {1}")
    variants = dict(VARIANTS)
    try:
        subprocess.run(["ip", "link", "add", "parent0", "type", "veth", "peer", "parent1"], check=True)
        for name in ("parent0", "parent1"):
            subprocess.run(["ip", "link", "set", name, "up"], check=True)
        bare_pods(pods, "macvlan", MACVLAN, *(f"link parent0 name eth0 netns {{{number}}} type macvlan mode bridge"
                                              for number in (0, 1)))
    except subprocess.CalledProcessError:
        print("macvlan: not measured, this kernel has no CONFIG_MACVLAN")
        del variants["macvlan"]
    connections = {kind: Measured(pods, kind) for kind in {kind for kind, *_ in variants.values()}}
    redirect = Redirect(pods)
    for count in counts:
        remove = policies(pods, count) if count else None
        found = rounds_of(connections, redirect, [name for name in variants if not count or name in POLICED
                                                  or name == "bare veth"], rounds)
        if remove:
            remove()
        for case in CASES:
            for name in variants:
                if (name, case) in found:
                    us, bare = found[name, case], found["bare veth", case]
                    table.add(f"{count} policies, {case}, {name}", f"{us:.2f} us, {us / bare:.2f}x")


def added(table, rounds, directory):
    """Add rows: ms of ADD and DEL of ptp with and without the datapath, in turn, warm in one process. Another pod with
    the datapath exists all the time. Without this pod the kernel would enable and disable the tc hooks in each round,
    for 0.1 ms."""
    pods, mode, found = [new_netns() for _ in range(2)], SharedMode(), {}

    def call(command, pod, ebpf):
        conf = {"cniVersion": "1.0.0", "name": f"net-{ebpf}", "type": "ptp", "datapath": ebpf,
                "ipam": {"type": "host-local", "dataDir": directory, "subnet": "10.9.0.0/16"}}
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": f"pod{pod}", "CNI_NETNS": f"/proc/self/fd/{pod}",
               "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere"}
        data, began = json.dumps(conf).encode(), time.perf_counter()
        reply = handle("ptp", env, data, mode)
        found.setdefault((command, ebpf), []).append((time.perf_counter() - began) * 1e3)
        if reply.status or reply.stderr:
            raise SystemExit(f"{command}: {reply.stdout!r} {reply.stderr!r}")

    call("ADD", pods[1], "ebpf")
    for number in range(rounds):
        for ebpf in sorted(("", "ebpf"), reverse=bool(number % 2)):
            for command in ("ADD", "DEL"):
                call(command, pods[0], ebpf)
    call("DEL", pods[1], "ebpf")
    mode.close()
    for command in ("ADD", "DEL"):
        without, with_it = (statistics.median(found[command, ebpf]) for ebpf in ("", "ebpf"))
        table.add(f"{command} of ptp, with ebpf", f"{with_it:.3f} ms, {with_it - without:+.3f} ms")


def by_flowtable(table, rounds):
    """Add a row for each case: the CPU time in us between two pods of ptp with policies, in turn with and without the
    agent's flowtable, and over a bare veth pair, which is the least that a flowtable could take."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pods, found = Pods(), {}
    bare_pods(pods, "bare", BARE, "eth0 netns {0} type veth peer eth0 netns {1}")
    connections = {kind: Measured(pods, kind) for kind in ("ptp", "bare")}

    def add(name, kind):
        for case in CASES:
            connections[kind].warm()
            connections[kind].warm()
            found.setdefault((name, case), []).append(connections[kind].measure(case))

    for number in range(rounds):
        add("bare", "bare")
        for offload in sorted((False, True), reverse=bool(number % 2)):
            close = policy_packets.load(pods, "ptp", offload=offload)
            add(offload, "ptp")
            close()
    policy_packets.remove()
    for case in CASES:
        without, with_it, bare = (statistics.median(found[name, case]) for name in (False, True, "bare"))
        table.add(f"ptp under policies, {case}", f"{without:.2f} us, by the flowtable {with_it:.2f} us, "
                  f"{with_it / without:.2f}x; a bare veth pair {bare:.2f} us, {bare / without:.2f}x")


def send_all(connections, last):
    """Send bytes over open connections in turn, for ever. last: a shared value for the time at which the last byte
    arrived."""
    while True:
        for client, server in connections:
            with contextlib.suppress(BlockingIOError):
                client.send(b"x")
                server.recv(100)
                last.value = time.perf_counter()


def ended(table, rounds, count=100):
    """Add rows: ms from a policy that forbids connections until their last byte arrives, in turn with and without the
    datapath."""
    pods, found = Pods(), {}
    pair, redirect = policy_packets.PODS["ptp"], Redirect(pods)
    listener = pods.socket(pair[1], socket.SOCK_STREAM)
    listener.bind((pair[1], 80))
    listener.listen(count)
    engine = Engine(AttachedCompiler(link_of=wire.index_of))
    engine.compiler.put_namespace("default", {})
    for each in pods.attachments("ptp"):
        engine.compiler.attach(replace(each, labels={"app": "closed"}))
    engine.load()
    for number in range(2 * rounds):
        if ebpf := bool(number % 2):
            redirect.on()
        connections = []
        for _ in range(count):
            client = pods.socket(pair[0], socket.SOCK_STREAM)
            client.connect((pair[1], 80))
            connections.append((client, listener.accept()[0]))
            for each in connections[-1]:
                each.setblocking(False)
        found.setdefault(ebpf, []).append(ended_ms(engine, connections, redirect if ebpf else None))
        for each in (each for pair in connections for each in pair):
            each.close()
        if ebpf:
            redirect.off()
    engine.rules.remove()
    engine.close()
    for ebpf, what in ((True, "redirected"), (False, "other")):
        table.add(f"{count} {what} connections end after a policy", f"{statistics.median(found[ebpf]):.0f} ms, "
                  f"{max(found[ebpf]):.0f} at most", "100 ms" if ebpf else "",
                  statistics.median(found[True]) <= 100 if ebpf else None)


def ended_ms(engine, connections, redirect):
    """Send bytes over all connections, add a policy that forbids the connections, and remove the policy. Return the ms
    from the policy to the last byte that arrived."""
    last = multiprocessing.Value("d")
    traffic = multiprocessing.get_context("fork").Process(target=send_all, args=(connections, last), daemon=True)
    traffic.start()                 # a process, because a thread would share the GIL with the engine
    time.sleep(0.2)
    if redirect:
        with pins.open_maps(redirect.sock) as opened:
            known = sum(flow.ports[1] == 80 and flow.packets[0] > 0 for flow in flows(opened))
        if known < len(connections):
            raise SystemExit(f"{known} of {len(connections)} connections are redirected")
    began = time.perf_counter()
    engine.compiler.put_policy(read_policy({"metadata": {"name": "closed"}, "spec": {
        "podSelector": {"matchLabels": {"app": "closed"}}, "policyTypes": ["Ingress"], "ingress": []}}))
    engine.commit()
    engine.begin_cut()
    engine.end_cut()
    time.sleep(0.5)
    traffic.kill()
    traffic.join()
    engine.compiler.delete_policy("default/closed")
    engine.commit()
    return (last.value - began) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("packets", "add", "policy", "flowtable"), default="packets")
    parser.add_argument("--rounds", type=int, default=0, help="rounds; default: 15, for the part add 150")
    parser.add_argument("--policies", type=int, action="append", metavar="N", help="policies; default: 0, 1 and 500")
    parser.add_argument("--inside", action="store_true", help="use the namespaces of this process")
    options = parser.parse_args()
    if not PROGRAMS:
        raise SystemExit("fastcni was built without clang: there is no datapath")
    if not options.inside:              # run again in separate namespaces, which end with the process
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv, "--inside"])
    subprocess.run(["mount", "-t", "bpf", "bpf", pins.ROOT], check=True)
    table = Table()
    if options.part == "add":
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            added(table, options.rounds or 150, directory)
    elif options.part == "flowtable":
        by_flowtable(table, options.rounds or 15)
    elif options.part == "policy":
        ended(table, options.rounds or 15)
    else:
        measure(table, options.rounds or 15, options.policies or (0, 1, 500))
    print(table)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
@pytest.mark.skipif(not PROGRAMS, reason="fastcni was built without clang: there is no datapath")
@pytest.mark.parametrize(("options", "row"), [(("--policies", "0", "--policies", "1"), "ptp with ebpf"),
                                              (("--part", "add"), "DEL of ptp, with ebpf"),
                                              (("--part", "policy"), "redirected connections end")],
                         ids=["packets", "add", "policy"])
def test_the_benchmark_runs(options, row):
    command = [sys.executable, __file__, "--rounds", "1", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert row in done.stdout, done.stdout + done.stderr


if __name__ == "__main__":
    main()
