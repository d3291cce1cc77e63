"""The policies of a node: a Compiler, the kernel's table, and the connections that end with a change.

    engine = Engine(AttachedCompiler("node-1"))
    ...                                         # engine.compiler.put_pod() and so on: what there is at first
    engine.load()
    engine.compiler.put_policy(policy)
    engine.commit()                             # in force for new connections
    engine.cut()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.policy import cut
from fastcni.agent.policy.ruleset import Ruleset
from fastcni.kernel.wire import NetlinkError

if TYPE_CHECKING:
    from fastcni.agent.policy.attached import AttachedCompiler, Attachment
    from fastcni.agent.policy.state import Change


class Engine:
    """Made in a thread that is in the node's namespace; the same thread calls all methods. Raises OSError."""

    def __init__(self, compiler: AttachedCompiler) -> None:
        self.compiler, self.rules = compiler, Ruleset()
        self._begun = False             # load() was called: the compiler has all there is
        self._loaded = False            # the kernel has what take() gave
        self._suspects: set[bytes] = set()

    def close(self) -> None:
        """Leave the table: pods stay protected."""
        self.rules.close()

    def load(self) -> None:
        """Write the complete table. The first call comes when all there is was put; the table of a former agent is in
        force until then."""
        self._begun, self._loaded = True, False
        self.compiler.take()
        self.rules.load(self.compiler.state)
        self._loaded = True
        self._suspects = cut.isolated(self.compiler.state)

    def commit(self) -> None:
        """Write what has changed; nothing before the first load()."""
        if not self._begun:
            return
        change = self._write()
        if change is None:
            self.load()
        else:
            self._suspects |= cut.suspects(self.compiler.state, change)

    def cut(self) -> int:
        """End the connections that are no longer allowed since the last call. Return how many.

        Apart from commit(), because it takes milliseconds: several changes need one call.
        """
        found = cut.cut(self.rules.sock, self.compiler.state, self._suspects) if self._suspects else 0
        self._suspects = set()          # after a failure they stay for the next call
        return found

    def protect(self, it: Attachment) -> list[Attachment]:
        """Within an ADD, before the pod's process starts: write what policies say of it, with all that has changed
        before. The next cut() ends what is left of connections of a former pod with its addresses. Return the
        attachments whose place it takes."""
        gone = self.compiler.attach(it)
        self.commit()
        return gone

    def _write(self) -> Change | None:
        """Write the Change. None if the kernel refused it: another program has changed the table."""
        if not self._loaded:
            return None
        change = self.compiler.take()
        self._loaded = False            # also after other errors, because take() gives a change only once
        try:
            self.rules.write(change)
        except NetlinkError:
            return None
        self._loaded = True
        return change
