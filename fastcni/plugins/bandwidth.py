"""bandwidth: holds what a pod receives and what it sends to a rate. Ingress is what comes into the pod.

What the host end of the pod's veth sends is shaped there; what it receives takes a way through an ifb, and is shaped
where that sends it.
"""

from fastcni.kit.call import chained
from fastcni.kit.links import find
from fastcni.kit.links.pod import Pod, interface
from fastcni.kit.shaping import ifbs, qdiscs
from fastcni.spec import address as addresses
from fastcni.spec import errors, version
from fastcni.spec.errors import CniError

CAPABILITIES = ("bandwidth",)
VERSIONS = version.ALL[version.ALL.index("0.3.0"):]         # before, results have no interfaces

RATES = ("ingressRate", "ingressBurst", "egressRate", "egressBurst")
MOST_BITS = (1 << 64) - 1
MOST_SUBNETS = 100              # every packet is compared with one after the other
ETHERNET_HEADER = 14            # bytes, which count


class Conf:
    """ingress, egress: a qdiscs.Limit, None for no limit; subnets: those that limits are about, or not about."""

    __slots__ = ("ingress", "egress", "subnets")


def read(req):
    if req.command in ("DEL", "GC"):
        return None                     # what ADD refused is in no pod's way
    keys, conf = req.conf, Conf()
    asked = keys.section("runtimeConfig").section("bandwidth")
    rates = keys if any(keys.has(key) for key in RATES) else asked
    conf.subnets, exempt = read_subnets(rates, keys)
    conf.ingress = read_limit(rates, "ingress", qdiscs.SOURCE, conf.subnets, exempt)
    conf.egress = read_limit(rates, "egress", qdiscs.DESTINATION, conf.subnets, exempt)
    return conf


def read_limit(section, way, far_end, subnets, exempt):
    """The Limit of one direction, None where there is none. The configuration counts bits."""
    rate, burst = (section.integer(f"{way}{word}", low=0, high=MOST_BITS) for word in ("Rate", "Burst"))
    both = f"{section.path(f'{way}Rate')} is {rate}, {section.path(f'{way}Burst')} is {burst}"
    if bool(rate) != bool(burst):
        given, missing = ("rate", "burst") if rate else ("burst", "rate")
        raise invalid(f"if {given} is set, {missing} must also be set")
    if not rate:
        return None
    if burst // 8 >= 0xFFFFFFFF:
        raise invalid("burst cannot be more than 4GB")
    if rate < 8 or burst < 8:
        raise invalid("rate and burst have to be 8 bits at least: the kernel counts bytes", both)
    limit = qdiscs.Limit(rate // 8, burst // 8, far_end, subnets, exempt)
    if not limit.microseconds:
        raise invalid("burst is too small for its rate: the kernel counts what passes in microseconds", both)
    return limit


def read_subnets(*sections):
    """([(packed, prefix)], they are exempt) of the first section that has any."""
    for section in sections:
        exempt, held = section.texts("unshapedSubnets"), section.texts("shapedSubnets")
        if exempt and held:
            raise invalid("unshapedSubnets and shapedSubnets exclude each other",
                          "what is in the one is held to no limit, what is not in the other neither")
        if exempt or held:
            return read_list(section, "unshapedSubnets" if exempt else "shapedSubnets", exempt or held), bool(exempt)
    return [], False


def read_list(section, key, texts):
    if len(texts) > MOST_SUBNETS:
        raise section.wrong(key, f"{len(texts)} subnets; there can be {MOST_SUBNETS}")
    found = []
    for i, text in enumerate(texts):
        try:
            found.append(addresses.read_cidr(text))
        except ValueError as e:
            raise section.wrong(f"{key}[{i}]", str(e)) from None
    return found


def invalid(msg, details=""):
    return CniError(errors.INVALID_CONFIG, msg, details)


def add(req, conf, undo):
    result = chained.previous(req)
    if not conf.ingress and not conf.egress:
        return result
    pod = Pod(req)
    host = host_end(req, pod, result)
    warn_of_small_bursts(req, conf, host)
    if conf.ingress:
        qdiscs.add(pod.host, host, conf.ingress, undo)
    if conf.egress:
        qdiscs.add_ingress(pod.host, host, undo)           # a pod that has been added before keeps its ifb
        ifb = ifbs.add(req, host.mtu, undo)
        qdiscs.add(pod.host, ifb, conf.egress, undo)
        qdiscs.redirect(pod.host, host, ifb)
        result.setdefault("interfaces", []).append(interface(ifb))
    return result


def host_end(req, pod, result):
    """The Link at the other end of CNI_IFNAME; the result has to know it. Raises CniError."""
    if not result.get("interfaces"):
        raise CniError(errors.INTERNAL, "no interfaces provided")
    inside = find.link(pod.inside, req.ifname)
    if inside is None or inside.kind != "veth" or not inside.peer:
        why = f"it is of kind {inside.kind or 'physical'}" if inside else "it is not in the pod"
        raise CniError(errors.INTERNAL, f"container interface {req.ifname} has no veth peer",
                       f"{why}; bandwidth can shape a veth pair, as bridge and ptp make it")
    host = find.link(pod.host, index=inside.peer)
    if host is None or host.peer != inside.index:
        raise CniError(errors.INTERNAL, f"veth peer with index {inside.peer} is not in host ns")
    if not any(item["name"] == host.name and not item.get("sandbox") for item in result["interfaces"]):
        raise CniError(errors.INTERNAL, "no veth peer of container interface found in host ns")
    return host


def warn_of_small_bursts(req, conf, host):
    for way, limit in (("ingress", conf.ingress), ("egress", conf.egress)):
        packet = host.mtu + ETHERNET_HEADER
        if limit and not limit.subnets and limit.burst < packet:
            req.warn(f"bandwidth: {way}Burst is {8 * limit.burst} bit: of {host.name}'s packets of up to {8 * packet} "
                     "bit, longer ones are dropped")


def delete(req, _):
    ifbs.delete(req)                    # the rest goes with the pod's link


def check(req, conf):
    from fastcni.kit.call import checks  # CHECK alone needs these
    from fastcni.kit.shaping import shaping_checks

    previous = chained.previous(req, "must be called as a chained plugin")
    if not conf.ingress and not conf.egress:
        return
    pod = Pod(req)
    host = host_end(req, pod, previous)
    if conf.ingress:
        shaping_checks.check(pod.host, host, conf.ingress)
    if conf.egress:
        ifb, *_ = ifbs.of(req) or [None]
        if ifb is None or not ifb.up:
            raise checks.wrong("get ifb device: it is down" if ifb else "get ifb device: Link not found",
                               " or ".join(ifbs.names_of(req)))
        shaping_checks.check_redirect(pod.host, host, ifb)
        shaping_checks.check(pod.host, ifb, conf.egress)


def gc(req, _):
    ifbs.gc(req)


def status(req, conf):
    """A missing kernel feature is an error if every pod has limits, and a warning if only pods that ask have limits."""
    from fastcni.kit.links import devices

    try:
        devices.need_kind(req, "ifb")
        qdiscs.status(req.host.route, ("ingress", "htb" if conf.subnets else "tbf"))
    except CniError as e:
        if conf.ingress or conf.egress:
            raise
        req.warn(f"bandwidth: {e}")
