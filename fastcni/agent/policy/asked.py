"""Whether a connection is allowed, as a process other than the agent finds out: the kernel's decision, compared with
the policies.

    policies    those of files or of the Kubernetes API, and the pods that ADDs told the agent of
    kernel      the node's tables: what counts for the pods of this node

The kernel decides. If the policies say something else, the answer is that they differ.
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
    """The data for an answer. cluster: of the policies. unread: why they could not be read, "" if they were. tables:
    the kernel's, None if no agent with policies has run on this machine. local: whether an address is of a pod whose
    policies this node's kernel has to enforce. own: this node's addresses."""

    cluster: Cluster
    unread: str
    tables: list[Table] | None
    local: Callable[[bytes], bool]
    own: Collection[bytes] = ()


@dataclass(frozen=True, slots=True)
class Direction:
    """read: whether the policies could be read. policies: their decision; None: no policy applies to this address, so
    it is allowed. kernel: the kernel's decision; None: this node's kernel does not decide about this direction."""

    read: bool
    policies: Reason | None
    kernel: Decision | None

    @property
    def verdict(self) -> int:
        """ALLOWED, DENIED, UNKNOWN or DIFFERS."""
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
    """directions: of EGRESS and INGRESS. more: the decisions of other chains of the kernel, {name: Decision}."""

    connection: Connection
    directions: dict[str, Direction]
    more: dict[str, Decision] = field(default_factory=dict)

    @property
    def verdict(self) -> int:
        """ALLOWED, DENIED, UNKNOWN or DIFFERS."""
        found = [each.verdict for each in self.directions.values()]
        found += [Direction(False, None, each).verdict for each in self.more.values()]
        return next((each for each in (DIFFERS, UNKNOWN, DENIED) if each in found), ALLOWED)

    @property
    def by_kernel(self) -> bool:
        """Whether the answer depends on the kernel."""
        return any(each.kernel for each in self.directions.values())


def answer(sources: Sources, connection: Connection) -> Answer:
    """Decide on a connection that is not from the pod's own node, whose connections are always allowed. Raises
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
    """Return the kernel's tables; None if no agent with policies has run on this machine since it was started.

    directory: the agent's directory; "" without an agent. Raises OSError.
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
    """Return Cluster.resolved, from the kernel's sets. domains: by the name of their set."""
    found: dict[str, set[tuple[bytes, bytes]]] = {domain.name: set() for domain in domains.values()}
    for table in tables:
        for name in domains.keys() & table.sets.keys():
            found[domains[name].name].update(map(halves, table.sets[name].elements))
    return found


def read_attachments(directory: str) -> list[Attachment]:
    """Return the pods that ADDs told the agent of, in the order of their ADDs. directory: the agent's directory; ""
    without an agent. Raises OSError."""
    if not directory:
        return []
    try:
        return attached.read_files(os.path.join(directory, attached.DIRECTORY))[0]
    except FileNotFoundError:           # no agent with policies has run here
        return []


def exists(path: str) -> bool:
    """Whether a file exists; also True if this process may not read its directory."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True
