"""Pass the EgressAddress documents and their pods to the node's Egress, and restore its nftables table."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.egress.service import Egress
from fastcni.agent.egress.table import FAMILY, TABLE
from fastcni.agent.nft_table import TableEvents
from fastcni.agent.policy.objects import Pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastcni.agent.policy.attached import Attachment
    from fastcni.agent.policy.engine import Engine
    from fastcni.agent.policy.service import Settings
    from fastcni.daemon.log import Logger

AGAIN_S, RETRY_S = 0.1, 1.0     # seconds until the next try: while the policies are unread; after a kernel error


class EgressPart:
    """The part of the policy service for egress addresses; policy/parts.py has the protocol. settings.egress: the
    node's Egress; None: no address is claimed, and packets of the selected pods to outside the cluster are dropped."""

    def __init__(self, engine: Engine, settings: Settings, log: Logger) -> None:
        self.engine, self.egress, self.log = engine, settings.egress or Egress(log), log
        self._own = None if settings.egress else self.egress
        self.events = TableEvents(FAMILY, TABLE)
        self.egress.table.adopt()
        self._stale, self.due = True, 0.0       # _stale: the Egress does not have the index's last change yet
        engine.compiler.egress.notify = self._note_index
        engine.protecting.append(self._protect)

    def fileno(self) -> int:
        return self.events.fileno()

    def close(self) -> None:
        self.events.close()
        if self._own:
            self._own.close()

    def changed(self) -> None:
        """Do nothing: the index calls _note_index() after a change."""

    def attend(self) -> None:
        index, table = self.engine.compiler.egress, self.egress.table
        self.due = monotonic() + RETRY_S        # for the case that a line below raises OSError
        self.events.read(own=table.port)
        if self.engine.begun:           # until the policies are read, the previous agent's table stays in force
            self.engine.compiler.settle()
            if self._stale:
                self.engine.compiler.egress_changed()
                self.engine.commit()
                self.egress.put(index.documents, index.subjects())
                self._stale = False
        if self.events.suspect:         # without the table, packets of pods leave with other source addresses
            self.events.suspect = False
            if table.wanted:
                self.egress.restore()
                self.log.warning("egress_restored")
        self.due = monotonic() + AGAIN_S if self._stale else inf

    def figures(self) -> Mapping[str, int]:
        return self.egress.figures()

    def _protect(self, attachment: Attachment) -> None:
        namespace, _, name = attachment.pod.partition("/")
        if chosen := self.engine.compiler.egress.selects(Pod(namespace, name, attachment.labels)):
            found = [packed for packed in attachment.all_addresses for each in chosen
                     if each.closed or each.of_family(packed)]
            if found:
                self.egress.protect(found)

    def _note_index(self) -> None:
        self._stale, self.due = True, 0.0
