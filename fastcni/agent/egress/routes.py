"""Write policy routes: packets that the table marks (table.py) go to the node that holds the pod's egress address.

    from 10.244.1.5 fwmark 0x1000/0x1000 lookup 4042322160 priority 900 proto 252
    default via 10.244.2.0 dev flannel.1 onlink proto 252 table 4042322160

Each next hop has a routing table, whose number is a hash of the next hop. All rules with this priority and protocol
belong to the agent, so a restarted agent finds the rules of the previous agent.
"""

from __future__ import annotations

from contextlib import closing, suppress
from errno import EEXIST, ENOENT, ESRCH
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from fastcni.agent.batches import NetlinkRequests
from fastcni.agent.egress.table import MARK
from fastcni.kernel import routing, rtnl, sysctl, uapi, wire
from fastcni.kernel.neighbours import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Mapping

PRIORITY = 900                  # precedes the rule of the main table, 32766, and the kernel's rule for VRFs, 1000
TABLES = 0xF0000000             # the first of 2^28 table numbers
GONE = (ENOENT, ESRCH)          # the rule or route to delete does not exist
STRICT, LOOSE = "1", "2"        # values of the sysctl rp_filter


class NextHop(NamedTuple):
    """The next hop on the route to another node. link: the link's name. gateway: packed."""

    link: str
    gateway: bytes
    onlink: bool


class Routes:
    """The agent's policy routes in the kernel. Create the object in a thread that is in the node's namespace; the same
    thread calls all methods. Raises OSError."""

    def __init__(self) -> None:
        self.sock = wire.open_socket()

    def close(self) -> None:
        """Close the socket. Rules and routes stay, so that traffic continues while the agent restarts."""
        self.sock.close()

    def put(self, ways: Mapping[bytes, NextHop]) -> None:
        """Make the agent's rules and routes equal to `ways`, {a pod's address: next hop}. Rules that the kernel already
        has are not written again."""
        wanted = {source: table_of(hop) for source, hop in ways.items()}
        requests = NetlinkRequests()
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
        wire.raise_first(requests.send(self.sock), (*GONE, EEXIST))

    def read(self) -> set[tuple[bytes, int]]:
        """Return the agent's rules in the kernel: (packed source, number of the routing table)."""
        found = set()
        for family in (uapi.AF_INET, uapi.AF_INET6):
            for _, payload in wire.dump(self.sock, uapi.RTM_GETRULE, routing.fib_rule_hdr(family), "list rules"):
                it = routing.Rule(payload)
                if it.priority == PRIORITY and it.protocol == PROTOCOL and it.host:
                    found.add((it.source, it.table))
        return found


def table_of(hop: NextHop) -> int:
    """Return the number of the routing table for a next hop."""
    return TABLES | int.from_bytes(blake2b(hop.gateway + hop.link.encode(), digest_size=4).digest(), "big") >> 4


def believe_other_ways(link: str) -> None:
    """Set rp_filter of `link`, a tunnel, to LOOSE if the link or "all" has STRICT. Answers arrive by the tunnel, but
    the route to their source, which is outside the cluster, uses another link. The kernel uses the higher value of
    "all" and the link."""
    for name in ("all", link):
        with suppress(OSError):                 # the link was deleted
            if sysctl.read(f"net/ipv4/conf/{name}/rp_filter") == STRICT:
                sysctl.offer(f"net/ipv4/conf/{link}/rp_filter", LOOSE)


def remove() -> None:
    """Remove all rules and routes of egress addresses. Raises OSError."""
    with closing(Routes()) as routes:
        routes.put({})
