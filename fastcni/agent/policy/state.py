"""The wanted nftables state of the policies as data: sets, verdict maps and chains; and the change between two of them.

Names: in4, in6, out4, out6 (maps: local pod's address -> chain), self4, self6 and link6 always exist. node4 and node6
(such maps for packets from a pod to its own node) exist while they have elements. Other names end with the hash of
their content: g4-... (pods of a group), k4-... (nodes), n4-... (pods with a named port), b4-... (blocks), p-...
(ports), d4-... (addresses of a domain name, for each pod that asked), t4-... (as d4-..., with expired addresses; for
the next agent, in no State); in-..., out-... (chain of a policy), http-in-..., http-out-... (of a policy, its rules by
HTTP requests), admin-in-..., baseline-out-... (chain of all cluster policies of a tier that apply to a pod),
all-in-..., all-out-... (chain of all that applies to a pod).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from fastcni.agent.policy.objects import EGRESS, INGRESS
from fastcni.agent.policy.ports import SETS as PORT_SETS
from fastcni.agent.policy.ports import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastcni.agent.policy.http.documents import Request

    Range = tuple[bytes, bytes]                 # first and last, packed

LENGTHS = tuple(VERSIONS)                       # of packed addresses
IN, OUT = "in", "out"
PREFIXES = {INGRESS: IN, EGRESS: OUT}
LINK, LINK_LOCAL, LINK_LOCAL_MASK = "link6", b"\xfe\x80" + bytes(14), b"\xff\xc0" + bytes(14)         # fe80::/10
MAPS = {f"{name}{version}" for name in (IN, OUT) for version in VERSIONS.values()}
TO_NODE = "node"
NODE_MAPS = {f"{TO_NODE}{version}" for version in VERSIONS.values()}
FORWARDERS = "forwarders"       # a set next to NODE_MAPS: the ports at which the agent takes redirected DNS queries
VERDICT_MAPS = MAPS | NODE_MAPS
TIER_CHAINS = ("admin-", "baseline-")           # begin the names of chains of cluster policies
HTTP_CHAINS = "http-"           # begins the names of chains of rules by HTTP requests
ACCEPT, DROP, RETURN, PROXY = "accept", "drop", "return", "proxy"          # verdicts; proxy: accept what HAProxy relays
PERMANENT = {LINK, *MAPS, *(f"self{version}" for version in VERSIONS.values()), *PORT_SETS}


@dataclass(frozen=True, slots=True)
class Set:
    """kind: "map", "self", "link", "group", "named", "block", "ports", "domain", or one of ports.py. length: of its
    addresses in bytes, 0 of ports. ranges: the content of blocks and ports, which never changes, because the name is
    its hash."""

    kind: str
    length: int
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One rule of a policy's chain: the compared fields, and the verdict.

    length: of addresses, 0: any family. peer: set with the peer's address, "": anywhere. protocol: 0: any.
    first, last: of the destination port, 0 and 0: any. ports: set of ports. named: set of destination . port.
    domain: set of source . destination.
    requests: of the verdict PROXY, the HTTP requests that are allowed.
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
    """Of a policy, or of a tier: lines. Of all that applies to a pod: jumps to these chains; then it drops if `closed`,
    because a NetworkPolicy is among them."""

    direction: str
    lines: tuple[Line, ...] = ()
    jumps: tuple[str, ...] = ()
    closed: bool = True


def permanent_sets() -> dict[str, Set]:
    return {name: Set(PORT_SETS.get(name) or (name[:-1] if name[:-1] in ("self", "link") else "map"),
                      4 if name.endswith("4") else 16) for name in PERMANENT}


@dataclass(slots=True)
class State:
    """elements: {set: {key: chain that a map leads to, or ""}}, without those of `Set.ranges` and of domain names.

    resolved: {set of a domain name: {pod's address: {address in an answer: until when the element lives in the kernel,
    in monotonic seconds}}}. An address whose element has ended allows no new connection, but existing connections are
    not cut.

    The key of a concatenation is as nftables has it (kernel/nft_elements.py).
    """

    sets: dict[str, Set] = field(default_factory=permanent_sets)
    elements: dict[str, dict[bytes, str]] = field(default_factory=lambda: {name: {} for name in PERMANENT})
    chains: dict[str, Chain] = field(default_factory=dict)
    resolved: dict[str, dict[bytes, dict[bytes, float]]] = field(default_factory=dict)


@dataclass(slots=True)
class Change:
    """What to write. A chain in `chains` is new or has other rules. An element that leads elsewhere is in both
    `removed` and `added`."""

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
    """Note what makes the elements `new` of `old`; a value None is as no element."""
    added = {key: value for key, value in new.items() if value is not None and old.get(key) != value}
    removed = [key for key, value in old.items() if value is not None and new.get(key) != value]
    if added:
        change.added[name] = added
    if removed:
        change.removed[name] = removed


class Journal:
    """Changes a State, and records the previous content: take() returns the Change since the last take()."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._sets: dict[str, Set | None] = {}
        self._chains: dict[str, Chain | None] = {}
        self._elements: dict[str, dict[bytes, str | None]] = {}

    def put_set(self, name: str, nft_set: Set | None) -> None:
        """Add a set, or delete it with its elements."""
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
        """Add, change or, with None, delete an element."""
        elements = self.state.elements[name]
        self._elements.setdefault(name, {}).setdefault(key, elements.get(key))
        if value is None:
            elements.pop(key, None)
        else:
            elements[key] = value

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
            if name in state.sets or name in NODE_MAPS:         # elements of maps refer to removed chains
                elements = state.elements.get(name, {})
                note_elements(it, name, old, {key: elements.get(key) for key in old})
        self._sets, self._chains, self._elements = {}, {}, {}
        return it


def short_hash(*parts: object) -> str:
    return blake2b(repr(parts).encode(), digest_size=10).hexdigest()
