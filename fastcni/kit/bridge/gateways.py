"""Complete the gateways in the result of ADD, and add them as addresses to the bridge or to its VLAN interface."""

from __future__ import annotations

from errno import EADDRNOTAVAIL, EEXIST, ENODEV

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.bridge import vlans
from fastcni.kit.call import ipam
from fastcni.kit.call.conf import check_families
from fastcni.kit.links import find
from fastcni.kit.links.configure import broadcast
from fastcni.kit.sysctls import forwarding
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.bridge.bridges import Port
    from fastcni.kit.bridge.conf import Conf
    from fastcni.kit.call.mode import Mode
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

    Network = tuple[bytes, int]         # (packed address, prefix length)

DEFAULT_ROUTES = {4: "0.0.0.0/0", 16: "::/0"}


def add_addresses(req: Request, conf: Conf, port: Port, undo: Undo) -> None:
    """Call IPAM, and set port.result to IPAM's result, with the gateways for isGateway and the default routes for
    isDefaultGateway. Set port.ips. Raises CniError."""
    result = port.result = ipam.add_addresses(req, undo, interface=2)
    check_families(conf.ipv6, result)
    ips = port.ips = results.ips_of(result)
    if conf.is_gateway:
        add_gateways(result, ips)
    if conf.is_default_gateway:
        add_default_routes(result, ips)


def add_gateways(result: dict[str, Any], ips: Sequence[Network]) -> None:
    """Give each address without a gateway the first address of its subnet as gateway."""
    for ip, (packed, prefix) in zip(result["ips"], ips, strict=True):
        if not ip.get("gateway"):
            ip["gateway"] = addresses.ip_text(addresses.plus(addresses.network(packed, prefix), 1))


def add_default_routes(result: dict[str, Any], ips: Sequence[Network]) -> None:
    """Add a default route to the first gateway of each family, unless IPAM gave a default route of that family. If
    IPAM's route has no gw, it goes to the gateway of the family's address."""
    routed = [len(packed) for packed, prefix in
              (addresses.read_cidr(route["dst"]) for route in result.get("routes", ())) if not prefix]
    for ip, (packed, _) in zip(result["ips"], ips, strict=True):
        if len(packed) not in routed:
            routed.append(len(packed))
            result.setdefault("routes", []).append({"dst": DEFAULT_ROUTES[len(packed)], "gw": ip["gateway"]})


def add(req: Request, conf: Conf, link: Port, undo: Undo) -> None:
    """Add the result's gateways as addresses to the bridge, or to its interface in the pod's VLAN, and enable
    forwarding on the host. Raises CniError."""
    mode = req.mode
    if conf.vlans.vlan:
        link.vlan_interface = vlans.ensure_interface(mode, link.bridge, conf.vlans, undo)
    gateways: dict[Network, None] = {}          # several addresses may share a gateway
    for ip, (_, prefix) in zip(link.result["ips"], link.ips, strict=True):
        gateways[addresses.read_ip(ip["gateway"]), prefix] = None
    ensure_addresses(mode, link.bridge, link.vlan_interface, gateways, conf, undo)
    try:
        forwarding.enable(mode, link.ips)
    except CniError as e:
        raise CniError(e.code, f"failed to enable forwarding: {e.msg}", e.details) from e


def ensure_addresses(mode: Mode, bridge: Link, vlan_interface: Link | None, gateways: Collection[Network],
                     conf: Conf, undo: Undo) -> None:
    """Give all addresses of `gateways` to the VLAN interface, or to the bridge if vlan_interface is None. Remove
    conflicting addresses if forceAddress is true.

    An IPv4 address conflicts with every other IPv4 address, an IPv6 address with the addresses of overlapping subnets.
    With the addresses, also set the link's MAC to its present value: otherwise the kernel changes the MAC of a bridge
    that another program made when ports come and go.
    """
    sock, link = mode.route, vlan_interface or bridge
    missing, conflicts = compare(mode, link, gateways)
    if conflicts and not conf.force_address:
        wanted = next(iter(conflicts.values()))
        raise CniError(errors.INTERNAL, f'failed to set bridge addr: "{link.name}" already has an IP address '
                       f"different from {addresses.cidr_text(*wanted)}")
    if not missing:
        return
    batch = Batch()
    for packed, prefix in conflicts:
        rtnl.del_address(batch, link.index, packed, prefix,
                         what=f'delete {addresses.cidr_text(packed, prefix)} from "{link.name}"')
    for packed, prefix in missing:
        rtnl.new_address(batch, link.index, packed, prefix, broadcast=broadcast(packed, prefix),
                         nodad=not conf.enable_dad,
                         what=f"failed to set bridge addr: could not add {addresses.cidr_text(packed, prefix)} to "
                              f'"{link.name}"')
    rtnl.set_link(batch, link.index, address=link.address, what=f'pin the MAC of "{link.name}"')
    undo(restore_addresses, sock, bridge, vlan_interface, missing, conflicts)
    put_neighbours = keep_neighbours(sock, link, conf)
    refused = wire.attempt(sock, batch)[1]
    put_neighbours()
    for e in refused:
        # EEXIST: another ADD has added the same address. EADDRNOTAVAIL: the kernel has removed a secondary address
        # together with its primary address.
        if e.errno not in (EEXIST, EADDRNOTAVAIL):
            raise e


def keep_neighbours(sock: Socket, link: Link, conf: Conf) -> Callable[[], None]:
    """Return a function that adds the neighbour entries of disableFlooding again. Call this function after the link's
    MAC was set: the kernel then deletes the link's neighbours, even if the MAC is the same."""
    if not conf.unflooded:
        return lambda: None
    from fastcni.kit.bridge import unflooded

    found = [(it.packed, it.mac) for it in unflooded.every_one(sock, link.index) if it.ours and it.mac]
    return lambda: unflooded.put(sock, link.index, found)


def compare(mode: Mode, link: Link, gateways: Collection[Network]) -> tuple[list[Network], dict[Network, Network]]:
    """Return ([gateways that the link lacks], {address of the link: the gateway that it conflicts with})."""
    missing: list[Network] = []
    conflicts: dict[Network, Network] = {}
    for family in dict.fromkeys(rtnl.family_of(packed) for packed, _ in gateways):
        found = mode.recall(("addresses", link.index, family),
                            lambda: find.addresses(mode.route, link.index, [family]))   # noqa: B023 - called here
        present = [(item.packed, item.prefix) for item in found]
        new = [each for each in gateways if each not in present and rtnl.family_of(each[0]) == family]
        if not new:
            continue
        missing += new
        for other in present:
            hit = next((each for each in new if family == uapi.AF_INET or overlap(*other, *each)), None)
            if hit and other not in gateways:
                conflicts[other] = hit
    return missing, conflicts


def restore_addresses(sock: Socket, bridge: Link, vlan_interface: Link | None, added: Collection[Network],
                      deleted: Collection[Network]) -> None:
    """Roll back ensure_addresses(), unless other pods on the bridge need the addresses."""
    if find.port_count(sock, bridge) > (2 if vlan_interface else 1):
        return
    batch, link = Batch(), vlan_interface or bridge
    for packed, prefix in added:
        rtnl.del_address(batch, link.index, packed, prefix, what="remove the gateway address again")
    for packed, prefix in deleted:
        rtnl.new_address(batch, link.index, packed, prefix, what="restore the old address")
    wire.exchange(sock, batch, (EADDRNOTAVAIL, EEXIST, ENODEV))         # EADDRNOTAVAIL: ADD has not added the address


def overlap(a: bytes, a_prefix: int, b: bytes, b_prefix: int) -> bool:
    """Return whether two subnets of one family have addresses in common."""
    shorter = min(a_prefix, b_prefix)
    return addresses.network(a, shorter) == addresses.network(b, shorter)
