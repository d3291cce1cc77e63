"""Compute the nftables state that a node needs, from pods, namespaces and policies, and update it at each change.

    it = Compiler("node-1")
    it.put_policy(policy); it.put_pod(pod)
    change = it.take()                          # ruleset.py writes the Change to the kernel

The compiler compares a new pod only with the groups that its labels may match, not with all policies (groups.py). A
changed label changes elements of sets and maps; only a changed policy changes the chains of policies.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from fastcni.agent.egress.index import EgressIndex
from fastcni.agent.policy.chains import Compiled, group_set, named_set
from fastcni.agent.policy.cluster_policies import ADMIN, BASELINE, ClusterPolicy
from fastcni.agent.policy.evaluate import Cluster
from fastcni.agent.policy.groups import Groups
from fastcni.agent.policy.objects import DIRECTIONS, EGRESS
from fastcni.agent.policy.state import (
    FORWARDERS,
    LINK,
    LINK_LOCAL,
    NODE_MAPS,
    POD_CHAINS,
    PORT_SETS,
    PREFIXES,
    TIER_CHAINS,
    TO_NODE,
    VERSIONS,
    Chain,
    Journal,
    Set,
    State,
    short_hash,
)
from fastcni.kernel.nft_elements import concat, service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from fastcni.agent.policy.objects import Domain, Group, Node, Pod, Policy, Selector
    from fastcni.agent.policy.state import Change

    Element = tuple[str, bytes]                 # (set, key)

LEADING = (*((PREFIXES[direction], direction) for direction in DIRECTIONS), (TO_NODE, EGRESS))     # (map, direction)


class Compiler:
    """The nftables state of one node, computed from the objects that the put_...() methods store.

    node: the node on whose pods the state enforces policies; "": on all pods. The state also covers pods whose node is
    unknown. cluster: the objects that were put. state: the wanted nftables state. domains: {set name: the domain name
    in a policy}. forwarders: the ports to which DNS queries are redirected (names/), as keys of a set. egress: the
    egress addresses that were put.
    """

    def __init__(self, node: str = "") -> None:
        self.node, self.cluster, self.state = node, Cluster(), State()
        self.domains: dict[str, Domain] = {}
        self.forwarders: set[bytes] = set()
        self._journal = Journal(self.state)
        self._groups = Groups(self.cluster)
        self.egress = EgressIndex(self.cluster, self._groups)
        self._compiled: dict[tuple[str, str], Compiled] = {}        # {(policy key, direction): ...}
        self._selecting: dict[Group, set[str]] = {}                 # keys of the policies that select a group
        self._used: Counter[str] = Counter()                        # {set: uses by chains}, {chain: uses by elements}
        self._held: dict[str, Counter[bytes]] = {name: Counter() for name in PORT_SETS}     # {set: {key: uses}}
        self._local: dict[bytes, set[str]] = {}                     # {address: keys of this node's pods}
        self._nodes: dict[str, Selector] = {}                       # {set of nodes' addresses: selector of the nodes}
        self._tiers: dict[str, tuple[str, ...]] = {}                # {tier chain: keys of its policies, in order}
        self._reaching: set[str] = set()                            # keys of policies whose rules may match nodes

    def take(self) -> Change:
        """Return what changed in `state` since the last take()."""
        return self._journal.take()

    def put_all(self, cluster: Cluster) -> None:
        """Add or replace all objects of `cluster`."""
        for name, labels in cluster.namespaces.items():
            self.put_namespace(name, labels)
        for node in cluster.nodes.values():
            self.put_node(node.name, node)
        for pod in cluster.pods.values():
            self.put_pod(pod)
        for policy in cluster.policies.values():
            self.put_policy(policy)

    # -- pods and namespaces ------------------------------------------------------------------------------------------

    def put_pod(self, pod: Pod) -> None:
        """Add a pod, or replace its record."""
        old = self.cluster.pods.get(pod.key)
        if old != pod:
            self._replace(old, pod)

    def delete_pod(self, key: str) -> None:
        if old := self.cluster.pods.get(key):
            self._replace(old, None)

    def put_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Add a namespace or change its labels. None: the namespace was deleted."""
        if self.cluster.namespaces.get(name) == labels:
            return
        pods = [pod for pod in self.cluster.pods.values() if pod.namespace == name]
        for pod in pods:
            self._replace(pod, None)
        self.cluster.namespaces.pop(name, None)
        if labels is not None:
            self.cluster.namespaces[name] = dict(labels)
        for pod in pods:
            self._replace(None, pod)

    def put_node(self, name: str, node: Node | None) -> None:
        """Add a node or change its labels and addresses. None: the node was deleted."""
        old = self.cluster.nodes.pop(name, None)
        if node:
            self.cluster.nodes[name] = node
        if old != node:
            for key, selector in self._nodes.items():
                self._exchange(*(set(elements_of_node(key, selector, each)) for each in (old, node)))

    def put_forwarders(self, ports: Iterable[int]) -> None:
        """Replace the ports in `forwarders`, and in the nftables set of these ports if the set exists."""
        wanted = set(map(service, ports))
        if FORWARDERS in self.state.sets:
            for key in self.forwarders ^ wanted:
                self._journal.put(FORWARDERS, key, "" if key in wanted else None)
        self.forwarders = wanted

    def pods_with(self, packed: bytes) -> frozenset[str]:
        """Return the keys of this node's pods that have the address `packed`."""
        return frozenset(self._local.get(packed, ()))

    def addresses_of(self, packed: bytes) -> set[bytes]:
        """Return all addresses of the pods of this node that have the address `packed`."""
        return {each for key in self._local.get(packed, ()) for each in self.cluster.pods[key].addresses}

    @property
    def names_nodes(self) -> bool:
        """Whether a policy has peers by labels of nodes."""
        return bool(self._nodes)

    def _replace(self, old: Pod | None, new: Pod | None) -> None:
        had = self._elements_of(old, self._groups.of(old.key)) if old else set()
        stale = self._note_local(old, False)
        if old:
            self._groups.remove(old)
            del self.cluster.pods[old.key]
        if new:
            self.cluster.pods[new.key] = new
            self._groups.add(new)
        self.egress.pods_changed()
        has = self._elements_of(new, self._groups.of(new.key)) if new else set()
        self._exchange(had, has)
        self._isolate(stale | self._note_local(new, True))

    def _elements_of(self, pod: Pod, groups: Iterable[Group]) -> set[Element]:
        found = {(name, packed) for group in groups for packed in pod.addresses
                 if (name := group_set(group, len(packed))) in self.state.sets}
        for (port, protocol), number in pod.ports.items():
            for packed in pod.addresses:
                if (name := named_set(port, protocol, len(packed))) in self.state.sets:
                    found.add((name, concat(packed, service(number))))
        return found

    def _exchange(self, old: set[Element], wanted: set[Element]) -> None:
        """Replace the uses of the elements `old` by uses of `wanted`."""
        for element in old - wanted:
            self._release(element)
        for element in wanted - old:
            self._hold(element)

    def _hold(self, element: Element) -> None:
        name, key = element
        self._held[name][key] += 1
        if self._held[name][key] == 1:
            self._journal.put(name, key, "")

    def _release(self, element: Element) -> None:
        name, key = element
        self._held[name][key] -= 1
        if not self._held[name][key]:
            del self._held[name][key]
            self._journal.put(name, key, None)

    def _note_local(self, pod: Pod | None, there: bool) -> set[bytes]:
        """Add a pod of this node to the local pods; if `there` is False, remove the pod. Return the pod's addresses; an
        empty set if the pod is None or is on another node."""
        if pod is None or (self.node and pod.node and self.node != pod.node):
            return set()
        for packed in pod.addresses:
            keys = self._local.setdefault(packed, set())
            (keys.add if there else keys.discard)(pod.key)
            if not keys:
                del self._local[packed]
        return set(pod.addresses)

    # -- the maps -----------------------------------------------------------------------------------------------------

    def _isolate(self, addresses: Iterable[bytes]) -> None:
        """Put the map elements that lead the packets of these addresses to the chains of their pods' policies."""
        known: dict[frozenset[str], list[tuple[str, ...]]] = {}         # {keys of pods: the pods' chains}
        for packed in addresses:
            keys = frozenset(self._local.get(packed, ()))
            if keys not in known:
                known[keys] = self._chains_of(keys)
            for (name, direction), names in zip(LEADING, known[keys], strict=True):
                self._lead(f"{name}{VERSIONS[len(packed)]}", packed, direction, names)
            isolated = any(known[keys])
            key = concat(packed, packed)
            name = f"self{VERSIONS[len(packed)]}"
            if isolated != (key in self.state.elements[name]):
                self._journal.put(name, key, "" if isolated else None)
        any_isolated = any(self.state.elements[f"self{version}"] for version in VERSIONS.values())
        if any_isolated != bool(self.state.elements[LINK]):
            self._journal.put(LINK, LINK_LOCAL, "" if any_isolated else None)
        if not any(self.state.elements.get(name) for name in NODE_MAPS):
            for name in (NODE_MAPS | {FORWARDERS}) & self.state.sets.keys():
                self._journal.put_set(name, None)

    def directions_of(self, pod: Pod) -> list[str]:
        """Return the directions in which policies restrict a pod: INGRESS, EGRESS. The compiler need not have the
        pod."""
        selecting = {policy for group in self._groups.matching(pod) for policy in self._selecting.get(group, ())}
        return [direction for direction in DIRECTIONS
                if any((policy, direction) in self._compiled for policy in selecting)]

    def reaches_nodes(self, pod: Pod) -> bool:
        """Return whether a policy restricts packets from `pod` to its own node. The compiler need not have the pod."""
        return bool(self._reaching) and any(policy in self._reaching for group in self._groups.matching(pod)
                                            for policy in self._selecting.get(group, ()))

    def _chains_of(self, keys: Iterable[str]) -> list[tuple[str, ...]]:
        """Return the names of the chains of the policies that select one of these pods: [ingress, egress, packets from
        the pods to their own node]."""
        selecting = {policy for key in keys for group in self._groups.of(key)
                     for policy in self._selecting.get(group, ())}
        found = []
        for direction in DIRECTIONS:
            compiled = [one for policy in selecting if (one := self._compiled.get((policy, direction)))]
            ordered = [policy for one in compiled if (policy := one.cluster_policy)]
            namespaced = tuple(sorted([one.name for one in compiled if not one.cluster_policy]))
            admin = self._tier(direction, [one for one in ordered if one.tier == ADMIN])
            baseline = () if namespaced else self._tier(direction, [one for one in ordered if one.tier == BASELINE])
            http = tuple(sorted([one.http_name for one in compiled if one.http_name]))
            found.append((*admin, *namespaced, *http, *baseline))
        return [*found, (*admin, *baseline) if selecting & self._reaching else ()]

    def _tier(self, direction: str, policies: list[ClusterPolicy]) -> tuple[str, ...]:
        """Return (name of the chain with the rules of `policies`,); () without policies. All policies are of one tier.
        The caller makes the chain when an address leads to it."""
        if not policies:
            return ()
        keys = tuple(policy.key for policy in sorted(policies, key=lambda policy: policy.order))
        name = f"{policies[0].tier.lower()}-{PREFIXES[direction]}-{short_hash(*keys)}"
        self._tiers.setdefault(name, keys)
        return (name,)

    def _tier_chain(self, name: str, direction: str) -> Chain:
        """Return the tier chain `name` with the rules of its policies, in order: the first matching rule decides."""
        return Chain(direction, tuple(line for key in self._tiers[name]
                                      for line in self._compiled[key, direction].chain.lines))

    def _lead(self, map_name: str, packed: bytes, direction: str, names: tuple[str, ...]) -> None:
        """Let the map `map_name` lead the address to the chain that jumps to the chains `names`; without names, delete
        the address from the map."""
        old = self.state.elements.get(map_name, {}).get(packed)
        new = all_of(direction, names) if names else None
        if old == new:
            return
        if new:
            if map_name in NODE_MAPS and map_name not in self.state.sets:
                self._put_node_sets()
            self._used[new] += 1
            if self._used[new] == 1:
                self._use_chain(new, direction, names)
        self._journal.put(map_name, packed, new)
        if old:
            self._unuse(old, self._forget_chain)

    def _put_node_sets(self) -> None:
        """Put the maps and the set for packets from pods to their own node."""
        for name in NODE_MAPS:
            self._journal.put_set(name, Set("map", 4 if name.endswith("4") else 16))
        self._journal.put_set(FORWARDERS, Set("service", 0))
        for key in self.forwarders:
            self._journal.put(FORWARDERS, key, "")

    def _use_chain(self, new: str, direction: str, names: tuple[str, ...]) -> None:
        """Put the chain `new`, which jumps to the chains `names`, and the tier chains in `names` that are missing."""
        for name in names:
            if name in self._tiers:
                self._used[name] += 1
                if self._used[name] == 1:
                    self._journal.put_chain(name, self._tier_chain(name, direction))
        self._journal.put_chain(new, Chain(direction, jumps=names, closed=not names[-1].startswith(TIER_CHAINS)))

    def _forget_chain(self, name: str, _: None) -> None:
        for each in self.state.chains[name].jumps:
            if each in self._tiers:
                self._unuse(each, self._forget_tier)
        self._journal.put_chain(name, None)

    def _forget_tier(self, name: str, _: None) -> None:
        del self._tiers[name]
        self._journal.put_chain(name, None)

    def _unuse(self, name: str, put: Callable[[str, None], None]) -> None:
        self._used[name] -= 1
        if not self._used[name]:
            del self._used[name]
            put(name, None)

    # -- policies -----------------------------------------------------------------------------------------------------

    def put_policy(self, policy: Policy | ClusterPolicy) -> None:
        """Add a policy, or replace it."""
        old = self.cluster.policies.get(policy.key)
        if old != policy:
            self._replace_policy(old, policy)

    def delete_policy(self, key: str) -> None:
        if old := self.cluster.policies.get(key):
            self._replace_policy(old, None)

    def _replace_policy(self, old: Policy | ClusterPolicy | None, new: Policy | ClusterPolicy | None) -> None:
        """Replace a policy. Sets and chains that both policies use stay, because this method records the new policy's
        uses before it releases the old policy's."""
        key = (new or old).key                  # type: ignore[union-attr]
        stale = self._select(old, key, False)
        former = [self._compiled.pop((key, direction), None) for direction in DIRECTIONS]
        self.cluster.policies.pop(key, None)
        self._reaching.discard(key)
        if isinstance(new, ClusterPolicy) and new.reaches_nodes:
            self._reaching.add(key)
        if new:
            self.cluster.policies[key] = new
            for direction in DIRECTIONS:
                if new.rules(direction) is not None:
                    self._compiled[key, direction] = compiled = Compiled(new, direction)
                    self._use(compiled)
        self._isolate(stale | self._select(new, key, True))
        for name in [name for name, keys in self._tiers.items() if key in keys]:
            self._journal.put_chain(name, self._tier_chain(name, self.state.chains[name].direction))
        for direction, past in zip(DIRECTIONS, former, strict=True):
            if past:
                self._forget(past, self._compiled.get((key, direction)))

    def _select(self, policy: Policy | ClusterPolicy | None, key: str, there: bool) -> set[bytes]:
        """Record that a policy selects its pods; if `there` is False, record that the policy no longer selects them.
        Return the addresses of the selected pods that are on this node."""
        if policy is None:
            return set()
        members = self._groups.use(policy.pods) if there else self._groups.members(policy.pods)
        keys = self._selecting.setdefault(policy.pods, set())
        (keys.add if there else keys.discard)(key)
        if not keys:
            del self._selecting[policy.pods]
        found = {packed for pod in members for packed in self.cluster.pods[pod].addresses
                 if pod in self._local.get(packed, ())}
        if not there:
            self._groups.release(policy.pods)
        return found

    def _use(self, compiled: Compiled) -> None:
        for name, constant in compiled.sets.items():
            self._add_set(name, constant)
        for name, group in compiled.groups.items():
            length = 4 if name.startswith("g4") else 16
            members = self._groups.use(group)
            if self._add_set(name, Set("group", length)):
                for key in members:
                    for packed in self.cluster.pods[key].addresses:
                        if len(packed) == length:
                            self._hold((name, packed))
        for name, selector in compiled.nodes.items():
            self._nodes[name] = selector
            if self._add_set(name, Set("group", 4 if name.startswith("k4") else 16)):
                for node in self.cluster.nodes.values():
                    for element in set(elements_of_node(name, selector, node)):
                        self._hold(element)
        for name, port in compiled.named.items():
            length = 4 if name.startswith("n4") else 16
            if self._add_set(name, Set("named", length)):
                for pod in self.cluster.pods.values():
                    if number := pod.ports and pod.ports.get(port):
                        for packed in pod.addresses:
                            if len(packed) == length:
                                self._hold((name, concat(packed, service(number))))
        for name, domain in compiled.domains.items():
            self.domains[name] = domain
            self._add_set(name, Set("domain", 4 if name.startswith("d4") else 16))
        if not compiled.cluster_policy:
            self._journal.put_chain(compiled.name, compiled.chain)
        if compiled.http_name:
            self._journal.put_chain(compiled.http_name, compiled.http)

    def _add_set(self, name: str, nft_set: Set) -> bool:
        """Record one more use of a set, and put the set at its first use. Return whether this was the first use."""
        self._used[name] += 1
        if self._used[name] == 1:
            self._journal.put_set(name, nft_set)
            self._held[name] = Counter()
        return self._used[name] == 1

    def _forget(self, past: Compiled, new: Compiled | None) -> None:
        """Release the sets and chains of the compiled policy `past`. new: the Compiled that replaces `past`, if any."""
        if not new:
            self._journal.put_chain(past.name, None)
        if past.http_name and not (new and new.http_name):
            self._journal.put_chain(past.http_name, None)
        for name in (*past.sets, *past.groups, *past.nodes, *past.domains, *past.named):
            self._unuse(name, self._journal.put_set)
            if name not in self.state.sets:
                for known in (self._held, self._nodes, self.domains, self.state.resolved):
                    known.pop(name, None)
        for group in past.groups.values():
            self._groups.release(group)


@lru_cache(maxsize=1 << 12)
def all_of(direction: str, names: tuple[str, ...]) -> str:
    """Return the name of the chain that jumps to the chains `names`."""
    return f"{POD_CHAINS}{PREFIXES[direction]}-{short_hash(*names)}"


def elements_of_node(name: str, selector: Selector, node: Node | None) -> Iterator[Element]:
    """Yield (name, address) for the node's addresses in the set `name`, if the selector matches the node's labels."""
    if node and selector.matches(node.labels):
        yield from ((name, packed) for packed in node.addresses if len(packed) == (4 if name.startswith("k4") else 16))
