"""Attacks that need connections or other programs. Each function takes an Arena and returns (number of attempts, texts
about packets that got through)."""

import contextlib
import functools
import itertools
import socket
import struct
import time

from policy_attacks import forged
from policy_attacks.arena import policy, role
from policy_attacks.node import HOST_PORT, METADATA, NODE, OUTSIDE
from policy_attacks.prober import Probe
from unit.agent.policy import flood, frames
from unit.agent.policy.frames import MARK, ipv4, udp

from fastcni.testing.namespaces import Inside
from fastcni.testing.witnesses import eventually

CHANGE_S = 3.0                  # until a change of a file is in force on a busy machine
WATCH_S = 0.5
TIGHT = (("bystander", "Ingress"), ("intruder", "Egress"))      # (the pod that the policy closes, the direction)


def probes(arena, source, to, address, receiver, port=80):
    """Return probes from a pod, or from the outside host, to an address. to: the protocols."""
    end = arena.endpoints.get(source) or arena.outside
    family = 6 if ":" in address else 4
    own = next(each for each in end.addresses if (":" in each) == (family == 6))
    return [Probe(end, own, address, protocol, 0 if protocol == "ICMP" else port, receiver) for protocol in to]


def sweep(arena, found):
    """Send the probes. Return texts that describe the probes that arrived."""
    arena.node.forget_flows()
    arena.prober.forget()
    return [str(each) for each in arena.prober.sweep(found, set())[0]]


def victims(arena):
    """Return probes that policies deny: from pods and from outside to the victims, and from jailed pods to outside
    hosts."""
    found = []
    for network in arena.networks:
        victim = arena.endpoints[f"victim@{network}"]
        for address in victim.addresses:
            for source in (f"intruder@{network}", "outside", "intruder@ptp" if network != "ptp" else "intruder@bridge"):
                found += probes(arena, source, ("TCP", "UDP", "SCTP", "ICMP"), address, victim)
            found += probes(arena, f"peer@{network}", ("TCP", "UDP", "SCTP"), address, victim, 81)
        for address in OUTSIDE[:2]:
            found += probes(arena, f"jailed@{network}", ("TCP", "UDP", "SCTP", "ICMP"), address, arena.outside)
    return found


def stolen_mac(arena):
    """Send a frame with the peer's source MAC. The bridge must not move the MAC to the attacker's port: the node's
    datagrams to the peer must still reach the peer."""
    texts, tried = [], 0
    for network in (each for each in arena.networks if each.startswith("bridge")):
        thief, peer = (arena.pods[f"{name}@{network}"] for name in ("intruder", "peer"))
        for kind, frame in (("IPv4", ipv4(peer.mac, thief.ip4, NODE[0], udp(), thief.gateway)),
                            ("an unknown ethertype", frames.ethernet(peer.mac, frames.BROADCAST, 0x88B5)),
                            ("ARP", frames.arp(peer.mac, peer.mac, peer.ip4, NODE[0]))):
            tried += 1
            with arena.listener(thief) as listener:
                frames.send(thief.netns, frame)
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
                    it.sendto(MARK, (peer.ip4, 9))
                if caught(listener, MARK):
                    texts.append(f"{network}: after a frame of {kind} with the peer's MAC the thief gets its traffic")
            arena.announce(peer)
    return tried, texts


def caught(listener, data):
    """Return whether the listener receives a packet with these bytes within WATCH_S."""
    until = time.monotonic() + WATCH_S
    while (left := until - time.monotonic()) > 0:
        listener.settimeout(left)
        with contextlib.suppress(TimeoutError):
            packet, source = listener.recvfrom(4096)
            if source[2] != frames.PACKET_OUTGOING and data in packet:
                return True
    return False


def icmp_errors(arena):
    """The victim sends a datagram to an outside host. The intruder sends ICMP errors about this flow from the
    intruder's own address."""
    texts, tried = [], 0
    for network in arena.networks:
        intruder, victim = (arena.pods[f"{name}@{network}"] for name in ("intruder", "victim"))
        with Inside(victim.netns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
            it.bind((victim.ip4, 0))
            it.sendto(b"x", (OUTSIDE[0], 53))
            port = it.getsockname()[1]
        quoted = ipv4(victim.mac, victim.ip4, OUTSIDE[0], udp(b"x", port, 53))[14:]
        sequences = {}
        for title, kind, code in (("unreachable host", 3, 1), ("unreachable port", 3, 3), ("too big", 3, 4),
                                  ("time exceeded", 11, 0), ("redirect", 5, 1), ("parameter problem", 12, 0)):
            body = struct.pack("!BBHI", kind, code, 0, 1280 if title == "too big" else 0) + quoted
            body = body[:2] + frames.checksum(body) + body[4:]
            sequences[title] = [ipv4(intruder.mac, intruder.ip4, victim.ip4, (frames.ICMP, body), intruder.via(victim))]
        (got,) = arena.got_through([(sequences, intruder, victim)])
        tried += len(sequences)
        if got:
            texts.append(f"{network}: {', '.join(sorted(got))}")
    return tried, texts


def host_port(arena):
    """Connect to the victim's host port. The victim's policy must see the address of the connecting host, although the
    node translates addresses."""
    texts, tried = [], 0
    for network in (each for each in arena.networks if each.endswith("full")):
        name = f"published@{network}"
        arena.add("published", network, host_port=HOST_PORT)
        try:
            end = arena.endpoints[name]
            arena.node.put(policy("published", {**role("published"), "policyTypes": ["Ingress"], "ingress": [
                {"from": [role("peer")]}]}))
            arena.node.publish()
            allowed = probes(arena, f"peer@{network}", ("TCP", "UDP"), NODE[0], end, HOST_PORT)
            denied = [each for source in (f"intruder@{network}", "outside")
                      for each in probes(arena, source, ("TCP", "UDP"), NODE[0], end, HOST_PORT)]
            if not eventually(lambda found=denied: not sweep(arena, found), CHANGE_S):
                texts += [f"{network}: {each}" for each in sweep(arena, denied)]
            arrived, _ = arena.prober.sweep(allowed, set(allowed))
            texts += [f"{network}: {each} is allowed and did not arrive" for each in allowed if each not in arrived]
            tried += len(denied)
        finally:
            arena.node.drop("NetworkPolicy", "default", "published")
            remove(arena, "published", network)
    return tried, texts


def remove(arena, name, network):
    arena.prober.remove(arena.endpoints.pop(f"{name}@{network}"))
    arena.pods.pop(f"{name}@{network}", None)
    arena.node.delete_pod(f"default/{name}-{network}")


def metadata(arena):
    """Send to the metadata address. Only pods whose policies allow the address may reach the host there."""
    denied, allowed = [], []
    for network in arena.networks:
        denied += probes(arena, f"jailed@{network}", ("TCP", "UDP", "ICMP"), METADATA, arena.outside)
        allowed += probes(arena, f"intruder@{network}", ("TCP", "UDP", "ICMP"), METADATA, arena.outside)
    texts = sweep(arena, denied)
    arrived, _ = arena.prober.sweep(allowed, set(allowed))
    return len(denied), [*texts, *(f"{each} is allowed and did not arrive" for each in allowed if each not in arrived)]


def tightened(arena):
    """Start a flow that never pauses between two pods. Then a policy for one of the pods closes one direction, which
    must end the flow."""
    texts, tried = [], 0
    for network, version, (closed, direction) in itertools.product(arena.networks, ("ip4", "ip6"), TIGHT):
        client, server = (arena.pods[f"{name}@{network}"] for name in ("intruder", "bystander"))
        what = f"{network}, {getattr(server, version)}, {direction} of {closed}"
        tried += 1
        with echoes(client, server, version) as sock:
            if not answers(sock, CHANGE_S):
                texts.append(f"{what}: the flow does not come about")
                continue
            arena.node.put(policy("tight", {**role(closed), "policyTypes": [direction]}))
            arena.node.publish()
            until = time.monotonic() + CHANGE_S
            while (going := answers(sock, WATCH_S)) and time.monotonic() < until:
                pass
            if going:
                texts.append(f"{what}: the flow goes on {CHANGE_S} s after the policy")
        arena.node.drop("NetworkPolicy", "default", "tight")
        arena.node.publish()
        if not eventually(functools.partial(passes, arena, client, server), CHANGE_S):
            texts.append(f"{what}: it does not open again")
    return tried, texts


def passes(arena, client, server):
    found = forged.plain(client, server, client)
    return arena.got_through([(found, client, server)]) == [set(found)]


@contextlib.contextmanager
def echoes(client, server, address_of):
    """Start a flow that never pauses: the client's process sends, the server's process answers. Return a socket of the
    client that receives the answers."""
    address, family = getattr(server, address_of), socket.AF_INET6 if address_of == "ip6" else socket.AF_INET
    with Inside(server.netns):
        listening = socket.socket(family, socket.SOCK_DGRAM)
        listening.bind((address, 5300))
    with Inside(client.netns):
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.bind((getattr(client, address_of), 5301))

    def answer():
        while True:
            data, source = listening.recvfrom(64)
            with contextlib.suppress(OSError):
                listening.sendto(data, source)

    def ask():
        while True:
            with contextlib.suppress(OSError):
                sock.sendto(b"again", (address, 5300))
            time.sleep(0.001)

    try:
        with flood.running(server.netns, answer), flood.running(client.netns, ask):
            yield sock
    finally:
        listening.close()
        sock.close()


def answers(sock, seconds):
    """Return whether a new datagram arrives within `seconds`. Datagrams that already wait in the socket do not
    count."""
    sock.setblocking(False)
    flood.received(sock)
    sock.settimeout(seconds)
    try:
        return bool(sock.recv(64))
    except TimeoutError:
        return False
