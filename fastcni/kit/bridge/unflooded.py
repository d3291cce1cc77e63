"""Apply disableFlooding of the bridge plugin: the bridge knows each pod's port and MAC, and floods no frames to that
port.

These commands do the same for a pod with 10.1.0.5:

    bridge link set dev vethX flood off bcast_flood off mcast_flood off
    ip link set vethX type bridge_slave proxy_arp_wifi on                   the bridge answers ARP for the pod
    bridge fdb replace 0a:58:0a:01:00:05 dev vethX master static sticky
    ip neigh replace 10.1.0.5 lladdr 0a:58:0a:01:00:05 dev cni0 nud reachable extern_learn proto 252

The bridge answers ARP requests with the neighbours of its own interface, if their MAC is in its FDB. The bridge cannot
answer IPv6 neighbour solicitations between such ports, because neigh_suppress does not work with proxy_arp_wifi. So
nftables sends a copy of each solicitation to the pod with the requested address, see kit/firewall/solicitations.py. If
the kernel does not support this, the bridge floods multicast to pods with IPv6 addresses.

The kernel deletes the FDB entry with the port. The neighbours stay until DEL. They are externally learned, not
permanent, so that ARP can replace them when another plugin gives the address to a new pod.
"""

from __future__ import annotations

from errno import ENOENT

from fastcni._netlink import Batch
from fastcni.kernel import neighbours, rtnl, uapi, wire
from fastcni.kit.bridge import gateways
from fastcni.kit.call.undo import every
from fastcni.kit.firewall import backends
from fastcni.kit.links import find, veth
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.address import ip_text
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from fastcni.kernel.neighbours import Neighbour
    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.bridge.bridges import Port
    from fastcni.kit.bridge.conf import Conf
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.firewall.contract import Solicitations

PREFIX6 = b"\x0e"               # the first byte of a locally administered MAC


def prepare(req: Request, conf: Conf, link: Port, undo: Undo) -> None:
    """Ask IPAM for the pod's addresses before the pod gets a port, because the pod's MAC follows from an address.
    Raises CniError."""
    refuse_second(link.pod, req.ifname)
    gateways.add_addresses(req, conf, link, undo)
    link.mac = link.mac or veth.mac_of(link.result) or PREFIX6 + digest(results.packed_ips(link.result)[0])


def refuse_second(pod: Pod, ifname: str) -> None:
    """Raise CniError if the pod has a link of that name. A repeated ADD must fail before the call of IPAM, because
    IPAM's rollback would release the addresses of the first ADD."""
    if find.link(pod.inside, ifname):
        raise CniError(errors.INTERNAL, f'container veth name ("{ifname}") already exists')


def digest(packed: bytes) -> bytes:
    """Return a hash of an IPv6 address, 5 bytes: the middle of 64-bit FNV-1a, whose middle bytes mix best."""
    value = 0xCBF29CE484222325
    for byte in packed:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value.to_bytes(8, "big")[1:6]


def port_flags(multicast: bool) -> dict[int, bool]:
    """Return the flags of a pod's port, {IFLA_BRPORT_*: value}. multicast: whether the bridge floods multicast to the
    pod."""
    return {uapi.IFLA_BRPORT_UNICAST_FLOOD: False, uapi.IFLA_BRPORT_BCAST_FLOOD: False,
            uapi.IFLA_BRPORT_MCAST_FLOOD: multicast, uapi.IFLA_BRPORT_PROXYARP_WIFI: True}


def has_ipv6(ips: Iterable[bytes]) -> bool:
    return any(len(packed) == 16 for packed in ips)


def solicitations() -> Solicitations:
    """Import and return the backend for neighbour solicitations, which only pods with IPv6 addresses need."""
    return backends.load("solicitations", "nftables")


def add(req: Request, conf: Conf, link: Port, undo: Undo) -> None:
    """Add the pod's FDB entry and neighbours. They replace entries that an earlier pod with one of these addresses has
    left.

    For an isolated port (portIsolation), nftables would also copy solicitations from other isolated ports. So the
    bridge floods multicast to this port instead, but not from other isolated ports.
    """
    link.wait_until_up()            # while no port is up, the kernel flushes a bridge's neighbours
    bridge, port, mac, ips = link.bridge, link.host, link.inside.address, results.packed_ips(link.result)
    taken = stations(req.mode.route, bridge.index, [mac]).get(mac)
    if taken and taken.index != port.index:
        raise CniError(errors.INTERNAL, f'another port of bridge "{bridge.name}" has the MAC {mac.hex(":")}',
                       "the bridge would send packets for that port to the new pod; ip link shows the port "
                       f"with index {taken.index}")
    undo(delete_left, req, bridge.name, ips)
    multicast = False
    if has_ipv6(ips):
        undo(solicitations().delete, req, bridge.name)
        multicast = conf.isolated or not solicitations().add(req, bridge.name, mac, ips)
    ensure(req.mode.route, bridge.index, port, mac, ips, multicast)


def ensure(sock: Socket, bridge: int, port: Link, mac: bytes, ips: Sequence[bytes], multicast: bool) -> None:
    """Set the port's flags, its FDB entry and the pod's neighbours. bridge: the bridge's index. multicast: see
    port_flags(). Raises NetlinkError."""
    batch = rtnl.set_bridge_port(Batch(), port.name, port_flags(multicast),
                                 what=f'failed to set bridge port flags of "{port.name}"')
    neighbours.new_station(batch, port.index, mac, what=f'failed to add {mac.hex(":")} to the FDB of "{port.name}"')
    for packed in ips:
        neighbours.new_neighbour(batch, bridge, packed, mac, what=f"failed to add the neighbour {ip_text(packed)}")
    wire.exchange(sock, batch)


def put(sock: Socket, bridge: int, found: Sequence[tuple[bytes, bytes]]) -> None:
    """Add neighbours to a bridge. bridge: the bridge's index. found: [(packed address, MAC)]."""
    for batch in wire.in_batches(found, lambda batch, it: neighbours.new_neighbour(
            batch, bridge, *it, what=f"add the neighbour {ip_text(it[0])}")):
        wire.exchange(sock, batch)


def restore(req: Request, conf: Conf, previous: dict[str, Any]) -> None:
    """Restore the flags, entries and nftables elements of prevResult's pod that a flush or another program has removed.
    Raises CniError, NetlinkError."""
    from fastcni.kit.call.conf import read_ethernet

    sock, entries = req.mode.route, previous.get("interfaces", ())
    bridge = find.link(sock, conf.name)
    inside = next((entry for entry in entries if entry.get("sandbox") and entry["name"] == req.ifname), None)
    ports = [find.link(sock, entry["name"]) for entry in entries if not entry.get("sandbox")]
    port = next((port for port in ports if port and bridge and port.master == bridge.index), None)
    if bridge is None or port is None or inside is None:
        raise CniError(errors.INTERNAL, f'the pod has no port on bridge "{conf.name}" any more',
                       "prevResult names the port; was the bridge deleted?")
    mac, ips = read_ethernet(inside["mac"]), results.packed_ips(previous)
    multicast = has_ipv6(ips) and (conf.isolated or not solicitations().restore(req, bridge.name, mac, ips))
    ensure(sock, bridge.index, port, mac, ips, multicast)


def delete(req: Request, conf: Conf, found: Sequence[bytes], given: Sequence[bytes]) -> None:
    """Delete the pod's neighbours and its nftables elements."""
    ips = [*found, *given, *previous_ips(req)]
    steps: list[Any] = [(delete_left, req, conf.name, ips)]
    if has_ipv6(ips) or not ips:
        steps.append((solicitations().delete, req, conf.name))
    every(*steps)


def delete_left(req: Request, bridge_name: str, ips: Sequence[bytes]) -> None:
    """Delete the bridge's neighbours of deleted pods. ips: only neighbours with these addresses; []: all. A later pod
    with one of the addresses keeps its neighbour, because that pod's MAC is in the FDB."""
    bridge = find.host_link(req.mode, bridge_name)
    if bridge:
        delete_neighbours(req.mode.route, bridge.index, left(req.mode.route, bridge.index, ips))


def withdraw(req: Request, bridge_name: str, port_name: str) -> None:
    """Make the bridge flood multicast to a pod with disableFlooding that a firewall isolates from the bridge's other
    pods, and delete the pod's elements for neighbour solicitations. The host sends the copies of solicitations, so the
    firewall could not see which pod has sent a solicitation. Raises NetlinkError."""
    if solicitations().delete(req, bridge_name):
        wire.exchange(req.mode.route, rtnl.set_bridge_port(Batch(), port_name, {uapi.IFLA_BRPORT_MCAST_FLOOD: True},
                                                           what=f'failed to set mcast_flood of "{port_name}"'))


def previous_ips(req: Request) -> list[bytes]:
    """For DEL: return the addresses of prevResult, [] if prevResult cannot be read."""
    try:
        return results.packed_ips(results.read_prev_result(req.conf, req.version) or {})
    except CniError:
        return []                   # without addresses, delete() reads all neighbours


def left(sock: Socket, bridge: int, ips: Sequence[bytes] = ()) -> list[Neighbour]:
    """Return fastcni's neighbours of deleted pods: those whose MAC is not in the bridge's FDB. ips: only neighbours
    with these addresses; (): all."""
    found = [it for it in (named(sock, bridge, ips) if ips else every_one(sock, bridge)) if it.ours]
    known = stations(sock, bridge, {it.mac for it in found if it.mac})
    return [it for it in found if it.mac not in known]


def delete_neighbours(sock: Socket, bridge: int, found: Sequence[Neighbour]) -> None:
    for batch in wire.in_batches(found, lambda batch, it: neighbours.del_neighbour(
            batch, bridge, it.packed, what=f"delete the neighbour {ip_text(it.packed)}")):
        _attempt(sock, batch)


def named(sock: Socket, bridge: int, ips: Sequence[bytes]) -> list[Neighbour]:
    """Return the existing neighbours of a bridge with the addresses `ips`."""
    batch = Batch()
    for packed in dict.fromkeys(ips):
        neighbours.get_neighbour(batch, bridge, packed, what=f"look up the neighbour {ip_text(packed)}")
    return _attempt(sock, batch)


def every_one(sock: Socket, bridge: int = 0) -> list[Neighbour]:
    """Return the neighbours of a bridge, of both families. bridge: its index; 0: return the neighbours of all links."""
    found = [neighbours.Neighbour(payload) for family in find.FAMILIES for _, payload in
             wire.dump(sock, uapi.RTM_GETNEIGH, neighbours.ndmsg(family), "list neighbours",
                       lambda batch: batch.u32(uapi.NDA_IFINDEX, bridge) if bridge else None)]
    return [it for it in found if bridge in (0, it.index)]      # a kernel without strict checking ignores NDA_IFINDEX


def every_station(sock: Socket) -> list[Neighbour]:
    """Return the static FDB entries of all bridges. Raises NetlinkError."""
    found = [neighbours.Neighbour(payload) for _, payload in
             wire.dump(sock, uapi.RTM_GETNEIGH, neighbours.ndmsg(uapi.AF_BRIDGE), "list FDB entries")]
    return [it for it in found if it.static]


def stations(sock: Socket, bridge: int, macs: Iterable[bytes]) -> dict[bytes, Neighbour]:
    """Return {MAC: FDB entry} of the MACs in `macs` with a static entry."""
    asked = wire.in_batches([*macs], lambda batch, mac: neighbours.get_station(
        batch, bridge, mac, what=f"look up {mac.hex(':')} in the FDB"))
    return {it.mac: it for batch in asked for it in _attempt(sock, batch) if it.static}


def _attempt(sock: Socket, batch: Batch) -> list[Neighbour]:
    """Send requests about entries, which may not exist. Return the entries in the answers."""
    replies = wire.exchange(sock, batch, (ENOENT,))
    return [neighbours.Neighbour(payload) for kind, payload in replies if kind == uapi.RTM_NEWNEIGH]


def check(req: Request, conf: Conf, link: Port) -> None:
    """For CHECK: raise CniError if the port's flags, its FDB entry, the neighbours or the nftables elements differ from
    what add() makes."""
    from fastcni.kit.links import checks

    def wrong(text: str) -> CniError:
        return checks.wrong(f"disableFlooding: {text}", "`fastcni restore` restores it")

    bridge, port, inside, sock = link.bridge, link.host, link.inside, req.mode.route
    ips = results.packed_ips(link.result)
    (_, payload), *_ = wire.exchange(sock, rtnl.get_link(Batch(), index=port.index))
    flags = rtnl.read_bridge_port(payload)
    unsolicited = has_ipv6(ips) and solicitations().missing(req, bridge.name, inside.address, ips)
    if unsolicited and not flags.get(uapi.IFLA_BRPORT_MCAST_FLOOD):
        raise wrong(f'nftables sends no neighbour solicitations to port "{port.name}"')
    if any(flags.get(number) != value for number, value in port_flags(unsolicited).items()):
        raise wrong(f'port "{port.name}" has other flags')
    station = stations(sock, bridge.index, [inside.address]).get(inside.address)
    if station is None or station.index != port.index:
        raise wrong(f'the FDB of bridge "{bridge.name}" has no static entry {inside.mac} on port "{port.name}"')
    present = {it.packed: it for it in named(sock, bridge.index, ips) if it.ours}
    for packed in ips:
        if packed not in present:
            raise wrong(f'bridge "{bridge.name}" has no neighbour {ip_text(packed)} of fastcni')
        mac = present[packed].mac
        if mac and mac != inside.address:       # without a MAC, the pod has not answered the kernel's ARP or ND
            raise wrong(f'neighbour {ip_text(packed)} of bridge "{bridge.name}" has the MAC {mac.hex(":")}, the pod '
                        f"{inside.mac}")


def gc_neighbours(req: Request, bridge_name: str) -> None:
    """For GC: delete and report the neighbours of pods that no longer exist."""
    bridge = find.link(req.mode.route, bridge_name)
    if bridge is None:
        return
    found = left(req.mode.route, bridge.index)
    delete_neighbours(req.mode.route, bridge.index, found)
    for it in found:
        req.release(f'neighbour on bridge "{bridge_name}"', ip_text(it.packed))


def gc(req: Request, conf: Conf) -> None:
    """For GC: delete and report the neighbours and elements of pods that no longer exist."""
    every((gc_neighbours, req, conf.name), (solicitations().gc, req))
