"""The table of policies in the kernel: a Change is written as one transaction of nftables. rules.py has the rules.

The tables belong to the agent's socket: a flush of all tables by another program leaves these tables, and the kernel
rejects any other change by another program. When the agent ends, the tables stay without an owner until the next agent
takes them over. Linux before 6.9 has no such tables: the agent writes a table again that another program has removed.
"""

from __future__ import annotations

from errno import ENOENT
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.agent.batches import Requests
from fastcni.agent.nft_table import OWNED, UNKNOWN, NftTable
from fastcni.agent.policy import port_rules, rules
from fastcni.agent.policy.http import redirect
from fastcni.agent.policy.names.told import DOMAIN_SETS, elements_left, pairs_told, set_told
from fastcni.agent.policy.ports import BRIDGED as BRIDGED_PORTS
from fastcni.agent.policy.ports import ON_BRIDGES, ROUTED
from fastcni.agent.policy.rules import COMMENT, FAMILY, GUARD, add_guard, parts, replace_table
from fastcni.agent.policy.state import HTTP_CHAINS, NODE_MAPS, PORT_SETS, VERDICT_MAPS, Set, State, difference
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
from fastcni.kernel.wire import NetlinkError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from fastcni.agent.policy.ports import Element
    from fastcni.agent.policy.state import Chain, Change

    Answers = Mapping[str, list[bytes]]     # by set: keys

TABLE = "fastcni-policy"
BRIDGE_FAMILY = nft.NFPROTO_BRIDGE                              # of another table with the same name
NAMES = "fastcni-names"         # see names/redirect.py
FLOWTABLE = "fastcni-flowtable"                                 # see flowtable.py
TABLES = ((FAMILY, GUARD), (FAMILY, NAMES), (FAMILY, FLOWTABLE), (FAMILY, TABLE), (BRIDGE_FAMILY, TABLE))
LOAD_TRANSACTIONS = 3
SEND_BYTES, ACK_BYTES = 64 << 20, 256 << 20             # limits, as the kernel counts: 768 bytes and more for an ACK
BRIDGED = ("net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables",
           "net/bridge/bridge-nf-filter-vlan-tagged")           # also of packets with a VLAN tag, as on a trunk


class Ruleset(NftTable):
    """Writes the table. Made in a thread that is in the node's namespace; any one thread at a time calls. Raises
    OSError.

    flags: of its tables, 0 if the kernel cannot give them to this socket. links: the chain `source` exists. tunnels:
    the rules for packets of the node's tunnels exist. http: names of the chains of rules by HTTP requests. listeners:
    where the HTTP proxy gets connections.
    """

    def __init__(self) -> None:
        self.flags, self.links, self.tunnels = OWNED, False, False
        self.http, self.listeners = set[str](), dict[int, tuple[tuple[bytes, int], ...]]()
        super().__init__(FAMILY, TABLE, SEND_BYTES, ACK_BYTES)

    def adopt(self) -> None:
        """Take over the tables that an agent has left. Raises ConfigurationError if a running one has them."""
        self.take_over(TABLES, COMMENT)

    def load(self, state: State) -> None:
        """Replace the table with its whole content, in LOAD_TRANSACTIONS.

        During the replacement another table drops the first packets from and to restricted pods: a packet that arrives
        while the transaction ends may find no rules in the old table and in the new table.
        """
        try:
            self._guard(state)
        except NetlinkError as e:
            if not self.flags or e.errno not in UNKNOWN:
                raise
            self.flags = 0              # Linux before 6.9
            self._guard(state)
        requests, kept = Transaction(), self.cut_answers()
        for family in (FAMILY, BRIDGE_FAMILY):
            replace_table(requests, family, TABLE, self.flags)
        set_up(requests, state)
        put_answers(requests, kept)
        self.http = {name for name in state.chains if name.startswith(HTTP_CHAINS)}
        if self.http:
            redirect.add_chains(requests, FAMILY, TABLE, self.listeners)
        elif self.listeners:
            redirect.linger(requests, FAMILY, TABLE, self.listeners)
        self.links = bool(state.elements[ROUTED.ports])
        self.tunnels = has_tunnels(state.elements)
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

        A first transaction adds the new chains, a second one the other changes. With a single transaction, a packet
        that arrives while the transaction ends may find a new element in a map that leads to a new chain without rules,
        and would be accepted.
        """
        if change.new_chains:
            requests = Transaction()
            prepare(requests, change)
            self._lead_to_proxy(requests, change.new_chains)
            requests.commit(self.sock)
        if change:
            requests = Transaction()
            if not change.new_chains:
                prepare(requests, change)
            fill(requests, change)
            self._complete(requests, change.added)
            if self.http and self.http <= {*change.gone_chains}:
                redirect.del_chains(requests, FAMILY, TABLE)
                redirect.linger(requests, FAMILY, TABLE, self.listeners)
            self.http.difference_update(change.gone_chains)
            requests.commit(self.sock)

    def drop(self, elements: Sequence[Element]) -> None:
        """Add elements: [(set or map, key)]; those of maps lead to `drop`. Raises NetlinkError if a map has one.

        An ADD waits for this. So the messages come from templates, and the kernel acknowledges only the last one.
        """
        requests, last = Transaction(), len(elements) - 1
        for at, (name, key) in enumerate(elements):
            before, after = template(name, len(key))
            requests.add(nft_elements.add_from_template, before + key + after, exclusive=name in VERDICT_MAPS,
                         acknowledged=at == last)
        if any(name == ROUTED.ports for name, _ in elements):
            self._complete(requests, {ROUTED.ports: {}})
        requests.commit(self.sock)

    def cut_answers(self) -> Answers:
        """Return the answers that are dropped, see cut.py."""
        found = {}
        for name, types in rules.cut_sets().items():
            size = nft_elements.concat_type(types)[1]
            found[name] = [key for key in self._keys(name) if len(key) == size]
        return found

    def held_ports(self) -> Iterator[tuple[bytes, bool, list[bytes]]]:
        """Yield the ports in the tables: (name as a key, whether it is a port of a bridge, its source addresses).

        At a port of a bridge, the MAC, padded to 8 bytes, stands before each source address.
        """
        for names, bridged in ((BRIDGED_PORTS, True), (ROUTED, False)):
            sent: dict[bytes, list[bytes]] = {port: [] for port in self._keys(names.ports)}
            for name in names.by_length(names.own).values():
                for key in self._keys(name):
                    sent.setdefault(key[:uapi.IFNAMSIZ], []).append(key[uapi.IFNAMSIZ:])
            for port, keys in sent.items():
                yield port, bridged, keys

    def _keys(self, name: str) -> list[bytes]:
        """Return the keys of a set; none if no table has it, or one of an earlier version."""
        try:
            each = wire.dump(self.sock, nft.NFT_MSG_GETSETELEM, nft.nfgenmsg(family_of(name)), f"list set {name}",
                             nft_elements.elements_of(TABLE, name))
        except NetlinkError as e:
            if e.errno != ENOENT:
                raise
            return []
        return [key for _, payload in each for key, _ in nft_elements.read_elements(payload)]

    def drop_answers(self, answers: Answers) -> None:
        """Drop these answers from now on, those that are dropped already too."""
        requests = Transaction()
        put_answers(requests, answers)
        requests.commit(self.sock)

    def let_answers(self, answers: Answers) -> None:
        """Drop these answers no longer. An element that has just timed out is added first, or the kernel would refuse
        to delete it."""
        requests = Transaction()
        put_answers(requests, answers)
        for name, keys in answers.items():
            for some in parts(keys):
                requests.add(nft_elements.del_elements, FAMILY, TABLE, name, some)
        requests.commit(self.sock)

    def _complete(self, requests: Transaction, added: Mapping[str, Collection[bytes]]) -> None:
        """Add the rules that only these elements need: packets pay for them."""
        links, tunnels = self.links or ROUTED.ports in added, self.tunnels or has_tunnels(added)
        if tunnels and not self.tunnels:
            add_tunnels(requests)
        if links and (links, tunnels) != (self.links, self.tunnels):
            add_source(requests, tunnels)
        self.links, self.tunnels = links, tunnels

    def _lead_to_proxy(self, requests: Transaction, new_chains: Iterable[str]) -> None:
        """Add the chains that lead to the proxy, before the first chain of rules by HTTP requests."""
        new = {name for name in new_chains if name.startswith(HTTP_CHAINS)}
        if new and not self.http:
            redirect.add_chains(requests, FAMILY, TABLE, self.listeners)
        self.http |= new

    def divert(self, listeners: redirect.Listeners) -> None:
        """From now on, let the HTTP proxy get connections at `listeners`; without any, drop them. If no rule by HTTP
        requests exists and `listeners` is empty, delete the chain that lingers."""
        self.listeners = dict(listeners)
        requests = Transaction()
        if self.http:
            redirect.divert(requests, FAMILY, TABLE, listeners)
        elif not listeners:
            redirect.del_chains(requests, FAMILY, TABLE, (redirect.DIVERT,))
        requests.commit(self.sock)

    def remove(self) -> bool:
        """Remove the table: all pods are open. Return whether the table existed. Raises ConfigurationError if a running
        agent has it."""
        self.adopt()
        there = False
        for family, table in TABLES:
            _, refused = wire.attempt(self.sock, nft.stop(nft.del_table(nft.start(Batch()), family, table)))
            if refused and refused[0].errno != ENOENT:
                raise refused[0]
            there = there or not refused
        redirect.del_routes()
        return there


class Transaction(Requests):
    """A transaction of nftables."""

    def __init__(self) -> None:
        super().__init__(nft.start(Batch()))

    def commit(self, sock: wire.Socket) -> None:
        """Send it. Raises NetlinkError for the first refusal; then nothing has changed."""
        self.add(nft.stop)
        if refused := self.send(sock):
            raise refused[0]


def set_up(requests: Requests, state: State) -> None:
    """Fill a new table."""
    for name, one in State().sets.items():
        add_set(requests, name, one)
    for name, types in rules.cut_sets().items():
        requests.add(nft_elements.add_dynamic_set, FAMILY, TABLE, name, types, set_id=rules.SET_ID, size=0,
                     timeout_ms=rules.CUT_MS)
    for name, priority in rules.BASE_CHAINS.items():
        requests.add(nft.add_base_chain, FAMILY, TABLE, name, kind="filter", hook=nft.NF_INET_FORWARD,
                     priority=priority)
    for length, name in port_rules.ERROR_SETS.items():
        requests.add(nft_elements.add_dynamic_set, FAMILY, TABLE, name, (ADDRESS_TYPES[length],), set_id=rules.SET_ID,
                     size=port_rules.ERROR_SOURCES, timeout_ms=port_rules.ERRORS_TIMEOUT_MS)
    for base in port_rules.BASE_CHAINS:
        add_base_chain(requests, base)
    for family, name in (*port_rules.CHAINS, (FAMILY, rules.MIDSTREAM), (FAMILY, rules.REPORTS)):
        requests.add(nft.add_chain, family, TABLE, name)
    for family, name, rule in (*port_rules.permanent_rules(), *((FAMILY, *each) for each in rules.permanent_rules())):
        requests.add(nft_rules.add_rule, family, TABLE, name, *rule)
    change = difference(State(), state)
    prepare(requests, change)
    fill(requests, change)
    for name, left in elements_left(state, monotonic()):
        for some in parts(left):
            requests.add(nft_elements.add_timed, FAMILY, TABLE, name, some)
    for name, pairs in pairs_told(state):
        for keys in parts(pairs):
            requests.add(nft_elements.add_elements, FAMILY, TABLE, name, [(key, None) for key in keys])
    tunnels = has_tunnels(state.elements)
    if tunnels:
        add_tunnels(requests)
    if state.elements[ROUTED.ports]:
        add_source(requests, tunnels)


def add_node_chains(requests: Requests) -> None:
    """Add the chains that judge packets from pods to their own node, by the maps NODE_MAPS."""
    for name, hook in rules.NODE_CHAINS.items():
        requests.add(nft.add_base_chain, FAMILY, TABLE, name, kind="filter", hook=hook, priority=nft.NF_IP_PRI_FILTER)
    for name, rule in rules.node_rules():
        requests.add(nft_rules.add_rule, FAMILY, TABLE, name, *rule)


def add_source(requests: Requests, tunnels: bool) -> None:
    """Check what links send that are no ports of bridges. tunnels: the node has tunnels."""
    base = port_rules.SOURCE_CHAIN
    add_base_chain(requests, base)
    requests.add(nft_rules.flush_chain, base.family, TABLE, base.name)
    for rule in port_rules.source_rules(tunnels):
        requests.add(nft_rules.add_rule, base.family, TABLE, base.name, *rule)


def has_tunnels(elements: Mapping[str, Collection[bytes]]) -> bool:
    """Return whether some elements, by set, are of tunnels."""
    return any(elements.get(name) for names in (BRIDGED_PORTS, ROUTED) for name in (names.tunnels, names.protocols))


def add_tunnels(requests: Requests) -> None:
    """Drop packets of the node's tunnels from ports."""
    for family, chain, rule in port_rules.tunnel_rules():
        requests.add(nft_rules.add_rule, family, TABLE, chain, *rule, first=True)


def add_base_chain(requests: Requests, base: port_rules.BaseChain) -> None:
    requests.add(nft.add_base_chain, base.family, TABLE, base.name, kind="filter", hook=base.hook,
                 priority=base.priority)


def prepare(requests: Requests, change: Change) -> None:
    """Write new sets and chains, to which nothing leads yet."""
    for name, one in change.sets.items():
        add_set(requests, name, one)
    if change.sets.keys() >= NODE_MAPS:
        add_node_chains(requests)
    for name in change.new_chains:
        requests.add(nft.add_chain, FAMILY, TABLE, name)
    for name in change.new_chains:
        add_rules(requests, name, change.chains[name])


def fill(requests: Requests, change: Change) -> None:
    """Add rules first, then the elements of maps that lead to these rules. Removals have the reverse order."""
    for name, chain in change.chains.items():
        if name not in change.new_chains:
            requests.add(nft_rules.flush_chain, FAMILY, TABLE, name)
            add_rules(requests, name, chain)
    for name, keys in change.removed.items():
        for some in parts(keys):
            if PORT_SETS.get(name) == "box":
                requests.add(nft_elements.add_boxes, family_of(name), TABLE, name, map(halves, some), delete=True)
            else:
                requests.add(nft_elements.del_elements, family_of(name), TABLE, name, some)
    for name, elements in change.added.items():
        for items in parts(elements.items()):
            add_elements(requests, name, items)
    gone = (*change.gone_chains, *(rules.NODE_CHAINS if NODE_MAPS & {*change.gone_sets} else ()))
    for name in gone:
        requests.add(nft_rules.flush_chain, FAMILY, TABLE, name)
    for name in gone:
        requests.add(nft.del_chain, FAMILY, TABLE, name)
    for name in change.gone_sets:
        requests.add(nft_elements.del_set, FAMILY, TABLE, name)
        if name.startswith(DOMAIN_SETS):
            requests.add(nft_elements.del_set, FAMILY, TABLE, set_told(name))


def add_elements(requests: Requests, name: str, items: list[tuple[bytes, str]]) -> None:
    """Add elements to a set or map. Elements of ports may exist already: drop() has added them."""
    if PORT_SETS.get(name) == "box":
        requests.add(nft_elements.add_boxes, family_of(name), TABLE, name, [halves(key) for key, _ in items])
    else:
        requests.add(nft_elements.add_elements, family_of(name), TABLE, name, items, exclusive=name not in PORT_SETS)


def halves(key: bytes) -> tuple[bytes, bytes]:
    """The two ends of a range."""
    middle = len(key) // 2
    return key[:middle], key[middle:]


def family_of(name: str) -> int:
    """The family of the table that has a set."""
    return BRIDGE_FAMILY if name in ON_BRIDGES else FAMILY


@cache
def template(name: str, size: int) -> tuple[bytes, bytes]:
    """Return the bytes before and behind the key, which has `size` bytes, in a message for Ruleset.drop()."""
    value = nft.NF_DROP if name in VERDICT_MAPS else None
    return nft_elements.element_template(family_of(name), TABLE, name, size, value)


def add_rules(requests: Requests, name: str, chain: Chain) -> None:
    for rule, comment in rules.rules_of(chain):
        requests.add(nft_rules.add_rule, FAMILY, TABLE, name, *rule, comment=comment)


def add_set(requests: Requests, name: str, one: Set) -> None:
    address = ADDRESS_TYPES.get(one.length, 0)
    key = {"map": (address,), "link": (address,), "group": (address,), "block": (address,), "self": (address, address),
           "named": (address, TYPE_INET_SERVICE), "ports": (TYPE_INET_SERVICE,), "address": (address,),
           "port": (TYPE_IFNAME,), "own": (TYPE_IFNAME, address), "box": (TYPE_IFNAME, address),
           "mac": (TYPE_IFNAME, TYPE_ETHERADDR), "frame": (TYPE_IFNAME, TYPE_ETHERADDR, address),
           "domain": (address, address), "told": (address, address), "ether": (TYPE_ETHERADDR,),
           "station": (TYPE_ETHERADDR, address), "type": (TYPE_IFNAME, TYPE_ETHERTYPE),
           "sender": (TYPE_IFINDEX, TYPE_ETHERADDR, address), "indexed": (TYPE_IFINDEX, address),
           "service": (TYPE_INET_SERVICE,), "protocol": (TYPE_INET_PROTOCOL,)}[one.kind]
    requests.add(nft_elements.add_set, family_of(name), TABLE, name, key, set_id=rules.SET_ID,
                 verdicts=one.kind == "map", intervals=bool(one.ranges) or one.kind == "box",
                 timed=one.kind == "domain")
    for some in parts(one.ranges):
        requests.add(nft_elements.add_intervals, FAMILY, TABLE, name, some)
    if one.kind == "domain":
        add_set(requests, set_told(name), Set("told", one.length))


def put_answers(requests: Requests, answers: Answers) -> None:
    for name, keys in answers.items():
        for some in parts((key, None) for key in keys):
            requests.add(nft_elements.add_elements, FAMILY, TABLE, name, some, exclusive=False)


def sees_bridged_traffic() -> bool:
    """Whether see_bridged_traffic() was called, and no other program has undone it. Raises OSError."""
    return all(sysctl.read(name) == "1" for name in BRIDGED)


def see_bridged_traffic() -> bool:
    """Let packets between two pods on one bridge pass the hook `forward` of this namespace, as Kubernetes demands of a
    node. Return False if the kernel module br_netfilter is not loaded. Raises OSError."""
    if not all(map(sysctl.exists, BRIDGED)):
        return False
    for name in BRIDGED:
        sysctl.ensure(name, "1")
    return True
