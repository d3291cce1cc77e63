"""The policies of a node: a Compiler, the kernel's table, and the connections that end with a change.

    engine = Engine("node-1")
    ...                                         # engine.compiler.put_pod() and so on: what there is at first
    engine.load()
    engine.compiler.put_policy(policy)
    engine.commit()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.policy import cut
from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.ruleset import Ruleset
from fastcni.kernel.wire import NetlinkError

if TYPE_CHECKING:
    from fastcni.agent.policy.objects import Pod
    from fastcni.agent.policy.state import Change


class Engine:
    """Made in a thread that is in the node's namespace; the same thread calls all methods. Raises OSError."""

    def __init__(self, node: str = "") -> None:
        self.compiler, self.rules = Compiler(node), Ruleset()
        self._loaded = False            # the kernel has what take() gave

    def close(self) -> None:
        """Leave the table: pods stay protected."""
        self.rules.close()

    def load(self) -> int:
        """Write the complete table. Return how many connections were cut."""
        self._loaded = False
        self.compiler.take()
        self.rules.load(self.compiler.state)
        self._loaded = True
        return cut.cut(self.rules.sock, self.compiler.state, cut.isolated(self.compiler.state))

    def commit(self) -> int:
        """Write what has changed. Return how many connections were cut."""
        change = self._write()
        if change is None:
            return self.load()
        addresses = cut.suspects(self.compiler.state, change)
        return cut.cut(self.rules.sock, self.compiler.state, addresses) if addresses else 0

    def protect(self, pod: Pod) -> None:
        """Within an ADD, before the pod's process starts: write what policies say of it. Its addresses are new, so no
        connection is looked for."""
        self.compiler.put_pod(pod)
        if self._write() is None:
            self.load()

    def _write(self) -> Change | None:
        """Write the Change. None if the kernel refused it: another program has changed the table."""
        if not self._loaded:
            return None
        change = self.compiler.take()
        try:
            self.rules.write(change)
        except NetlinkError:
            return None
        return change
