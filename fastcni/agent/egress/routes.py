"""Policy routes: packets of a pod that the table marks (table.py) go to the node that holds the pod's egress address.

    from 10.244.1.5 fwmark 0x1000/0x1000 lookup 4042322160 priority 900 proto 252
    default via 10.244.2.0 dev flannel.1 onlink proto 252 table 4042322160

Each next hop has a table, whose number is a hash of the next hop. All rules with this priority and protocol are the
agent's own, so those of an agent before this one are found again.
"""

from __future__ import annotations

from contextlib import suppress
from errno import EEXIST, ENOENT, ESRCH
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from fastcni.agent.batches import Requests
from fastcni.agent.egress.table import MARK
from fastcni.kernel import routing, rtnl, sysctl, uapi, wire
from fastcni.kernel.neighbours import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Mapping

PRIORITY = 900                  # before the main table's rule, 32766; behind those of VRFs and of wg-quick's kin
TABLES = 0xF0000000             # the first of 2^28
GONE = (ENOENT, ESRCH)
STRICT, LOOSE = "1", "2"        # values of rp_filter


class NextHop(NamedTuple):
    """A way to another node. gateway: packed."""

    link: str
    gateway: bytes
    onlink: bool


class Routes:
    """Made in a thread that is in the node's namespace; the same thread calls all methods. Raises OSError."""

    def __init__(self) -> None:
        self.sock = wire.open_socket()

    def close(self) -> None:
        """Leave rules and routes: traffic goes on while the agent is restarted."""
        self.sock.close()

    def put(self, ways: Mapping[bytes, NextHop]) -> None:
        """Let pods' addresses have these ways, and no others. What is as it should be is left alone: the kernel has
        said so just now."""
        wanted = {source: table_of(hop) for source, hop in ways.items()}
        requests = Requests()
        for hop in set(ways.values()):
            if index := wire.index_of(hop.link):
                requests.add(routing.put_default, rtnl.family_of(hop.gateway), table_of(hop), index, hop.gateway,
                             onlink=hop.onlink, protocol=PROTOCOL, what=f"route by {hop.link}")
                believe_other_ways(hop.link)
        there = self.read()
        for source, table in wanted.items():
            if (source, table) not in there:
                requests.add(routing.marked_rule, source, table, mark=MARK, priority=PRIORITY, protocol=PROTOCOL,
                             what="add a rule")
        for source, table in there:
            if wanted.get(source) != table:
                requests.add(routing.marked_rule, source, table, mark=MARK, priority=PRIORITY, protocol=PROTOCOL,
                             delete=True, what="delete a rule")
        for family, table in {(rtnl.family_of(source), table) for source, table in there} - {
                (rtnl.family_of(source), table) for source, table in wanted.items()}:
            requests.add(routing.del_default, family, table, what="delete a route")
        for e in requests.send(self.sock):
            if e.errno not in (*GONE, EEXIST):
                raise e

    def read(self) -> set[tuple[bytes, int]]:
        """The agent's rules in the kernel: (source, table)."""
        found = set()
        for family in (uapi.AF_INET, uapi.AF_INET6):
            for _, payload in wire.dump(self.sock, uapi.RTM_GETRULE, routing.fib_rule_hdr(family), "list rules"):
                it = routing.read_rule(payload)
                if it.priority == PRIORITY and it.protocol == PROTOCOL and it.host:
                    found.add((it.source, it.table))
        return found


def table_of(hop: NextHop) -> int:
    """Return the number of a next hop's table."""
    return TABLES | int.from_bytes(blake2b(hop.gateway + hop.link.encode(), digest_size=4).digest(), "big") >> 4


def believe_other_ways(link: str) -> None:
    """Let answers in by a tunnel although the route to their source, which is outside of the cluster, is another one.
    The kernel takes the stricter of "all" and the link unless the link's value is LOOSE, the higher number."""
    for name in ("all", link):
        with suppress(OSError):                 # the link was deleted meanwhile
            if sysctl.read(f"net/ipv4/conf/{name}/rp_filter") == STRICT:
                sysctl.offer(f"net/ipv4/conf/{link}/rp_filter", LOOSE)


def remove() -> None:
    """Remove all rules and routes. Raises OSError."""
    routes = Routes()
    try:
        routes.put({})
    finally:
        routes.close()


