"""Choose the underlay, the link through which this node reaches the other nodes, as flanneld does.

The first option that is set decides. `iface`: the first of these names or addresses that a link has. `iface_regex`: the
first of these patterns that matches a link's name or address. `iface_can_reach`: the link of the route to this address.
`public_ip`: the link that has this address. Without an option, or if no link has `public_ip`, the link of the default
route is chosen. The node publishes `public_ip`, which may be the address of a router in front of the node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.agent.contract import FAMILIES, ConfigurationError, Underlay
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.links import find

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from ipaddress import IPv4Interface, IPv6Interface

    from fastcni.agent.contract import Address
    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket

    Interface = IPv4Interface | IPv6Interface

# {family: an address outside the cluster, which the node reaches by the default route}
OUTSIDE = {4: b"\x08\x08\x08\x08", 6: bytes.fromhex("20014860486000000000000000008888")}
LOOPBACK = 0x8                          # IFF_LOOPBACK (linux/if.h)


@dataclass(frozen=True, slots=True)
class Options:
    """The operator's options that choose the underlay; the module's docstring describes them. public_ip: {family:
    address}."""

    iface: Sequence[str] = ()
    iface_regex: Sequence[str] = ()
    iface_can_reach: str = ""
    public_ip: Mapping[int, Address] = field(default_factory=dict)


def choose(options: Options, families: Sequence[int]) -> Underlay:
    """Return the underlay, which has an address of each family in `families`. Raises ConfigurationError if no link
    matches, or the link has no address of a family."""
    with wire.open_socket() as sock:
        links = [link for link in find.all_links(sock) if not link.flags & LOOPBACK]
        addresses = {link.index: list(interfaces(sock, link.index)) for link in links}
        chosen = next(candidates(sock, options, families, links, addresses), None)
    if chosen is None:
        raise ConfigurationError("no link reaches the other nodes: there is no default route, and no link matches "
                                 "iface, iface-regex, iface-can-reach or public-ip")
    named = {*options.iface, *map(str, options.public_ip.values())}
    present = sorted(addresses[chosen.index], key=lambda it: str(it.ip) not in named)      # addresses in `named` first
    own = {family: next((it for it in present if it.version == family), None) for family in FAMILIES}
    for family in families:
        if own[family] is None:
            raise ConfigurationError(f'link "{chosen.name}" has no IPv{family} address; iface names another link')
    found = {family: it for family, it in own.items() if it}
    addresses_of = {family: it.ip for family, it in found.items()}
    return Underlay(chosen.name, chosen.mtu, addresses_of, addresses_of | dict(options.public_ip),
                    {family: it.network for family, it in found.items()})


def candidates(sock: Socket, options: Options, families: Sequence[int], links: list[Link],
               addresses: Mapping[int, list[Interface]]) -> Iterator[Link]:
    """Yield the links that match the options, the preferred link first."""
    if options.iface:
        yield from (link for text in options.iface for link in links
                    if link.name == text or text in [str(it.ip) for it in addresses[link.index]])
        return
    if options.iface_regex:
        patterns = [compiled(text) for text in options.iface_regex]
        yield from (link for pattern in patterns for link in links
                    if any(map(pattern.search, [link.name, *(str(it.ip) for it in addresses[link.index])])))
        return
    by_index = {link.index: link for link in links}
    if options.iface_can_reach:
        yield from filter(None, [by_index.get(way(sock, destination(options.iface_can_reach)))])
        return
    public = {*options.public_ip.values()}
    yield from (link for link in links if public & {it.ip for it in addresses[link.index]})
    yield from filter(None, [by_index.get(way(sock, OUTSIDE[family])) for family in families])


def compiled(text: str) -> re.Pattern[str]:
    """Compile a pattern of `iface_regex`. Raises ConfigurationError."""
    try:
        return re.compile(text)
    except re.error as e:
        raise ConfigurationError(f'iface-regex "{text}": {e}') from None


def destination(text: str) -> bytes:
    """Return the address in `iface_can_reach`, packed. Raises ConfigurationError."""
    try:
        return ip_address(text).packed
    except ValueError as e:
        raise ConfigurationError(f"iface-can-reach: {e}") from None


def interfaces(sock: Socket, index: int) -> Iterator[Interface]:
    """Yield the link's addresses with their prefix lengths, without link-local and duplicate (DADFAILED) addresses."""
    for it in find.addresses(sock, index):
        found = ip_interface((it.packed, it.prefix))
        if not found.is_link_local and not it.flags & uapi.IFA_F_DADFAILED:
            yield found


def way(sock: Socket, packed: bytes) -> int:
    """Return the index of the link on the route to the address `packed`; 0 without a route."""
    try:
        replies = wire.exchange(sock, rtnl.get_route(Batch(), packed, "look up the route"))
    except wire.NetlinkError:
        return 0
    kind, index = rtnl.read_way(replies[0][1])
    return index if kind == uapi.RTN_UNICAST else 0
