"""The attachments whose DEL came: while the link of a pod's port exists, the pod stays protected, because later plugins
of the DEL delete the link, or fail."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.policy import attached
from fastcni.kernel import wire

if TYPE_CHECKING:
    from fastcni.agent.policy.attached import AttachedCompiler, Attachment, Id

LINK_WAIT_S, MAX_LINK_WAIT_S = 0.02, 1.0        # between two checks whether the link was deleted


class Leaving:
    """state: the directory of attachments. due: when to call forget_gone() again, in monotonic seconds."""

    def __init__(self, compiler: AttachedCompiler, state: str) -> None:
        self.compiler, self.state = compiler, state
        self.wait, self.due = LINK_WAIT_S, 0.0

    def leave(self, id: Id) -> bool:
        """Forget an attachment, or mark it while the link of its port exists. Return whether it is forgotten."""
        it = self.compiler.attachments.get(id)
        if it is None:
            return False
        index = link_of(it)
        if not index or it.leaving not in (0, index):
            self._end(it)
            return True
        self._look_soon()
        if not it.leaving:
            self.compiler.attachments[id] = it = replace(it, leaving=index)
            attached.keep(self.state, it)
        return False

    def forget_gone(self) -> None:
        """Forget the marked attachments whose link was deleted. The caller writes the table after this."""
        if monotonic() < self.due:
            return
        leaving = [it for it in self.compiler.attachments.values() if it.leaving]
        self.due = monotonic() + self.wait if leaving else float("inf")
        self.wait = min(2 * self.wait, MAX_LINK_WAIT_S)
        for it in leaving:
            if link_of(it) != it.leaving:
                self._end(it)

    def keep_replaced(self) -> None:
        """Remove the records of attachments whose place others have taken. An attachment whose link still exists is
        kept, see AttachedCompiler.attach()."""
        while self.compiler.replaced:
            it = self.compiler.replaced.pop()
            if (now := self.compiler.attachments.get(it.id)) is None:
                attached.forget(self.state, it)
            elif now.leaving:
                attached.keep(self.state, now)
                self._look_soon()

    def _look_soon(self) -> None:
        self.wait, self.due = LINK_WAIT_S, min(self.due, monotonic() + LINK_WAIT_S)

    def _end(self, attachment: Attachment) -> None:
        self.compiler.detach(attachment.id)
        attached.forget(self.state, attachment)


def link_of(attachment: Attachment) -> int:
    """Return the index of the port's link; 0 if the link does not exist, or the port is unknown."""
    return wire.index_of(attachment.port.name) if attachment.port else 0
