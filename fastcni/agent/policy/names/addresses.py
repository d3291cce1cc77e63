"""Record in State.resolved which addresses DNS answers gave to each pod, and until when the addresses are valid.

    answered = AnsweredAddresses(state)
    answered.put("d4-...", pod, {address: 300}, now)
    added, removed = answered.take()                        # elements.py writes them to the kernel
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.policy.state import OUT, VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fastcni.agent.policy.state import State

    Elements = dict[str, list[tuple[bytes, int]]]               # {set: [(pair, milliseconds)]}

DOMAIN_SETS = ("d4-", "d6-")     # prefixes of the sets of domain names
MAX_ADDRESSES = 100             # addresses for one pod and one item of domainNames
MIN_TTL_S, MAX_TTL_S = 60.0, 7 * 24 * 3600.0            # resolvers cap a TTL at 7 days: RFC 8767, section 4
SLACK_S = 5.0                   # seconds added to the TTL in elements, so that repeated answers renew them less often


class AnsweredAddresses:
    """The addresses in answers to pods. added, removed: the elements to write since the last take(), {set: {pair:
    milliseconds}}. The kernel rejects a message that deletes an element twice, so each pair occurs once."""

    def __init__(self, state: State) -> None:
        self.resolved = state.resolved
        self.added: dict[str, dict[bytes, int]] = {}
        self.removed: dict[str, dict[bytes, int]] = {}

    def put(self, name: str, pod: bytes, addresses: Mapping[bytes, int], now: float) -> None:
        """Record an answer to a pod. name: the set of the domain name. pod: the pod's address. addresses: {address: TTL
        in seconds}. now: monotonic seconds.

        If the pod has more than MAX_ADDRESSES addresses in the set, remove the addresses of earlier answers that expire
        first.
        """
        told = self.resolved.setdefault(name, {}).setdefault(pod, {})
        for address, ttl in addresses.items():
            seconds = min(max(float(ttl), MIN_TTL_S), MAX_TTL_S)
            if told.get(address, 0.0) < now + seconds:
                told[address] = now + seconds + SLACK_S
                self.added.setdefault(name, {})[pod + address] = round((seconds + SLACK_S) * 1000)
        for address in sorted(told, key=lambda each: (each in addresses, told[each]))[:-MAX_ADDRESSES]:
            del told[address]
            self._forget(name, pod + address)

    def forget_pods(self, gone: Callable[[bytes], bool]) -> None:
        """Forget the addresses that deleted pods have received, because another pod may get a deleted pod's address.
        gone(address): whether the pod that received answers at this address no longer exists."""
        for name, pods in self.resolved.items():
            for pod in [pod for pod in pods if gone(pod)]:
                for address in pods.pop(pod):
                    self._forget(name, pod + address)

    def _forget(self, name: str, pair: bytes) -> None:
        self.added.get(name, {}).pop(pair, None)
        self.removed.setdefault(name, {})[pair] = 1000

    def take(self) -> tuple[Elements, Elements]:
        """Return the elements (added, removed) since the last call."""
        added, removed = ({name: list(pairs.items()) for name, pairs in each.items() if pairs}
                          for each in (self.added, self.removed))
        self.added, self.removed = {}, {}
        return added, removed


def elements_left(state: State, now: float) -> Iterator[tuple[str, list[tuple[bytes, int]]]]:
    """Yield (set, [(pair, milliseconds left)]) for the valid addresses that pods have received. pair: the pod's
    address, followed by the address in the answer. now: monotonic seconds."""
    for name in state.resolved.keys() & state.sets.keys():
        yield name, [(pod + address, round((until - now) * 1000)) for pod, told in state.resolved[name].items()
                     for address, until in told.items() if until > now + 0.001]


def pairs_told(state: State) -> Iterator[tuple[str, list[bytes]]]:
    """Yield (set, pairs) for all addresses that pods have received, also for expired addresses. set: see set_told().
    """
    for name in state.resolved.keys() & state.sets.keys():
        yield set_told(name), [pod + address for pod, told in state.resolved[name].items() for address in told]


def set_told(name: str) -> str:
    """Return the name of the set that keeps the pairs of the domain set `name` beyond their timeout. No rule uses this
    set. The next agent reads from this set which connections were allowed."""
    return f"t{name[1:]}"


def sets_of(state: State, pod: bytes) -> list[str]:
    """Return the sets of the domain names in the policies of the pod with the address `pod`, sorted."""
    chain = state.elements[f"{OUT}{VERSIONS[len(pod)]}"].get(pod)
    jumps = state.chains[chain].jumps if chain else ()
    return sorted({line.domain for jump in jumps for line in state.chains[jump].lines} - {""})
