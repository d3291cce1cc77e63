"""Represent the nftables state that policies need as data (sets, maps, chains), and compute changes between states.

The sets self4, self6 and link6 and the maps in4, in6, out4, out6 (address of a local pod -> chain) always exist. The
maps node4 and node6, for packets from a pod to its own node, exist while they have elements. All other names end with a
hash of what the set or chain stands for:

    g4-... k4-... b4-...            sets of addresses: pods of a group, nodes, blocks
    n4-... p-...                    sets of address . port for a named port, and of ports
    d4-...                          set of pairs for a domain name: pod's address . address in an answer to the pod
    t4-...                          pairs of d4-..., also expired pairs, for the next agent; no State has this set
    in-... out-...                  chain of a NetworkPolicy
    http-in-... http-out-...        chain with a NetworkPolicy's rules that match HTTP requests
    admin-in-... baseline-out-...   chain of the cluster policies of a tier that apply to a pod
    all-in-... all-out-...          chain that jumps to all chains that apply to a pod
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING

from fastcni.agent.policy.objects import EGRESS, INGRESS
from fastcni.agent.policy.ports import FAST, MAX_FAST, VERSIONS
from fastcni.agent.policy.ports import SETS as PORT_SETS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fastcni.agent.policy.http.documents import Request

    Range = tuple[bytes, bytes]                 # (first value, last value), packed

LENGTHS = tuple(VERSIONS)                       # lengths of packed addresses: 4 and 16 bytes
IN, OUT = "in", "out"
PREFIXES = {INGRESS: IN, EGRESS: OUT}
LINK, LINK_LOCAL, LINK_LOCAL_MASK = "link6", b"\xfe\x80" + bytes(14), b"\xff\xc0" + bytes(14)         # fe80::/10
MAPS = {f"{name}{version}" for name in (IN, OUT) for version in VERSIONS.values()}
TO_NODE = "node"
NODE_MAPS = {f"{TO_NODE}{version}" for version in VERSIONS.values()}
FORWARDERS = "forwarders"       # a set that exists with NODE_MAPS: the agent's ports for redirected DNS queries
VERDICT_MAPS = MAPS | NODE_MAPS
TIER_CHAINS = ("admin-", "baseline-")           # prefixes of the chains of cluster policies
POD_CHAINS = "all-"             # prefix of the chains of pods
HTTP_CHAINS = "http-"           # prefix of the chains with rules that match HTTP requests
ACCEPT, DROP, RETURN, PROXY = "accept", "drop", "return", "proxy"          # PROXY: lead the packet to HAProxy
PERMANENT = {LINK, *MAPS, *(f"self{version}" for version in VERSIONS.values()), *PORT_SETS}


@dataclass(frozen=True, slots=True)
class Set:
    """A set or map in the kernel. kind: "map", "self", "link", "group", "named", "block", "ports", "domain", or a kind
    of ports.py. length: the length of its addresses in bytes; 0 for ports. ranges: the content of a "block" or "ports"
    set, which never changes, because the set's name is a hash of the content."""

    kind: str
    length: int
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One rule of a policy's chain: the fields that it compares, and the verdict.

    length: address length in bytes; 0: both families. peer: the set of peer addresses; "": any peer. protocol: 0: any.
    first, last: range of the destination port; 0 and 0: any. ports: the set of destination ports. named: the set of
    destination . port. domain: the set of source . destination. A field is not compared if its set's name is "".
    requests: with the verdict PROXY, the HTTP requests that are allowed.
    """

    length: int = 0
    peer: str = ""
    protocol: int = 0
    first: int = 0
    last: int = 0
    ports: str = ""
    named: str = ""
    domain: str = ""
    comment: str = ""
    verdict: str = ACCEPT
    requests: tuple[Request, ...] = ()

    def sets(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.peer, self.ports, self.named, self.domain)))


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain. The chain of a policy or of a tier has `lines`. The chain of a pod has `jumps` to such chains; after the
    jumps, the chain drops the packet if `closed`, because a NetworkPolicy selects the pod."""

    direction: str
    lines: tuple[Line, ...] = ()
    jumps: tuple[str, ...] = ()
    closed: bool = True


def permanent_sets() -> dict[str, Set]:
    return {name: Set(PORT_SETS.get(name) or (name[:-1] if name[:-1] in ("self", "link") else "map"),
                      4 if name.endswith("4") else 16) for name in PERMANENT}


@dataclass(slots=True)
class State:
    """The content of the table. elements: {set or map: {key: chain to which a map leads, "" in a set}}, without the
    elements of `Set.ranges` and of domain names. A key of several fields is in nftables' format
    (kernel/nft_elements.py).

    resolved: {set of a domain name: {pod's address: {address in an answer: until when the element exists in the kernel,
    in monotonic seconds}}}. After that time, the address allows no new connection, but cut.py keeps existing
    connections.
    """

    sets: dict[str, Set] = field(default_factory=permanent_sets)
    elements: dict[str, dict[bytes, str]] = field(default_factory=lambda: {name: {} for name in PERMANENT})
    chains: dict[str, Chain] = field(default_factory=dict)
    resolved: dict[str, dict[bytes, dict[bytes, float]]] = field(default_factory=dict)


@dataclass(slots=True)
class Change:
    """What to write to the kernel. chains: chains that are new or have other rules. new_chains: names of the new chains
    among them. added: {set: {key: chain or ""}}. removed: {set: keys}. An element that leads to another chain than
    before is in both `added` and `removed`. gone_sets, gone_chains: names to delete."""

    sets: dict[str, Set] = field(default_factory=dict)
    chains: dict[str, Chain] = field(default_factory=dict)
    new_chains: set[str] = field(default_factory=set)
    added: dict[str, dict[bytes, str]] = field(default_factory=dict)
    removed: dict[str, list[bytes]] = field(default_factory=dict)
    gone_sets: list[str] = field(default_factory=list)
    gone_chains: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.sets or self.chains or self.added or self.removed or self.gone_sets or self.gone_chains)


def difference(old: State, new: State) -> Change:
    """Return the Change that turns `old` into `new`."""
    it = Change({name: one for name, one in new.sets.items() if name not in old.sets},
                {name: one for name, one in new.chains.items() if old.chains.get(name) != one},
                new.chains.keys() - old.chains.keys(),
                gone_sets=[name for name in old.sets if name not in new.sets],
                gone_chains=[name for name in old.chains if name not in new.chains])
    for name, elements in new.elements.items():
        note_elements(it, name, old.elements.get(name, {}), elements)
    return it


def note_elements(change: Change, name: str, old: Mapping[bytes, str | None], new: Mapping[bytes, str | None]) -> None:
    """Add the difference between the elements `old` and `new` of the set `name` to `change`. A value None means no
    element."""
    added = {key: value for key, value in new.items() if value is not None and old.get(key) != value}
    removed = [key for key, value in old.items() if value is not None and new.get(key) != value]
    if added:
        change.added[name] = added
    if removed:
        change.removed[name] = removed


class Journal:
    """Changes a State and records its previous content, so that take() can return the Change since the last take()."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._sets: dict[str, Set | None] = {}
        self._chains: dict[str, Chain | None] = {}
        self._elements: dict[str, dict[bytes, str | None]] = {}

    def put_set(self, name: str, nft_set: Set | None) -> None:
        """Add an empty set; with None, delete the set and its elements."""
        self._sets.setdefault(name, self.state.sets.get(name))
        if nft_set:
            self.state.sets[name] = nft_set
            self.state.elements[name] = {}
        else:
            for key in self.state.elements[name].copy():
                self.put(name, key, None)
            del self.state.sets[name], self.state.elements[name]

    def put_chain(self, name: str, chain: Chain | None) -> None:
        self._chains.setdefault(name, self.state.chains.get(name))
        if chain:
            self.state.chains[name] = chain
        else:
            self.state.chains.pop(name, None)

    def put(self, name: str, key: bytes, value: str | None) -> None:
        """Add or change the element `key` of the set or map `name`; with None, delete the element. If a set of FAST is
        full, the new element is left out: the kernel would reject the complete transaction."""
        elements = self.state.elements[name]
        if value is not None and name in FAST and len(elements) >= MAX_FAST:
            return
        self._elements.setdefault(name, {}).setdefault(key, elements.get(key))
        if value is None:
            elements.pop(key, None)
        else:
            elements[key] = value

    def fill(self, name: str, keys: Collection[bytes]) -> None:
        """Add elements of `keys`, which put() has left out, to a set of FAST, until the set is full."""
        elements = self.state.elements[name]
        if len(keys) > len(elements):
            left_out = (key for key in keys if key not in elements)
            for key in [*islice(left_out, max(0, MAX_FAST - len(elements)))]:
                self.put(name, key, "")

    def take(self) -> Change:
        it, state = Change(), self.state
        for name, old_set in self._sets.items():
            if name in state.sets and old_set is None:
                it.sets[name] = state.sets[name]
            elif name not in state.sets and old_set:
                it.gone_sets.append(name)
        for name, old_chain in self._chains.items():
            now = state.chains.get(name)
            if now is None and old_chain:
                it.gone_chains.append(name)
            elif now and now != old_chain:
                it.chains[name] = now
                if old_chain is None:
                    it.new_chains.add(name)
        for name, old in self._elements.items():
            if name in state.sets or name in NODE_MAPS:         # also deleted maps, whose elements refer to chains
                elements = state.elements.get(name, {})
                note_elements(it, name, old, {key: elements.get(key) for key in old})
        self._sets, self._chains, self._elements = {}, {}, {}
        return it


def short_hash(*parts: object) -> str:
    return blake2b(repr(parts).encode(), digest_size=10).hexdigest()
