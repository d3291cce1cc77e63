"""Find the names of the policies that allow or drop a packet, from nftables comments and from the agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any

from fastcni.agent.policy.in_kernel.decisions import OF_CHAINS, OF_PORTS
from fastcni.agent.policy.objects import EGRESS
from fastcni.agent.policy.rules import FORWARD_CHAIN
from fastcni.agent.policy.ruleset import FAMILY, TABLE
from fastcni.kernel import nft, nft_rules, wire
from fastcni.kit import policies
from fastcni.spec import address
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Hashable

DIRECTIONS = {FORWARD_CHAIN: EGRESS, **OF_CHAINS}
KEPT_S = 5.0                    # seconds after which a name is looked up again, because policies change
MAX_KEPT = 4096                 # the most names in the cache


class Policies:
    """A cache of policies' names. sock: an nfnetlink socket. paths: the agents' sockets."""

    def __init__(self, sock: wire.Socket, paths: Iterable[str]) -> None:
        self.sock, self.paths = sock, tuple(paths)
        self.known: dict[Hashable, tuple[float, str]] = {}

    def restricting(self, family: int, chain: str, source: bytes, destination: bytes) -> str:
        """Return the names of the policies that restrict the pod for which the chain `chain` (Drop.base) drops a
        packet. The pod is the source if the chain is for egress, the destination if it is for ingress."""
        direction = DIRECTIONS.get(chain) if family == FAMILY else None
        direction = direction or OF_PORTS.get((family, chain), "")
        packed = source if direction == EGRESS else destination
        return self._kept((packed, direction), lambda: self._ask(packed, direction.lower()))

    def of_rule(self, chain: str, rule: int) -> str:
        """Return the name of the policy that a rule comes from; "" if the rule no longer exists. For a cluster policy,
        return the rule's name, too: "no-guests ingress[0] (name of the rule)". rule: the handle."""
        return self._kept((chain, rule), lambda: self._read(chain, rule))

    def _ask(self, packed: bytes, direction: str) -> str:
        request: dict[str, Any] = {"do": "explain", "address": address.ip_text(packed)}
        found: set[str] = set()
        for path in self.paths:
            try:
                found.update(name for pod in policies.ask(path, request)["pods"] for name in pod.get(direction, ()))
            except CniError:
                # the rules of an agent stay after the agent has ended, but no process knows their names
                continue
        return ", ".join(sorted(found))

    def _read(self, chain: str, rule: int) -> str:
        try:
            rules = wire.dump(self.sock, nft.NFT_MSG_GETRULE, nft.nfgenmsg(FAMILY), f"list chain {chain}",
                              nft_rules.rules_of(TABLE, chain))
        except wire.NetlinkError:
            return ""                       # the policy was just deleted
        comments = dict(nft_rules.read_rule(payload) for _, payload in rules)
        name, _, _ = (comment := comments.get(rule, "")).partition(" ")         # "shop/web ingress[0]"
        return name if "/" in name else comment

    def _kept(self, key: Hashable, find: Callable[[], str]) -> str:
        now = monotonic()
        until, text = self.known.get(key, (0.0, ""))
        if until < now:
            text = find()
            if len(self.known) >= MAX_KEPT:
                self.known.clear()
            self.known[key] = now + KEPT_S, text
        return text
