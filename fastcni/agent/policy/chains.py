"""Compile one direction of a policy into rules, and list the sets that the rules use. A NetworkPolicy has a chain of
its own. The rules of cluster policies are together in their tier's chain, because Pass skips the rest of the tier."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from fastcni.agent.policy import ranges
from fastcni.agent.policy.cluster_policies import ACCEPT as ALLOW
from fastcni.agent.policy.cluster_policies import DENY, PASS, ClusterPolicy, OrderedRule
from fastcni.agent.policy.evaluate import rule_name
from fastcni.agent.policy.http.documents import HttpRule
from fastcni.agent.policy.objects import Block, Domain, Group, Nodes
from fastcni.agent.policy.state import (
    ACCEPT,
    DROP,
    HTTP_CHAINS,
    LENGTHS,
    PREFIXES,
    PROXY,
    RETURN,
    VERSIONS,
    Chain,
    Line,
    Set,
    short_hash,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastcni.agent.policy.objects import Policy, Rule, Selector

VERDICTS = {ALLOW: ACCEPT, DENY: DROP, PASS: RETURN}


class Compiled:
    """One direction of a policy as rules. name, chain: the policy's chain of rules that do not match HTTP requests.
    http_name, http: the policy's chain of rules that match HTTP requests; "" without such rules. The HTTP chains come
    after the chains of all policies, because a rule without HTTP allows every request.

    sets: {name: set of blocks or ports}. groups, nodes, domains, named: the peers and named ports of the rules, {set
    name: peer}; a named port is (name, protocol).
    """

    __slots__ = ("chain", "domains", "groups", "http", "http_name", "name", "named", "nodes", "policy", "sets")

    def __init__(self, policy: Policy | ClusterPolicy, direction: str) -> None:
        self.policy = policy
        self.sets: dict[str, Set] = {}
        self.groups: dict[str, Group] = {}
        self.nodes: dict[str, Selector] = {}
        self.domains: dict[str, Domain] = {}
        self.named: dict[str, tuple[str, int]] = {}
        self.name = f"{PREFIXES[direction]}-{short_hash(policy.key)}"
        lines = [line for number, rule in enumerate(policy.rules(direction) or ())
                 for line in self._lines(rule, rule_name(policy, direction, number))]
        self.chain = Chain(direction, tuple(line for line in lines if not line.requests))
        self.http = Chain(direction, tuple(line for line in lines if line.requests))
        self.http_name = f"{HTTP_CHAINS}{self.name}" if self.http.lines else ""

    @property
    def cluster_policy(self) -> ClusterPolicy | None:
        return self.policy if isinstance(self.policy, ClusterPolicy) else None

    def _lines(self, rule: Rule, comment: str) -> Iterator[Line]:
        if isinstance(rule, OrderedRule) and rule.void:
            return
        requests = rule.requests if isinstance(rule, HttpRule) else ()
        verdict = VERDICTS[rule.action] if isinstance(rule, OrderedRule) else PROXY if requests else ACCEPT
        for length, peer in self._peers(rule):
            for of_ports in self._ports(rule, length):
                yield Line(comment=comment, verdict=verdict, requests=requests,
                           **{"length": length, **peer, **of_ports})    # type: ignore[arg-type]

    def _peers(self, rule: Rule) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield (address length, {field of a Line: name of a set}) for each set of the rule's peers, the sets of domain
        names last; (0, {}) if the rule has no peers."""
        if not rule.peers:
            yield 0, {}
        blocks = [peer for peer in rule.peers if isinstance(peer, Block)]
        for length in LENGTHS:
            for peer in rule.peers:
                if isinstance(peer, Group):
                    name = group_set(peer, length)
                    self.groups[name] = peer
                    yield length, {"peer": name}
                elif isinstance(peer, Nodes):
                    name = f"k{VERSIONS[length]}-{short_hash(peer.labels.identity())}"
                    self.nodes[name] = peer.labels
                    yield length, {"peer": name}
            if found := ranges.of_blocks(blocks, length):
                yield length, {"peer": self._constant(f"b{VERSIONS[length]}", Set("block", length, found))}
        for length in LENGTHS:
            for peer in rule.peers:
                if isinstance(peer, Domain):
                    self.domains[name := domain_set(peer, length)] = peer
                    yield length, {"domain": name}

    def _ports(self, rule: Rule, length: int) -> Iterator[dict[str, object]]:
        """Yield the fields of a Line that compare protocol and port, one dict for each Line. length: the length of the
        peer's addresses in bytes; 0 for both families."""
        if not rule.ports:
            yield {}
        for protocol in sorted({port.protocol for port in rule.ports}):
            ports = [port for port in rule.ports if port.protocol == protocol]
            found = ranges.merged((port.first, port.last) for port in ports if not port.name)
            if found and found[0][0] == 0:
                yield {"protocol": protocol}
                continue
            if len(found) == 1:
                yield {"protocol": protocol, "first": found[0][0], "last": found[0][1]}
            elif found:
                yield {"protocol": protocol,
                       "ports": self._constant("p", Set("ports", 0, ranges.packed(found, 2)))}
            for name in sorted({port.name for port in ports if port.name}):
                for each in (length,) if length else LENGTHS:
                    self.named[named := named_set(name, protocol, each)] = name, protocol
                    yield {"protocol": protocol, "named": named, "length": each}

    def _constant(self, prefix: str, nft_set: Set) -> str:
        name = f"{prefix}-{short_hash(*(end.hex() for one in nft_set.ranges for end in one))}"
        self.sets[name] = nft_set
        return name


@lru_cache(maxsize=1 << 16)
def group_set(group: Group, length: int) -> str:
    return f"g{VERSIONS[length]}-{short_hash(group.identity())}"


def domain_set(domain: Domain, length: int) -> str:
    """Return the name of the set of pairs: pod's address . address in an answer for a name of the domain."""
    return f"d{VERSIONS[length]}-{short_hash(domain.name)}"


@lru_cache(maxsize=1 << 12)
def named_set(name: str, protocol: int, length: int) -> str:
    return f"n{VERSIONS[length]}-{short_hash(name, protocol)}"
