"""Log when other programs' firewalls begin to drop packets of pods: once for each chain or rule, with a command that
shows the chain or rule.

A notification of a rule that drops, or of a chain with policy drop, does not say whose packets are dropped. So after
such a notification a separate thread reads the complete firewall. The thread waits SETTLE_S before it reads, because a
replay may let the pods through. The thread reads at most every PAUSE_S, because kube-proxy changes such rules all the
time.
"""

from __future__ import annotations

import os
from math import inf
from threading import Thread
from time import monotonic

from fastcni.daemon.background import start_thread
from fastcni.kernel import netns, nft, nft_rules
from fastcni.kit.firewall.table import TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastcni.daemon.log import Logger

    Drops = Callable[[], Iterable[tuple[str, str, str]]]         # see DropWatch

SETTLE_S, PAUSE_S = 3.0, 60.0


class DropWatch:
    """The watch of one network namespace. Only one thread may call the methods.

    home: a descriptor of the namespace, for the caller to close. drops(): reads the firewall of the calling thread's
    namespace; returns (name, sentence with the pods, what to do) for each chain or rule that drops packets of pods.
    None: this server logs no dropped packets.
    """

    def __init__(self, home: int, drops: Drops | None, log: Logger) -> None:
        self.home, self.drops, self.log = home, drops, log
        self.due = inf
        self.known: set[str] = set()            # chains and rules that dropped packets at the last reading
        self.read_at = -PAUSE_S                 # when the last reading began, in monotonic seconds
        self.running = False

    def receive(self, kind: int, table: str, payload: bytes) -> None:
        """Handle a message about a table. Messages about fastcni's own tables, also the agent's, are ignored."""
        if table.startswith(TABLE):
            return
        if kind == nft.NFT_MSG_NEWRULE and nft_rules.refuses(payload):
            self.suspect()
        elif kind == nft.NFT_MSG_NEWCHAIN:
            chain = nft.read_base_chain(payload)
            if chain and chain[3:] == ("filter", nft.NF_INET_FORWARD, nft.NF_DROP):
                self.suspect()

    def suspect(self) -> None:
        """Schedule a reading of the firewall in SETTLE_S."""
        self.due = min(self.due, monotonic() + SETTLE_S)

    def proceed(self, now: float, *, settled: bool) -> float:
        """Begin to read the firewall if a reading is due. settled: whether no replay is running or scheduled. Return
        when to call proceed() again, in monotonic seconds; infinite: after the next message."""
        if not self.drops or self.due == inf:
            return inf
        if not settled:
            self.due = max(self.due, now + SETTLE_S)
        begin = max(self.due, self.read_at + PAUSE_S)
        if now < begin or self.running:
            return max(begin, now + SETTLE_S) if self.running else begin
        self.due, self.read_at = inf, now
        try:
            home = os.dup(self.home)
        except OSError as e:
            self.log.warning("drops_unread", error=str(e))
            return inf
        self.running = True
        if not start_thread(Thread(target=self._work, args=(self.drops, home), name="drops", daemon=True), self.log):
            self.running = False
            os.close(home)
        return inf

    def _work(self, drops: Drops, home: int) -> None:
        try:
            with netns.inside(home):
                found = [*drops()]
            for name, what, do in found:
                if name not in self.known:
                    self.log.warning("pods_dropped", what=what, do=do, netns=netns.identity(home)[1])
            self.known = {name for name, _, _ in found}
        except (OSError, netns.Lost) as e:      # Lost: this thread cannot return to its namespace, and ends
            self.log.warning("drops_unread", error=str(e))
        except Exception:
            self.log.exception("server_fault")
        finally:
            os.close(home)
            self.running = False
