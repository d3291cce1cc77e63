"""Attacks that need another program's change or the end of the agent. The functions return the same values as those of
scenarios.py."""

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
    """Start new flows, each from a new port, while another program flushes all tables. Since Linux 6.9 the kernel keeps
    the agent's table."""
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
    """Without an agent, ADD fails with code 11, and the policies of existing pods stay in force."""
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
    """Send the DEL that a runtime sends after a failed ADD."""
    chain = arena.node.chain(network)
    netns = arena.node.netns[pod.key]
    for conf in reversed(chain):
        arena.node.runtime.ok("DEL", conf, netns, cid=f"c-{pod.namespace}-{pod.name}", plugin=conf["type"])
    arena.node.spare.append(arena.node.netns.pop(pod.key))


def killed(arena):
    """Kill the agent. The policies of all pods stay in force while no agent runs, while the next agent starts, and
    afterwards, also for a pod that was added just before the kill."""
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
    """Add a pod's name again with other labels. Policies select by the labels of the newest ADD, with or without a DEL
    of the earlier ADD."""
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
