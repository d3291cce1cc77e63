"""UDP and SCTP flows that conntrack knows by an old way: after a change of the host's ports they are forgotten.

Without this a client that keeps its port goes on to where the pod was. A TCP connection ends by itself.
"""

from errno import ENOENT

from fastcni._netlink import Batch
from fastcni.kernel import conntrack, rtnl, uapi, wire
from fastcni.kit.port_mappings import PROTOCOLS


def forget(req, mappings, lengths):
    """Forget the flows to these ports of the node, in these families (lengths of addresses). What the kernel refuses is
    a warning: new flows find their way."""
    try:
        for mapping in mappings:
            if mapping.protocol != "tcp":
                for length in lengths:
                    if length in mapping.lengths:
                        forget_port(req, mapping, uapi.AF_INET if length == 4 else uapi.AF_INET6)
    except wire.NetlinkError as e:
        req.warn(f"flows to mapped ports may go where they went before: {e}")


def forget_port(req, mapping, family):
    found = conntrack.find(req.host.firewall, family, PROTOCOLS[mapping.protocol], mapping.host_port)
    local = {address: address == mapping.host_ip if mapping.host_ip else is_local(req, address)
             for address in {flow.destination for flow in found}}
    # Not what goes through this node to the same port of others, DNS, say.
    for flow in found:
        if local[flow.destination]:
            _, refused = wire.attempt(req.host.firewall, conntrack.delete(Batch(), flow))
            if refused and refused[0].errno != ENOENT:
                raise refused[0]


def is_local(req, packed):
    """Is it an address of the node?"""
    replies, refused = wire.attempt(req.host.route, rtnl.get_route(Batch(), packed, "look up a flow's destination"))
    return not refused and rtnl.read_way(replies[0][1])[0] == uapi.RTN_LOCAL
