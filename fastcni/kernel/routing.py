"""Encode and read routing rules (ip-rule(8)), and encode routes again from messages of the kernel.

Like rtnl, this module only adds requests to a Batch and reads replies; it does not send.
"""

from __future__ import annotations

import sys

from fastcni._netlink import attributes
from fastcni.kernel import rtnl, uapi
from fastcni.kernel.uapi import NLM_F_ACK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni._netlink import Batch

ORDER = sys.byteorder
OF_THE_MOMENT = (uapi.RTA_TABLE, uapi.RTA_CACHEINFO)    # attributes that route_again() leaves out


MARK_PRIORITY = 90              # the kernel uses this rule before the main table's rule and the rules of `ip rule add`

# struct fib_rule_hdr   family dst_len src_len tos | table res1 res2 action | flags:u32

def fib_rule_hdr(family: int, source_prefix: int = 0, table: int = 0, action: int = 0) -> bytes:
    return bytes((family, 0, source_prefix, 0, table if table < 256 else uapi.RT_TABLE_UNSPEC, 0, 0, action,
                  0, 0, 0, 0))


def rule(batch: Batch, source: bytes, table: int, *, delete: bool = False, what: str | None = None) -> Batch:
    """Add `from <source> lookup <table>` after the rule of table local and in front of all other rules; or delete the
    first rule with this text."""
    kind, flags = (uapi.RTM_DELRULE, NLM_F_ACK) if delete else (uapi.RTM_NEWRULE, rtnl.CREATE)
    batch.begin(kind, flags, fib_rule_hdr(rtnl.family_of(source), 8 * len(source), table, uapi.FR_ACT_TO_TBL), what)
    batch.raw(uapi.FRA_SRC, source)
    return batch.u32(uapi.FRA_TABLE, table) if table > 255 else batch


def marked_rule(batch: Batch, source: bytes, table: int, *, mark: int, priority: int, protocol: int,
                delete: bool = False, what: str | None = None) -> Batch:
    """Add `from <source> fwmark <mark>/<mark> lookup <table> priority <priority>`, or delete it. protocol: the rule's
    originator. The kernel answers EEXIST if the rule exists."""
    kind, flags = (uapi.RTM_DELRULE, NLM_F_ACK) if delete else (uapi.RTM_NEWRULE, rtnl.CREATE)
    batch.begin(kind, flags, fib_rule_hdr(rtnl.family_of(source), 8 * len(source), table, uapi.FR_ACT_TO_TBL), what)
    batch.raw(uapi.FRA_SRC, source).u32(uapi.FRA_PRIORITY, priority).u32(uapi.FRA_FWMARK, mark)
    batch.u32(uapi.FRA_FWMASK, mark).u8(uapi.FRA_PROTOCOL, protocol)
    return batch.u32(uapi.FRA_TABLE, table)


def mark_rule(batch: Batch, family: int, bits: int, table: int, *, delete: bool = False) -> Batch:
    """Add `fwmark <bits>/<bits> lookup <table>` at MARK_PRIORITY, or delete it."""
    kind, flags = (uapi.RTM_DELRULE, NLM_F_ACK) if delete else (uapi.RTM_NEWRULE, rtnl.CREATE)
    batch.begin(kind, flags, fib_rule_hdr(family, 0, table, uapi.FR_ACT_TO_TBL), f"routing rule for mark {bits:#x}")
    batch.u32(uapi.FRA_PRIORITY, MARK_PRIORITY).u32(uapi.FRA_FWMARK, bits).u32(uapi.FRA_FWMASK, bits)
    return batch.u32(uapi.FRA_TABLE, table)


def local_default(batch: Batch, family: int, table: int, index: int, *, delete: bool = False) -> Batch:
    """Add the route `local default dev lo table <table>`, or delete it. index: the index of lo."""
    kind, flags = (uapi.RTM_DELROUTE, NLM_F_ACK) if delete else (uapi.RTM_NEWROUTE, rtnl.CREATE)
    batch.begin(kind, flags, rtnl.rtmsg(family, 0, table=uapi.RT_TABLE_UNSPEC, scope=uapi.RT_SCOPE_HOST,
                                        kind=uapi.RTN_LOCAL), f"local route of table {table}")
    return batch.u32(uapi.RTA_TABLE, table).u32(uapi.RTA_OIF, index)


def delete_rule(batch: Batch, payload: bytes, *, what: str | None = None) -> Batch:
    """Delete exactly the rule of an RTM_NEWRULE payload."""
    batch.begin(uapi.RTM_DELRULE, NLM_F_ACK, payload[:12], what)
    return with_attributes(batch, payload)


class Rule:
    """The fields of an RTM_NEWRULE that fastcni uses: source (b"" for any), prefix (the source's prefix length), table
    (0: none), priority, protocol (the originator, 0 for none)."""

    __slots__ = ("source", "prefix", "table", "priority", "protocol")

    def __init__(self, payload: bytes) -> None:
        """Read an RTM_NEWRULE payload. Raises ValueError for a truncated message."""
        if len(payload) < 12:
            raise ValueError(f"fib_rule_hdr of {len(payload)} bytes")
        found = attributes(payload, 12)
        self.source, self.prefix = found.get(uapi.FRA_SRC, b""), payload[2]
        table = rtnl.u32(found[uapi.FRA_TABLE]) if uapi.FRA_TABLE in found else payload[4]
        self.table = table if payload[7] == uapi.FR_ACT_TO_TBL else 0
        self.priority = rtnl.u32(found.get(uapi.FRA_PRIORITY, b""))
        self.protocol = found.get(uapi.FRA_PROTOCOL, b"\0")[0]

    @property
    def host(self) -> bool:
        """Return whether the rule matches a single source address."""
        return bool(self.source) and self.prefix == 8 * len(self.source)


def put_node_route(batch: Batch, dst: bytes, prefix: int, index: int, *, gateway: bytes = b"", onlink: bool = False,
                   protocol: int, what: str | None = None) -> Batch:
    """Add the route to another node's addresses to the main table, or replace the route to the same destination.
    onlink: the gateway is reached through the link, even if no address of the link has the gateway's subnet."""
    head = rtnl.rtmsg(rtnl.family_of(dst), prefix, table=uapi.RT_TABLE_MAIN, protocol=protocol, kind=uapi.RTN_UNICAST,
                      scope=uapi.RT_SCOPE_UNIVERSE if gateway or len(dst) == 16 else uapi.RT_SCOPE_LINK)
    batch.begin(uapi.RTM_NEWROUTE, NLM_F_ACK | uapi.NLM_F_CREATE | uapi.NLM_F_REPLACE,
                head[:8] + (uapi.RTNH_F_ONLINK if onlink else 0).to_bytes(4, ORDER), what).raw(uapi.RTA_DST, dst)
    if gateway:
        batch.raw(uapi.RTA_GATEWAY, gateway)
    return batch.u32(uapi.RTA_OIF, index)


def put_default(batch: Batch, family: int, table: int, index: int, gateway: bytes, *, onlink: bool, protocol: int,
                what: str | None = None) -> Batch:
    """Add the default route of a table, or replace it. onlink: see put_node_route()."""
    head = rtnl.rtmsg(family, 0, table=uapi.RT_TABLE_UNSPEC, protocol=protocol, scope=uapi.RT_SCOPE_UNIVERSE,
                      kind=uapi.RTN_UNICAST)
    batch.begin(uapi.RTM_NEWROUTE, NLM_F_ACK | uapi.NLM_F_CREATE | uapi.NLM_F_REPLACE,
                head[:8] + (uapi.RTNH_F_ONLINK if onlink else 0).to_bytes(4, ORDER), what)
    return batch.raw(uapi.RTA_GATEWAY, gateway).u32(uapi.RTA_TABLE, table).u32(uapi.RTA_OIF, index)


def del_default(batch: Batch, family: int, table: int, *, what: str | None = None) -> Batch:
    """Delete the default route of a table. The kernel answers ESRCH if the table has no default route."""
    head = rtnl.rtmsg(family, 0, table=uapi.RT_TABLE_UNSPEC, scope=uapi.RT_SCOPE_NOWHERE)
    return batch.begin(uapi.RTM_DELROUTE, NLM_F_ACK, head, what).u32(uapi.RTA_TABLE, table)


def del_node_route(batch: Batch, dst: bytes, prefix: int, index: int, *, gateway: bytes = b"",
                   what: str | None = None) -> Batch:
    """Delete exactly this route of the main table; the route may have any protocol."""
    batch.begin(uapi.RTM_DELROUTE, NLM_F_ACK, rtnl.rtmsg(rtnl.family_of(dst), prefix, table=uapi.RT_TABLE_MAIN,
                                                         scope=uapi.RT_SCOPE_NOWHERE), what).raw(uapi.RTA_DST, dst)
    if gateway:
        batch.raw(uapi.RTA_GATEWAY, gateway)
    return batch.u32(uapi.RTA_OIF, index)


def route_again(batch: Batch, payload: bytes, *, table: int | None = None, flags: int = 0, delete: bool = False,
                what: str | None = None) -> Batch:
    """Add the route of an RTM_NEWROUTE payload with NLM_F_CREATE and `flags`, or delete the route. table: None: the
    route's own table."""
    if table is None:
        found = attributes(payload, 12).get(uapi.RTA_TABLE)
        table = rtnl.u32(found) if found else payload[4]
    onlink = rtnl.u32(payload[8:12]) & uapi.RTNH_F_ONLINK
    header = b"%b%c%b%b" % (payload[:4], table if table < 256 else uapi.RT_TABLE_UNSPEC, payload[5:8],
                            onlink.to_bytes(4, ORDER))
    if delete:
        batch.begin(uapi.RTM_DELROUTE, NLM_F_ACK, header, what)
    else:
        batch.begin(uapi.RTM_NEWROUTE, NLM_F_ACK | uapi.NLM_F_CREATE | flags, header, what)
    with_attributes(batch, payload, leave_out=OF_THE_MOMENT)
    return batch.u32(uapi.RTA_TABLE, table) if table > 255 else batch


def with_attributes(batch: Batch, payload: bytes, leave_out: Iterable[int] = ()) -> Batch:
    for number, value in attributes(payload, 12).items():
        if number not in leave_out:
            batch.raw(number, value)
    return batch


def route_key(payload: bytes) -> tuple[bytes, frozenset[tuple[int, bytes]]]:
    """Return a key that is equal for two messages about the same route."""
    found = attributes(payload, 12)
    return payload[:8], frozenset((number, value) for number, value in found.items() if number != uapi.RTA_CACHEINFO)
