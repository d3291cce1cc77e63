"""Make and delete VRFs in the pod. A VRF is a link with a routing table. The links whose master is the VRF use this
table.

The kernel sets a link down and up when the link's master changes. So this module restores the link's addresses, and its
routes in the new table.
"""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import kinds, rtnl, uapi, wire
from fastcni.kit.links import announced, change, find, routing
from fastcni.kit.sysctls import pod_sysctls
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from fastcni.kernel.rtnl import Address, Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.undo import Undo


def failed(text: str, details: str = "") -> CniError:
    """Return the CniError of an ADD, with the reference's text."""
    return CniError(errors.INTERNAL, f"cmdAdd failed: {text}", details)


def add_link(pod: Pod, undo: Undo, link: Link, name: str, table: int) -> None:
    """Make the VRF `name` the master of a link. Create a missing VRF with `table`; table 0: the first free table.

    The caller holds the pod's lock, because two requests may add links of a pod to the same VRF. Raises CniError if the
    link has a master, if a link of another kind has the name, or if the VRF has another table.
    """
    if link.master:
        master = find.link(pod.inside, index=link.master)
        raise failed(f"interface {link.name} has already a master set: {master.name if master else link.master}")
    present = find.addresses(pod.inside, link.index)
    families = routing.families_of(item.packed for item in present)
    vrf = existing(pod, name, table) or create(pod, undo, name, table, families)
    enslave(pod, undo, link, vrf, present, families)


def existing(pod: Pod, name: str, table: int) -> Link | None:
    """Return the VRF of that name, None if no link has the name. Raises CniError for another kind of link or another
    table."""
    vrf = find.link(pod.inside, name)
    if vrf is None:
        return None
    if vrf.kind != "vrf":
        raise failed(f"Netlink {name} is not a VRF", f"it is of kind {vrf.kind or 'device'}")
    found = kinds.vrf_table(vrf)
    if table not in (0, found):
        raise failed(f"VRF {name} already exist with different routing table {found}")
    return vrf


def create(pod: Pod, undo: Undo, name: str, table: int, families: Iterable[int]) -> Link:
    """Make a VRF and set it up. `table` 0: the first table that no VRF, rule or route uses."""
    table = table or routing.free_tables(used_tables(pod.inside, families), first=1)[0]
    what = f"cmdAdd failed: could not add VRF {name}"
    batch = rtnl.new_link(Batch(), name, "vrf", pod.netns_fd, data=kinds.vrf(table), what=what)
    with undo.request(change.delete_by_name, pod.inside, name):
        wire.exchange(pod.inside, batch)
    vrf = find.new_link(pod.inside, name)
    change.link(pod.inside, vrf.index, up=True, what=f"{what}: set it up")
    return vrf


def used_tables(sock: Socket, families: Iterable[int]) -> set[int]:
    """Return the numbers of all tables that VRFs, rules and routes use."""
    return ({kinds.vrf_table(link) for link in find.all_links(sock) if link.kind == "vrf"}
            | routing.used_tables(routing.routes(sock, families), routing.rules(sock, families)))


def enslave(pod: Pod, undo: Undo, link: Link, vrf: Link, present: Iterable[Address], families: Collection[int]) -> None:
    """Make `vrf` the link's master, and move the link's routes into the VRF's table.

    The kernel itself adds the routes to the link's subnets to that table. present: the link's addresses.
    """
    # Do not restore addresses from router advertisements: the next advertisement adds them.
    lasting = [item.packed for item in present if len(item.packed) == 16 and item.scope == uapi.RT_SCOPE_UNIVERSE
               and item.flags & uapi.IFA_F_PERMANENT]
    if lasting:                         # without this sysctl, a link that goes down loses these addresses
        name = f"net/ipv6/conf/{link.name}/keep_addr_on_down"
        pod_sysctls.write(pod, undo, {name: ([name], "1")})
    saved, table = routing.of_link(routing.routes(pod.inside, families), link.index), kinds.vrf_table(vrf)
    undo(routing.restore, pod.inside, link.index, families, saved)
    undo(set_master, pod, link, 0, uapi.RT_TABLE_LOCAL, lasting)
    set_master(pod, link, vrf.index, table, lasting)
    routing.send(pod.inside, [
        routing.again(payload, table=table, flags=uapi.NLM_F_REPLACE,
                      what=f"cmdAdd failed: could not add route to {addresses.cidr_text(route.dst, route.prefix)}")
        for route, payload in routing.gateways_last(saved) if route.protocol != uapi.RTPROT_KERNEL])


def set_master(pod: Pod, link: Link, index: int, table: int, lasting: Sequence[bytes]) -> None:
    """Set the link's master to the link `index`; index 0 removes the master. Then wait until `table` has the local
    routes of the IPv6 addresses `lasting`, which stay on the link."""
    with pod.enter():
        watcher = wire.open_socket(groups=(uapi.RTNLGRP_IPV6_ROUTE,))
    try:
        change.link(pod.inside, link.index, master=index,
                    what=f"cmdAdd failed: could not set the master of {link.name}")
        announced.local(pod.inside, watcher, link, table, lasting)
    finally:
        watcher.close()


def delete_link(pod: Pod, ifname: str, name: str) -> None:
    """Remove a link from the VRF `name`. If the VRF then has no link, delete the VRF.

    name "": the VRF that is the link's master. No error if the link or the VRF no longer exists. A link in another VRF
    stays in that VRF. The caller holds the pod's lock.
    """
    link = find.link(pod.inside, ifname)
    if name:
        vrf = find.link(pod.inside, name)
    else:
        vrf = find.link(pod.inside, index=link.master) if link and link.master else None
    if vrf is None or vrf.kind != "vrf":
        return
    if link and link.master == vrf.index:
        change.link(pod.inside, link.index, master=0, what=f"failed to take {link.name} out of VRF {vrf.name}")
    if not find.port_count(pod.inside, vrf):
        change.delete_by_name(pod.inside, vrf.name)


def check_link(pod: Pod, ifname: str, name: str, table: int) -> None:
    """Raise CniError if the link is not in the VRF `name`, or if that VRF has another table than `table` (0: any)."""
    from fastcni.kit.links.checks import wrong

    vrf, link = find.link(pod.inside, name), find.link(pod.inside, ifname)
    if vrf is None or vrf.kind != "vrf" or link is None or link.master != vrf.index:
        raise wrong(f"failed to find {ifname} associated to vrf {name}")
    found = kinds.vrf_table(vrf)
    if table not in (0, found):
        raise wrong(f"VRF {name} has routing table {found}, not {table}")
