"""Make, repair and remove the links that the agent owns.

An existing link with the wanted settings is kept, even if flanneld made it, so that traffic continues. Each link has
the alias "fastcni agent", by which the agent finds the links of a previous backend.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_interface
from typing import TYPE_CHECKING

from fastcni._netlink import Batch, attributes
from fastcni.agent import wireguard_peers
from fastcni.kernel import rtnl, sysctl, uapi, wire
from fastcni.kernel.devices import vxlan
from fastcni.kit.links import find

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from fastcni.agent.contract import Link as Wanted
    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket

    Data = list[tuple[int, bytes]]


ALIAS = "fastcni agent"


class UnderlayGone(Exception):
    """The link that carries the tunnels does not exist."""


def ensure(sock: Socket, wanted: Wanted) -> tuple[int, int]:
    """Create the link `wanted`, or change its settings. Return (the link's index, how many settings were different).
    Raises NetlinkError, OSError and UnderlayGone."""
    data, changes = KINDS[wanted.kind](sock, wanted), 0
    link = find.link(sock, wanted.name)
    if link is not None and not is_the_same(link, wanted, data):
        wire.exchange(sock, rtnl.del_link(Batch(), index=link.index, what=f'replace "{wanted.name}"'))
        link = None
    if link is None:
        wire.exchange(sock, rtnl.new_link(Batch(), wanted.name, wanted.kind, None, mtu=wanted.mtu,
                                          address=packed_mac(wanted.mac), data=data))
        link = find.new_link(sock, wanted.name)
        changes += 1
    if link.alias != ALIAS:
        wire.exchange(sock, rtnl.set_alias(Batch(), link.index, ALIAS))
    for name, value in wanted.sysctls.items():
        sysctl.offer(f"net/{name}", value)
    if link.mtu != wanted.mtu or not link.up:
        wire.exchange(sock, rtnl.set_link(Batch(), link.index, up=True, mtu=wanted.mtu))
        changes += 1
    changes += put_addresses(sock, link.index, wanted.addresses)
    if wanted.kind == "wireguard":
        wireguard_peers.set_key(link.index, wanted.settings["private_key"], wanted.settings["listen_port"])
    return link.index, changes


def is_the_same(link: Link, wanted: Wanted, data: Data) -> bool:
    if link.kind != wanted.kind or (wanted.mac and link.mac != wanted.mac):
        return False
    if link.kind == "vxlan":
        return vxlan.has_vxlan_data(link, data)
    found = attributes(link.data)
    return all(found.get(number) == value for number, value in data)


def put_addresses(sock: Socket, index: int, texts: Iterable[str]) -> int:
    """Give a link the addresses `texts`: add the missing addresses, delete other addresses except link-local. Return
    the number of changes. texts: such as 10.244.3.0/32."""
    want = {(ip_interface(text).packed, ip_interface(text).network.prefixlen) for text in texts}
    there = {(it.packed, it.prefix) for it in find.addresses(sock, index) if not ip_address(it.packed).is_link_local}
    batch = Batch()
    for packed, prefix in there - want:
        rtnl.del_address(batch, index, packed, prefix, what="delete an address of another subnet")
    for packed, prefix in want - there:
        rtnl.new_address(batch, index, packed, prefix, nodad=True, what="add the address of the subnet")
    if batch:
        wire.exchange(sock, batch)
    return len(there ^ want)


def remove_others(sock: Socket, names: Collection[str]) -> list[str]:
    """Remove the agent's links whose name is not in `names`: links of a previous backend. Return the removed names.
    Raises NetlinkError."""
    gone = [link for link in find.all_links(sock) if link.alias == ALIAS and link.name not in names]
    for link in gone:
        wire.exchange(sock, rtnl.del_link(Batch(), index=link.index, what=f'remove "{link.name}"'))
    return [link.name for link in gone]


def remove(sock: Socket, name: str) -> None:
    """Remove the link `name` if it exists. Raises NetlinkError."""
    if (link := find.link(sock, name)) is not None:
        wire.exchange(sock, rtnl.del_link(Batch(), index=link.index))


def packed_mac(text: str) -> bytes | None:
    return bytes.fromhex(text.replace(":", "")) if text else None


def vxlan_data(sock: Socket, wanted: Wanted) -> Data:
    settings = wanted.settings
    if (parent := find.link(sock, settings["dev"])) is None:
        raise UnderlayGone(f'{wanted.name}: there is no link "{settings["dev"]}"')
    return vxlan.vxlan_data(settings["id"], parent.index, settings["local"].packed, settings["dstport"],
                            settings["learning"], settings["gbp"])


def ipip_data(_: Socket, wanted: Wanted) -> Data:
    return [(uapi.IFLA_IPTUN_LOCAL, wanted.settings["local"].packed)]


KINDS: dict[str, Callable[[Socket, Wanted], Data]] = {
    "vxlan": vxlan_data, "ipip": ipip_data, "wireguard": lambda sock, wanted: []}
