"""Use etcd as the registry, in flannel's own layout, so that flanneld and fastcni's agent can run in one cluster.

    <prefix>/config               the network's configuration
    <prefix>/subnets/<subnets>    a node's record (flannel_records.py), with a lease of a day

Differences from flanneld: the agent renews its lease instead of replacing it, and writes a record only if the record
has not changed since this node read it. So a node that was unavailable for longer than its lease never overwrites a
record that another node has taken. A record without a lease is an operator's reservation, and stays without a lease.
"""

from __future__ import annotations

import random
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent import conf as confs
from fastcni.agent import subnets
from fastcni.agent.contract import ConfigurationError, Node, SubnetLost
from fastcni.agent.registries import flannel_records
from fastcni.agent.registries.etcd_view import View
from fastcni.agent.registries.record_file import RecordFile, start_pause
from fastcni.agent.tries import tries
from fastcni.clients import etcd as etcd_client
from fastcni.clients.errors import Away
from fastcni.clients.etcd import Client, Refused, put, revision_is

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    from fastcni.agent.contract import NetworkConf, Prefix
    from fastcni.clients.etcd import Pair
    from fastcni.daemon.log import Logger

PREFIX = "/coreos.com/network"
LEASE_S = 86400
KEEP_S = 600.0                  # seconds between two renewals; the watch notifies a deleted record in between
TRIES = 10                      # tries to take a subnet or to write the record, if other programs write first
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0       # seconds before a lost watch is opened again
MADE_HERE = ("VtepMAC", "PublicKey")        # keys of a node's data whose values only this node has
CONTEST_S = 5.0                 # another node that writes the record twice within these seconds keeps the record
MAX_SHOWN = 200                 # characters of a record in messages
# All nodes may have to list all records at the same time. Each node waits for a random time, so that one processor of
# etcd can answer up to 1,900 nodes. A list costs 16 us for each record; a list of changes costs 3 us for each record.
LIST_S_OF_A_RECORD, CHANGES_S_OF_A_RECORD, MAX_SPREAD_S = 16e-6, 3e-6, 60.0


class Etcd:
    """The registry in etcd (contract.Registry). settings: the settings of clients.etcd.Client, "prefix", and "kept",
    the path of the file with the last records."""

    publishes = True

    def __init__(self, settings: dict[str, Any], log: Logger, wait: Callable[[float], object]) -> None:
        self.client, self.log, self.wait = Client(settings), log, wait
        self.prefix = settings.get("prefix", PREFIX).rstrip("/")
        self.directory = f"{self.prefix}/subnets/"
        self.unreadable: set[str] = set()       # keys of unreadable records that the log has already named
        self.kept = RecordFile(settings.get("kept", ""), self.directory, log)
        self.listed: View | None = None         # the records that join() has read, until watch() takes them
        self.watched = False
        # lease: the id of the record's lease; 0: no lease; None: not known. created: the revision that created its key
        self.lease: int | None = None
        self.created = 0
        self.contested = -CONTEST_S             # when the record last named another node, monotonic

    def close(self) -> None:
        self.client.close()

    def conf(self) -> NetworkConf:
        (pair,) = self.client.read(f"{self.prefix}/config")
        if pair is None:
            raise ConfigurationError(f"etcd has no key {self.prefix}/config: write the network's configuration there")
        return confs.read(pair.value)

    # -- the record of this node ---------------------------------------------------------------------------------------

    def join(self, conf: NetworkConf, me: Node) -> Node:
        for _ in range(TRIES):
            pairs = self._list()
            taken = self._read_subnets(pairs)
            own = self._find_own(conf, me, pairs, taken)
            if own is None:
                chosen = subnets.choose(conf, me.subnets, taken.values())
                joined = Node(flannel_records.key_of(chosen), chosen, me.public, me.backend, me.data)
                if self._write(joined, None, None) and self._is_alone(joined):
                    return joined
                continue
            joined = Node(own.key.removeprefix(self.directory), taken[own.key], me.public, me.backend, me.data)
            damaged = not self._names_node(own)
            if self._write(joined, own, own.lease or (None if damaged else 0)):
                if damaged:
                    self._tell_restored(own)
                return joined
        raise SubnetLost(f"no subnet after {TRIES} tries: in each try, another program changed the record first")

    def _list(self) -> list[Pair]:
        """Return all records. watch() continues from the last list, so that an agent lists only once at its start."""
        if self.watched:                        # another thread is in watch(), and uses the View
            return self.client.read_range(*etcd_client.below(self.directory))[0]
        if not self.listed:
            self.listed = self._kept_view()
            self.wait(start_pause(len(self.listed.pairs)))
        self.listed.refresh(self.client)
        return list(self.listed.pairs.values())

    def _kept_view(self) -> View:
        return View(self.directory, self.kept.read() or ())

    def _find_own(self, conf: NetworkConf, me: Node, pairs: Collection[Pair],
                  taken: Mapping[str, Mapping[int, Prefix]]) -> Pair | None:
        """Return the record that names this node. If no record does, return the record of this node's previous subnets,
        unless that record names another node. Ignore records whose subnets do not fit the configuration."""
        former = self.directory + flannel_records.key_of(me.subnets) if me.subnets else ""
        candidates = []
        for pair in pairs:
            common = len(identities(self._parse(pair)) & identities(me))
            mine = common or (pair.key == former and not self._names_node(pair))
            if mine and pair.key in taken and all(number in taken[pair.key] and subnets.fits(
                    family, taken[pair.key][number]) for number, family in conf.families.items()):
                candidates.append((bool(common), pair.key == former, common, pair))
        return max(candidates, key=lambda each: each[:3])[-1] if candidates else None

    def _write(self, me: Node, seen: Pair | None, lease: int | None) -> bool:
        """Write the record `me` if etcd still has the version `seen`; None: no record. Return whether the record was
        written.

        lease: the id of the record's lease; 0: no lease, for a reservation; None: make a new lease. A missing record
        always gets a lease.
        """
        key, value = self.directory + me.name, flannel_records.value_of(me)
        if (lease and not self.client.renew(lease, key)) or not (lease or seen):
            lease = None
        if lease is None:
            lease = self.client.grant(LEASE_S)
        self.lease, self.created = lease, seen.created if seen else 0
        if seen and (seen.value, seen.lease) == (value, lease):
            return True
        try:
            outcome = self.client.txn([revision_is(key, seen.revision if seen else 0)], [put(key, value, lease)])
        except Refused:                         # the lease has just ended
            return False
        self.created = self.created or outcome.revision
        return outcome.done

    def _is_alone(self, me: Node) -> bool:
        """Return whether no earlier record overlaps this node's subnets; otherwise delete this node's record.

        Two records with both families may have one subnet in common and still have different keys. So both nodes write
        their records, and then check for such a record; the node that wrote later deletes its record."""
        pairs = self._list()
        taken, key = self._read_subnets(pairs), self.directory + me.name
        mine = next((pair for pair in pairs if pair.key == key), None)
        if mine is None:
            return False
        if any(pair.created < mine.created and subnets.overlap(taken[pair.key], me.subnets)
               for pair in pairs if pair.key != key and pair.key in taken):
            self._delete(mine)
            return False
        return True

    def keep(self, me: Node) -> float:
        for _ in range(TRIES):
            (pair,) = self.client.read(self.directory + me.name)
            if pair is not None and self._is_of_another(pair, me):
                raise SubnetLost(f"another node has {me.name}: {pair.value[:MAX_SHOWN]}")
            # An unchanged record without a lease is a reservation by an operator: it stays without a lease
            intact = pair is not None and pair.value == flannel_records.value_of(me)
            if self._write(me, pair, pair.lease if pair and intact else self.lease):
                if pair is None and not self._is_alone(me):
                    raise SubnetLost(f"the record of {me.name} was missing, and another node has a part of its subnet")
                if pair is not None and not intact:
                    self._tell_restored(pair)
                return KEEP_S
        raise Away(f"another program changes the record of {me.name} each time that this node writes it")

    def _is_of_another(self, pair: Pair, me: Node) -> bool:
        """Return whether the record at this node's key belongs to another node.

        The node that created the key has the subnet, so other content is usually damage, which this node repairs. But
        two nodes may have taken over the same record: if the record names another node twice within CONTEST_S, the
        other node is alive and keeps the record."""
        if identities(self._parse(pair)) & identities(me):
            return False
        if pair.created != self.created:
            return True
        if not self._names_node(pair):
            return False
        last, self.contested = self.contested, monotonic()
        return self.contested - last < CONTEST_S

    def _tell_restored(self, damaged: Pair) -> None:
        self.log.warning("record_restored", key=damaged.key, found=damaged.value[:MAX_SHOWN])

    def leave(self, me: Node) -> None:
        (pair,) = self.client.read(self.directory + me.name)
        if pair is not None and not self._is_of_another(pair, me):
            self._delete(pair)
        self.kept.remove()

    def _delete(self, pair: Pair) -> None:
        self.client.txn([revision_is(pair.key, pair.revision)], [etcd_client.delete(pair.key)])

    def ready(self, me: Node) -> None:
        """Do nothing: only Kubernetes has a condition for this."""

    # -- the records of all nodes --------------------------------------------------------------------------------------

    def watch(self, changed: Callable[[Collection[Node]], object], stop: Callable[[], bool]) -> None:
        def show(view: View) -> None:
            changed(view.nodes(self.log, self.unreadable))
            self.kept.follow(view.stored)

        listed = bool(self.listed)
        view = self.listed or self._kept_view()
        self.watched, self.listed = True, None
        if listed:
            show(view)
        for pause in tries(stop, self.wait, FIRST_PAUSE_S, MAX_PAUSE_S):
            try:
                if not listed:
                    view.refresh(self.client)
                    listed = True
                    show(view)
                listed = self._follow(view, show, stop)
            except Away as e:
                self.log.warning("registry_away", error=str(e), retry_in=pause)
        if view.revision:
            self.kept.write(view.stored())

    def _follow(self, view: View, show: Callable[[View], object], stop: Callable[[], bool]) -> bool:
        """Apply etcd's changes to `view`, and call show(view) after each change. End when stop() returns true, or when
        requests use another endpoint than the watch. Return False if all records must be listed again. Raises Away."""
        if not self._goes_on(view):
            self._wait_before_list(LIST_S_OF_A_RECORD, view)
            return False
        view.watched = True
        with self.client.watch(*etcd_client.below(self.directory), view.revision + 1, stop) as stream:
            for document in stream:
                result = document.get("result", {})
                if not result or result.get("canceled") or result.get("compact_revision"):
                    self.client.token = None    # the token may have expired
                    self._wait_before_list(CHANGES_S_OF_A_RECORD, view)
                    return False
                if events := result.get("events", ()):
                    view.update(events)
                    show(view)
        return True

    def _wait_before_list(self, seconds_of_a_record: float, view: View) -> None:
        self.wait(random.uniform(0.0, min(seconds_of_a_record * len(view.pairs) ** 2, MAX_SPREAD_S)))

    def _goes_on(self, view: View) -> bool:
        """Return whether a watch will report all changes since the revision of `view`. If etcd was restored from a
        backup, the same revision is another change. In this case, the view's last change is not the last change of its
        key."""
        return not view.watched or bool(view.last and self.client.txn([revision_is(*view.last)], []).done)

    def _parse(self, pair: Pair) -> Node | None:
        """Return the Node that a record describes; None if the record is unreadable."""
        try:
            return flannel_records.read(pair.key.removeprefix(self.directory), pair.value)
        except ValueError:
            return None

    def _names_node(self, pair: Pair) -> bool:
        """Return whether a record names a node by an address, a MAC or a key. A damaged record may name no node."""
        return bool(identities(self._parse(pair)))

    def _read_subnets(self, pairs: Collection[Pair]) -> dict[str, Mapping[int, Prefix]]:
        """Return {key of a record: its subnets by family}. The subnets are in the key, so that a record with a damaged
        value keeps its subnets."""
        found: dict[str, Mapping[int, Prefix]] = {}
        for pair in pairs:
            with suppress(ValueError):
                found[pair.key] = flannel_records.read_subnets(pair.key.removeprefix(self.directory))
        return found


def identities(node: Node | None) -> set[object]:
    """Return what identifies a record's node: its public addresses, its MAC and its WireGuard key; empty for None. By
    MAC and key, a node with a new address takes over its old record. Otherwise two records would have the same MAC."""
    if node is None:
        return set()
    made = (data.get(name) for data in node.data.values() for name in MADE_HERE)
    return {*node.public.values(), *(value for value in made if value and isinstance(value, str))}
