"""Write the nftables tables of policies to the kernel. rules.py has the rules; Ruleset.write() writes a Change.

The tables belong to the agent's socket: a flush of all tables by another program leaves these tables, and the kernel
rejects any other change by another program. When the agent ends, the tables stay without an owner until the next agent
takes them over. Linux before 6.9 cannot keep owned tables: there, another program can remove a table, and the agent
writes the table again.
"""

from __future__ import annotations

from functools import cache
from time import monotonic
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.agent.batches import NetlinkRequests
from fastcni.agent.nft_table import NftTable, delete_table, keys_of
from fastcni.agent.policy import port_rules, rules
from fastcni.agent.policy.http import redirect
from fastcni.agent.policy.names.addresses import DOMAIN_SETS, elements_left, pairs_told, set_told
from fastcni.agent.policy.ports import BRIDGED as BRIDGED_PORTS
from fastcni.agent.policy.ports import FAST, MAX_FAST, ON_BRIDGES, ROUTED
from fastcni.agent.policy.rules import COMMENT, FAMILY, GUARD, TABLE, add_guard, replace_table
from fastcni.agent.policy.state import HTTP_CHAINS, LINK, NODE_MAPS, PORT_SETS, VERDICT_MAPS, Set, State, difference
from fastcni.kernel import nft, nft_elements, nft_rules, sysctl, uapi, wire
from fastcni.kernel.nft_elements import (
    ADDRESS_TYPES,
    TYPE_ETHERADDR,
    TYPE_ETHERTYPE,
    TYPE_IFINDEX,
    TYPE_IFNAME,
    TYPE_INET_PROTOCOL,
    TYPE_INET_SERVICE,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from fastcni.agent.policy.ports import Element
    from fastcni.agent.policy.state import Chain, Change

    Answers = Mapping[str, list[bytes]]     # {set: keys}

BRIDGE_FAMILY = nft.NFPROTO_BRIDGE                              # a second table TABLE has this family
NAMES = "fastcni-names"         # the table of names/redirect.py
FLOWTABLE = "fastcni-flowtable"                                 # the table of flowtable.py
TABLES = ((FAMILY, GUARD), (FAMILY, NAMES), (FAMILY, FLOWTABLE), (FAMILY, TABLE), (BRIDGE_FAMILY, TABLE))
EARLY = {LINK, *PORT_SETS}      # sets that an ADD fills before its answer
LOAD_TRANSACTIONS = 3
SEND_BYTES, ACK_BYTES = 64 << 20, 256 << 20         # limits of buffers; the kernel counts 768 bytes or more for an ACK
BRIDGED = ("net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables",
           "net/bridge/bridge-nf-filter-vlan-tagged")           # the last sysctl is for VLAN tags


class Ruleset(NftTable):
    """The tables of policies in the kernel, and the socket that owns them. Methods raise OSError.

    Make a Ruleset in a thread that is in the node's namespace. Only one thread at a time may call its methods.

    links: whether the chain `source` exists. tunnels: whether the rules for packets of the node's tunnels exist. http:
    names of the chains with rules that match HTTP requests. listeners: the marks and addresses at which the HTTP proxy
    gets connections, see http/redirect.py.
    """

    def __init__(self) -> None:
        self.links = self.tunnels = False
        self.http, self.listeners = set[str](), dict[int, tuple[tuple[bytes, int], ...]]()
        super().__init__(FAMILY, TABLE, SEND_BYTES, ACK_BYTES)

    def adopt(self) -> None:
        """Take over the tables of an agent that has ended. Raises ConfigurationError if a running agent owns them."""
        self.take_over(TABLES, COMMENT)

    def load(self, state: State) -> None:
        """Write the complete tables for `state` in LOAD_TRANSACTIONS transactions; existing tables are replaced.

        During the replacement the guard table (rules.py) drops the first packets from and to restricted pods: a packet
        that arrives while a transaction ends may find rules neither in the old nor in the new table.
        """
        self.as_owner(lambda: self._guard(state))
        requests, kept = Transaction(), self.cut_answers()
        for family in (FAMILY, BRIDGE_FAMILY):
            replace_table(requests, family, TABLE, self.flags)
        set_up(requests, state)
        put_answers(requests, kept)
        self.http = {name for name in state.chains if name.startswith(HTTP_CHAINS)}
        if self.http:
            redirect.add_chains(requests, self.listeners)
        elif self.listeners:
            redirect.divert(requests, redirect.reopening_rules(self.listeners))
        self.links = self.tunnels = False
        self._complete(requests, state.elements)
        try:
            requests.commit(self.sock)
        finally:
            requests = Transaction()
            requests.add(nft.del_table, FAMILY, GUARD)
            requests.commit(self.sock)

    def _guard(self, state: State) -> None:
        requests = Transaction()
        add_guard(requests, state, self.flags)
        requests.commit(self.sock)

    def write(self, change: Change) -> None:
        """Write the changes since load() or the last write().

        A first transaction adds the new chains, a second transaction makes the other changes. With a single
        transaction, a packet that arrives while the transaction ends may already find a map element that leads to a new
        chain, but no rules in that chain. The kernel would accept this packet.
        """
        if not change:
            return
        requests = Transaction()
        prepare(requests, change)
        if change.new_chains:
            self._lead_to_proxy(requests, change.new_chains)
            requests.commit(self.sock)
            requests = Transaction()
        fill(requests, change)
        self._complete(requests, change.added)
        if self.http and self.http <= {*change.gone_chains}:
            redirect.del_chains(requests)
            redirect.divert(requests, redirect.reopening_rules(self.listeners))
        self.http.difference_update(change.gone_chains)
        requests.commit(self.sock)

    def drop(self, elements: Sequence[Element]) -> None:
        """Add elements [(set or map, key)]; elements of maps lead to `drop`. Raises NetlinkError if a map already has
        the key.

        An ADD waits for this call. So the messages come from templates, and the kernel acknowledges only the last
        message.
        """
        requests, last = Transaction(), len(elements) - 1
        for at, (name, key) in enumerate(elements):
            before, after = template(name, len(key))
            requests.add(nft_elements.add_from_template, before + key + after, exclusive=name in VERDICT_MAPS,
                         acknowledged=at == last)
        self._complete(requests, {name: (key,) for name, key in elements})
        requests.commit(self.sock)

    def cut_answers(self) -> Answers:
        """Return the answers that the kernel's rules drop now, {set: keys}; see cut.py."""
        found = {}
        for name, types in rules.cut_sets().items():
            size = nft_elements.concat_type(types)[1]
            found[name] = [key for key in self._keys(name) if len(key) == size]
        return found

    def held_ports(self) -> Iterator[tuple[bytes, bool, list[bytes]]]:
        """Yield the pods' ports in the kernel's tables: (name as a key, whether the port belongs to a bridge, the
        pod's source addresses).

        At a port of a bridge, each source address has the MAC in front, padded to 8 bytes.
        """
        for names, bridged in ((BRIDGED_PORTS, True), (ROUTED, False)):
            sent: dict[bytes, list[bytes]] = {port: [] for port in self._keys(names.ports)}
            for name in names.by_length(names.own).values():
                for key in self._keys(name):
                    sent.setdefault(key[:uapi.IFNAMSIZ], []).append(key[uapi.IFNAMSIZ:])
            for port, keys in sent.items():
                yield port, bridged, keys

    def _keys(self, name: str) -> list[bytes]:
        """Return the keys of a set in the kernel; [] if the set does not exist."""
        return keys_of(self.sock, family_of(name), TABLE, name) or []

    def drop_answers(self, answers: Answers) -> None:
        """Let the kernel's rules drop these answers, until no answer has come for CUT_MS."""
        requests = Transaction()
        put_answers(requests, answers)
        requests.commit(self.sock)

    def let_answers(self, answers: Answers) -> None:
        """Let the kernel's rules no longer drop these answers. The kernel rejects the deletion of an element that has
        just timed out, so the transaction adds all elements first."""
        requests = Transaction()
        put_answers(requests, answers)
        for name, keys in answers.items():
            requests.add_parts(nft_elements.del_elements, FAMILY, TABLE, name, keys)
        requests.commit(self.sock)

    def _complete(self, requests: Transaction, added: Mapping[str, Collection[bytes]]) -> None:
        """Add the rules for routed links and for tunnels when `added` has their first elements. A node without such
        elements has no such rules, because each rule costs time per packet."""
        links, tunnels = self.links or bool(added.get(ROUTED.ports)), self.tunnels or has_tunnels(added)
        if tunnels and not self.tunnels:
            add_tunnels(requests)
        if links and (links, tunnels) != (self.links, self.tunnels):
            add_source(requests, tunnels)
        self.links, self.tunnels = links, tunnels

    def _lead_to_proxy(self, requests: Transaction, new_chains: Iterable[str]) -> None:
        """Before the first chain with rules that match HTTP requests, add the chains that lead connections to the
        proxy."""
        new = {name for name in new_chains if name.startswith(HTTP_CHAINS)}
        if new and not self.http:
            redirect.add_chains(requests, self.listeners)
        self.http |= new

    def divert(self, listeners: redirect.Listeners) -> None:
        """Lead connections for the HTTP proxy to `listeners`; if `listeners` is empty, drop these connections. If, in
        addition, no rule matches HTTP requests, delete the chain DIVERT, which only had reopening_rules()."""
        self.listeners = dict(listeners)
        requests = Transaction()
        if self.http:
            redirect.divert(requests, redirect.divert_rules(listeners))
        elif not listeners:
            redirect.del_chains(requests, (redirect.DIVERT,))
        requests.commit(self.sock)

    def remove(self) -> bool:
        """Remove all tables of policies, so that no policy restricts pods. Return whether one of the tables existed.
        Raises ConfigurationError if a running agent owns them."""
        self.adopt()
        there = [delete_table(self.sock, *each) for each in TABLES]
        redirect.del_routes()
        return any(there)


class Transaction(NetlinkRequests):
    """A transaction of nftables."""

    def __init__(self) -> None:
        super().__init__(nft.start(Batch()))

    def commit(self, sock: wire.Socket) -> None:
        """Send the transaction. Raises NetlinkError with the kernel's first error; in this case, the transaction has
        changed nothing."""
        self.add(nft.stop)
        wire.raise_first(self.send(sock))


def set_up(requests: NetlinkRequests, state: State) -> None:
    """Add the sets, chains, rules and elements of `state` to the new, empty tables."""
    for name, one in State().sets.items():
        add_set(requests, name, one)
    for name, types in rules.cut_sets().items():
        requests.add(nft_elements.add_set, FAMILY, TABLE, name, types, set_id=rules.SET_ID,
                     timeout_ms=rules.CUT_MS)
    requests.add(nft.add_base_chain, FAMILY, TABLE, rules.FORWARD_CHAIN, kind="filter", hook=nft.NF_INET_FORWARD,
                 priority=nft.NF_IP_PRI_FILTER)
    for length, name in port_rules.ERROR_SETS.items():
        requests.add(nft_elements.add_set, FAMILY, TABLE, name, (ADDRESS_TYPES[length],), set_id=rules.SET_ID,
                     size=port_rules.ERROR_SOURCES, timeout_ms=port_rules.ERRORS_TIMEOUT_MS)
    for base in port_rules.BASE_CHAINS:
        add_base_chain(requests, base)
    for family, name in (*port_rules.CHAINS, *((FAMILY, name) for name in rules.CHAINS)):
        requests.add(nft.add_chain, family, TABLE, name)
    for family, name, rule in (*port_rules.permanent_rules(), *((FAMILY, *each) for each in rules.permanent_rules())):
        requests.add(nft_rules.add_rule, family, TABLE, name, *rule)
    change = difference(State(), state)
    prepare(requests, change)
    fill(requests, change)
    for name, left in elements_left(state, monotonic()):
        requests.add_parts(nft_elements.add_timed, FAMILY, TABLE, name, left)
    for name, pairs in pairs_told(state):
        requests.add_parts(nft_elements.add_elements, FAMILY, TABLE, name, ((key, None) for key in pairs))


def add_node_chains(requests: NetlinkRequests) -> None:
    """Add the chains that decide on packets from pods to their own node, by the maps NODE_MAPS."""
    for name, hook in rules.NODE_CHAINS.items():
        requests.add(nft.add_base_chain, FAMILY, TABLE, name, kind="filter", hook=hook, priority=nft.NF_IP_PRI_FILTER)
    for name, rule in rules.node_rules():
        requests.add(nft_rules.add_rule, FAMILY, TABLE, name, *rule)


def add_source(requests: NetlinkRequests, tunnels: bool) -> None:
    """Add the chain that checks the source of packets from routed links (ptp), or replace its rules. tunnels: whether
    the node has tunnels."""
    base = port_rules.SOURCE_CHAIN
    add_base_chain(requests, base)
    requests.add(nft_rules.flush_chain, base.family, TABLE, base.name)
    for rule in port_rules.source_rules(tunnels):
        requests.add(nft_rules.add_rule, base.family, TABLE, base.name, *rule)


def has_tunnels(elements: Mapping[str, Collection[bytes]]) -> bool:
    """Return whether `elements`, {set: keys}, has elements of tunnels."""
    return any(elements.get(name) for names in (BRIDGED_PORTS, ROUTED) for name in (names.tunnels, names.protocols))


def add_tunnels(requests: NetlinkRequests) -> None:
    """Add the rules that drop tunnel packets which pods send."""
    for family, chain, rule in port_rules.tunnel_rules():
        requests.add(nft_rules.add_rule, family, TABLE, chain, *rule, first=True)


def add_base_chain(requests: NetlinkRequests, base: port_rules.BaseChain) -> None:
    requests.add(nft.add_base_chain, base.family, TABLE, base.name, kind="filter", hook=base.hook,
                 priority=base.priority)


def prepare(requests: NetlinkRequests, change: Change) -> None:
    """Add the new sets and chains of a Change. No map leads to these chains yet."""
    for name, one in change.sets.items():
        add_set(requests, name, one)
    if change.sets.keys() >= NODE_MAPS:
        add_node_chains(requests)
    for name in change.new_chains:
        requests.add(nft.add_chain, FAMILY, TABLE, name)
    for name in change.new_chains:
        add_rules(requests, name, change.chains[name])


def fill(requests: NetlinkRequests, change: Change) -> None:
    """Make the changes that prepare() does not make: add rules before the map elements that lead to them, and remove
    map elements before the rules that they lead to."""
    for name, chain in change.chains.items():
        if name not in change.new_chains:
            requests.add(nft_rules.flush_chain, FAMILY, TABLE, name)
            add_rules(requests, name, chain)
    for name, keys in change.removed.items():
        if PORT_SETS.get(name) == "box":
            requests.add_parts(nft_elements.add_boxes, family_of(name), TABLE, name, map(halves, keys), delete=True)
        else:
            requests.add_parts(nft_elements.del_elements, family_of(name), TABLE, name, keys)
    for name, elements in change.added.items():         # drop() may have added elements of EARLY sets
        if PORT_SETS.get(name) == "box":
            requests.add_parts(nft_elements.add_boxes, family_of(name), TABLE, name, map(halves, elements))
        else:
            requests.add_parts(nft_elements.add_elements, family_of(name), TABLE, name, elements.items(),
                               exclusive=name not in EARLY)
    gone = (*change.gone_chains, *(rules.NODE_CHAINS if NODE_MAPS & {*change.gone_sets} else ()))
    for name in gone:
        requests.add(nft_rules.flush_chain, FAMILY, TABLE, name)
    for name in gone:
        requests.add(nft.del_chain, FAMILY, TABLE, name)
    for name in change.gone_sets:
        requests.add(nft_elements.del_set, FAMILY, TABLE, name)
        if name.startswith(DOMAIN_SETS):
            requests.add(nft_elements.del_set, FAMILY, TABLE, set_told(name))


def halves(key: bytes) -> tuple[bytes, bytes]:
    """Return the two ends of a range, (first, last). key: both ends, one after the other."""
    middle = len(key) // 2
    return key[:middle], key[middle:]


def family_of(name: str) -> int:
    """Return the family of the table that has the set `name`: BRIDGE_FAMILY or FAMILY."""
    return BRIDGE_FAMILY if name in ON_BRIDGES else FAMILY


@cache
def template(name: str, size: int) -> tuple[bytes, bytes]:
    """Return (bytes before the key, bytes after the key) of a Ruleset.drop() message. size: the key's length in
    bytes."""
    value = nft.NF_DROP if name in VERDICT_MAPS else None
    return nft_elements.element_template(family_of(name), TABLE, name, size, value)


def add_rules(requests: NetlinkRequests, name: str, chain: Chain) -> None:
    for rule, comment in rules.rules_of(chain):
        requests.add(nft_rules.add_rule, FAMILY, TABLE, name, *rule, comment=comment)


def add_set(requests: NetlinkRequests, name: str, wanted: Set) -> None:
    address = ADDRESS_TYPES.get(wanted.length, 0)
    key = {"map": (address,), "link": (address,), "group": (address,), "block": (address,), "self": (address, address),
           "named": (address, TYPE_INET_SERVICE), "ports": (TYPE_INET_SERVICE,), "address": (address,),
           "port": (TYPE_IFNAME,), "own": (TYPE_IFNAME, address), "box": (TYPE_IFNAME, address),
           "mac": (TYPE_IFNAME, TYPE_ETHERADDR), "frame": (TYPE_IFNAME, TYPE_ETHERADDR, address),
           "domain": (address, address), "told": (address, address), "ether": (TYPE_ETHERADDR,),
           "station": (TYPE_ETHERADDR, address), "type": (TYPE_IFNAME, TYPE_ETHERTYPE),
           "sender": (TYPE_IFINDEX, TYPE_ETHERADDR, address), "indexed": (TYPE_IFINDEX, address),
           "service": (TYPE_INET_SERVICE,), "protocol": (TYPE_INET_PROTOCOL,)}[wanted.kind]
    requests.add(nft_elements.add_set, family_of(name), TABLE, name, key, set_id=rules.SET_ID,
                 verdicts=wanted.kind == "map", intervals=bool(wanted.ranges) or wanted.kind == "box",
                 timed=wanted.kind == "domain", size=MAX_FAST if name in FAST else 0)
    requests.add_parts(nft_elements.add_intervals, FAMILY, TABLE, name, wanted.ranges)
    if wanted.kind == "domain":
        add_set(requests, set_told(name), Set("told", wanted.length))


def put_answers(requests: NetlinkRequests, answers: Answers) -> None:
    for name, keys in answers.items():
        requests.add_parts(nft_elements.add_elements, FAMILY, TABLE, name, ((key, None) for key in keys),
                           exclusive=False)


def sees_bridged_traffic() -> bool:
    """Return whether the sysctls of see_bridged_traffic() are set. Raises OSError."""
    return all(sysctl.read(name) == "1" for name in BRIDGED)


def see_bridged_traffic() -> bool:
    """Set sysctls so that packets between two pods on one bridge pass this namespace's hook `forward`, as Kubernetes
    requires. Return False if the kernel module br_netfilter is not loaded. Raises OSError."""
    if not all(map(sysctl.exists, BRIDGED)):
        return False
    for name in BRIDGED:
        sysctl.ensure(name, "1")
    return True
