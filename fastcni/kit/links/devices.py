"""What plugins share that give the pod one link and leave nothing on the host: macvlan, ipvlan, vlan, host-device,
dummy, tap."""

from errno import EOPNOTSUPP

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, wire
from fastcni.kit.call import ipam
from fastcni.kit.call.conf import ENDINGS, check_families, keys_of, read_ipv6, read_own_dns
from fastcni.kit.call.undo import every
from fastcni.kit.links import change, configure, find, remove, veth
from fastcni.kit.links.pod import Pod, interface
from fastcni.spec import errors
from fastcni.spec.errors import CniError


class Conf:
    """layer3 (there is IPAM), ipv6 (is it on the link), enable_dad, dns (the result's; None: what IPAM says)."""

    __slots__ = ("layer3", "ipv6", "enable_dad", "dns")

    def __init__(self, req):
        self.layer3 = bool(ipam.read_type(keys_of(req)))
        if req.command in ENDINGS:          # these read nothing else
            return
        self.ipv6, self.enable_dad = read_ipv6(req.conf), req.conf.flag("enabledad")
        self.dns = read_own_dns(req.conf) or {}


def create(req, pod, undo, kind, *, sock=None, master=None, why=None, mtu=0, mac=None, data=()):
    """A link of `kind` in the pod, named CNI_IFNAME, not yet up: its Link. `data` is of kernel.kinds, `master` the Link
    that it is made on, on the side of `sock`, `why` what makes the kernel refuse that: {errno: words}. Raises
    NetlinkError, CniError where there is a master.

    It is made with a random name first: the kernel refuses one that somebody has on the parent's side.
    """
    name = veth.random_name()
    batch = rtnl.new_link(Batch(), name, kind, pod.netns_fd, parent=master.index if master else 0, mtu=mtu,
                          address=mac, data=data, what=f"failed to create {kind}")
    try:
        with undo.request(change.delete_by_name, pod.inside, name):
            wire.exchange(sock or pod.inside, batch)
    except wire.NetlinkError as e:
        if master is None:
            raise
        words = [f'the master is "{master.name}"', *([why[e.errno]] if e.errno in why else [])]
        raise CniError(errors.INTERNAL, str(e), "; ".join(words)) from e
    return rename(req, pod, undo, find.new_link(pod.inside, name), kind)


def rename(req, pod, undo, link, words):
    """Name a new link in the pod CNI_IFNAME. The rollback deletes it, whatever its name is."""
    undo(change.delete_by_index, pod.inside, link.index)
    wire.exchange(pod.inside, rtnl.set_link(Batch(), link.index, name=req.ifname,
                                            what=f'failed to rename {words} to "{req.ifname}"'))
    link.name = req.ifname
    return link


def attach(req, conf, undo, pod, link, *, given=None, arp_notify=False, ndisc_notify=False):
    """The second half of ADD: the addresses of IPAM, if there is any, or of the result that is `given`, and the link
    up. The result."""
    result = addresses(req, conf, undo, given)
    return bring_up(req, conf, pod, link, result, arp_notify=arp_notify, ndisc_notify=ndisc_notify)


def addresses(req, conf, undo, given=None):
    """What IPAM says, where there is any, or the result that is `given`; {} without either."""
    if not conf.layer3 and not given:
        return {}
    result = ipam.add_addresses(req, undo, interface=0) if conf.layer3 else of_interface_0(given)
    check_families(conf.ipv6, result)
    return result


def bring_up(req, conf, pod, link, result, *, arp_notify=False, ndisc_notify=False):
    """The link up, with what addresses() says; the whole result."""
    if result:
        configure.pod_link(pod, link, result, ipv6=conf.ipv6, dad=conf.enable_dad, arp_notify=arp_notify,
                        ndisc_notify=ndisc_notify)
    else:
        configure.pod_link(pod, link, result, ipv6=conf.ipv6)
    return whole(conf, result, interface(link, req.netns))


def whole(conf, result, interface):
    """The result with its one interface and the configuration's dns."""
    result["interfaces"] = [interface]
    if conf.dns is not None:
        result["dns"] = conf.dns
    return result


def of_interface_0(given):
    """Addresses and routes of a result, for its only interface."""
    return {"ips": [{**ip, "interface": 0} for ip in given["ips"]], "routes": given.get("routes", [])}


def delete(req, conf):
    # The link first: an address is free to be given again only when nobody has it any more.
    steps = prepare_ipam_delete(req, conf)
    every((remove.pod_link, req), *steps)


def prepare_ipam_delete(req, conf):
    return ipam.prepare_delete(req) if conf.layer3 else []


def check(req, conf, kind=None):
    """IPAM's part; then the pod's link is of `kind`, if one is named, and has what prevResult says: (Pod, Link)."""
    from fastcni.kit.call import checks

    if conf.layer3:
        ipam.check(req)
    previous = checks.prev_result(req)
    pod = Pod(req)
    link = checks.inside_link(pod, checks.container_interface(req, previous))
    if kind and link.kind != kind:
        raise checks.wrong(f"Error: Container interface {link.name} not of type {kind}")
    if conf.layer3 and not link.up:         # it has lost its routes, and they are not what is wrong
        raise checks.wrong(f"Interface {link.name} is down")
    checks.addresses_and_routes(pod, link, previous)
    return pod, link


def same(words, found, wanted):
    """Raises CniError where CHECK found another value than is configured."""
    from fastcni.kit.call import checks

    if found != wanted:
        raise checks.wrong(f"{words} {'(none)' if found is None else found} does not match expected value: {wanted}")


def gc(req, conf):
    every(*ipam_step(ipam.gc, req, conf))


def status(req, conf, kind):
    need_kind(req, kind)
    every(*ipam_step(ipam.status, req, conf))


def need_kind(req, kind):
    """For STATUS. Raises CniError 50 where this kernel makes no links of that kind."""
    if not has_kind(req.host.route, kind):
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"this kernel has no {kind} links", f"modprobe {kind} finds none")


def has_kind(sock, kind):
    """Does this kernel make links of that kind? A module that has it is loaded."""
    _, (refused,) = wire.attempt(sock, rtnl.ask_for_kind(Batch(), kind))
    return refused.errno != EOPNOTSUPP


def ipam_step(function, req, conf):
    return [(function, req)] if conf.layer3 else []
