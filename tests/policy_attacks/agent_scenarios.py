"""Attacks in which another program or the agent's end plays a part: functions as in scenarios.py."""

import signal
import socket
import subprocess
import time

from policy_attacks.oracle import Pod
from policy_attacks.scenarios import probes, remove, sweep, victims
from unit.agent.policy import flood

from fastcni.testing.namespaces import Inside

FLUSHES = 20


def flushed(arena):
    """New flows, each from another port, while all tables are flushed. The kernel keeps the agent's since Linux 6.9."""
    if not arena.node.owns_table():
        print("  flush: not tried, because this kernel lets other programs flush the agent's table (before Linux 6.9)")
        return 0, []
    texts, tried = [], 0
    for network in arena.networks:
        intruder, victim = (arena.pods[f"{name}@{network}"] for name in ("intruder", "victim"))
        for address in (victim.ip4, victim.ip6):
            with Inside(victim.netns):
                listener = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            with listener:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listener.bind(("::", 80))
                listener.setblocking(False)
                with flood.new_flows(intruder.netns, address, 80):
                    for _ in range(FLUSHES):
                        subprocess.run(["nft", "flush", "ruleset"], capture_output=True, check=True)
                        time.sleep(0.005)
                tried += FLUSHES
                if count := flood.received(listener):
                    texts.append(f"{network}: {count} datagrams to {address} in {FLUSHES} flushes")
    return tried, texts


def added_without_agent(arena):
    """ADD fails with code 11, and the pods that exist stay closed."""
    texts, network = [], arena.networks[0]
    arena.node.end_agent()
    try:
        texts += sweep(arena, victims(arena))
        pod = Pod("default", "late", {"role": "victim"})
        try:
            arena.node.add_pod(pod, network, documented=False)
        except AssertionError as e:
            if '"code": 11' not in str(e) and '"code":11' not in str(e):
                texts.append(f"ADD without an agent fails otherwise than with code 11: {e}")
            forget_half(arena, pod, network)
        else:
            texts.append("ADD without an agent succeeds")
            arena.node.delete_pod(pod.key)
    finally:
        arena.node.start_agent()
    return len(victims(arena)) + 1, texts


def forget_half(arena, pod, network):
    """Send the DEL of a failed ADD, as the runtime does."""
    chain = arena.node.chain(network)
    netns = arena.node.netns[pod.key]
    for conf in reversed(chain):
        arena.node.runtime.ok("DEL", conf, netns, cid=f"c-{pod.namespace}-{pod.name}", plugin=conf["type"])
    arena.node.spare.append(arena.node.netns.pop(pod.key))


def killed(arena):
    """Pods stay closed while no agent runs, while the next agent starts, and afterwards; also a pod that was added just
    before."""
    texts, tried, found = [], 0, victims(arena)
    for network in arena.networks[:2]:
        arena.add("victim2", network)
        arena.node.end_agent(signal.SIGKILL)
        end = arena.endpoints[f"victim2@{network}"]
        try:
            texts += sweep(arena, found)
            arena.node.start_agent()
            texts += sweep(arena, found)
        finally:
            if not arena.node.agent:
                arena.node.start_agent()
            remove(arena, "victim2", network)
        tried += 2 * len(found) + len(end.addresses)
    return tried, texts


def added_again(arena):
    """The newest ADD of a name counts: its labels select the pod, with or without the DEL of the earlier ADD."""
    texts, tried = [], 0
    for network in arena.networks[:2]:
        before, after = (Pod("default", f"twice-{network}", {"role": each}) for each in ("peer", "victim"))
        arena.node.add_pod(before, network, documented=False)
        kept = arena.node.pods.pop(before.key), arena.node.results.pop(before.key), arena.node.netns.pop(before.key)
        second = arena.node.add_pod(after, network, documented=False, container="c-newer")
        arena.prober.add(second)
        try:
            found = [each for address in second.addresses
                     for each in probes(arena, f"intruder@{network}", ("TCP", "UDP"), address, second)]
            tried += len(found)
            texts += [f"{network}, both there: {each}" for each in sweep(arena, found)]
        finally:
            arena.prober.remove(second)
            arena.node.delete_pod(after.key)
            arena.node.pods[before.key], arena.node.results[before.key], arena.node.netns[before.key] = kept
            arena.node.delete_pod(before.key)
    return tried, texts
