"""vrf: puts the pod's link into a VRF: a link that has a routing table of its own for those that are in it.

The link goes down and up for it, so what addresses and routes it had is had again, in that table.
"""

from fastcni._netlink import Batch
from fastcni.kernel import kinds, netns, rtnl, uapi, wire
from fastcni.kit.call import chained
from fastcni.kit.call.conf import ENDINGS, keys_of
from fastcni.kit.links import announced, change, find, routing
from fastcni.kit.links.pod import Pod
from fastcni.kit.sysctls import pod_sysctls
from fastcni.spec import address as addresses
from fastcni.spec import config, errors
from fastcni.spec.errors import CniError

VERSIONS = ("0.3.1", "0.4.0", "1.0.0", "1.1.0")
MISSING = "missing prevResult from earlier plugin"


class Conf:
    """name (vrfname; "" for a DEL that has none), table (0: one that is free)."""

    __slots__ = ("name", "table")


def read(req):
    keys, conf = keys_of(req), Conf()
    conf.name = keys.text("vrfname")
    if req.command in ENDINGS:
        return conf
    try:
        config.check_ifname(conf.name)
    except CniError as e:
        raise CniError(errors.INVALID_CONFIG, "configuration is expected to have a valid vrf name",
                       f'vrfname "{conf.name}": {e.msg}') from None
    conf.table = keys.integer("table", low=0, high=0xFFFFFFFF)
    return conf


def add(req, conf, undo):
    result = chained.previous(req, MISSING)
    pod = Pod(req)
    with netns.locked(pod.netns_fd, req.warn):  # two links of a pod may want the same VRF
        link = find.pod_link(pod, req.ifname, f"cmdAdd failed: could not get link by name {req.ifname}")
        if link.master:
            master = find.link(pod.inside, index=link.master)
            raise failed(f"interface {link.name} has already a master set: {master.name if master else link.master}")
        present = find.addresses(pod.inside, link.index)
        families = routing.families_of(item.packed for item in present)
        vrf = existing(pod, conf) or create(pod, undo, conf, families)
        enslave(pod, undo, link, vrf, present, families)
    return result


def failed(words, details=""):
    return CniError(errors.INTERNAL, f"cmdAdd failed: {words}", details)


def existing(pod, conf):
    """The VRF of that name, None where there is none. Raises CniError for another kind of link or another table."""
    vrf = find.link(pod.inside, conf.name)
    if vrf is None:
        return None
    if vrf.kind != "vrf":
        raise failed(f"Netlink {conf.name} is not a VRF", f"it is of kind {vrf.kind or 'device'}")
    table = kinds.vrf_table(vrf)
    if conf.table not in (0, table):
        raise failed(f"VRF {conf.name} already exist with different routing table {table}")
    return vrf


def create(pod, undo, conf, families):
    """A VRF, up. Its table is the one of the configuration, or the first that nobody uses."""
    table = conf.table or routing.free_tables(used_tables(pod.inside, families), first=1)[0]
    words = f"cmdAdd failed: could not add VRF {conf.name}"
    batch = rtnl.new_link(Batch(), conf.name, "vrf", pod.netns_fd, data=kinds.vrf(table), what=words)
    with undo.request(change.delete_by_name, pod.inside, conf.name):
        wire.exchange(pod.inside, batch)
    vrf = find.new_link(pod.inside, conf.name)
    wire.exchange(pod.inside, rtnl.set_link(Batch(), vrf.index, up=True, what=f"{words}: set it up"))
    return vrf


def used_tables(sock, families):
    """Those of VRFs, and those that rules and routes name."""
    found = [rtnl.read_link(payload) for _, payload in wire.dump(sock, uapi.RTM_GETLINK, rtnl.ANY_LINK, "list links")]
    return ({kinds.vrf_table(link) for link in found if link.kind == "vrf"}
            | routing.used_tables(routing.routes(sock, families), routing.rules(sock, families)))


def enslave(pod, undo, link, vrf, present, families):
    """The kernel makes the routes to the link's own subnets in the VRF's table; the others are moved here."""
    lasting = [item.packed for item in present if len(item.packed) == 16 and item.scope == uapi.RT_SCOPE_UNIVERSE
               and item.flags & uapi.IFA_F_PERMANENT]   # others are the router's, which makes them anew
    if lasting:                                         # else the kernel drops them with the link
        name = f"net/ipv6/conf/{link.name}/keep_addr_on_down"
        pod_sysctls.write(pod, undo, {name: ([name], "1")})
    saved, table = routing.of_link(routing.routes(pod.inside, families), link.index), kinds.vrf_table(vrf)
    undo(routing.put_back, pod.inside, link.index, families, saved)
    undo(set_master, pod, link, 0, uapi.RT_TABLE_LOCAL, lasting)
    set_master(pod, link, vrf.index, table, lasting)
    routing.send(pod.inside, [
        routing.again(payload, table=table, flags=uapi.NLM_F_REPLACE,
                      what=f"cmdAdd failed: could not add route to {addresses.cidr_text(route.dst, route.prefix)}")
        for route, payload in routing.gateways_last(saved) if route.protocol != uapi.RTPROT_KERNEL])


def set_master(pod, link, index, table, lasting):
    """Give the link another master, 0 for none, and wait until the IPv6 addresses are in the table where the kernel
    looks for its own."""
    with pod.enter():
        watcher = wire.open_socket(groups=(uapi.RTNLGRP_IPV6_ROUTE,))
    try:
        wire.exchange(pod.inside, rtnl.set_link(Batch(), link.index, master=index,
                                                what=f"cmdAdd failed: could not set the master of {link.name}"))
        announced.local(pod.inside, watcher, link, table, lasting)
    finally:
        watcher.close()


def delete(req, conf):
    """Let the link go, and the VRF when it was the last. Gone is fine, and a link in another VRF stays there."""
    if req.netns_gone():
        return
    pod = Pod(req)
    with netns.locked(pod.netns_fd, req.warn):
        link = find.link(pod.inside, req.ifname)
        if conf.name:
            vrf = find.link(pod.inside, conf.name)
        else:                           # a typo since the ADD: the VRF is the one that the link is in
            vrf = find.link(pod.inside, index=link.master) if link and link.master else None
        if vrf is None or vrf.kind != "vrf":
            return
        if link and link.master == vrf.index:
            wire.exchange(pod.inside, rtnl.set_link(Batch(), link.index, master=0,
                                                    what=f"failed to take {link.name} out of VRF {vrf.name}"))
        if not find.port_count(pod.inside, vrf):
            change.delete_by_name(pod.inside, vrf.name)


def check(req, conf):
    from fastcni.kit.call.checks import wrong

    chained.previous(req, MISSING)
    pod = Pod(req)
    vrf, link = find.link(pod.inside, conf.name), find.link(pod.inside, req.ifname)
    if vrf is None or vrf.kind != "vrf" or link is None or link.master != vrf.index:
        raise wrong(f"failed to find {req.ifname} associated to vrf {conf.name}")
    if conf.table not in (0, kinds.vrf_table(vrf)):
        raise wrong(f"VRF {conf.name} has routing table {kinds.vrf_table(vrf)}, not {conf.table}")


def status(req, _):
    from fastcni.kit.links.devices import need_kind

    need_kind(req, "vrf")
