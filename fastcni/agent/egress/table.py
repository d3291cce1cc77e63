"""Write the nftables table of egress addresses. The sets and rules exist for each family, here IPv4:

    table inet fastcni-egress {
        set subjects4 { type ipv4_addr; }                   pods that have an egress address
        set foreign4 { type ipv4_addr; flags interval; }    addresses of other nodes' pods
        set inside4 { type ipv4_addr; flags interval; }     pods' network, nodes, link-local, multicast
        set ways4 { type ipv4_addr . ipv4_addr; }           pod . next hop to the node that holds its egress address
        map to4 { type ipv4_addr : ipv4_addr; }             pod : egress address that this node holds
        set held4 { type ipv4_addr; flags timeout; }        egress addresses, until this node's claim ends
        chain mark {                        hook prerouting, after destination NAT: routes.py uses the mark
            ct direction original ip saddr @subjects4 ip daddr != @inside4 meta mark set meta mark or 0x1000
        }
        chain translate {                   hook postrouting, before all other source NAT
            ip saddr . rt ip nexthop @ways4 ip daddr != @inside4 snat to ip saddr
            ip daddr != @inside4 snat to ip saddr map @to4
        }
        chain check {                       hook postrouting, after all source NAT
            ct direction original ct original ip saddr @subjects4 ip daddr != @inside4 goto leaving
            ct direction original ct original ip saddr @foreign4 ip daddr != @inside4 goto leaving
            ct state invalid,untracked ip saddr @subjects4 ip daddr != @inside4 goto leaving
        }
        chain leaving {
            ip saddr @held4 return
            ip saddr . rt ip nexthop @ways4 return
            drop
        }
    }

The agent's socket owns the table, like the table of policies (policy/ruleset.py).

The kernel applies only the first matching SNAT to a connection, so no masquerading rule changes these connections. The
chain `check` comes after all source NAT, so it sees the source with which a packet leaves. The rules ignore answers on
connections from outside.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.egress import expressions
from fastcni.agent.nft_table import OWNED, NftTable, delete_table
from fastcni.agent.policy.http.expressions import set_mark
from fastcni.agent.policy.ruleset import Transaction
from fastcni.kernel import nft, nft_elements, nft_rules
from fastcni.kernel.nft_elements import ADDRESS_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fastcni.agent.policy.state import Range
    from fastcni.kernel.nft_rules import Expression

    Elements = Mapping[bytes, bytes | None]             # {key: value in a map; None in a set}

FAMILY, TABLE = nft.NFPROTO_INET, "fastcni-egress"
COMMENT = "fastcni agent: egress addresses"
MARK = 0x1000
VERSIONS = {4: "4", 16: "6"}                            # {length of an address: the last character of a set's name}
MARKING, TRANSLATE, CHECK, LEAVING = "mark", "translate", "check", "leaving"
BASE_CHAINS = {MARKING: ("filter", nft.NF_INET_PRE_ROUTING, nft.NF_IP_PRI_NAT_DST + 1),
               TRANSLATE: ("nat", nft.NF_INET_POST_ROUTING, nft.NF_IP_PRI_NAT_SRC - 1),
               CHECK: ("filter", nft.NF_INET_POST_ROUTING, nft.NF_IP_PRI_NAT_SRC + 1)}
SET_ID = 1
SEND_BYTES, ACK_BYTES = 16 << 20, 16 << 20


class Table(NftTable):
    """The nftables table of egress addresses. Any thread may call the methods; each call is one short transaction.
    Raises OSError.

    wanted: whether the table should exist.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._lock = threading.Lock()
        self._plain: dict[str, dict[bytes, bytes | None]] = {}  # {set: its wanted elements}
        self._ranges: dict[str, list[Range]] = {}
        self._written: dict[str, dict[bytes, bytes | None]] | None = None     # the kernel's elements; None: unknown
        self._until: dict[bytes, float] = {}                    # {egress address: end of this node's claim, monotonic}
        super().__init__(FAMILY, TABLE, SEND_BYTES, ACK_BYTES)

    def adopt(self) -> None:
        """Become the owner of the table that a previous agent has left, before the first write. Raises
        ConfigurationError if a running agent owns the table."""
        with self._lock:
            self.take_over([(FAMILY, TABLE)], COMMENT)

    def put(self, name: str, elements: Elements) -> None:
        """Replace the elements of the set or map `name` in both families. A key of `ways` is two addresses."""
        with self._lock:
            self.wanted = True
            for length, version in VERSIONS.items():
                size = 2 * length if name == "ways" else length
                self._plain[name + version] = {key: value for key, value in elements.items() if len(key) == size}
            self._write()

    def put_ranges(self, name: str, ranges: Iterable[Range]) -> None:
        """Replace the elements of the interval set `name` by `ranges`, which neither overlap nor touch."""
        with self._lock:
            found = list(ranges)
            for length, version in VERSIONS.items():
                wanted = [each for each in found if len(each[0]) == length]
                if self._ranges.get(name + version) != wanted:
                    self._ranges[name + version] = wanted
                    if self._written is not None:
                        requests = Transaction()
                        put_ranges(requests, name + version, wanted)
                        self._commit(requests)

    def add_subjects(self, addresses: Iterable[bytes]) -> None:
        """During an ADD: add a pod's `addresses` to the subjects, so that the rules drop the pod's packets to outside
        the cluster until the pod's route is written."""
        with self._lock:
            for packed in addresses:
                self._plain.setdefault(f"subjects{VERSIONS[len(packed)]}", {})[packed] = None
            self.wanted = True
            self._write()

    def hold(self, until: Mapping[bytes, float]) -> None:
        """Let this node use only the egress addresses of `until`, each until its monotonic time."""
        with self._lock:
            gone, self._until = self._until.keys() - until.keys(), dict(until)
            if self._written is None or not (gone or until):
                return                          # _write() puts the elements
            requests = Transaction()
            put_held(requests, self._until, gone)
            self._commit(requests)

    def restore(self) -> None:
        """Write the complete table again."""
        with self._lock:
            self._written, self.flags = None, OWNED
            self._write()

    def remove(self) -> None:
        """Remove the table. Raises NetlinkError with EPERM if a running agent owns the table."""
        with self._lock:
            self.wanted, self._written, self._until, self._plain, self._ranges = False, None, {}, {}, {}
            self.flags = OWNED
            delete_table(self.sock, FAMILY, TABLE)

    # -- the caller has the lock ---------------------------------------------------------------------------------------

    def _write(self) -> None:
        if not self.wanted:
            return
        requests = Transaction()
        if self._written is None:
            self.as_owner(self._add_table)
            set_up(requests, self.flags)
            for name, ranges in self._ranges.items():
                put_ranges(requests, name, ranges)
            put_held(requests, self._until, ())
        had = self._written or {}
        for name, wanted in self._plain.items():
            if name not in had:         # the kernel may have elements of a previous agent
                requests.add(nft_elements.flush_set, FAMILY, TABLE, name)
            put_difference(requests, name, had.get(name, {}), wanted)
        self._commit(requests)
        self._written = {name: dict(elements) for name, elements in self._plain.items()}

    def _add_table(self) -> None:
        """Add the table if it is missing, and make this socket its owner."""
        requests = Transaction()
        requests.add(nft.add_table, FAMILY, TABLE, COMMENT, self.flags)
        requests.commit(self.sock)

    def _commit(self, requests: Transaction) -> None:
        """Send the requests. If the kernel returns an error, another program may have changed the table, so the next
        call writes the complete table."""
        try:
            requests.commit(self.sock)
        except OSError:
            self._written = None
            raise


def set_up(requests: Transaction, flags: int) -> None:
    """Add the table's sets, chains and rules. Elements of existing sets stay. flags: the table's flags."""
    requests.add(nft.add_table, FAMILY, TABLE, COMMENT, flags)
    for length, version in VERSIONS.items():
        kind = ADDRESS_TYPES[length]
        for name, named in (("subjects", {}), ("foreign", {"intervals": True}), ("inside", {"intervals": True}),
                            ("to", {"values": (kind,)}), ("held", {"timed": True})):
            requests.add(nft_elements.add_set, FAMILY, TABLE, name + version, (kind,), set_id=SET_ID, **named)
        requests.add(nft_elements.add_set, FAMILY, TABLE, f"ways{version}", (kind, kind), set_id=SET_ID)
    requests.add(nft.add_chain, FAMILY, TABLE, LEAVING)
    for name, (kind_of_chain, hook, priority) in BASE_CHAINS.items():
        requests.add(nft.add_base_chain, FAMILY, TABLE, name, kind=kind_of_chain, hook=hook, priority=priority)
    for name in (*BASE_CHAINS, LEAVING):
        requests.add(nft_rules.flush_chain, FAMILY, TABLE, name)
    for name, rule in rules():
        requests.add(nft_rules.add_rule, FAMILY, TABLE, name, *rule)


def rules() -> Iterator[tuple[str, tuple[Expression, ...]]]:
    """Yield the rules in the module's docstring as (chain, rule)."""
    for length, version in VERSIONS.items():
        original = expressions.ct_original()
        outside = *nft_rules.daddr(length), lookup(f"inside{version}", inverted=True)
        subject = *nft_rules.saddr(length), lookup(f"subjects{version}")
        way = *expressions.saddr_and_nexthop(length), lookup(f"ways{version}")
        yield MARKING, (*original, *subject, *outside, *set_mark(MARK))
        yield TRANSLATE, (*way, *outside, *nft_rules.saddr(length), expressions.snat(length))
        yield TRANSLATE, (*outside, *nft_rules.saddr(length), nft_rules.value_of(f"to{version}", SET_ID),
                          expressions.snat(length))
        for name in ("subjects", "foreign"):
            yield CHECK, (*original, *expressions.ct_original_saddr(length), lookup(f"{name}{version}"), *outside,
                          nft_rules.go_to(LEAVING))
        yield CHECK, (*expressions.ct_unknown(), *subject, *outside, nft_rules.go_to(LEAVING))
        yield LEAVING, (*nft_rules.saddr(length), lookup(f"held{version}"), nft_rules.leave())
        yield LEAVING, (*way, nft_rules.leave())
    yield LEAVING, (nft_rules.drop(),)


def lookup(name: str, inverted: bool = False) -> Expression:
    return nft_rules.in_set(name, SET_ID, inverted)


def put_ranges(requests: Transaction, name: str, ranges: list[Range]) -> None:
    """Replace the elements of the interval set `name`."""
    requests.add(nft_elements.flush_set, FAMILY, TABLE, name)
    requests.add_parts(nft_elements.add_intervals, FAMILY, TABLE, name, ranges)


def put_held(requests: Transaction, until: Mapping[bytes, float], gone: Iterable[bytes]) -> None:
    """Set the timeouts in the sets held4 and held6: each address of `until` stays until its monotonic time. gone:
    addresses to delete. Each address is added, deleted and added again, because the kernel rejects the deletion of a
    missing element, and adding an existing element does not change its timeout."""
    now = monotonic()
    for length, version in VERSIONS.items():
        name, left = f"held{version}", [(packed, round((end - now) * 1000)) for packed, end in until.items()
                                        if len(packed) == length and end - now > 0.001]
        stale = [packed for packed in (*until, *gone) if len(packed) == length]
        requests.add_parts(nft_elements.add_timed, FAMILY, TABLE, name, ((packed, 1000) for packed in stale))
        requests.add_parts(nft_elements.del_elements, FAMILY, TABLE, name, stale)
        requests.add_parts(nft_elements.add_timed, FAMILY, TABLE, name, left)


def put_difference(requests: Transaction, name: str, had: Elements, wanted: Elements) -> None:
    """Change a set or map from `had` to `wanted`. An element whose value changes is deleted first, because the kernel
    cannot change a value."""
    removed = [key for key, value in had.items() if key not in wanted or wanted[key] != value]
    added = [(key, value) for key, value in wanted.items() if key not in had or had[key] != value]
    requests.add_parts(nft_elements.del_elements, FAMILY, TABLE, name, removed)
    requests.add_parts(nft_elements.add_elements, FAMILY, TABLE, name, added)
