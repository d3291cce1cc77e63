"""Forget attachments after their DEL. A pod stays protected while its port's link exists, because later plugins of the
DEL may fail to delete the link."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.policy import attached
from fastcni.kernel import wire

if TYPE_CHECKING:
    from fastcni.agent.policy.attached import AttachedCompiler, Attachment, Id

LINK_WAIT_S, MAX_LINK_WAIT_S = 0.02, 1.0        # seconds between two checks of a link: first, maximum


class Leaving:
    """The attachments whose DEL came while their port's link existed. state: the directory of attachments. due: when to
    call forget_gone() again, in monotonic seconds."""

    def __init__(self, compiler: AttachedCompiler, state: str) -> None:
        self.compiler, self.state = compiler, state
        self.wait, self.due = LINK_WAIT_S, 0.0

    def leave(self, id: Id) -> bool:
        """Forget the attachment `id`; if its port's link still exists, mark it as leaving instead. Return whether this
        call has forgotten the attachment."""
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
        """Forget the marked attachments whose link no longer exists. The caller then writes the table."""
        if monotonic() < self.due:
            return
        leaving = [it for it in self.compiler.attachments.values() if it.leaving]
        self.due = monotonic() + self.wait if leaving else float("inf")
        self.wait = min(2 * self.wait, MAX_LINK_WAIT_S)
        for it in leaving:
            if link_of(it) != it.leaving:
                self._end(it)

    def keep_replaced(self) -> None:
        """Remove the files of attachments that ADDs have replaced. If attach() has left such an attachment in the
        records, because its link still exists, write the attachment's file again."""
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
    """Return the index of the link of the attachment's port; 0 if the link does not exist or no port is recorded."""
    return wire.index_of(attachment.port.name) if attachment.port else 0
