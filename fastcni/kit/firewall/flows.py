"""UDP and SCTP flows that conntrack knows by an old way: after a change of the host's ports they are forgotten.

Without this a client that keeps its port goes on to where the pod was. A TCP connection ends by itself.
"""

from errno import EINVAL, ENOENT

from fastcni._netlink import Batch
from fastcni.kernel import conntrack, rtnl, uapi, wire
from fastcni.kit.firewall.port_mappings import PROTOCOLS

WITHOUT_END = ("udp", "sctp")
FAMILIES = {4: uapi.AF_INET, 16: uapi.AF_INET6}        # by length of an address
AT_ONCE = 64                    # requests in one send


def after_add(req, conf):
    """Forget the flows that went to the node itself while the ports were not mapped. What NAT has changed is kept: DNS
    queries of other pods, say."""
    with_warning(req, forget_untranslated, ports_of(conf, conf.pod))


def after_delete(req, conf):
    """Forget the flows that led to the pod; where nobody tells its address, those to its ports of the node."""
    if conf.pod:
        protocols = {mapping.protocol for mapping in conf.mappings} & {*WITHOUT_END} if conf.mappings else WITHOUT_END
        with_warning(req, forget_translated, conf.pod, [PROTOCOLS[protocol] for protocol in protocols])
    else:
        with_warning(req, forget_at_node, ports_of(conf, FAMILIES))


def ports_of(conf, lengths):
    """[(family, protocol, port)] as the kernel has them."""
    return [(FAMILIES[length], PROTOCOLS[mapping.protocol], mapping.host_port) for length in lengths
            for mapping in conf.mappings_for(length) if mapping.protocol in WITHOUT_END]


def with_warning(req, function, *args):
    """What the kernel refuses is a warning: new flows find their way."""
    try:
        function(req, *args)
    except wire.NetlinkError as e:
        req.warn(f"flows to mapped ports may go where they went before: {e}")


def forget_untranslated(req, ports):
    for at in range(0, len(ports), AT_ONCE):
        some, batch = ports[at:at + AT_ONCE], Batch()
        for port in some:
            conntrack.forget_untranslated(batch, *port)
        if not known(req, batch):
            for port in some:
                forget_each(req, port, lambda flow: not flow.nat)


def forget_translated(req, pod, protocols):
    for length, (packed, _) in pod.items():
        for protocol in protocols:
            if length == 16 or not known(req, conntrack.forget_translated(Batch(), protocol, packed)):
                forget_each(req, (FAMILIES[length], protocol), lambda flow: flow.replier == packed)    # noqa: B023


def forget_at_node(req, ports):
    for port in ports:
        forget_each(req, port, lambda flow: is_local(req, flow.destination))


def known(req, batch):
    """Send requests that Linux before 6.8 refuses: then False."""
    _, refused = wire.attempt(req.mode.firewall, batch)
    for e in refused:
        if e.errno != EINVAL:
            raise e
    return not refused


def forget_each(req, what, wanted):
    """Find flows, as conntrack.find() does, and forget those that are wanted(flow)."""
    for flow in conntrack.find(req.mode.firewall, *what):
        if wanted(flow):
            _, refused = wire.attempt(req.mode.firewall, conntrack.delete(Batch(), flow))
            if refused and refused[0].errno != ENOENT:
                raise refused[0]


def is_local(req, packed):
    """Is it an address of the node?"""
    replies, refused = wire.attempt(req.mode.route, rtnl.get_route(Batch(), packed, "look up a flow's destination"))
    return not refused and rtnl.read_way(replies[0][1])[0] == uapi.RTN_LOCAL
