"""Write the nftables table that redirects DNS queries of pods to the forwarder. `nft list table inet fastcni-names`
prints

    chain queries {
        type nat hook prerouting priority dstnat - 1; policy accept;
        th dport 53 ip daddr @resolvers4 redirect to ip saddr . ip daddr . meta l4proto map @queries4       (and ip6)
    }
    chain direct {
        type filter hook input priority filter; policy accept;
        ct status & dnat == 0 meta nfproto ipv4 meta l4proto . th dport @forwarders4 drop                   (and ipv6)
    }

If a pod has a policy with domain names, and its policies allow queries to a resolver, the map queries4 has the element
pod . resolver . protocol : port of the forwarder. The redirection works while resolvers4 has the resolver. The elements
of resolvers4 expire after 2 s; the agent renews them while the forwarder works. If the agent dies or hangs, queries go
to the resolver directly.

These rules come before the rules that translate the address of a Service. The chain `direct` drops packets that go to
the forwarder's ports without redirection, from other hosts or from pods that may not query the resolver. The rules
compare family and protocol, because other programs may use the same port numbers in another family or protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.nft_table import delete_table
from fastcni.agent.policy.port_rules import of_family
from fastcni.agent.policy.rules import FAMILY, SET_ID, ends, replace_table
from fastcni.agent.policy.ruleset import NAMES, Transaction
from fastcni.agent.policy.state import VERSIONS
from fastcni.kernel import nft, nft_elements, nft_rules
from fastcni.kernel.nft_elements import ADDRESS_TYPES, TYPE_INET_PROTOCOL, TYPE_INET_SERVICE, concat, protocol, service
from fastcni.kernel.nft_rules import DADDRS, NFT_META_L4PROTO, NFT_REG32_00, SADDRS, TH_DPORT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from fastcni.kernel.nft_rules import Expression
    from fastcni.kernel.wire import Socket

    Query = tuple[bytes, bytes, int]            # pod's address, resolver's address, IPPROTO_*
    Port = tuple[int, int, int]                 # length of the family's addresses, IPPROTO_*, number

DNS_PORT = 53
LIVE_MS = 2000                  # timeout of the elements that the agent renews
QUERIES_CHAIN, DIRECT_CHAIN = "queries", "direct"


class Redirect:
    """The table that redirects DNS queries. sock: the socket of the Ruleset, which owns the table. After an OSError,
    the caller calls write() again."""

    def __init__(self, sock: Socket) -> None:
        self.sock = sock
        self.written: dict[Query, int] | None = None            # None: write() has to make the table

    def write(self, wanted: Mapping[Query, int], flags: int) -> None:
        """Write the queries to redirect, {query: port}. The kernel redirects them after the next renew(). flags: the
        flags of the table. Raises OSError."""
        if wanted == self.written:
            return
        requests, written = Transaction(), self.written or {}
        if self.written is None:
            set_up(requests, flags)
        self.written = None
        gone = [query for query, port in written.items() if wanted.get(query) != port]
        new = [(query, port) for query, port in wanted.items() if written.get(query) != port]
        for length, version in VERSIONS.items():
            requests.add_parts(nft_elements.del_elements, FAMILY, NAMES, f"queries{version}", (
                concat(*query[:2], protocol(query[2])) for query in gone if len(query[0]) == length))
            requests.add_parts(nft_elements.add_elements, FAMILY, NAMES, f"queries{version}", (
                (concat(*query[:2], protocol(query[2])), service(port))
                for query, port in new if len(query[0]) == length))
        requests.commit(self.sock)
        self.written = dict(wanted)

    def renew(self, resolvers: Collection[bytes], ports: Collection[Port]) -> None:
        """Let the redirections work for LIVE_MS from now. ports: the forwarder's ports. Raises OSError."""
        requests = Transaction()
        for length, version in VERSIONS.items():
            for name, keys in ((f"resolvers{version}", [packed for packed in resolvers if len(packed) == length]),
                               (f"forwarders{version}", [concat(protocol(each), service(port))
                                                         for of, each, port in ports if of == length])):
                timed = [(key, LIVE_MS) for key in keys]            # add, delete, add: see elements.change()
                requests.add_parts(nft_elements.add_timed, FAMILY, NAMES, name, timed)
                requests.add_parts(nft_elements.del_elements, FAMILY, NAMES, name, keys)
                requests.add_parts(nft_elements.add_timed, FAMILY, NAMES, name, timed)
        requests.commit(self.sock)

    def remove(self) -> None:
        """Let queries go to the resolver directly. Raises OSError."""
        self.written = None
        delete_table(self.sock, FAMILY, NAMES)


def set_up(requests: Transaction, flags: int) -> None:
    """Add requests that replace the table NAMES, or make the table if it does not exist."""
    replace_table(requests, FAMILY, NAMES, flags)
    for length, version in VERSIONS.items():
        address = ADDRESS_TYPES[length]
        requests.add(nft_elements.add_set, FAMILY, NAMES, f"resolvers{version}", (address,), set_id=SET_ID, timed=True)
        requests.add(nft_elements.add_set, FAMILY, NAMES, f"forwarders{version}",
                     (TYPE_INET_PROTOCOL, TYPE_INET_SERVICE), set_id=SET_ID, timed=True)
        requests.add(nft_elements.add_set, FAMILY, NAMES, f"queries{version}", (address, address, TYPE_INET_PROTOCOL),
                     values=(TYPE_INET_SERVICE,), set_id=SET_ID)
    requests.add(nft.add_base_chain, FAMILY, NAMES, QUERIES_CHAIN, kind="nat", hook=nft.NF_INET_PRE_ROUTING,
                 priority=nft.NF_IP_PRI_NAT_DST - 1)
    requests.add(nft.add_base_chain, FAMILY, NAMES, DIRECT_CHAIN, kind="filter", hook=nft.NF_INET_LOCAL_IN,
                 priority=nft.NF_IP_PRI_FILTER)
    for chain, rule in rules():
        requests.add(nft_rules.add_rule, FAMILY, NAMES, chain, *rule)


def rules() -> Iterator[tuple[str, tuple[Expression, ...]]]:
    """Yield (chain, rule) for each rule of the table."""
    for length, version in VERSIONS.items():
        yield QUERIES_CHAIN, (
            nft_rules.payload(TH_DPORT), nft_rules.compare(service(DNS_PORT)), *nft_rules.daddr(length),
            nft_rules.in_set(f"resolvers{version}", SET_ID), *ends(length, SADDRS[length], DADDRS[length]),
            nft_rules.meta(NFT_META_L4PROTO, NFT_REG32_00 + length // 2),
            nft_rules.value_of(f"queries{version}", SET_ID), nft_rules.redirect())
        yield DIRECT_CHAIN, (
            *nft_rules.destination_not_translated(), *of_family(length), nft_rules.meta(NFT_META_L4PROTO, NFT_REG32_00),
            nft_rules.payload(TH_DPORT, NFT_REG32_00 + 1), nft_rules.in_set(f"forwarders{version}", SET_ID),
            nft_rules.drop())
