"""Find out, in a process other than the agent, whether a connection is allowed: compare the kernel's rules with the
policies.

    policies    objects from files or the Kubernetes API, and the pods in the agent's records of ADDs
    kernel      the nftables tables of this node, which decide for the pods of this node

The answer is the kernel's decision. If the policies lead to another decision, the answer is DIFFERS.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastcni.agent.policy import attached
from fastcni.agent.policy.evaluate import Cluster, evaluate
from fastcni.agent.policy.in_kernel import bypass, decisions
from fastcni.agent.policy.objects import EGRESS, INGRESS
from fastcni.agent.policy.ruleset import halves

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from fastcni.agent.policy.attached import Attachment
    from fastcni.agent.policy.evaluate import Connection, Reason
    from fastcni.agent.policy.in_kernel.decisions import Decision
    from fastcni.agent.policy.in_kernel.nft_read import Table
    from fastcni.agent.policy.objects import Domain

ALLOWED, DENIED, UNKNOWN, DIFFERS = 0, 1, 2, 3          # exit statuses
VERDICTS = {ALLOWED: "allowed", DENIED: "denied", UNKNOWN: "unknown", DIFFERS: "differs"}


@dataclass
class Sources:
    """The data for an answer. cluster: the policies and their objects. unread: why the policies could not be read, or
    "". tables: the kernel's tables; None if no agent with policies has run on this machine. local(address): whether a
    pod of this node has the address, so that this kernel enforces its policies. own: this node's addresses."""

    cluster: Cluster
    unread: str
    tables: list[Table] | None
    local: Callable[[bytes], bool]
    own: Collection[bytes] = ()


@dataclass(frozen=True, slots=True)
class Direction:
    """The decisions on one direction. read: whether the policies could be read. policies: the policies' decision; None:
    no policy applies, so the direction is allowed. kernel: the kernel's decision; None: this node's kernel does not
    decide on this direction."""

    read: bool
    policies: Reason | None
    kernel: Decision | None

    @property
    def verdict(self) -> int:
        """The verdict on this direction: ALLOWED, DENIED, UNKNOWN or DIFFERS."""
        said = self.policies is None or self.policies.allowed
        if self.kernel is None:
            return UNKNOWN if not self.read else ALLOWED if said else DENIED
        if self.kernel.allowed is None:
            return UNKNOWN
        if self.read and said != self.kernel.allowed:
            return DIFFERS
        return ALLOWED if self.kernel.allowed else DENIED


@dataclass(frozen=True, slots=True)
class Answer:
    """The decisions on a connection. directions: {EGRESS: Direction, INGRESS: Direction}. more: the decisions of the
    kernel's other chains, {name: Decision}."""

    connection: Connection
    directions: dict[str, Direction]
    more: dict[str, Decision] = field(default_factory=dict)

    @property
    def verdict(self) -> int:
        """The verdict on the connection: ALLOWED, DENIED, UNKNOWN or DIFFERS."""
        found = [each.verdict for each in self.directions.values()]
        found += [Direction(False, None, each).verdict for each in self.more.values()]
        return next((each for each in (DIFFERS, UNKNOWN, DENIED) if each in found), ALLOWED)

    @property
    def by_kernel(self) -> bool:
        """Return whether this node's kernel decides on one of the directions."""
        return any(each.kernel for each in self.directions.values())


def answer(sources: Sources, connection: Connection) -> Answer:
    """Decide on a connection. Do not ask about connections from a pod's own node, which are always allowed. Raises
    OSError."""
    to_node = connection.destination in sources.own and sources.local(connection.source)
    said = evaluate(sources.cluster, connection, to_node)
    policies = {EGRESS: said.egress, INGRESS: said.ingress}
    ends = {EGRESS: connection.source, INGRESS: connection.destination}
    decided = {name: bool(sources.unread) or sources.local(packed) for name, packed in ends.items()}
    kernel = {}
    if sources.tables is not None and any(decided.values()):
        kernel = decisions.decide(sources.tables, connection, ""
                                  if to_node else bypass.why(sources.tables, connection), to_node)
    directions = {name: Direction(not sources.unread, policies[name], kernel.get(name) if decided[name] else None)
                  for name in ends}
    return Answer(connection, directions, {name: one for name, one in kernel.items() if name not in ends})


def read_tables(directory: str) -> list[Table] | None:
    """Return the kernel's tables; None if no agent with policies has run since the machine booted.

    directory: the agent's directory; "" if no agent runs. Raises OSError.
    """
    ran = bool(directory) and exists(os.path.join(directory, attached.DIRECTORY))
    try:
        tables = decisions.read() if directory else []
    except OSError:
        if ran:
            raise
        return None
    return tables if ran or tables else None


def resolved(domains: Mapping[str, Domain], tables: Iterable[Table]) -> dict[str, set[tuple[bytes, bytes]]]:
    """Return Cluster.resolved, read from the kernel's sets. domains: {set name: domain}."""
    found: dict[str, set[tuple[bytes, bytes]]] = {domain.name: set() for domain in domains.values()}
    for table in tables:
        for name in domains.keys() & table.sets.keys():
            found[domains[name].name].update(map(halves, table.sets[name].elements))
    return found


def read_attachments(directory: str) -> list[Attachment]:
    """Return the agent's records of ADDs, in the order of the ADDs. directory: the agent's directory; "" if no agent
    runs. Raises OSError."""
    if not directory:
        return []
    try:
        return attached.read_files(os.path.join(directory, attached.DIRECTORY))[0]
    except FileNotFoundError:           # no agent with policies has run here
        return []


def exists(path: str) -> bool:
    """Return whether a file exists; also True if this process may not find out."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True
