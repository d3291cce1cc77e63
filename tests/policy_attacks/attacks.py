"""Attacks by root in a pod. The policies must stop each attack. docs/reliability-tests.md lists the attacks.

Attacks by frames run from `intruder` to `victim`, and from `jailed` to `bystander` and to an outside host, on each
network. scenarios.py and agent_scenarios.py have the attacks that need connections, other programs or the agent's end.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from policy_attacks import agent_scenarios, forged, scenarios
from policy_attacks.arena import Arena
from policy_attacks.node import NETWORKS

from fastcni.testing.namespaces import Inside

PAIRS = (("intruder", "victim"), ("jailed", "bystander"), ("jailed", "outside"))
ROUNDS = 3  # rounds, if the time suffices: neighbour entries and flows of earlier rounds may help an attack


@dataclass(frozen=True)
class Attack:
    """An attack by frames (see forged.py) or by a scenario (see scenarios.py)."""

    name: str
    what: str
    frames: Callable | None = None
    scenario: Callable | None = None


ATTACKS = (
    Attack("plain", "a datagram without any forgery", forged.plain),
    Attack("broadcast", "broadcast and multicast, IPv4 and IPv6, also to the victim's MAC and from 0.0.0.0",
           forged.broadcast),
    Attack("forged source",
           "the address of the allowed peer, of the victim, of the node, of no host, of an outside host",
           forged.forged_sources),
    Attack("forged MAC", "another pod's MAC as the source of a frame", forged.forged_macs),
    Attack("misdirected frame", "packets to an allowed address in frames to another MAC: a pod's, broadcast, unknown",
           forged.misdirected),
    Attack("stolen MAC", "a frame with another pod's MAC draws that pod's traffic", scenario=scenarios.stolen_mac),
    Attack("reversed flow", "a forged packet from the victim makes a connection whose answers arrive, UDP and TCP",
           forged.reversed_flow),
    Attack("behind ARP", "bytes behind an ARP request, more than the padding of a frame", forged.behind_arp),
    Attack("DHCP", "datagrams from the ports of DHCP's client and server, by broadcast", forged.dhcp),
    Attack("multicast reports", "data in reports and queries of multicast groups", forged.reports),
    Attack("poisoning", "ARP and neighbour advertisements for the peer and the gateway", forged.poisoning),
    Attack("poisoning in tags",
           "the frames of `poisoning` in VLAN 0, and duplicate address detection for others' addresses",
           forged.poisoning_in_tags),
    Attack("source routes", "source routes of IPv4 and routing headers of IPv6, by the peer and the gateway",
           forged.source_routes),
    Attack("stacked tags", "one to four VLAN tags with VLAN 0, 802.1Q and 802.1ad", forged.stacked_tags),
    Attack("ethertypes", "RARP, MPLS, PPPoE, MACsec, LLDP, 802.3 and unknown types", forged.ethertypes),
    Attack("router advertisements",
           "router advertisements and redirects, also behind extension headers and in a fragment", forged.routers),
    Attack("behind neighbour discovery", "data behind solicitations and advertisements, and in their options",
           forged.behind_neighbour_discovery),
    Attack("ICMP errors", "ICMP errors about the victim's connections, from another pod",
           scenario=scenarios.icmp_errors),
    Attack("fragments", "two of a datagram, of 8 bytes, overlapping, or one alone, IPv4 and IPv6", forged.fragments),
    Attack("IP options", "record route, timestamp, router alert", forged.options),
    Attack("extension headers", "hop-by-hop, destination options, routing, fragment, and chains of them",
           forged.extension_headers),
    Attack("tunnels", "GRE, IPIP, IPv6 in IPv4, ESP, AH, EtherIP, L2TP, an unknown protocol", forged.tunnels),
    Attack("odd TCP flags", "none, all, FIN, RST, SYN FIN, SYN ACK, ACK", forged.odd_flags),
    Attack("hostPort", "a hostPort of the victim, from outside and from a pod: the policies check the true source",
           scenario=scenarios.host_port),
    Attack("metadata address", "169.254.169.254 from a pod without egress", scenario=scenarios.metadata),
    Attack("tightened policy", "UDP flows that never pause continue after a policy forbids them",
           scenario=scenarios.tightened),
    Attack("flush", "new flows while another program flushes all nftables rules", scenario=agent_scenarios.flushed),
    Attack("agent down at ADD", "a pod is added while no agent runs", scenario=agent_scenarios.added_without_agent),
    Attack("kill -9", "the agent is killed, also directly after an ADD", scenario=agent_scenarios.killed),
    Attack("second ADD of a name", "a pod's name is added again with other labels",
           scenario=agent_scenarios.added_again),
)


def campaign(row, options):
    """Run the attacks repeatedly until the row's time is over, each attack at least once."""
    chosen = [each for each in ATTACKS if options.only in each.name]
    row.note(f"{len(chosen)} attacks")
    networks = ("bridge", "ptp", "bridge-full", "ptp-full")
    assert set(networks) == set(NETWORKS)
    with Arena(networks) as arena, Inside(arena.node.name):
        possible = {each.name: control(arena, each) for each in chosen if each.frames}
        for name, titles in possible.items():
            if not any(titles.values()):
                row.failed(f"{name}: no frame arrives without policies, so the attack proves nothing")
        arena.begin()
        alive(arena, row)
        failed, number = set(), 0
        while number < 1 or (row.running and number < ROUNDS):
            for each in chosen:
                if each.name in failed:
                    continue
                started = time.monotonic()
                texts = list(run(arena, row, each, possible.get(each.name)))
                if not texts:
                    print(f"  {each.name}: closed ({time.monotonic() - started:.1f} s)", flush=True)
                else:
                    failed.add(each.name)
                    row.failed(f"{each.name}: {'; '.join(texts)}\n"
                               f"    again: make test-policy POLICY='attacks --only \"{each.name}\"'")
            number += 1
        alive(arena, row)
        row.note(f"{len(chosen) - len(failed)} closed, {number} rounds")
    just_added(row, networks, {each: possible[each.name] for each in chosen if each.frames})


def just_added(row, networks, possible):
    """Repeat the attacks by frames on pods that were just added, before the agent writes the pods' own rules. possible:
    {attack: the result of control()}."""
    with Arena(networks) as arena, Inside(arena.node.name):
        arena.begin("policy_attacks.held_agent")
        for each, titles in possible.items():
            if texts := list(run(arena, row, each, titles)):
                row.failed(f"{each.name}, just after the ADD: {'; '.join(texts)}")


def control(arena, attack):
    """Return {(network, to): titles of the frames that get through without policies}. to: "" for a pod, or
    "outside"."""
    found = {}
    # One network after another, so that stolen MACs of different networks are not confused
    for network in arena.networks:
        loose, mark = (arena.pods[f"{name}@{network}"] for name in ("loose", "mark"))
        for name, to in (("", mark), ("outside", arena.pods["outside"])):
            (found[network, name],) = arena.got_through([(attack.frames(loose, to, loose), loose, to)])
    return found


def alive(arena, row):
    """Check that allowed packets arrive: from the peer to the victim, and from the jailed pod to the peer. Otherwise
    the attacks prove nothing."""
    for network in arena.networks:
        for source, to in (("peer", "victim"), ("jailed", "peer")):
            one, other = (arena.pods[f"{name}@{network}"] for name in (source, to))
            (got,) = arena.got_through([(forged.plain(one, other, one), one, other)])
            if got != {"IPv4", "IPv6"}:
                row.failed(f"allowed packets do not pass: {source} to {to} on {network}: {sorted(got) or 'nothing'}")


def run(arena, row, attack, possible):
    """Run an attack. Yield a text for each target that frames reached."""
    if attack.scenario:
        tried, texts = attack.scenario(arena)
        row.attempt(tried)
        yield from texts
        return
    tried = []
    for network, (source, to) in itertools.product(arena.networks, PAIRS):
        attacker, peer = (arena.pods[f"{name}@{network}"] for name in (source, "peer"))
        victim = arena.pods.get(to) or arena.pods[f"{to}@{network}"]
        titles = possible[network, to if to == "outside" else ""]
        if titles or to != "outside":               # otherwise the node does not forward such frames
            what = f"({len(titles)} without policies) from {source} to {to} on {network}"
            tried.append((what, (attack.frames(attacker, victim, peer), attacker, victim)))
    row.attempt(sum(len(sequences) for _, (sequences, _, _) in tried))
    for (what, (sequences, _, _)), got in zip(tried, arena.got_through([item for _, item in tried]), strict=True):
        if got:
            yield f"{len(got)} of {len(sequences)} {what}: {'; '.join(sorted(got)[:6])}"
