"""Bring changes of pods and policies into force: write the compiler's changes to the kernel, and cut the connections
that a change forbids.

    engine = Engine(AttachedCompiler("node-1"))
    ...                                         # engine.compiler.put_pod() and so on, for all existing objects
    engine.load()
    engine.compiler.put_policy(policy)
    engine.commit()                             # the policy applies to new connections
    engine.begin_cut()                          # search for the connections that the policy forbids
    engine.end_cut()                            # end them

    engine.protect(Attachment(...))             # in an ADD: the pod's restricted directions are closed
    engine.commit()                             # the pod's policies apply
"""

from __future__ import annotations

from errno import ENFILE
from typing import TYPE_CHECKING

from fastcni.agent.nft_table import delete_table
from fastcni.agent.policy import cut, flowtable, ports
from fastcni.agent.policy.ports import LATER, VERSIONS
from fastcni.agent.policy.ruleset import FAMILY, FLOWTABLE, Ruleset
from fastcni.agent.policy.state import IN, LINK, LINK_LOCAL, MAPS, VERDICT_MAPS, Change
from fastcni.kernel.wire import NetlinkError
from fastcni.kit.datapath.restrict import Restricted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastcni.agent.policy.attached import AttachedCompiler, Attachment
    from fastcni.kernel.conntrack import Flow
    from fastcni.kit.datapath.maps import Flow as Redirected


class Engine:
    """The compiler of a node, and the kernel's tables. One thread in the node's namespace makes the Engine and calls
    all methods. Raises OSError, and ConfigurationError if another agent owns the tables. offload: whether a flowtable
    may forward established connections."""

    def __init__(self, compiler: AttachedCompiler, *, offload: bool = False) -> None:
        self.compiler, self.rules, self.redirects = compiler, Ruleset(), Restricted()
        self.flowtable = flowtable.Flowtable(self.rules) if offload else None
        try:
            self.rules.adopt()
            if not offload:
                delete_table(self.rules.sock, FAMILY, FLOWTABLE)
        except BaseException:
            self.rules.close()
            raise
        self.prepare: Callable[[Iterable[str]], object] = lambda new_chains: None       # called before each write
        self.begun = False              # whether load() was called, so that the compiler has all objects
        self._loaded = False            # whether the kernel has all changes that the compiler's take() returned
        self.protecting: list[Callable[[Attachment], object]] = []      # protect() calls these functions first
        self.flows = cut.Listing()
        self.suspects: set[bytes] = set()       # addresses whose connections changes may have forbidden
        self._looked_at: set[bytes] = set()     # the suspects for which begin_cut() lists flows
        self._redirected: list[Redirected] = []         # connections that redirects.put() handed back to conntrack
        self._ended = 0                 # number of connections ended since the last end_cut()
        self._answers = True            # whether the kernel's sets may have answers on cut connections
        self.changed = False            # whether the kernel's table has changed since the last reopen()
        self._added: set[bytes] = set()         # addresses of pods added since the last reopen()
        self._dropped: dict[str, set[bytes]] = {}      # {set or map: keys} that _close() has added in the kernel

    def close(self) -> None:
        """Close the sockets. The table stays, so pods stay protected."""
        self.flows.close()
        self.rules.close()

    @property
    def not_offloaded(self) -> str:
        """Why no flowtable forwards established connections; "" if a flowtable does, or if no flowtable is wanted."""
        return self.flowtable.unavailable if self.flowtable else ""

    def load(self) -> None:
        """Write the complete table. The first call comes when the compiler has all objects; before that call, the
        previous agent's table stays in force."""
        self.begun, self._loaded = True, False
        self.compiler.take()
        self.prepare(self.compiler.state.chains)
        try:
            self._redirected += self.redirects.put(self.rules.sock, cut.isolated(self.compiler.state))
        finally:
            self.rules.load(self.compiler.state)
        self._loaded, self._dropped, self.changed = True, {}, True
        if self.flowtable:
            self.flowtable.renew()      # another program may have removed this table; commit() makes it again
        self.suspects = cut.isolated(self.compiler.state)
        self._cut_redirected()

    def commit(self) -> None:
        """Write the compiler's changes to the kernel; before the first load(), do nothing."""
        if not self.begun:
            return
        change = self._write()
        if change is None:
            self.load()
        elif change:
            self.changed = True
            self.suspects |= cut.suspects(self.compiler.state, change)
            self._cut_redirected()
        if self.flowtable and (change or self.flowtable.stale):
            self.flowtable.follow(self.compiler.attachments.values(), change or Change())

    def begin_cut(self) -> None:
        """Start to search for the connections that changes since the last search forbid, unless a search is running."""
        if not self.flows.begun:
            self._looked_at, self.suspects = self.suspects, set()
            self.flows.begin(self._looked_at)

    def end_cut(self) -> int:
        """Wait for the search that begin_cut() started, and end the forbidden connections. Return the number of
        connections ended since the last call."""
        try:
            self._end(self.flows.take())
        except OSError:
            self.suspects |= self._looked_at
            raise
        self._looked_at = set()
        count, self._ended = self._ended, 0
        return count

    def _cut_redirected(self) -> None:
        """End the forbidden connections among the connections whose redirection ended with the last write. The next cut
        would find them only later, in the list of all flows. Raises OSError."""
        redirected, self._redirected = self._redirected, []
        if redirected:
            self._end(cut.tracked(self.rules.sock, redirected))

    def _end(self, flows: list[Flow]) -> None:
        """End the connections in `flows` that the policies forbid. Raises OSError."""
        found = cut.forbidden(flows, self.compiler.state)
        own = cut.restricted_node(self.compiler.state) if found else ()
        if answers := cut.answers(found, own=own):
            self._answers = True
            try:
                self.rules.drop_answers(answers)
            except NetlinkError as e:
                if e.errno != ENFILE:           # such a set has at most 65,535 elements
                    raise
                self.rules.drop_answers(cut.answers(found, by_ports=False, own=own))
        cut.delete(self.rules.sock, found)
        self._ended += len(found)

    def reopen(self) -> None:
        """Let the rules accept answers on a cut connection again, if the policies allow the connection again or a new
        pod has one of its addresses."""
        if self.changed and self._answers and self._loaded:
            dropped = self.rules.cut_answers()
            self._answers = any(dropped.values())
            if found := cut.allowed_again(dropped, self.compiler.state, self._added):
                self.rules.let_answers(found)
        self.changed, self._added = False, set()

    def protect(self, attachment: Attachment) -> None:
        """In an ADD, before the pod's first process starts: drop the pod's traffic in the directions that policies
        restrict. Right after the ADD's answer, the caller calls commit(), which writes the pod's own rules.

        The kernel takes ten times as long for an element that leads to a chain as for an element that drops, because it
        then checks all chains for loops. One commit() writes the rules of all pods added since the last commit(). The
        next end_cut() ends connections of an earlier pod with the same addresses.
        """
        self.changed = True
        self._added.update(attachment.all_addresses)
        for protect in self.protecting:
            protect(attachment)
        if self.compiler.restricted(attachment):
            link = attachment.port.name if attachment.port else ""
            if not (attachment.port and attachment.port.bridged):           # the ebpf datapath has no ports of bridges
                self.redirects.add(self.rules.sock, attachment.all_addresses, link)
        closed = self._loaded and not self.compiler.knows(attachment) and self._close(attachment)
        self.compiler.expect(attachment)
        if not closed:
            self.commit()

    def _close(self, attachment: Attachment) -> bool:
        """Drop the pod's traffic in restricted directions, and add its port to the sets. Return False if the kernel
        rejects the elements, because a map already has one of the addresses, or another program has changed the
        table."""
        restricted = self.compiler.restricted(attachment)
        elements = [(f"{direction}{VERSIONS[len(packed)]}", packed) for packed in attachment.all_addresses
                    for direction in restricted]
        if restricted:
            elements.append((LINK, LINK_LOCAL))         # the node's first restricted pod needs this element
        if attachment.port:
            elements += [element for element in ports.elements(attachment.port, attachment.addresses,
                                                               shut=IN in restricted, mute=True)
                         if element[0] not in LATER]
        try:
            self.rules.drop(elements)
        except NetlinkError:
            return False
        for name, key in elements:
            self._dropped.setdefault(name, set()).add(key)
        return True

    def _write(self) -> Change | None:
        """Write the compiler's Change and return it. Return None if the kernel rejected the Change because another
        program has changed the table."""
        if not self._loaded:
            return None
        change = self.compiler.take()
        for name, keys in self._dropped.items():
            there = () if name in VERDICT_MAPS else self.compiler.state.elements[name]
            removed = change.removed.setdefault(name, [])
            removed.extend(keys.difference(there, removed))
        self.prepare(change.new_chains)
        self._loaded = False            # also after any other error, because take() returns a change only once
        try:
            if MAPS & (change.added.keys() | change.removed.keys()):
                self._redirected += self.redirects.put(self.rules.sock, cut.isolated(self.compiler.state))
            self.rules.write(change)
        except OSError:                 # if no other program is the cause, load() raises the error again
            return None
        self._loaded, self._dropped = True, {}
        return change
