"""Keep this node's links, routes and masquerading in the kernel up to date with the records of all nodes."""

from __future__ import annotations

import select
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from fastcni.agent import peer_list, subnets
from fastcni.agent.keeper import Keeper
from fastcni.agent.masquerade import Masquerade

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fastcni.agent.contract import Backend, NetworkConf, Node
    from fastcni.daemon.attended import Attended
    from fastcni.daemon.log import Logger


FIGURES = ("nodes", "skipped", "routes")


class Network:
    """The kernel state that connects this node to other nodes. Create the object in a thread that is in the node's
    namespace; the same thread calls all methods. Raises OSError.

    me: this node's record. directory: the directory of the file peers.json. written: whether the kernel has the state
    for `me` and the last list of nodes. figures: {name in FIGURES: count}, for the agent's metrics.
    """

    def __init__(self, conf: NetworkConf, backend: Backend, me: Node, log: Logger, directory: str) -> None:
        self.conf, self.backend, self.me, self.log, self.directory = conf, backend, me, log, directory
        self.written = False
        self.figures = dict.fromkeys(FIGURES, 0)
        self.others: Collection[Node] = ()                  # the other nodes that the kernel's state connects
        self._nodes: Collection[Node] | None = None         # the last list of all nodes, or None before the first
        self._skipped: dict[str, str] = {}
        with ExitStack() as opened:
            self.keeper = opened.enter_context(closing(Keeper(log)))
            self.masquerade = opened.enter_context(closing(Masquerade(log)))
            self._poll = opened.enter_context(closing(select.epoll()))
            self._attended: tuple[Attended, ...] = (self.keeper, self.masquerade)
            for each in self._attended:
                self._poll.register(each.fileno(), select.EPOLLIN)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the sockets. The kernel's state stays, so that traffic continues while the agent restarts."""
        self._opened.close()

    def fileno(self) -> int:
        """Return the descriptor to wait on for attend()."""
        return self._poll.fileno()

    @property
    def due(self) -> float:
        """Return when to call attend() without a notification, in monotonic seconds."""
        return min(each.due for each in self._attended)

    def attend(self) -> None:
        """Read the kernel's notifications, and restore deleted or changed entries and rules."""
        for each in self._attended:
            each.attend()

    def take(self, nodes: Collection[Node]) -> None:
        """Store `nodes`, the list of all nodes, for the next write()."""
        self._nodes, self.written = nodes, False

    def move(self, me: Node) -> bool:
        """Store `me`, the record that this node took after it had lost its previous record. Return whether the subnets
        are different."""
        if me.subnets == self.me.subnets:
            self.me = me
            return False
        self.log.error("subnet_changed", former=text(self.me.subnets), subnets=text(me.subnets))
        self.me, self.written = me, False       # new pods get the new subnets
        return True

    def write(self) -> None:
        """Write the kernel state for `me` and the last list of nodes. Do nothing before the first list."""
        if self._nodes is None:
            return
        others, left_out = subnets.usable(self.conf, self.me, self._nodes)
        state = self.backend.state(self.me, others)
        self.keeper.set(state)
        self.written, self.others = True, others
        peer_list.write(self.directory, others)
        self._tell_skipped({**left_out, **state.skipped})
        self.figures = {"nodes": len(others), "skipped": len(self._skipped), "routes": len(state.routes)}
        self.log.info("nodes", count=len(others), routes=len(state.routes))

    def has_record(self) -> bool:
        """Return whether the last list of nodes has this node's record unchanged."""
        return self._nodes is not None and self.me in self._nodes

    def _tell_skipped(self, skipped: Mapping[str, str]) -> None:
        for name, why in skipped.items():
            if self._skipped.get(name) != why:
                self.log.warning("node_skipped", node=name, why=why)
        self._skipped = dict(skipped)


def text(by_family: Mapping[int, object]) -> str:
    """Return the subnets or addresses of `by_family`, {family: subnet}, as text for the log: separated by spaces."""
    return " ".join(map(str, by_family.values()))
