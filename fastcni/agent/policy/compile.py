"""Pods, namespaces and policies -> the wanted nftables state of a node, kept up to date change by change.

    it = Compiler("node-1")
    it.put_policy(policy); it.put_pod(pod)
    change = it.take()                          # to be written by ruleset.py

A pod that comes is compared with the groups that its labels may belong to, not with all policies (groups.py). A label
changes elements of sets and maps; only a policy changes chains.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from fastcni.agent.policy.chains import Compiled, group_set, named_set
from fastcni.agent.policy.evaluate import Cluster
from fastcni.agent.policy.groups import Groups
from fastcni.agent.policy.objects import EGRESS, INGRESS
from fastcni.agent.policy.state import (
    LINK,
    LINK_LOCAL,
    PORT_SETS,
    PREFIXES,
    VERSIONS,
    Chain,
    Journal,
    Set,
    State,
    short_hash,
)
from fastcni.kernel.nft_elements import concat, service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fastcni.agent.policy.objects import Group, Pod, Policy
    from fastcni.agent.policy.state import Change

    Element = tuple[str, bytes]                 # (set, key)

DIRECTIONS = (INGRESS, EGRESS)


class Compiler:
    """node: whose pods are isolated, and those whose node is not known; "": all pods.

    cluster: what was put. state: what is wanted.
    """

    def __init__(self, node: str = "") -> None:
        self.node, self.cluster, self.state = node, Cluster(), State()
        self._journal = Journal(self.state)
        self._groups = Groups(self.cluster)
        self._compiled: dict[tuple[str, str], Compiled] = {}        # by policy's key and direction
        self._selecting: dict[Group, set[str]] = {}                 # keys of the policies that select a group's pods
        self._used: Counter[str] = Counter()                        # how many chains use a set, or elements a chain
        self._held: dict[str, Counter[bytes]] = {name: Counter() for name in PORT_SETS}     # by set: holders of a key
        self._local: dict[bytes, set[str]] = {}                     # keys of this node's pods, by address

    def take(self) -> Change:
        """The Change since the last take()."""
        return self._journal.take()

    def put_all(self, cluster: Cluster) -> None:
        """Add or replace all that is in `cluster`."""
        for name, labels in cluster.namespaces.items():
            self.put_namespace(name, labels)
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
        """Add a namespace or change its labels; None: it is gone."""
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

    def _replace(self, old: Pod | None, new: Pod | None) -> None:
        had = self._elements_of(old, self._groups.of(old.key)) if old else set()
        stale = self._note_local(old, False)
        if old:
            self._groups.remove(old)
            del self.cluster.pods[old.key]
        if new:
            self.cluster.pods[new.key] = new
            self._groups.add(new)
        has = self._elements_of(new, self._groups.of(new.key)) if new else set()
        for element in has - had:
            self._hold(element)
        for element in had - has:
            self._release(element)
        self._isolate(stale | self._note_local(new, True))

    def _elements_of(self, pod: Pod, groups: Iterable[Group]) -> set[Element]:
        found = {(name, packed) for group in groups for packed in pod.addresses
                 if (name := group_set(group, len(packed))) in self.state.sets}
        for (port, protocol), number in pod.ports.items():
            for packed in pod.addresses:
                if (name := named_set(port, protocol, len(packed))) in self.state.sets:
                    found.add((name, concat(packed, service(number))))
        return found

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
        """Note that a pod of this node is there, or is gone. Return its addresses."""
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
        """Write which chains these addresses lead to."""
        known: dict[frozenset[str], list[tuple[str, ...]]] = {}         # all addresses of a pod have the same
        for packed in addresses:
            keys = frozenset(self._local.get(packed, ()))
            if keys not in known:
                known[keys] = self._chains_of(keys)
            for direction, names in zip(DIRECTIONS, known[keys], strict=True):
                self._lead(f"{PREFIXES[direction]}{VERSIONS[len(packed)]}", packed, direction, names)
            isolated = any(known[keys])
            key = concat(packed, packed)
            name = f"self{VERSIONS[len(packed)]}"
            if isolated != (key in self.state.elements[name]):
                self._journal.put(name, key, "" if isolated else None)
        any_isolated = any(self.state.elements[f"self{version}"] for version in VERSIONS.values())
        if any_isolated != bool(self.state.elements[LINK]):
            self._journal.put(LINK, LINK_LOCAL, "" if any_isolated else None)

    def directions_of(self, pod: Pod) -> list[str]:
        """Return the directions in which policies restrict a pod that was not put."""
        selecting = {policy for group in self._groups.matching(pod) for policy in self._selecting.get(group, ())}
        return [direction for direction in DIRECTIONS
                if any((policy, direction) in self._compiled for policy in selecting)]

    def _chains_of(self, keys: Iterable[str]) -> list[tuple[str, ...]]:
        """The names of the chains of the policies that select one of these pods, for each direction."""
        selecting = {policy for key in keys for group in self._groups.of(key)
                     for policy in self._selecting.get(group, ())}
        return [tuple(sorted([compiled.name for policy in selecting
                              if (compiled := self._compiled.get((policy, direction)))])) for direction in DIRECTIONS]

    def _lead(self, map_name: str, packed: bytes, direction: str, names: tuple[str, ...]) -> None:
        """Let an address lead to the chain of these policies; to none without any."""
        old = self.state.elements[map_name].get(packed)
        new = all_of(direction, names) if names else None
        if old == new:
            return
        if new:
            self._used[new] += 1
            if self._used[new] == 1:
                self._journal.put_chain(new, Chain(direction, jumps=names))
        self._journal.put(map_name, packed, new)
        if old:
            self._unuse(old, self._journal.put_chain)

    def _unuse(self, name: str, put: Callable[[str, None], None]) -> None:
        self._used[name] -= 1
        if not self._used[name]:
            del self._used[name]
            put(name, None)

    # -- policies -----------------------------------------------------------------------------------------------------

    def put_policy(self, policy: Policy) -> None:
        """Add a policy, or replace it."""
        old = self.cluster.policies.get(policy.key)
        if old != policy:
            self._replace_policy(old, policy)

    def delete_policy(self, key: str) -> None:
        if old := self.cluster.policies.get(key):
            self._replace_policy(old, None)

    def _replace_policy(self, old: Policy | None, new: Policy | None) -> None:
        """What the new one shares with the old one stays, because it is in use before the old one is released."""
        key = (new or old).key                  # type: ignore[union-attr]
        stale = self._select(old, key, False)
        former = [self._compiled.pop((key, direction), None) for direction in DIRECTIONS]
        self.cluster.policies.pop(key, None)
        if new:
            self.cluster.policies[key] = new
            for direction in DIRECTIONS:
                if new.rules(direction) is not None:
                    self._compiled[key, direction] = compiled = Compiled(new, direction)
                    self._use(compiled)
        self._isolate(stale | self._select(new, key, True))
        for direction, past in zip(DIRECTIONS, former, strict=True):
            if past:
                self._forget(past, (key, direction) not in self._compiled)

    def _select(self, policy: Policy | None, key: str, there: bool) -> set[bytes]:
        """Note that a policy selects its pods, or no longer does. Return the addresses of this node's among them."""
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

    def _use(self, it: Compiled) -> None:
        for name, constant in it.sets.items():
            self._add_set(name, constant)
        for name, group in it.groups.items():
            length = 4 if name.startswith("g4") else 16
            members = self._groups.use(group)
            if self._add_set(name, Set("group", length)):
                for key in members:
                    for packed in self.cluster.pods[key].addresses:
                        if len(packed) == length:
                            self._hold((name, packed))
        for name, port in it.named.items():
            length = 4 if name.startswith("n4") else 16
            if self._add_set(name, Set("named", length)):
                for pod in self.cluster.pods.values():
                    if number := pod.ports and pod.ports.get(port):
                        for packed in pod.addresses:
                            if len(packed) == length:
                                self._hold((name, concat(packed, service(number))))
        self._journal.put_chain(it.name, it.chain)

    def _add_set(self, name: str, it: Set) -> bool:
        """Note one more use of a set. Return whether it is new."""
        self._used[name] += 1
        if self._used[name] == 1:
            self._journal.put_set(name, it)
            self._held[name] = Counter()
        return self._used[name] == 1

    def _forget(self, past: Compiled, with_chain: bool) -> None:
        if with_chain:
            self._journal.put_chain(past.name, None)
        for name in (*past.sets, *past.groups, *past.named):
            self._unuse(name, self._journal.put_set)
            if name not in self.state.sets:
                self._held.pop(name, None)
        for group in past.groups.values():
            self._groups.release(group)


@lru_cache(maxsize=1 << 12)
def all_of(direction: str, names: tuple[str, ...]) -> str:
    """The name of the chain that jumps to these."""
    return f"all-{PREFIXES[direction]}-{short_hash(*names)}"


def compile_all(cluster: Cluster, node: str = "") -> State:
    """The wanted state of a node."""
    it = Compiler(node)
    it.put_all(cluster)
    return it.state
